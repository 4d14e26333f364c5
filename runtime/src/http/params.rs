//! The parameters both generation routes share: sampling, length, stops, streaming.

use pocket_model::generation::GenerationConfig;
use pocket_model::sampler::SamplingParams;
use serde_json::Value;

use super::body::{Body, kind, quote, wrong};
use super::error::ApiError;
use super::fields;

/// Most stop texts of a request.
pub const MAX_STOPS: usize = 16;

/// What a request that says nothing about sampling gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingDefaults {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f32,
    /// Probability mass kept.
    pub top_p: f32,
    /// Tokens kept; 0 keeps all.
    pub top_k: usize,
}

impl SamplingDefaults {
    /// What the checkpoint's makers recommend in `generation_config.json` (`do_sample: false` asks for
    /// the likeliest token); where they say nothing, OpenAI's defaults.
    pub fn of(checkpoint: &GenerationConfig) -> Self {
        let open_ai = SamplingParams::default();
        let greedy = checkpoint.do_sample == Some(false);
        Self {
            temperature: match checkpoint.temperature {
                _ if greedy => 0.0,
                given => given.unwrap_or(open_ai.temperature),
            },
            // A file may say 0 for "off".
            top_p: checkpoint.top_p.filter(|top_p| *top_p > 0.0).unwrap_or(open_ai.top_p),
            top_k: checkpoint.top_k.map_or(open_ai.top_k, |top_k| top_k as usize),
        }
    }
}

/// What both routes understand.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// The model asked for.
    pub model: Option<String>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Go on past end-of-sequence tokens.
    pub ignore_eos: bool,
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
    /// Reads the shared parameters of a request.
    pub fn read(body: &Body, defaults: &SamplingDefaults) -> Result<Self, ApiError> {
        Ok(Self {
            model: body.text("model")?.map(str::to_string),
            sampling: sampling(body, defaults)?,
            stop: stops(body)?,
            ignore_eos: body.boolean("ignore_eos")?.unwrap_or(false),
            delivery: delivery(body)?,
        })
    }
}

/// A field that counts tokens to generate.
pub fn token_limit(body: &Body, name: &'static str) -> Result<Option<usize>, ApiError> {
    // The context bounds it further, once the prompt's length is known.
    Ok(body.integer(name, 1, i64::from(u32::MAX))?.map(|count| count as usize))
}

