//! The parameters both generation routes share: sampling, number, length, stops, streaming.

use std::time::Duration;

use pocket_actors::api::MAX_ANSWERS;
use pocket_model::sampler::SamplingParams;
use serde_json::Value;

use super::body::{Body, kind, quote, whole_number, wrong};
use super::error::ApiError;
use super::fields;
use super::sampling::{self, SamplingDefaults};

/// Most stop texts of a request.
pub const MAX_STOPS: usize = 16;

/// Most tokens that a request may add to those that end an answer.
const MAX_STOP_TOKENS: usize = 128;

/// Longest life a request may ask for, in seconds: a day.
const MAX_TIMEOUT_S: f64 = 86_400.0;

/// What both routes understand.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// The model asked for.
    pub model: Option<String>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Answers to each prompt.
    pub n: usize,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Tokens that end the answer.
    pub stop_token_ids: Vec<u32>,
    /// Go on past end-of-sequence tokens.
    pub ignore_eos: bool,
    /// How long it may take, its time in the queue included.
    pub timeout: Option<Duration>,
    /// How the answer is delivered.
    pub delivery: Delivery,
}

/// How an answer is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// One JSON object at the end.
    Whole,
    /// Server-sent events.
    Stream {
        /// End with a chunk that carries the usage.
        include_usage: bool,
    },
}

impl Params {
    /// Reads the shared parameters of a request to a model of `vocab_size` tokens.
    pub fn read(
        body: &Body,
        defaults: &SamplingDefaults,
        vocab_size: usize,
    ) -> Result<Self, ApiError> {
        let n = body.integer("n", 1, MAX_ANSWERS as i64)?;
        // A time that rounds to none at all is none.
        let timeout =
            body.number("timeout", "of seconds above 0 and at most 86400", |seconds| {
                seconds > 0.0
                    && seconds <= MAX_TIMEOUT_S
                    && !Duration::from_secs_f64(seconds).is_zero()
            })?;
        Ok(Self {
            model: body.text("model")?.map(str::to_string),
            sampling: sampling::read(body, defaults, vocab_size)?,
            n: n.unwrap_or(1) as usize,
            stop: stops(body)?,
            stop_token_ids: stop_tokens(body, vocab_size)?,
            ignore_eos: body.boolean("ignore_eos")?.unwrap_or(false),
            timeout: timeout.map(Duration::from_secs_f64),
            delivery: delivery(body)?,
        })
    }
}

/// A field that counts tokens to generate, at least `least`.
pub fn token_limit(body: &Body, name: &'static str, least: i64) -> Result<Option<usize>, ApiError> {
    // The context bounds it further, once the prompt's length is known.
    Ok(body.integer(name, least, i64::from(u32::MAX))?.map(|count| count as usize))
}

fn stops(body: &Body) -> Result<Vec<String>, ApiError> {
    let expected = format!("a string or a list of at most {MAX_STOPS} strings, none empty");
    let Some(value) = body.get("stop") else { return Ok(Vec::new()) };
    let stops = match value {
        Value::String(stop) => vec![stop.as_str()],
        Value::Array(list) if list.len() <= MAX_STOPS => list
            .iter()
            .map(Value::as_str)
            .collect::<Option<_>>()
            .ok_or_else(|| wrong("stop", value, &expected))?,
        _ => return Err(wrong("stop", value, &expected)),
    };
    if stops.contains(&"") {
        return Err(wrong("stop", value, &expected));
    }
    Ok(stops.into_iter().map(str::to_string).collect())
}

fn stop_tokens(body: &Body, vocab_size: usize) -> Result<Vec<u32>, ApiError> {
    match body.get("stop_token_ids") {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) if list.len() <= MAX_STOP_TOKENS => {
            token_ids("stop_token_ids", list, vocab_size)
        }
        Some(value) => {
            let expected = format!("a list of at most {MAX_STOP_TOKENS} token ids");
            Err(wrong("stop_token_ids", value, &expected))
        }
    }
}

