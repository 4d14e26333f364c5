//! The JSON of answers: whole ones, and the chunks of streamed ones.

use std::time::{SystemTime, UNIX_EPOCH};

use pocket_actors::api::{FinishReason, Timings};
use serde::Serialize;
use uuid::Uuid;

use super::fields::Endpoint;

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
}

impl Identity {
    /// A new answer of `model`.
    pub fn new(endpoint: Endpoint, model: &str) -> Self {
        let prefix = match endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Completions => "cmpl",
        };
        Self {
            id: format!("{prefix}-{}", Uuid::new_v4().simple()),
            endpoint,
            model: model.to_string(),
            created: unix_seconds(),
        }
    }

    /// The answer in one object.
    pub fn whole(&self, text: &str, reason: FinishReason, timings: &Timings) -> String {
        let (object, choice) = match self.endpoint {
            Endpoint::Chat => ("chat.completion", Choice::message(text, reason)),
            Endpoint::Completions => ("text_completion", Choice::text(text, Some(reason))),
        };
        self.object(object, &[choice], Some(Some(timings.into())), Some(timings))
    }

    /// The chunk that opens a chat answer; completions have none.
    pub fn opening(&self, usage: ChunkUsage) -> Option<String> {
        match self.endpoint {
            Endpoint::Chat => {
                Some(self.chunk(Choice::delta(Some("assistant"), Some(""), None), usage))
            }
            Endpoint::Completions => None,
        }
    }

    /// A chunk with text.
    pub fn piece(&self, text: &str, usage: ChunkUsage) -> String {
        self.chunk(
            match self.endpoint {
                Endpoint::Chat => Choice::delta(None, Some(text), None),
                Endpoint::Completions => Choice::text(text, None),
            },
            usage,
        )
    }

    /// The last chunks: why it ended, then its usage when asked for. The timings are on the last.
    pub fn closing(
        &self,
        reason: FinishReason,
        timings: &Timings,
        usage: ChunkUsage,
    ) -> Vec<String> {
        let object = self.chunk_object();
        let choice = match self.endpoint {
            Endpoint::Chat => Choice::delta(None, None, Some(reason)),
            Endpoint::Completions => Choice::text("", Some(reason)),
        };
        match usage {
            ChunkUsage::Absent => vec![self.object(object, &[choice], None, Some(timings))],
            ChunkUsage::AtTheEnd => vec![
                self.object(object, &[choice], Some(None), None),
                self.object(object, &[], Some(Some(timings.into())), Some(timings)),
            ],
        }
    }

    fn chunk(&self, choice: Choice<'_>, usage: ChunkUsage) -> String {
        let usage = match usage {
            ChunkUsage::Absent => None,
            ChunkUsage::AtTheEnd => Some(None),
        };
        self.object(self.chunk_object(), &[choice], usage, None)
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
        timings: Option<&Timings>,
    ) -> String {
        serde_json::to_string(&Object {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage,
            timings,
        })
        .expect("strings and numbers always serialise")
    }
}

