//! A request as a whole: its parameters and its prompts, checked as far as that goes without the
//! tokenizer.

use pocket_actors::api::{MAX_ANSWERS, MAX_TOP_LOGPROBS};
use serde_json::{Map, Value};

use super::body::{Body, wrong};
use super::error::ApiError;
use super::fields::Endpoint;
use super::length::Length;
use super::messages;
use super::params::{self, Params};
use super::sampling::SamplingDefaults;

/// Most prompts of one request; each takes a place in the queue.
const MAX_PROMPTS: usize = 128;

/// What is to be continued.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A conversation, ready for the chat template.
    Messages(Conversation),
    /// A text.
    Text(String),
    /// Token ids of the model's vocabulary.
    Ids(Vec<u32>),
}

/// What a chat template renders.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// The messages as [`messages::read`] gives them.
    pub messages: Vec<Value>,
    /// More variables for the template, `enable_thinking` for one.
    pub kwargs: Map<String, Value>,
}

/// A request for answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What both routes share.
    pub params: Params,
    /// How long each answer may become.
    pub length: Length,
    /// What is to be continued, each by itself; at least one.
    pub prompts: Vec<Prompt>,
    /// Show the prompt before the answer.
    pub echo: bool,
    /// Log-probabilities, with so many alternatives.
    pub logprobs: Option<usize>,
}

impl Request {
    /// Reads the body of a request to `endpoint`.
    pub fn parse(
        endpoint: Endpoint,
        bytes: &[u8],
        defaults: &SamplingDefaults,
        vocab_size: usize,
        max_messages: usize,
    ) -> Result<Self, ApiError> {
        let body = Body::parse(endpoint, bytes)?;
        let params = Params::read(&body, defaults, vocab_size)?;
        match endpoint {
            Endpoint::Chat => Ok(Self {
                params,
                length: Length::of_chat(&body)?,
                prompts: vec![Prompt::Messages(conversation(&body, max_messages)?)],
                echo: false,
                logprobs: chat_logprobs(&body)?,
            }),
            Endpoint::Completions => {
                best_of(&body, params.n)?;
                let echo = body.boolean("echo")?.unwrap_or(false);
                Ok(Self {
                    params,
                    length: Length::of_completion(&body, echo)?,
                    prompts: prompts(&body, vocab_size)?,
                    echo,
                    logprobs: top(&body, "logprobs")?,
                })
            }
        }
    }
}

/// The conversation of a request: `messages` and `chat_template_kwargs`.
pub fn conversation(body: &Body, max_messages: usize) -> Result<Conversation, ApiError> {
    let Some(value) = body.get("messages") else { return Err(missing("messages")) };
    Ok(Conversation {
        messages: messages::read(value, max_messages)?,
        kwargs: template_variables(body)?,
    })
}

/// The template itself knows which names are taken.
fn template_variables(body: &Body) -> Result<Map<String, Value>, ApiError> {
    match body.get("chat_template_kwargs") {
        None => Ok(Map::new()),
        Some(Value::Object(variables)) => Ok(variables.clone()),
        Some(value) => Err(wrong("chat_template_kwargs", value, "an object")),
    }
}

/// The number of alternatives beside each token.
fn top(body: &Body, name: &'static str) -> Result<Option<usize>, ApiError> {
    Ok(body.integer(name, 0, MAX_TOP_LOGPROBS as i64)?.map(|count| count as usize))
}

/// S10: the switch alone asks for no alternatives; alternatives alone are refused, as OpenAI does.
fn chat_logprobs(body: &Body) -> Result<Option<usize>, ApiError> {
    let asked = body.boolean("logprobs")?.unwrap_or(false);
    match (asked, top(body, "top_logprobs")?) {
        (true, count) => Ok(Some(count.unwrap_or(0))),
        // It asks for nothing.
        (false, None | Some(0)) => Ok(None),
        (false, Some(count)) => Err(ApiError::field(
            "top_logprobs",
            format!("top_logprobs is {count}; it is only allowed together with \"logprobs\": true"),
        )),
    }
}

