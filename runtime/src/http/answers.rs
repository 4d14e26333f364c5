//! The one fold from the engine's events to answers: what a choice shows next, and when it ends.
//!
//! An answer in one object and an answer in chunks are both made of these steps, so they cannot
//! disagree about texts, reasoning, log-probabilities or usage. Choices are numbered as OpenAI does:
//! prompt times `n` plus answer.

use std::sync::Arc;

use pocket_actors::api::{Event, FinishReason, RequestError, Timings};
use pocket_model::reasoning::{ReasoningSplitter, Split};
use pocket_model::sampler::TokenLogprobs;
use pocket_model::tokenizer::Tokenizer;

use super::entries::{Entries, Entry};
use super::error::ApiError;

/// One prompt of a request, as its answers need it.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Its request's name in the engine.
    pub id: String,
    /// Its client's name for it.
    pub label: Option<String>,
    /// What is shown before each answer.
    pub echo: Option<String>,
    /// The prompt's tokens, where their log-probabilities are to be shown.
    pub ids: Vec<u32>,
    /// Tells reasoning from answer.
    pub splitter: Option<ReasoningSplitter>,
}

/// What happens next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A choice begins.
    Open {
        /// Its number.
        index: usize,
    },
    /// A choice goes on.
    Text {
        /// Its number.
        index: usize,
        /// What it shows.
        delta: Delta,
    },
    /// A choice is complete.
    End {
        /// Its number.
        index: usize,
        /// Why it ended.
        reason: FinishReason,
        /// Tokens that showed no text and were not shown yet.
        entries: Vec<Entry>,
    },
    /// All choices are complete; nothing follows.
    Done(Totals),
    /// The answer cannot be completed; nothing follows.
    Failed(ApiError),
}

/// More of a choice; not all of it is empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// What the model thinks.
    pub reasoning: String,
    /// What it says.
    pub content: String,
    /// The tokens that made it, where asked for.
    pub entries: Vec<Entry>,
}

/// What all choices took together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// Counts of several prompts are added, each prompt counted once; times are those of the slowest.
    pub timings: Timings,
    /// Those of each prompt, in order, where there are several.
    pub prompts: Vec<Timings>,
    /// Generated tokens before the first of the answer proper.
    pub reasoning_tokens: u64,
}

/// The answers to one HTTP request, as far as they have come.
#[derive(Clone, Debug)]
pub struct Answers {
    prompts: Vec<Prompt>,
    choices: Vec<Choice>,
    /// Answers to each prompt.
    n: usize,
    totals: Totals,
    /// Prompts whose answers are not complete.
    open_prompts: usize,
}

#[derive(Clone, Debug)]
struct Prompt {
    asked: Asked,
    entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Choice {
    opened: bool,
    /// None while it goes on.
    ended: Option<FinishReason>,
    splitter: Option<ReasoningSplitter>,
    /// Where log-probabilities are asked for.
    entries: Option<Entries>,
    /// Entries that may be shown and wait for their text to get through the splitter.
    ready: Vec<Entry>,
    /// Tokens before the first of the answer proper.
    tokens_before_content: u64,
    has_reasoning: bool,
    has_content: bool,
}

impl Answers {
    /// Nothing yet of `n` answers to each prompt; with a tokenizer, log-probabilities are shown.
    pub fn new(prompts: Vec<Asked>, n: usize, logprobs: Option<Arc<Tokenizer>>) -> Self {
        let choice = |asked: &Asked| Choice {
            opened: false,
            ended: None,
            splitter: asked.splitter.clone(),
            entries: logprobs.as_ref().map(|tokenizer| {
                let offset = asked.echo.as_ref().map_or(0, |echo| echo.chars().count());
                Entries::new(tokenizer.stream(), offset)
            }),
            ready: Vec::new(),
            tokens_before_content: 0,
            has_reasoning: false,
            has_content: false,
        };
        let choices = prompts.iter().flat_map(|asked| (0..n).map(|_| choice(asked))).collect();
        let entries = |asked: &Asked| match &logprobs {
            Some(tokenizer) => unscored(asked, tokenizer),
            None => Vec::new(),
        };
        let prompts: Vec<Prompt> =
            prompts.into_iter().map(|asked| Prompt { entries: entries(&asked), asked }).collect();
        let open_prompts = prompts.len();
        let each = if open_prompts > 1 { open_prompts } else { 0 };
        let totals = Totals { prompts: vec![Timings::default(); each], ..Totals::default() };
        Self { prompts, choices, n, totals, open_prompts }
    }

