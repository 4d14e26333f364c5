//! What servers of OpenAI's API send in a stream, as far as a load client looks at it.

use serde::Deserialize;
use serde_json::Value;

use super::failure::Failure;

/// The last event of a complete stream.
const DONE: &str = "[DONE]";

/// One event of a stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk {
    /// What a choice shows.
    pub text: String,
    /// What the model thinks; its tokens are tokens.
    pub reasoning: String,
    /// Tokens in it, where the server sends their ids.
    pub ids: Option<usize>,
    /// It has a choice, if one without text: a role, or the end of an answer.
    pub has_choice: bool,
    /// Why the answer has ended.
    pub finish_reason: Option<String>,
    /// Tokens so far or in all.
    pub usage: Option<Usage>,
    /// The server's own measurements, as it has them.
    pub timings: Option<Value>,
    /// `[DONE]`.
    pub done: bool,
}

/// Token counts by the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, the chat template's included.
    pub prompt: Option<usize>,
    /// Tokens generated.
    pub completion: Option<usize>,
    /// Tokens of the prompt that a cache had.
    pub cached: Option<usize>,
}

impl Chunk {
    /// Reads the data of an event.
    ///
    /// # Errors
    ///
    /// An error event, or what is no chunk.
    pub fn parse(data: &str) -> Result<Self, Failure> {
        if data.trim() == DONE {
            return Ok(Self { done: true, ..Self::default() });
        }
        let event: Event = serde_json::from_str(data)
            .map_err(|error| Failure::malformed(&error.to_string(), data))?;
        if let Some(error) = event.error.filter(|error| !error.is_null()) {
            return Err(Failure::ErrorEvent { message: message_of(&error) });
        }
        let mut chunk =
            Self { usage: event.usage.map(Usage::from), timings: event.timings, ..Self::default() };
        for choice in event.choices.unwrap_or_default() {
            chunk.add(choice);
        }
        Ok(chunk)
    }

    fn add(&mut self, choice: Choice) {
        self.has_choice = true;
        let delta = choice.delta.unwrap_or_default();
        for text in [choice.text, delta.content, delta.refusal].into_iter().flatten() {
            self.text.push_str(&text);
        }
        for text in [delta.reasoning_content, delta.reasoning].into_iter().flatten().take(1) {
            self.reasoning.push_str(&text);
        }
        // What a tool is called with is generated token by token like anything else.
        for call in delta.tool_calls.iter().flatten() {
            for part in ["/function/name", "/function/arguments"] {
                self.text.push_str(call.pointer(part).and_then(Value::as_str).unwrap_or_default());
            }
        }
        if let Some(ids) = choice.token_ids.or(delta.token_ids) {
            *self.ids.get_or_insert(0) += ids.len();
        }
        if choice.finish_reason.is_some() {
            self.finish_reason = choice.finish_reason;
        }
    }

    /// Whether a client sees or could see a token in it. A role is none, and neither is a count.
    pub fn bears_token(&self) -> bool {
        !self.text.is_empty() || !self.reasoning.is_empty() || self.ids.is_some_and(|ids| ids > 0)
    }
}

/// What an error says, in whichever form it comes.
pub fn message_of(error: &Value) -> String {
    let said = error.get("message").or_else(|| error.pointer("/error/message")).unwrap_or(error);
    said.as_str().map_or_else(|| said.to_string(), str::to_owned)
}

#[derive(Deserialize)]
struct Event {
    choices: Option<Vec<Choice>>,
    usage: Option<UsageObject>,
    timings: Option<Value>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    text: Option<String>,
    delta: Option<Delta>,
    finish_reason: Option<String>,
    token_ids: Option<Vec<i64>>,
}

#[derive(Default, Deserialize)]
struct Delta {
    content: Option<String>,
    refusal: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    tool_calls: Option<Vec<Value>>,
    token_ids: Option<Vec<i64>>,
}

