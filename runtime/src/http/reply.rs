//! The JSON of answers: whole ones, and the chunks of streamed ones.

use std::time::{SystemTime, UNIX_EPOCH};

use pocket_actors::api::{FinishReason, Timings};
use serde::Serialize;
use uuid::Uuid;

use super::answers::Totals;
use super::fields::Endpoint;
use super::logprobs::Logprobs;

/// Names the software that answered; OpenAI's clients expect it in every object.
const FINGERPRINT: &str = concat!("pocketd-", env!("CARGO_PKG_VERSION"));

/// What all objects of one answer have in common.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Name of the answer; also of the request in the engine, its logs and its status.
    pub id: String,
    endpoint: Endpoint,
    model: String,
    created: u64,
    /// Messages have a member for the model's reasoning.
    reasons: bool,
}

/// What a chunk shows, or a whole choice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown<'a> {
    /// What the model thinks.
    pub reasoning: &'a str,
    /// What it says.
    pub content: &'a str,
    /// The log-probabilities of its tokens, where asked for.
    pub logprobs: Option<&'a Logprobs>,
}

impl Identity {
    /// A new answer of `model`, by this name.
    pub fn new(id: String, endpoint: Endpoint, model: &str, reasons: bool) -> Self {
        Self { id, endpoint, model: model.to_string(), created: unix_seconds(), reasons }
    }

    /// The answer in one object: what each choice shows and why it ended, in their order.
    pub fn whole(&self, choices: &[(Shown<'_>, FinishReason)], totals: &Totals) -> String {
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion",
            Endpoint::Completions => "text_completion",
        };
        let choices: Vec<_> = choices
            .iter()
            .enumerate()
            .map(|(index, (shown, reason))| {
                let content = match self.endpoint {
                    Endpoint::Chat => Content::message(*shown, self.reasons),
                    Endpoint::Completions => Content::Text(shown.content),
                };
                Choice::new(index, content).with(*shown, Some(*reason))
            })
            .collect();
        self.object(object, &choices, Some(Some(totals.into())), Some(totals))
    }

    /// The chunk that opens a choice of a chat; completions have none.
    pub fn opening(&self, index: usize, usage: ChunkUsage) -> Option<String> {
        match self.endpoint {
            Endpoint::Chat => {
                let delta =
                    Delta { role: Some("assistant"), content: Some(""), ..Delta::default() };
                Some(self.chunk(Choice::new(index, Content::Delta(delta)), usage, None))
            }
            Endpoint::Completions => None,
        }
    }

    /// A chunk with text.
    pub fn piece(&self, index: usize, shown: Shown<'_>, usage: ChunkUsage) -> String {
        let choice = Choice::new(index, self.content(shown)).with(shown, None);
        self.chunk(choice, usage, None)
    }

    /// The chunk that ends a choice. The last chunk of all has the timings.
    pub fn closing(
        &self,
        index: usize,
        reason: FinishReason,
        logprobs: Option<&Logprobs>,
        usage: ChunkUsage,
        totals: Option<&Totals>,
    ) -> String {
        let shown = Shown { logprobs, ..Shown::default() };
        let choice = Choice::new(index, self.content(shown)).with(shown, Some(reason));
        self.chunk(choice, usage, totals)
    }

    /// The chunk that follows the last choice where usage is asked for.
    pub fn usage(&self, totals: &Totals) -> String {
        let usage = Some(Some(totals.into()));
        self.object(self.chunk_object(), &[], usage, Some(totals))
    }

    fn content<'a>(&self, shown: Shown<'a>) -> Content<'a> {
        let some = |text: &'a str| (!text.is_empty()).then_some(text);
        match self.endpoint {
            Endpoint::Chat => Content::Delta(Delta {
                role: None,
                reasoning_content: some(shown.reasoning),
                content: some(shown.content),
            }),
            Endpoint::Completions => Content::Text(shown.content),
        }
    }

    fn chunk(&self, choice: Choice<'_>, usage: ChunkUsage, totals: Option<&Totals>) -> String {
        let usage = match usage {
            ChunkUsage::Absent => None,
            ChunkUsage::AtTheEnd => Some(None),
        };
        self.object(self.chunk_object(), &[choice], usage, totals)
    }

    fn chunk_object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        }
    }

    fn object(
        &self,
        object: &'static str,
        choices: &[Choice<'_>],
        usage: Option<Option<Usage>>,
        totals: Option<&Totals>,
    ) -> String {
        // Keys are strings and values strings, numbers and lists of them, none of which serde_json refuses.
        serde_json::to_string(&Object {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage,
            timings: totals.map(|Totals { timings, prompts, .. }| Times { timings, prompts }),
        })
        .expect("strings and numbers always serialise")
    }
}

/// A name for an answer that no other has.
pub fn new_id(endpoint: Endpoint) -> String {
    let prefix = match endpoint {
        Endpoint::Chat => "chatcmpl",
        Endpoint::Completions => "cmpl",
    };
    format!("{prefix}-{}", Uuid::new_v4().simple())
}

/// Whether the chunks of a stream speak of usage: with `include_usage` all but the last say `null`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkUsage {
    /// Not at all.
    Absent,
    /// In a chunk of its own, after the last choice.
    AtTheEnd,
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[derive(Serialize)]
struct Object<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: &'a [Choice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Times<'a>>,
}

/// Those of the whole answer, and of each prompt where there are several.
#[derive(Serialize)]
struct Times<'a> {
    #[serde(flatten)]
    timings: &'a Timings,
    #[serde(skip_serializing_if = "<[Timings]>::is_empty")]
    prompts: &'a [Timings],
}

#[derive(Serialize)]
struct Choice<'a> {
    index: usize,
    #[serde(flatten)]
    content: Content<'a>,
    // Null when not asked for; clients read the member without asking whether it is there.
    logprobs: Option<&'a Logprobs>,
    finish_reason: Option<FinishReason>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Content<'a> {
    Text(&'a str),
    Message {
        role: &'static str,
        // Null when there is none; absent when the model does not reason.
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning_content: Option<Option<&'a str>>,
        content: &'a str,
        refusal: Option<()>,
    },
    Delta(Delta<'a>),
}

#[derive(Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

impl<'a> Content<'a> {
    fn message(shown: Shown<'a>, reasons: bool) -> Self {
        let reasoning = (!shown.reasoning.is_empty()).then_some(shown.reasoning);
        Self::Message {
            role: "assistant",
            reasoning_content: reasons.then_some(reasoning),
            content: shown.content,
            refusal: None,
        }
    }
}

impl<'a> Choice<'a> {
    fn new(index: usize, content: Content<'a>) -> Self {
        Self { index, content, logprobs: None, finish_reason: None }
    }

    fn with(self, shown: Shown<'a>, finish_reason: Option<FinishReason>) -> Self {
        Self { logprobs: shown.logprobs, finish_reason, ..self }
    }
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Serialize)]
struct PromptDetails {
    cached_tokens: u64,
}

#[derive(Serialize)]
struct CompletionDetails {
    reasoning_tokens: u64,
}

impl From<&Totals> for Usage {
    fn from(totals: &Totals) -> Self {
        let Totals { timings, reasoning_tokens, .. } = totals;
        Self {
            prompt_tokens: timings.prompt_tokens,
            completion_tokens: timings.completion_tokens,
            total_tokens: timings.prompt_tokens + timings.completion_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens: timings.cached_tokens },
            completion_tokens_details: CompletionDetails { reasoning_tokens: *reasoning_tokens },
        }
    }
}

#[cfg(test)]
mod tests;