    /// How many choices there are.
    pub fn len(&self) -> usize {
        self.choices.len()
    }

    /// Takes an event of the request for a prompt.
    pub fn take(&mut self, prompt: usize, event: Event) -> Vec<Step> {
        let mut steps = Vec::new();
        match event {
            Event::Prompt { logprobs } => {
                for (entry, logprobs) in self.prompts[prompt].entries.iter_mut().zip(logprobs) {
                    entry.logprobs = logprobs;
                }
            }
            Event::Token { choice, id, text, logprobs } => {
                let index = self.open(prompt, choice, &mut steps);
                let delta = self.choices[index].token(id, &text, logprobs);
                steps.extend(delta.map(|delta| Step::Text { index, delta }));
            }
            Event::Ended { choice, reason, text } => {
                let index = self.open(prompt, choice, &mut steps);
                let (delta, entries) = self.choices[index].end(reason, &text);
                steps.extend(delta.map(|delta| Step::Text { index, delta }));
                steps.push(match reason {
                    // Half an answer must not look like a whole one: who cancels, or is cut off by a
                    // shutdown, gets an error.
                    FinishReason::Cancelled => Step::Failed(RequestError::Cancelled.into()),
                    _ => Step::End { index, reason, entries },
                });
            }
            Event::Finished { timings, .. } => steps.extend(self.finished(prompt, &timings)),
            Event::Failed(error) => {
                let Asked { id, label, .. } = &self.prompts[prompt].asked;
                tracing::warn!(id, label, %error, "request failed");
                steps.push(Step::Failed(error.into()));
            }
        }
        steps
    }

    /// Begins a choice that has not begun; gives its number.
    fn open(&mut self, prompt: usize, answer: usize, steps: &mut Vec<Step>) -> usize {
        let index = prompt * self.n + answer;
        if !std::mem::replace(&mut self.choices[index].opened, true) {
            steps.push(Step::Open { index });
            let Prompt { asked, entries } = &self.prompts[prompt];
            if let Some(echo) = &asked.echo {
                let content = echo.clone();
                let delta = Delta { content, entries: entries.clone(), ..Delta::default() };
                steps.push(Step::Text { index, delta });
            }
        }
        index
    }

    fn finished(&mut self, prompt: usize, timings: &Timings) -> Option<Step> {
        let asked = &self.prompts[prompt].asked;
        let choices = &self.choices[prompt * self.n..(prompt + 1) * self.n];
        let reasons: Vec<FinishReason> = choices.iter().filter_map(|choice| choice.ended).collect();
        log_finished(asked, &reasons, timings);
        if reasons.len() < self.n {
            return Some(Step::Failed(ApiError::internal(format!(
                "the engine completed {} of {} answers",
                reasons.len(),
                self.n
            ))));
        }
        self.totals.reasoning_tokens += choices.iter().map(Choice::reasoning_tokens).sum::<u64>();
        add(&mut self.totals.timings, timings);
        if let Some(of_prompt) = self.totals.prompts.get_mut(prompt) {
            *of_prompt = *timings;
        }
        self.open_prompts -= 1;
        (self.open_prompts == 0).then(|| Step::Done(self.totals.clone()))
    }
}

impl Choice {
    fn token(&mut self, id: u32, text: &str, logprobs: Option<TokenLogprobs>) -> Option<Delta> {
        if let Some(entries) = &mut self.entries {
            self.ready.extend(entries.take(id, logprobs, text.len()));
        }
        let split = self.split(text);
        if !self.has_content {
            self.tokens_before_content += 1;
        }
        self.delta(split)
    }

