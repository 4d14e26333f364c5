//! A request as a whole: its parameters and its prompt, checked as far as that goes without the
//! tokenizer.

use serde_json::Value;

use super::body::{Body, kind, wrong};
use super::error::ApiError;
use super::fields::Endpoint;
use super::messages;
use super::params::{self, Params, SamplingDefaults, token_limit};

/// Tokens `/v1/completions` generates when nothing is said; OpenAI's number. Chat goes on to the end of
/// the answer.
const COMPLETION_TOKENS: usize = 16;

/// What is to be continued.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A conversation, ready for the chat template.
    Messages(Vec<Value>),
    /// A text.
    Text(String),
    /// Token ids of the model's vocabulary.
    Ids(Vec<u32>),
}

/// How long an answer may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// The request says so, by this field; what does not fit the context is refused.
    Asked(&'static str, usize),
    /// The request does not say; no more than fits the context.
    AtMost(usize),
    /// The request does not say, and the context is the limit.
    Context,
}

/// A request for an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What both routes share.
    pub params: Params,
    /// How long the answer may become.
    pub length: Length,
    /// What is to be continued.
    pub prompt: Prompt,
}

impl Request {
    /// Reads the body of a request to `endpoint`.
    pub fn parse(
        endpoint: Endpoint,
        bytes: &[u8],
        defaults: &SamplingDefaults,
        vocab_size: usize,
    ) -> Result<Self, ApiError> {
        let body = Body::parse(endpoint, bytes)?;
        let params = Params::read(&body, defaults)?;
        let (length, prompt) = match endpoint {
            Endpoint::Chat => (chat_length(&body)?, conversation(&body)?),
            Endpoint::Completions => {
                let length = match token_limit(&body, "max_tokens")? {
                    Some(count) => Length::Asked("max_tokens", count),
                    None => Length::AtMost(COMPLETION_TOKENS),
                };
                (length, prompt(&body, vocab_size)?)
            }
        };
        Ok(Self { params, length, prompt })
    }
}

impl Length {
    /// Tokens to generate after a prompt of `prompt_tokens` in a context of `context` positions. A
    /// prompt is never cut: what does not fit is refused with the numbers.
    pub fn fit(self, prompt_tokens: usize, context: usize) -> Result<usize, ApiError> {
        let room = context.saturating_sub(prompt_tokens);
        match self {
            _ if room == 0 => Err(ApiError::invalid(format!(
                "the prompt has {prompt_tokens} tokens; the context of this model is {context} \
                 tokens, prompt and answer together"
            ))
            .with_code("context_length_exceeded")),
            Self::Asked(field, count) if count > room => Err(ApiError::field(
                field,
                format!(
                    "{field} is {count}; after a prompt of {prompt_tokens} tokens at most {room} \
                     fit the context of {context}"
                ),
            )
            .with_code("context_length_exceeded")),
            Self::Asked(_, count) => Ok(count),
            Self::AtMost(count) => Ok(count.min(room)),
            Self::Context => Ok(room),
        }
    }
}

fn chat_length(body: &Body) -> Result<Length, ApiError> {
    let older = token_limit(body, "max_tokens")?;
    let newer = token_limit(body, "max_completion_tokens")?;
    match (older, newer) {
        (Some(older), Some(newer)) if older != newer => Err(ApiError::field(
            "max_completion_tokens",
            format!("max_completion_tokens is {newer} and max_tokens is {older}; send one of them"),
        )),
        (_, Some(count)) => Ok(Length::Asked("max_completion_tokens", count)),
        (Some(count), None) => Ok(Length::Asked("max_tokens", count)),
        (None, None) => Ok(Length::Context),
    }
}

fn conversation(body: &Body) -> Result<Prompt, ApiError> {
    let Some(value) = body.get("messages") else { return Err(missing("messages")) };
    Ok(Prompt::Messages(messages::read(value)?))
}

fn prompt(body: &Body, vocab_size: usize) -> Result<Prompt, ApiError> {
    let empty = || ApiError::field("prompt", "prompt is empty; it must hold at least one token");
    match body.get("prompt") {
        None => Err(missing("prompt")),
        Some(Value::String(text)) if text.is_empty() => Err(empty()),
        Some(Value::String(text)) => Ok(Prompt::Text(text.clone())),
        Some(Value::Array(list)) if list.is_empty() => Err(empty()),
        Some(Value::Array(list)) if matches!(list[0], Value::String(_) | Value::Array(_)) => {
            let message = format!(
                "prompt is a list whose first member is {}; several prompts in one request are not \
                 supported, send one string or one list of token ids",
                kind(&list[0])
            );
            Err(ApiError::field("prompt", message).with_code("unsupported_parameter"))
        }
        Some(Value::Array(list)) => Ok(Prompt::Ids(params::token_ids(list, vocab_size)?)),
        Some(value) => Err(wrong("prompt", value, "a string or a list of token ids")),
    }
}

