//! How tokens are chosen, as far as a request says so.

use std::collections::BTreeMap;

use pocket_model::generation::GenerationConfig;
use pocket_model::sampler::{MAX_REPETITION_PENALTY, SamplingParams};
use serde_json::Value;

use super::body::{Body, quote, wrong};
use super::error::ApiError;

/// What a request that says nothing about sampling gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingDefaults {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f32,
    /// Probability mass kept.
    pub top_p: f32,
    /// Tokens kept; 0 keeps all.
    pub top_k: usize,
    /// Least share of the likeliest token's probability.
    pub min_p: f32,
    /// Factor against tokens seen before.
    pub repetition_penalty: f32,
}

impl SamplingDefaults {
    /// What the checkpoint's makers recommend in `generation_config.json` (`do_sample: false` asks for
    /// the likeliest token); where they say nothing, OpenAI's defaults.
    pub fn of(checkpoint: &GenerationConfig) -> Self {
        let open_ai = SamplingParams::default();
        let greedy = checkpoint.do_sample == Some(false);
        // A file may say 0 for "off".
        let above_zero = |value: Option<f32>| value.filter(|value| *value > 0.0);
        Self {
            temperature: match checkpoint.temperature {
                _ if greedy => 0.0,
                given => given.unwrap_or(open_ai.temperature),
            },
            top_p: above_zero(checkpoint.top_p).unwrap_or(open_ai.top_p),
            top_k: checkpoint.top_k.map_or(open_ai.top_k, |top_k| top_k as usize),
            min_p: checkpoint.min_p.unwrap_or(open_ai.min_p),
            repetition_penalty: above_zero(checkpoint.repetition_penalty)
                .unwrap_or(open_ai.repetition_penalty),
        }
    }
}

/// Reads the sampling parameters of a request to a model of `vocab_size` tokens.
pub fn read(
    body: &Body,
    defaults: &SamplingDefaults,
    vocab_size: usize,
) -> Result<SamplingParams, ApiError> {
    // Ranges are checked in the engine's precision: what rounds to 0 is 0.
    let above_zero = |value: f64, most: f64| value as f32 > 0.0 && value <= most;
    let temperature = body.number("temperature", "from 0 to 2", |t| (0.0..=2.0).contains(&t))?;
    let top_p = body.number("top_p", "above 0 and at most 1", |p| above_zero(p, 1.0))?;
    let top_k = body.integer("top_k", -1, i64::from(u32::MAX))?;
    let min_p = body.number("min_p", "from 0 to 1", |p| (0.0..=1.0).contains(&p))?;
    let repetition = body.number("repetition_penalty", "above 0 and at most 10", |factor| {
        above_zero(factor, f64::from(MAX_REPETITION_PENALTY))
    })?;
    let penalty =
        |name| body.number(name, "from -2 to 2", |penalty| (-2.0..=2.0).contains(&penalty));
    let min_tokens = body.integer("min_tokens", 0, i64::from(u32::MAX))?;
    let seed = body.integer("seed", i64::MIN, i64::MAX)?;
    Ok(SamplingParams {
        temperature: temperature.map_or(defaults.temperature, |t| t as f32),
        top_p: top_p.map_or(defaults.top_p, |p| p as f32),
        top_k: top_k.map_or(defaults.top_k, |k| k.max(0) as usize),
        min_p: min_p.map_or(defaults.min_p, |p| p as f32),
        repetition_penalty: repetition.map_or(defaults.repetition_penalty, |factor| factor as f32),
        presence_penalty: penalty("presence_penalty")?.unwrap_or(0.0) as f32,
        frequency_penalty: penalty("frequency_penalty")?.unwrap_or(0.0) as f32,
        logit_bias: logit_bias(body, vocab_size)?,
        min_tokens: min_tokens.unwrap_or(0) as usize,
        // A seed names a stream of numbers; which bits name it does not matter.
        seed: seed.map(|seed| seed as u64),
    })
}

fn logit_bias(body: &Body, vocab_size: usize) -> Result<BTreeMap<u32, f32>, ApiError> {
    let entries = match body.get("logit_bias") {
        None => return Ok(BTreeMap::new()),
        Some(Value::Object(entries)) => entries,
        Some(value) => {
            return Err(wrong("logit_bias", value, "an object from token ids to -100 to 100"));
        }
    };
    let mut biases = BTreeMap::new();
    for (key, value) in entries {
        let Some(id) = token_id(key, vocab_size) else {
            let last = vocab_size.saturating_sub(1);
            let key = quote(&Value::from(key.as_str()));
            return Err(ApiError::field(
                "logit_bias",
                format!("logit_bias has the key {key}; token ids of this model are 0 to {last}"),
            ));
        };
        let bias = value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        let Some(bias) = bias else {
            return Err(ApiError::field(
                "logit_bias",
                format!(
                    "logit_bias of token {id} is {}; it must be a number from -100 to 100",
                    quote(value)
                ),
            ));
        };
        if biases.insert(id, bias as f32).is_some() {
            return Err(ApiError::field(
                "logit_bias",
                format!("logit_bias names token {id} twice"),
            ));
        }
    }
    Ok(biases)
}