fn delivery(body: &Body) -> Result<Delivery, ApiError> {
    let stream = body.boolean("stream")?.unwrap_or(false);
    let include_usage = match body.get("stream_options") {
        None => false,
        Some(_) if !stream => {
            return Err(ApiError::field(
                "stream_options",
                "stream_options is only allowed together with \"stream\": true",
            ));
        }
        Some(Value::Object(options)) => {
            let mut include_usage = false;
            for (name, value) in options {
                match (name.as_str(), value) {
                    (_, Value::Null) => {}
                    ("include_usage", Value::Bool(given)) => include_usage = *given,
                    // Padding against traffic analysis and vLLM's usage in every chunk.
                    ("include_obfuscation" | "continuous_usage_stats", Value::Bool(false)) => {}
                    (
                        known
                        @ ("include_usage" | "include_obfuscation" | "continuous_usage_stats"),
                        value,
                    ) => {
                        let expected =
                            if known == "include_usage" { "true or false" } else { "false" };
                        return Err(wrong(format!("stream_options.{known}"), value, expected));
                    }
                    (unknown, _) => return Err(unknown_option(unknown)),
                }
            }
            include_usage
        }
        Some(value) => return Err(wrong("stream_options", value, "an object")),
    };
    Ok(if stream { Delivery::Stream { include_usage } } else { Delivery::Whole })
}

fn unknown_option(name: &str) -> ApiError {
    let param = format!("stream_options.{name}");
    let message = match fields::nearest(name, ["include_usage"].into_iter()) {
        Some(near) => format!("unknown parameter '{param}'; did you mean '{near}'?"),
        None => format!("unknown parameter '{param}'"),
    };
    ApiError::field(param, message).with_code("unknown_parameter")
}