/// Every answer is given, so there is nothing to choose the best of.
fn best_of(body: &Body, n: usize) -> Result<(), ApiError> {
    match body.integer("best_of", 1, MAX_ANSWERS as i64)? {
        Some(best_of) if best_of as usize != n => Err(ApiError::field(
            "best_of",
            format!("best_of is {best_of} and n is {n}; leave best_of out or send the same number"),
        )
        .with_code("unsupported_parameter")),
        _ => Ok(()),
    }
}

/// One prompt, or a list of them.
fn prompts(body: &Body, vocab_size: usize) -> Result<Vec<Prompt>, ApiError> {
    match body.get("prompt") {
        None => Err(missing("prompt")),
        Some(Value::Array(list))
            if matches!(list.first(), Some(Value::String(_) | Value::Array(_))) =>
        {
            if list.len() > MAX_PROMPTS {
                return Err(ApiError::field(
                    "prompt",
                    format!(
                        "prompt is a list of {} prompts; a request may have at most {MAX_PROMPTS}",
                        list.len()
                    ),
                ));
            }
            let one = |(index, value)| prompt(&format!("prompt[{index}]"), value, vocab_size);
            list.iter().enumerate().map(one).collect()
        }
        Some(value) => Ok(vec![prompt("prompt", value, vocab_size)?]),
    }
}

/// One prompt, called `name` in errors.
fn prompt(name: &str, value: &Value, vocab_size: usize) -> Result<Prompt, ApiError> {
    let empty = || {
        let message = format!("{name} is empty; it must hold at least one token");
        Err(ApiError::field("prompt", message))
    };
    match value {
        Value::String(text) if text.is_empty() => empty(),
        Value::String(text) => Ok(Prompt::Text(text.clone())),
        Value::Array(list) if list.is_empty() => empty(),
        Value::Array(list) => Ok(Prompt::Ids(params::token_ids(name, list, vocab_size)?)),
        value => {
            let message = wrong(name, value, "a string or a list of token ids").to_string();
            Err(ApiError::field("prompt", message))
        }
    }
}