/// A token id written in digits only: `+5` is none.
fn token_id(text: &str, vocab_size: usize) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|id: &u32| digits && (*id as usize) < vocab_size)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http::fields::Endpoint;

    const DEFAULTS: SamplingDefaults = SamplingDefaults {
        temperature: 0.7,
        top_p: 0.9,
        top_k: 20,
        min_p: 0.05,
        repetition_penalty: 1.1,
    };

    fn sampling(value: Value) -> Result<SamplingParams, String> {
        let body = Body::parse(Endpoint::Chat, value.to_string().as_bytes()).unwrap();
        read(&body, &DEFAULTS, 100).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_said_is_the_servers_default() {
        let expected = SamplingParams {
            temperature: 0.7,
            top_p: 0.9,
            top_k: 20,
            min_p: 0.05,
            repetition_penalty: 1.1,
            ..SamplingParams::default()
        };
        assert_eq!(sampling(json!({})), Ok(expected));
    }

    #[test]
    fn every_parameter_arrives() {
        let params = sampling(json!({
            "temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0, "repetition_penalty": 1,
            "presence_penalty": -2, "frequency_penalty": 0.5, "min_tokens": 3, "seed": -2,
            "logit_bias": {"0": -100, "99": 0.5},
        }));
        let expected = SamplingParams {
            temperature: 0.0,
            top_p: 0.5,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: -2.0,
            frequency_penalty: 0.5,
            logit_bias: BTreeMap::from([(0, -100.0), (99, 0.5)]),
            min_tokens: 3,
            seed: Some(u64::MAX - 1),
        };
        assert_eq!(params, Ok(expected));
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
            (json!({"min_p": 1.1}), "min_p is 1.1; it must be a number from 0 to 1"),
            (
                json!({"repetition_penalty": 0}),
                "repetition_penalty is 0; it must be a number above 0 and at most 10",
            ),
            (
                json!({"presence_penalty": 2.5}),
                "presence_penalty is 2.5; it must be a number from -2 to 2",
            ),
            (
                json!({"frequency_penalty": -3}),
                "frequency_penalty is -3; it must be a number from -2 to 2",
            ),
            (
                json!({"min_tokens": -1}),
                "min_tokens is -1; it must be a whole number from 0 to 4294967295",
            ),
        ] {
            assert_eq!(sampling(value).unwrap_err(), message);
        }
        // Above 0 in the request, 0 in the engine's precision.
        assert!(sampling(json!({"top_p": 1e-60})).unwrap_err().contains("a number above 0"));
    }

    #[test]
    fn a_bias_is_a_number_for_a_token_of_the_vocabulary() {
        for (value, message) in [
            (json!([1]), "logit_bias is [1]; it must be an object from token ids to -100 to 100"),
            (
                json!({"100": 1}),
                "logit_bias has the key \"100\"; token ids of this model are 0 to 99",
            ),
            (
                json!({"the": 1}),
                "logit_bias has the key \"the\"; token ids of this model are 0 to 99",
            ),
            (
                json!({"+5": 1}),
                "logit_bias has the key \"+5\"; token ids of this model are 0 to 99",
            ),
            (
                json!({"5": 101}),
                "logit_bias of token 5 is 101; it must be a number from -100 to 100",
            ),
            (
                json!({"5": "1"}),
                "logit_bias of token 5 is \"1\"; it must be a number from -100 to 100",
            ),
            (json!({"5": 1, "05": 2}), "logit_bias names token 5 twice"),
        ] {
            assert_eq!(sampling(json!({"logit_bias": value})).unwrap_err(), message);
        }
    }

    #[test]
    fn the_checkpoints_advice_comes_before_open_ais_defaults() {
        let advice = GenerationConfig::default();
        let plain = SamplingDefaults {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
        };
        assert_eq!(SamplingDefaults::of(&advice), plain);
        let advice = GenerationConfig {
            temperature: Some(0.6),
            top_p: Some(0.95),
            top_k: Some(20),
            min_p: Some(0.1),
            repetition_penalty: Some(1.05),
            ..advice
        };
        let expected = SamplingDefaults {
            temperature: 0.6,
            top_p: 0.95,
            top_k: 20,
            min_p: 0.1,
            repetition_penalty: 1.05,
        };
        assert_eq!(SamplingDefaults::of(&advice), expected);
        let off = GenerationConfig {
            top_p: Some(0.0),
            repetition_penalty: Some(0.0),
            do_sample: Some(false),
            ..advice
        };
        let defaults = SamplingDefaults::of(&off);
        assert_eq!(
            (defaults.temperature, defaults.top_p, defaults.repetition_penalty),
            (0.0, 1.0, 1.0)
        );
    }
}