/// Whether the chunks of a stream speak of usage: with `include_usage` all but the last say `null`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkUsage {
    /// Not at all.
    Absent,
    /// In a chunk of its own, after the reason.
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
    timings: Option<&'a Timings>,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    #[serde(flatten)]
    content: Content<'a>,
    // Always null here; clients read the member without asking whether it is there.
    logprobs: Option<()>,
    finish_reason: Option<FinishReason>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Content<'a> {
    Text(&'a str),
    Message { role: &'static str, content: &'a str, refusal: Option<()> },
    Delta(Delta<'a>),
}

#[derive(Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

impl<'a> Choice<'a> {
    fn new(content: Content<'a>, finish_reason: Option<FinishReason>) -> Self {
        Self { index: 0, content, logprobs: None, finish_reason }
    }

    fn text(text: &'a str, reason: Option<FinishReason>) -> Self {
        Self::new(Content::Text(text), reason)
    }

    fn message(content: &'a str, reason: FinishReason) -> Self {
        Self::new(Content::Message { role: "assistant", content, refusal: None }, Some(reason))
    }

    fn delta(
        role: Option<&'static str>,
        content: Option<&'a str>,
        reason: Option<FinishReason>,
    ) -> Self {
        Self::new(Content::Delta(Delta { role, content }), reason)
    }
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
}

impl From<&Timings> for Usage {
    fn from(timings: &Timings) -> Self {
        Self {
            prompt_tokens: timings.prompt_tokens,
            completion_tokens: timings.completion_tokens,
            total_tokens: timings.prompt_tokens + timings.completion_tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn identity(endpoint: Endpoint) -> Identity {
        Identity { id: "x-1".into(), endpoint, model: "demo".into(), created: 5 }
    }

    fn timings() -> Timings {
        Timings { prompt_tokens: 3, completion_tokens: 2, decode_ms: 1.5, ..Timings::default() }
    }

    fn parsed(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_whole_chat_answer() {
        let text = identity(Endpoint::Chat).whole("Hi", FinishReason::Stop, &timings());
        assert_eq!(
            parsed(&text),
            json!({
                "id": "x-1", "object": "chat.completion", "created": 5, "model": "demo",
                "system_fingerprint": FINGERPRINT,
                "choices": [{
                    "index": 0,
                    "message": {"role": "assistant", "content": "Hi", "refusal": null},
                    "logprobs": null, "finish_reason": "stop",
                }],
                "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
                "timings": {
                    "queue_ms": 0.0, "prefill_ms": 0.0, "decode_ms": 1.5, "prefill_calls": 0,
                    "prompt_tokens": 3, "completion_tokens": 2,
                },
            })
        );
    }

    #[test]
    fn a_whole_completion() {
        let text = identity(Endpoint::Completions).whole("Hi", FinishReason::Length, &timings());
        let object = parsed(&text);
        assert_eq!(object["object"], "text_completion");
        assert_eq!(
            object["choices"],
            json!([{"index": 0, "text": "Hi", "logprobs": null, "finish_reason": "length"}])
        );
    }

    #[test]
    fn the_chunks_of_a_chat_answer() {
        let identity = identity(Endpoint::Chat);
        let choice = |text: &str| parsed(text)["choices"][0].clone();
        let opening = identity.opening(ChunkUsage::Absent).unwrap();
        assert_eq!(choice(&opening)["delta"], json!({"role": "assistant", "content": ""}));
        assert_eq!(choice(&opening)["finish_reason"], Value::Null);
        assert_eq!(parsed(&opening)["object"], "chat.completion.chunk");
        assert!(parsed(&opening).get("usage").is_none());
        let piece = identity.piece("Hi", ChunkUsage::Absent);
        assert_eq!(choice(&piece)["delta"], json!({"content": "Hi"}));
        let closing = identity.closing(FinishReason::Stop, &timings(), ChunkUsage::Absent);
        let [last] = closing.as_slice() else { panic!("{closing:?}") };
        assert_eq!(choice(last)["delta"], json!({}));
        assert_eq!(choice(last)["finish_reason"], "stop");
        assert_eq!(parsed(last)["timings"]["completion_tokens"], 2);
        assert!(parsed(last).get("usage").is_none());
    }

    /// S14: a chunk of its own carries the usage, and all others say null.
    #[test]
    fn usage_has_its_own_last_chunk() {
        for endpoint in [Endpoint::Chat, Endpoint::Completions] {
            let identity = identity(endpoint);
            let piece = parsed(&identity.piece("Hi", ChunkUsage::AtTheEnd));
            assert!(piece.as_object().unwrap().contains_key("usage"));
            assert_eq!(piece["usage"], Value::Null);
            let closing = identity.closing(FinishReason::Stop, &timings(), ChunkUsage::AtTheEnd);
            let [reason, usage] = closing.as_slice() else { panic!("{closing:?}") };
            assert_eq!(parsed(reason)["choices"][0]["finish_reason"], "stop");
            assert_eq!(parsed(reason)["usage"], Value::Null);
            assert!(parsed(reason).get("timings").is_none());
            assert_eq!(parsed(usage)["choices"], json!([]));
            assert_eq!(parsed(usage)["usage"]["total_tokens"], 5);
            assert_eq!(parsed(usage)["timings"]["prompt_tokens"], 3);
        }
    }

    #[test]
    fn answers_have_names_of_their_own() {
        let a = Identity::new(Endpoint::Chat, "demo");
        let b = Identity::new(Endpoint::Chat, "demo");
        assert!(a.id.starts_with("chatcmpl-") && a.id != b.id);
        assert!(Identity::new(Endpoint::Completions, "demo").id.starts_with("cmpl-"));
    }
}