fn missing(field: &'static str) -> ApiError {
    ApiError::field(field, format!("{field} is missing")).with_code("missing_required_parameter")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http::testing::DEFAULTS;

    fn parse(endpoint: Endpoint, value: Value) -> Result<Request, ApiError> {
        Request::parse(endpoint, value.to_string().as_bytes(), &DEFAULTS, 1024, 16)
    }

    fn completion(value: Value) -> Result<Request, ApiError> {
        let mut request = json!({"prompt": "Hi"});
        request.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        parse(Endpoint::Completions, request)
    }

    fn chat(value: Value) -> Result<Request, ApiError> {
        let mut request = json!({"messages": [{"role": "user", "content": "Hi"}]});
        request.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        parse(Endpoint::Chat, request)
    }

    fn refusal(request: Result<Request, ApiError>, param: &str) -> String {
        let error = request.unwrap_err();
        assert_eq!(error.to_json()["error"]["param"], param, "{error}");
        error.to_string()
    }

    #[test]
    fn prompts_are_texts_or_token_ids_one_or_many() {
        let prompts = |value: Value| completion(json!({"prompt": value})).unwrap().prompts;
        let text = |text: &str| Prompt::Text(text.into());
        assert_eq!(prompts(json!("Hi")), [text("Hi")]);
        assert_eq!(prompts(json!([1, 2])), [Prompt::Ids(vec![1, 2])]);
        assert_eq!(prompts(json!(["a", "b"])), [text("a"), text("b")]);
        assert_eq!(prompts(json!([[1], [2, 3]])), [Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 3])]);
        assert_eq!(prompts(json!(vec!["a"; 128])).len(), 128);
    }

    #[test]
    fn a_prompt_that_is_none_is_refused_by_its_place() {
        for (value, message) in [
            (json!(""), "prompt is empty; it must hold at least one token"),
            (json!([]), "prompt is empty; it must hold at least one token"),
            (json!(null), "prompt is missing"),
            (json!(1), "prompt is 1; it must be a string or a list of token ids"),
            (json!([1, 1024]), "prompt[1] is 1024; token ids of this model are 0 to 1023"),
            (json!([1, "a"]), "prompt[1] is a string; token ids of this model are 0 to 1023"),
            (json!(["a", ""]), "prompt[1] is empty; it must hold at least one token"),
            (json!([[1], []]), "prompt[1] is empty; it must hold at least one token"),
            (json!([[1], [2000]]), "prompt[1][0] is 2000; token ids of this model are 0 to 1023"),
            (json!(["a", 5]), "prompt[1] is 5; it must be a string or a list of token ids"),
            (
                json!(vec!["a"; 129]),
                "prompt is a list of 129 prompts; a request may have at most 128",
            ),
        ] {
            assert_eq!(refusal(completion(json!({"prompt": value})), "prompt"), message);
        }
    }

    #[test]
    fn chat_needs_messages_and_hands_on_the_templates_variables() {
        assert_eq!(refusal(parse(Endpoint::Chat, json!({})), "messages"), "messages is missing");
        let request = chat(json!({"chat_template_kwargs": {"enable_thinking": false}})).unwrap();
        let [Prompt::Messages(conversation)] = request.prompts.as_slice() else {
            panic!("{request:?}")
        };
        assert_eq!(conversation.messages.len(), 1);
        assert_eq!(conversation.kwargs["enable_thinking"], false);
        assert_eq!(
            refusal(chat(json!({"chat_template_kwargs": [1]})), "chat_template_kwargs"),
            "chat_template_kwargs is [1]; it must be an object"
        );
    }

    /// S10: `logprobs: true` alone is not an error.
    #[test]
    fn logprobs_are_a_switch_in_chat_and_a_number_in_completions() {
        let logprobs = |value: Value| chat(value).unwrap().logprobs;
        assert_eq!(logprobs(json!({})), None);
        assert_eq!(logprobs(json!({"logprobs": false, "top_logprobs": 0})), None);
        assert_eq!(logprobs(json!({"logprobs": true})), Some(0));
        assert_eq!(logprobs(json!({"logprobs": true, "top_logprobs": 20})), Some(20));
        assert_eq!(
            refusal(chat(json!({"top_logprobs": 2})), "top_logprobs"),
            "top_logprobs is 2; it is only allowed together with \"logprobs\": true"
        );
        assert_eq!(
            refusal(chat(json!({"logprobs": true, "top_logprobs": 21})), "top_logprobs"),
            "top_logprobs is 21; it must be a whole number from 0 to 20"
        );
        assert_eq!(
            refusal(chat(json!({"logprobs": 1})), "logprobs"),
            "logprobs is 1; it must be true or false"
        );
        assert_eq!(completion(json!({})).unwrap().logprobs, None);
        assert_eq!(completion(json!({"logprobs": 0})).unwrap().logprobs, Some(0));
        for wrong in [json!(21), json!(-1), json!(true)] {
            assert_eq!(
                refusal(completion(json!({"logprobs": wrong})), "logprobs"),
                format!("logprobs is {wrong}; it must be a whole number from 0 to 20")
            );
        }
    }

    #[test]
    fn the_best_of_n_is_all_of_them() {
        assert_eq!(completion(json!({"n": 3, "best_of": 3})).unwrap().params.n, 3);
        assert!(completion(json!({"best_of": 1})).is_ok());
        assert_eq!(
            refusal(completion(json!({"best_of": 4, "n": 2})), "best_of"),
            "best_of is 4 and n is 2; leave best_of out or send the same number"
        );
    }

    #[test]
    fn echo_is_a_switch() {
        assert!(completion(json!({"echo": true})).unwrap().echo);
        assert!(!completion(json!({"echo": false})).unwrap().echo);
        assert_eq!(
            refusal(completion(json!({"echo": "yes"})), "echo"),
            "echo is \"yes\"; it must be true or false"
        );
    }
}