    /// The last text, and the entries for which there is none.
    fn end(&mut self, reason: FinishReason, text: &str) -> (Option<Delta>, Vec<Entry>) {
        self.ended = Some(reason);
        let rest = self.entries.as_mut().map(|entries| entries.finish(text.len()));
        self.ready.extend(rest.unwrap_or_default());
        let mut split = self.split(text);
        if let Some(splitter) = self.splitter.take() {
            let rest = splitter.finish();
            self.note(&rest);
            split.reasoning += &rest.reasoning;
            split.content += &rest.content;
        }
        (self.delta(split), std::mem::take(&mut self.ready))
    }

    fn split(&mut self, text: &str) -> Split {
        let split = match &mut self.splitter {
            Some(splitter) => splitter.push(text),
            None => Split { reasoning: String::new(), content: text.to_string() },
        };
        self.note(&split);
        split
    }

    fn note(&mut self, split: &Split) {
        self.has_reasoning |= !split.reasoning.is_empty();
        self.has_content |= !split.content.is_empty();
    }

    fn delta(&mut self, split: Split) -> Option<Delta> {
        let Split { reasoning, content } = split;
        let shows = !reasoning.is_empty() || !content.is_empty();
        shows.then(|| Delta { reasoning, content, entries: std::mem::take(&mut self.ready) })
    }

    /// White space before an answer without reasoning is not reasoning.
    fn reasoning_tokens(&self) -> u64 {
        if self.has_reasoning { self.tokens_before_content } else { 0 }
    }
}

/// The entries of an echoed prompt, whose log-probabilities come with the engine's first event.
fn unscored(asked: &Asked, tokenizer: &Tokenizer) -> Vec<Entry> {
    let Some(echo) = &asked.echo else { return Vec::new() };
    let (mut decoder, mut offset, end) = (tokenizer.stream_with_special(), 0, echo.chars().count());
    let entry = |id: &u32| {
        // Marks the tokenizer adds around a text are not in it, nor what its normaliser changes.
        let entry = Entry { id: *id, offset: offset.min(end), logprobs: None };
        offset += decoder.push(*id).chars().count();
        entry
    };
    asked.ids.iter().map(entry).collect()
}

fn add(sum: &mut Timings, more: &Timings) {
    *sum = Timings {
        queue_ms: sum.queue_ms.max(more.queue_ms),
        prefill_ms: sum.prefill_ms.max(more.prefill_ms),
        decode_ms: sum.decode_ms.max(more.decode_ms),
        prefill_calls: sum.prefill_calls + more.prefill_calls,
        calls_before_first_token: sum.calls_before_first_token.max(more.calls_before_first_token),
        rows_before_first_token: sum.rows_before_first_token.max(more.rows_before_first_token),
        prompt_tokens: sum.prompt_tokens + more.prompt_tokens,
        cached_tokens: sum.cached_tokens + more.cached_tokens,
        completion_tokens: sum.completion_tokens + more.completion_tokens,
        preemptions: sum.preemptions + more.preemptions,
    };
}

fn log_finished(asked: &Asked, reasons: &[FinishReason], timings: &Timings) {
    tracing::info!(
        id = asked.id,
        label = asked.label,
        ?reasons,
        prompt_tokens = timings.prompt_tokens,
        completion_tokens = timings.completion_tokens,
        queue_ms = timings.queue_ms,
        prefill_ms = timings.prefill_ms,
        decode_ms = timings.decode_ms,
        preemptions = timings.preemptions,
        "request finished"
    );
}

#[cfg(test)]
mod tests;