/// A list of token ids, called `name` in errors: each must be one of the model's `vocab_size` tokens.
pub fn token_ids(name: &str, list: &[Value], vocab_size: usize) -> Result<Vec<u32>, ApiError> {
    list.iter()
        .enumerate()
        .map(|(index, value)| {
            let id = whole_number(value).and_then(|id| usize::try_from(id).ok());
            id.filter(|id| *id < vocab_size).map(|id| id as u32).ok_or_else(|| {
                let what = if value.is_number() { quote(value) } else { kind(value).to_string() };
                let last = vocab_size.saturating_sub(1);
                // The field itself, whatever place in it is meant.
                let field = name.split('[').next().unwrap_or(name);
                ApiError::field(
                    field,
                    format!("{name}[{index}] is {what}; token ids of this model are 0 to {last}"),
                )
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http::fields::{Endpoint, FIELDS, Support};

    const DEFAULTS: SamplingDefaults = SamplingDefaults {
        temperature: 0.7,
        top_p: 0.9,
        top_k: 20,
        min_p: 0.0,
        repetition_penalty: 1.0,
    };

    fn read(value: Value) -> Result<Params, ApiError> {
        let body = Body::parse(Endpoint::Completions, value.to_string().as_bytes())?;
        Params::read(&body, &DEFAULTS, 10)
    }

    fn refusal(value: Value) -> String {
        read(value).unwrap_err().to_string()
    }

    #[test]
    fn an_empty_request_gets_the_defaults() {
        let expected = Params {
            model: None,
            sampling: SamplingParams {
                temperature: 0.7,
                top_p: 0.9,
                top_k: 20,
                ..SamplingParams::default()
            },
            n: 1,
            stop: vec![],
            stop_token_ids: vec![],
            ignore_eos: false,
            timeout: None,
            delivery: Delivery::Whole,
        };
        assert_eq!(read(json!({})).unwrap(), expected);
        let nulls: serde_json::Map<_, _> = fields::of(Endpoint::Completions)
            .map(|field| (field.name.to_string(), Value::Null))
            .collect();
        assert_eq!(read(Value::Object(nulls)).unwrap(), expected);
    }

    #[test]
    fn every_parameter_arrives() {
        let params = read(json!({
            "model": "demo", "n": 16, "stop": ["a", "b"], "stop_token_ids": [0, 9],
            "ignore_eos": true, "timeout": 1.5,
            "stream": true, "stream_options": {"include_usage": true},
        }))
        .unwrap();
        assert_eq!(params.model.as_deref(), Some("demo"));
        assert_eq!(params.n, 16);
        assert_eq!(params.stop, ["a", "b"]);
        assert_eq!(params.stop_token_ids, [0, 9]);
        assert!(params.ignore_eos);
        assert_eq!(params.timeout, Some(Duration::from_millis(1500)));
        assert_eq!(params.delivery, Delivery::Stream { include_usage: true });
        assert_eq!(read(json!({"stop": "X"})).unwrap().stop, ["X"]);
    }

    #[test]
    fn every_implemented_field_is_read() {
        // A value no field can have: whoever reads the field refuses it and names it.
        let elsewhere = [
            "messages",
            "prompt",
            "max_tokens",
            "max_completion_tokens",
            "chat_template_kwargs",
            "best_of",
            "echo",
            "logprobs",
            "top_logprobs",
        ];
        for field in FIELDS {
            if !matches!(field.support, Support::Implemented(_)) || elsewhere.contains(&field.name)
            {
                continue;
            }
            let error = read(json!({"stream": true, field.name: [[]]})).unwrap_err();
            assert_eq!(error.to_json()["error"]["param"], field.name);
        }
    }

    /// S1, M18: numbers that cannot be are refused with what is allowed.
    #[test]
    fn ranges_are_named() {
        for (value, message) in [
            (json!({"n": 0}), "n is 0; it must be a whole number from 1 to 16"),
            (json!({"n": 17}), "n is 17; it must be a whole number from 1 to 16"),
            (
                json!({"timeout": 0}),
                "timeout is 0; it must be a number of seconds above 0 and at most 86400",
            ),
            (
                json!({"timeout": 1e-300}),
                "timeout is 1e-300; it must be a number of seconds above 0 and at most 86400",
            ),
            (
                json!({"timeout": 1e300}),
                "timeout is 1e+300; it must be a number of seconds above 0 and at most 86400",
            ),
            (
                json!({"stop_token_ids": [0, 10]}),
                "stop_token_ids[1] is 10; token ids of this model are 0 to 9",
            ),
            (
                json!({"stop_token_ids": 1}),
                "stop_token_ids is 1; it must be a list of at most 128 token ids",
            ),
        ] {
            assert_eq!(refusal(value), message);
        }
        assert!(refusal(json!({"stop_token_ids": vec![0; 129]})).ends_with("128 token ids"));
    }

    #[test]
    fn stops_are_few_strings_and_not_empty() {
        let expected = "it must be a string or a list of at most 16 strings, none empty";
        assert_eq!(refusal(json!({"stop": ""})), format!("stop is \"\"; {expected}"));
        assert_eq!(
            refusal(json!({"stop": ["a", ""]})),
            format!("stop is [\"a\",\"\"]; {expected}")
        );
        assert_eq!(refusal(json!({"stop": [1]})), format!("stop is [1]; {expected}"));
        assert!(refusal(json!({"stop": vec!["x"; 17]})).ends_with(expected));
        assert!(read(json!({"stop": []})).unwrap().stop.is_empty());
    }

    /// S14: usage comes only when asked for.
    #[test]
    fn usage_is_streamed_only_when_asked_for() {
        let usage = |options: Value| {
            read(json!({"stream": true, "stream_options": options})).unwrap().delivery
        };
        let without = Delivery::Stream { include_usage: false };
        assert_eq!(read(json!({"stream": true})).unwrap().delivery, without);
        assert_eq!(usage(json!({})), without);
        assert_eq!(usage(json!(null)), without);
        assert_eq!(usage(json!({"include_usage": false})), without);
        assert_eq!(usage(json!({"include_usage": null})), without);
        assert_eq!(usage(json!({"include_usage": true})), Delivery::Stream { include_usage: true });
    }

    #[test]
    fn stream_options_are_checked() {
        assert_eq!(
            refusal(json!({"stream_options": {"include_usage": true}})),
            "stream_options is only allowed together with \"stream\": true"
        );
        let refusal = |options| refusal(json!({"stream": true, "stream_options": options}));
        assert_eq!(refusal(json!(1)), "stream_options is 1; it must be an object");
        assert_eq!(
            refusal(json!({"include_usage": 1})),
            "stream_options.include_usage is 1; it must be true or false"
        );
        assert_eq!(
            refusal(json!({"include_obfuscation": true})),
            "stream_options.include_obfuscation is true; it must be false"
        );
        assert_eq!(
            refusal(json!({"include_usag": true})),
            "unknown parameter 'stream_options.include_usag'; did you mean 'include_usage'?"
        );
    }

    #[test]
    fn token_ids_are_in_the_vocabulary() {
        assert_eq!(token_ids("prompt", &[json!(0), json!(9)], 10).unwrap(), [0, 9]);
        for (value, what) in
            [(json!(10), "10"), (json!(-1), "-1"), (json!(1.5), "1.5"), (json!("a"), "a string")]
        {
            let error = token_ids("prompt[2]", &[json!(0), value], 10).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("prompt[2][1] is {what}; token ids of this model are 0 to 9")
            );
            assert_eq!(error.to_json()["error"]["param"], "prompt");
        }
    }
}