fn missing(field: &'static str) -> ApiError {
    ApiError::field(field, format!("{field} is missing")).with_code("missing_required_parameter")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DEFAULTS: SamplingDefaults = SamplingDefaults { temperature: 1.0, top_p: 1.0, top_k: 0 };

    fn parse(endpoint: Endpoint, value: Value) -> Result<Request, ApiError> {
        Request::parse(endpoint, value.to_string().as_bytes(), &DEFAULTS, 1024)
    }

    fn refusal(endpoint: Endpoint, value: Value) -> String {
        parse(endpoint, value).unwrap_err().to_string()
    }

    #[test]
    fn prompts_are_texts_or_token_ids() {
        let prompt = |value: Value| {
            parse(Endpoint::Completions, json!({"prompt": value})).map(|request| request.prompt)
        };
        assert_eq!(prompt(json!("Hi")).unwrap(), Prompt::Text("Hi".into()));
        assert_eq!(prompt(json!([1, 2])).unwrap(), Prompt::Ids(vec![1, 2]));
        for (value, message) in [
            (json!(""), "prompt is empty; it must hold at least one token"),
            (json!([]), "prompt is empty; it must hold at least one token"),
            (json!(null), "prompt is missing"),
            (json!(1), "prompt is 1; it must be a string or a list of token ids"),
            (json!([1, 1024]), "prompt[1] is 1024; token ids of this model are 0 to 1023"),
            (
                json!(["a", "b"]),
                "prompt is a list whose first member is a string; several prompts in one request \
                 are not supported, send one string or one list of token ids",
            ),
        ] {
            assert_eq!(prompt(value).unwrap_err().to_string(), message);
        }
        assert!(prompt(json!([[1], [2]])).is_err());
    }

    #[test]
    fn chat_needs_messages() {
        assert_eq!(refusal(Endpoint::Chat, json!({})), "messages is missing");
        let request =
            parse(Endpoint::Chat, json!({"messages": [{"role": "user", "content": "Hi"}]}))
                .unwrap();
        assert_eq!(request.length, Length::Context);
        assert!(matches!(request.prompt, Prompt::Messages(list) if list.len() == 1));
    }

    #[test]
    fn the_two_names_of_the_length_agree() {
        let chat = |older: Value, newer: Value| {
            let messages = json!([{"role": "user", "content": "Hi"}]);
            parse(
                Endpoint::Chat,
                json!({"messages": messages, "max_tokens": older, "max_completion_tokens": newer}),
            )
            .map(|request| request.length)
        };
        assert_eq!(chat(json!(4), json!(null)).unwrap(), Length::Asked("max_tokens", 4));
        assert_eq!(chat(json!(4), json!(4)).unwrap(), Length::Asked("max_completion_tokens", 4));
        assert_eq!(
            chat(json!(4), json!(5)).unwrap_err().to_string(),
            "max_completion_tokens is 5 and max_tokens is 4; send one of them"
        );
        assert_eq!(
            chat(json!(null), json!(0)).unwrap_err().to_json()["error"]["param"],
            "max_completion_tokens"
        );
    }

    /// S33: a prompt is never cut, and the refusal has both numbers.
    #[test]
    fn what_does_not_fit_is_refused_with_the_numbers() {
        assert_eq!(Length::Context.fit(10, 64).unwrap(), 54);
        assert_eq!(Length::AtMost(16).fit(10, 64).unwrap(), 16);
        assert_eq!(Length::AtMost(16).fit(60, 64).unwrap(), 4);
        assert_eq!(Length::Asked("max_tokens", 4).fit(60, 64).unwrap(), 4);
        for length in [Length::Context, Length::AtMost(16), Length::Asked("max_tokens", 1)] {
            let error = length.fit(64, 64).unwrap_err();
            assert_eq!(
                error.to_string(),
                "the prompt has 64 tokens; the context of this model is 64 tokens, prompt and \
                 answer together"
            );
            assert_eq!(error.to_json()["error"]["code"], "context_length_exceeded");
        }
        assert_eq!(
            Length::Asked("max_tokens", 5).fit(60, 64).unwrap_err().to_string(),
            "max_tokens is 5; after a prompt of 60 tokens at most 4 fit the context of 64"
        );
    }

    #[test]
    fn lengths_are_checked_before_the_prompt_is_known() {
        assert_eq!(
            refusal(Endpoint::Completions, json!({"prompt": "a", "max_tokens": 0})),
            "max_tokens is 0; it must be a whole number from 1 to 4294967295"
        );
        let request = parse(Endpoint::Completions, json!({"prompt": "a"})).unwrap();
        assert_eq!(request.length, Length::AtMost(16));
    }
}
