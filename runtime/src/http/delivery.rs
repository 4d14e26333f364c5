//! From the steps of an answer to what a client reads: one object, or server-sent events.
//!
//! Both are made of the same [steps](super::answers), so the concatenated stream is the whole answer. A
//! stream ends with `[DONE]` exactly when the answer is complete; a failure after the headers were sent
//! is an error event and then the end.

use std::sync::Arc;

use pocket_actors::api::{Event, FinishReason, RequestError};
use pocket_model::tokenizer::Tokenizer;

use super::answers::{Answers, Delta, Step, Totals};
use super::entries::Entry;
use super::error::ApiError;
use super::fields::Endpoint;
use super::logprobs::Logprobs;
use super::reply::{ChunkUsage, Identity, Shown};

/// How log-probabilities are shown, where they are asked for.
#[derive(Clone, Debug)]
pub struct LogprobsForm {
    /// Chat and completions have forms of their own.
    pub endpoint: Endpoint,
    /// Knows the tokens' bytes.
    pub tokenizer: Arc<Tokenizer>,
}

impl LogprobsForm {
    fn of(&self, entries: &[Entry]) -> Logprobs {
        Logprobs::of(self.endpoint, entries, &self.tokenizer)
    }
}

/// An answer as its pieces come in.
#[derive(Debug)]
pub struct Whole {
    identity: Identity,
    answers: Answers,
    form: Option<LogprobsForm>,
    choices: Vec<WholeChoice>,
}

#[derive(Clone, Debug, Default)]
struct WholeChoice {
    shown: Delta,
    reason: Option<FinishReason>,
}

impl Whole {
    /// An answer without text yet.
    pub fn new(identity: Identity, answers: Answers, form: Option<LogprobsForm>) -> Self {
        let choices = vec![WholeChoice::default(); answers.len()];
        Self { identity, answers, form, choices }
    }

    /// Takes an event of the request for a prompt; the last one gives the object or the error.
    pub fn take(&mut self, prompt: usize, event: Event) -> Option<Result<String, ApiError>> {
        for step in self.answers.take(prompt, event) {
            match step {
                Step::Open { .. } => {}
                Step::Text { index, delta } => {
                    let shown = &mut self.choices[index].shown;
                    shown.reasoning.push_str(&delta.reasoning);
                    shown.content.push_str(&delta.content);
                    shown.entries.extend(delta.entries);
                }
                Step::End { index, reason, entries } => {
                    self.choices[index].shown.entries.extend(entries);
                    self.choices[index].reason = Some(reason);
                }
                Step::Done(totals) => return Some(Ok(self.object(&totals))),
                Step::Failed(error) => return Some(Err(error)),
            }
        }
        None
    }

    fn object(&self, totals: &Totals) -> String {
        let logprobs =
            |choice: &WholeChoice| self.form.as_ref().map(|form| form.of(&choice.shown.entries));
        let logprobs: Vec<_> = self.choices.iter().map(logprobs).collect();
        let choices: Vec<_> = self
            .choices
            .iter()
            .zip(&logprobs)
            .map(|(WholeChoice { shown, reason }, logprobs)| {
                let Delta { reasoning, content, .. } = shown;
                let shown = Shown { reasoning, content, logprobs: logprobs.as_ref() };
                // `Step::Done` comes after the end of every choice, which brings its reason.
                (shown, reason.expect("the last step follows the end of every choice"))
            })
            .collect();
        self.identity.whole(&choices, totals)
    }
}

/// An answer as a stream of server-sent events.
#[derive(Debug)]
pub struct Chunks {
    identity: Identity,
    answers: Answers,
    form: Option<LogprobsForm>,
    usage: ChunkUsage,
    /// Choices that have not ended.
    open: usize,
    /// The end of the last choice, which waits for the timings that go with it.
    last: Option<(usize, FinishReason, Option<Logprobs>)>,
    ended: bool,
}

impl Chunks {
    /// A stream nothing was sent on yet.
    pub fn new(
        identity: Identity,
        answers: Answers,
        form: Option<LogprobsForm>,
        include_usage: bool,
    ) -> Self {
        let usage = if include_usage { ChunkUsage::AtTheEnd } else { ChunkUsage::Absent };
        let open = answers.len();
        Self { identity, answers, form, usage, open, last: None, ended: false }
    }

    /// Whether nothing follows.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// The bytes an event of the request for a prompt becomes; none for a token that completed no text.
    /// The opening chunk waits for the first token, so that a client's time to first chunk is its time
    /// to first token.
    pub fn take(&mut self, prompt: usize, event: Event) -> String {
        let mut out = String::new();
        for step in self.answers.take(prompt, event) {
            match step {
                Step::Open { index } => {
                    if let Some(chunk) = self.identity.opening(index, self.usage) {
                        data(&chunk, &mut out);
                    }
                }
                Step::Text { index, delta: Delta { reasoning, content, entries } } => {
                    let logprobs = self.logprobs(&entries);
                    let (reasoning, content) = (reasoning.as_str(), content.as_str());
                    let shown = Shown { reasoning, content, logprobs: logprobs.as_ref() };
                    // `Step::Done` comes after the end of every choice, which brings its reason.
                    data(&self.identity.piece(index, shown, self.usage), &mut out);
                }
                Step::End { index, reason, entries } => {
                    let logprobs = self.logprobs(&entries);
                    self.open -= 1;
                    if self.open == 0 && self.usage == ChunkUsage::Absent {
                        self.last = Some((index, reason, logprobs));
                    } else {
                        let logprobs = logprobs.as_ref();
                        let chunk =
                            self.identity.closing(index, reason, logprobs, self.usage, None);
                        data(&chunk, &mut out);
                    }
                }
                Step::Done(totals) => {
                    data(&self.end(&totals), &mut out);
                    data("[DONE]", &mut out);
                    self.ended = true;
                }
                Step::Failed(error) => {
                    data(&error.to_json().to_string(), &mut out);
                    self.ended = true;
                    return out;
                }
            }
        }
        out
    }

    fn logprobs(&self, entries: &[Entry]) -> Option<Logprobs> {
        self.form.as_ref().filter(|_| !entries.is_empty()).map(|form| form.of(entries))
    }

    /// The chunk before `[DONE]`.
    fn end(&mut self, totals: &Totals) -> String {
        match self.last.take() {
            Some((index, reason, logprobs)) => {
                let logprobs = logprobs.as_ref();
                self.identity.closing(index, reason, logprobs, self.usage, Some(totals))
            }
            None => self.identity.usage(totals),
        }
    }
}

/// Appends one server-sent event. JSON has no raw line breaks, so one `data:` line holds it.
fn data(payload: &str, out: &mut String) {
    out.push_str("data: ");
    out.push_str(payload);
    out.push_str("\n\n");
}

/// What a client hears when the engine drops a request without a last event; it should not happen.
pub fn lost() -> Event {
    Event::Failed(RequestError::RankFailed(
        "the engine stopped before the answer was complete".into(),
    ))
}

#[cfg(test)]
mod tests;