#[derive(Deserialize)]
struct UsageObject {
    prompt_tokens: Option<usize>,
    completion_tokens: Option<usize>,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Deserialize)]
struct PromptDetails {
    cached_tokens: Option<usize>,
}

impl From<UsageObject> for Usage {
    fn from(usage: UsageObject) -> Self {
        Self {
            prompt: usage.prompt_tokens,
            completion: usage.completion_tokens,
            cached: usage.prompt_tokens_details.and_then(|details| details.cached_tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chunk(value: Value) -> Chunk {
        Chunk::parse(&value.to_string()).unwrap()
    }

    fn delta(delta: Value) -> Chunk {
        chunk(json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]}))
    }

    #[test]
    fn a_role_is_no_token() {
        for role in [json!({"role": "assistant"}), json!({"role": "assistant", "content": ""})] {
            let chunk = delta(role);
            assert!(chunk.has_choice && !chunk.bears_token(), "{chunk:?}");
        }
        let usage = chunk(json!({"choices": [], "usage": {"completion_tokens": 9}}));
        assert!(!usage.has_choice && !usage.bears_token());
        assert_eq!(usage.usage.unwrap().completion, Some(9));
    }

    #[test]
    fn whatever_the_model_generates_is_a_token() {
        assert_eq!(delta(json!({"content": "a"})).text, "a");
        for name in ["reasoning_content", "reasoning"] {
            let chunk = delta(json!({name: "hm", "content": null}));
            assert!(chunk.bears_token());
            assert_eq!((chunk.reasoning.as_str(), chunk.text.as_str()), ("hm", ""), "{name}");
        }
        // Some servers send the same under both names.
        assert_eq!(delta(json!({"reasoning": "hm", "reasoning_content": "hm"})).reasoning, "hm");
        let call = json!([{"index": 0, "function": {"name": "f", "arguments": "{"}}]);
        assert_eq!(delta(json!({"tool_calls": call})).text, "f{");
        let ids = chunk(json!({"choices": [{"text": "", "token_ids": [5, 6]}]}));
        assert_eq!((ids.ids, ids.bears_token()), (Some(2), true));
        let none = chunk(json!({"choices": [{"text": "", "token_ids": []}]}));
        assert!(!none.bears_token());
    }

    #[test]
    fn usage_says_what_was_cached() {
        let usage = chunk(json!({"choices": [], "usage": {
            "prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 4},
        }}));
        let expected = Usage { prompt: Some(7), completion: Some(2), cached: Some(4) };
        assert_eq!(usage.usage, Some(expected));
        let silent = chunk(json!({"choices": [], "usage": {"prompt_tokens_details": null}}));
        assert_eq!(silent.usage, Some(Usage::default()));
        assert_eq!(chunk(json!({"choices": [], "usage": null})).usage, None);
    }

    #[test]
    fn errors_are_heard_in_every_form() {
        for (event, said) in [
            (json!({"error": {"message": "rank 2 was killed", "code": 500}}), "rank 2 was killed"),
            (json!({"error": "out of memory"}), "out of memory"),
            (json!({"error": {"code": 3}}), r#"{"code":3}"#),
        ] {
            let failure = Chunk::parse(&event.to_string()).unwrap_err();
            assert_eq!(failure, Failure::ErrorEvent { message: said.to_owned() });
        }
        let text = chunk(json!({"error": null, "choices": [{"text": "a"}]}));
        assert_eq!(text.text, "a");
        let failure = Chunk::parse("<html>").unwrap_err();
        assert!(failure.to_string().contains("<html>"), "{failure}");
    }

    #[test]
    fn the_end_is_known_by_its_name() {
        assert!(Chunk::parse("[DONE]").unwrap().done);
        let last = chunk(json!({"choices": [{"text": "", "finish_reason": "stop"}]}));
        assert_eq!((last.finish_reason.as_deref(), last.done), (Some("stop"), false));
    }
}