fn sampling(body: &Body, defaults: &SamplingDefaults) -> Result<SamplingParams, ApiError> {
    // Ranges are checked in the engine's precision: what rounds to 0 is 0.
    let temperature = body.number("temperature", "from 0 to 2", |t| (0.0..=2.0).contains(&t))?;
    let top_p = body.number("top_p", "above 0 and at most 1", |p| p as f32 > 0.0 && p <= 1.0)?;
    let top_k = body.integer("top_k", -1, i64::from(u32::MAX))?;
    let seed = body.integer("seed", i64::MIN, i64::MAX)?;
    Ok(SamplingParams {
        temperature: temperature.map_or(defaults.temperature, |t| t as f32),
        top_p: top_p.map_or(defaults.top_p, |p| p as f32),
        top_k: top_k.map_or(defaults.top_k, |k| k.max(0) as usize),
        // A seed names a stream of numbers; which bits name it does not matter.
        seed: seed.map(|seed| seed as u64),
        ..SamplingParams::default()
    })
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

/// A prompt given as token ids: each must be one of the model's `vocab_size` tokens.
pub fn token_ids(list: &[Value], vocab_size: usize) -> Result<Vec<u32>, ApiError> {
    list.iter()
        .enumerate()
        .map(|(index, value)| {
            let id = value.as_u64().filter(|id| *id < vocab_size as u64);
            id.map(|id| id as u32).ok_or_else(|| {
                let what = if value.is_number() { quote(value) } else { kind(value).to_string() };
                let last = vocab_size.saturating_sub(1);
                ApiError::field(
                    "prompt",
                    format!("prompt[{index}] is {what}; token ids of this model are 0 to {last}"),
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

    const DEFAULTS: SamplingDefaults = SamplingDefaults { temperature: 0.7, top_p: 0.9, top_k: 20 };

    fn read(value: Value) -> Result<Params, ApiError> {
        let body = Body::parse(Endpoint::Completions, value.to_string().as_bytes())?;
        Params::read(&body, &DEFAULTS)
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
            stop: vec![],
            ignore_eos: false,
            delivery: Delivery::Whole,
        };
        assert_eq!(read(json!({})).unwrap(), expected);
        let nulls: serde_json::Map<_, _> = FIELDS
            .iter()
            .filter(|field| field.endpoints.contains(&Endpoint::Completions))
            .map(|field| (field.name.to_string(), Value::Null))
            .collect();
        assert_eq!(read(Value::Object(nulls)).unwrap(), expected);
    }

    #[test]
    fn every_parameter_arrives() {
        let params = read(json!({
            "model": "demo", "temperature": 0, "top_p": 0.5, "top_k": -1, "seed": -2,
            "stop": ["a", "b"], "ignore_eos": true,
            "stream": true, "stream_options": {"include_usage": true},
        }))
        .unwrap();
        assert_eq!(params.model.as_deref(), Some("demo"));
        assert_eq!(
            params.sampling,
            SamplingParams {
                temperature: 0.0,
                top_p: 0.5,
                seed: Some(u64::MAX - 1),
                ..SamplingParams::default()
            }
        );
        assert_eq!(params.stop, ["a", "b"]);
        assert!(params.ignore_eos);
        assert_eq!(params.delivery, Delivery::Stream { include_usage: true });
        assert_eq!(read(json!({"stop": "X"})).unwrap().stop, ["X"]);
    }

    #[test]
    fn every_implemented_field_is_read() {
        // A value no field can have: whoever reads the field refuses it and names it.
        for field in FIELDS {
            let elsewhere = ["messages", "prompt", "max_tokens", "max_completion_tokens"];
            if field.support != Support::Implemented || elsewhere.contains(&field.name) {
                continue;
            }
            let error = read(json!({"stream": true, field.name: [[]]})).unwrap_err();
            assert_eq!(error.to_json()["error"]["param"], field.name);
        }
    }

    #[test]
    fn ranges_are_named() {
        for (value, message) in [
            (json!({"temperature": 2.01}), "temperature is 2.01; it must be a number from 0 to 2"),
            (json!({"temperature": -1}), "temperature is -1; it must be a number from 0 to 2"),
            (
                json!({"temperature": "hot"}),
                "temperature is \"hot\"; it must be a number from 0 to 2",
            ),
            (json!({"top_p": 0}), "top_p is 0; it must be a number above 0 and at most 1"),
            (json!({"top_p": 1.5}), "top_p is 1.5; it must be a number above 0 and at most 1"),
            (json!({"top_k": -2}), "top_k is -2; it must be a whole number from -1 to 4294967295"),
        ] {
            assert_eq!(refusal(value), message);
        }
        // Above 0 in the request, 0 in the engine's precision.
        assert!(refusal(json!({"top_p": 1e-60})).contains("it must be a number above 0"));
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
        assert_eq!(token_ids(&[json!(0), json!(9)], 10).unwrap(), [0, 9]);
        for (value, what) in
            [(json!(10), "10"), (json!(-1), "-1"), (json!(1.5), "1.5"), (json!("a"), "a string")]
        {
            let error = token_ids(&[json!(0), value], 10).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("prompt[1] is {what}; token ids of this model are 0 to 9")
            );
        }
    }

    #[test]
    fn the_checkpoints_advice_comes_before_open_ais_defaults() {
        let advice = GenerationConfig::default();
        let plain = SamplingDefaults { temperature: 1.0, top_p: 1.0, top_k: 0 };
        assert_eq!(SamplingDefaults::of(&advice), plain);
        let advice = GenerationConfig {
            temperature: Some(0.6),
            top_p: Some(0.95),
            top_k: Some(20),
            ..advice
        };
        assert_eq!(
            SamplingDefaults::of(&advice),
            SamplingDefaults { temperature: 0.6, top_p: 0.95, top_k: 20 }
        );
        let advice = GenerationConfig { do_sample: Some(false), ..advice };
        assert_eq!(SamplingDefaults::of(&advice).temperature, 0.0);
    }
}
