//! What a request says about sampling, checked before it reaches the engine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::SamplingError;

/// How the tokens of one request are chosen.
///
/// The defaults are those of the OpenAI API: the model's own distribution, untouched. Every field
/// means what it means to vLLM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// Divides the logits; 0 always takes the likeliest token. 0 to 100.
    pub temperature: f32,
    /// Only the likeliest tokens whose probabilities add up to this are kept. Above 0, at most 1.
    pub top_p: f32,
    /// Only this many of the likeliest tokens are kept; 0 keeps all.
    pub top_k: usize,
    /// Only tokens with at least this share of the likeliest token's probability are kept; 0 keeps
    /// all. 0 to 1.
    pub min_p: f32,
    /// What tokens of the prompt or the answer have their logit divided by, if it is positive, or
    /// multiplied by, if it is negative; 1 changes nothing. Above 0, at most 10.
    pub repetition_penalty: f32,
    /// Taken off the logits of the answer's tokens, once each. -2 to 2.
    pub presence_penalty: f32,
    /// Taken off the logits of the answer's tokens, as many times as the answer has the token. -2
    /// to 2.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens. -100 to 100 each.
    pub logit_bias: BTreeMap<u32, f32>,
    /// No token that ends the answer is chosen before the answer has this many tokens.
    pub min_tokens: usize,
    /// Makes the answer repeatable; without one the caller draws a fresh seed for the request.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            min_tokens: 0,
            seed: None,
        }
    }
}

impl SamplingParams {
    /// Always the likeliest token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether the likeliest token is always the one taken, after bias and penalties. Whether the
    /// ranks' maxima tell which one that is, [`Sampler::needs_logits`](super::Sampler::needs_logits)
    /// knows.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    /// Whether the tokens that were seen before count.
    pub(super) fn has_penalty(&self) -> bool {
        self.repeats() || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Whether the prompt's tokens count.
    pub(super) fn repeats(&self) -> bool {
        self.repetition_penalty != 1.0
    }

    /// Refuses values outside their range, NaN included.
    ///
    /// # Errors
    ///
    /// The first field that is out of its range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let within = |least: f32, most: f32| move |value: f32| (least..=most).contains(&value);
        let check = |field: &str, value: f32, good: &dyn Fn(f32) -> bool, range: &str| {
            if good(value) { Ok(()) } else { Err(refusal(field, value, range)) }
        };
        check("temperature", self.temperature, &within(0.0, MAX_TEMPERATURE), "0 to 100")?;
        check("top_p", self.top_p, &|p| p > 0.0 && p <= 1.0, "above 0, at most 1")?;
        check("min_p", self.min_p, &within(0.0, 1.0), "0 to 1")?;
        let factor = |f| f > 0.0 && f <= MAX_REPETITION_PENALTY;
        check("repetition_penalty", self.repetition_penalty, &factor, "above 0, at most 10")?;
        for (field, value) in [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            check(field, value, &within(-2.0, 2.0), "-2 to 2")?;
        }
        for (id, &bias) in &self.logit_bias {
            let field = format!("logit_bias of token {id}");
            check(&field, bias, &within(-100.0, 100.0), "-100 to 100")?;
        }
        Ok(())
    }

    /// Refuses a bias on a token that the vocabulary does not have.
    ///
    /// # Errors
    ///
    /// The first such token.
    pub fn validate_ids(&self, vocab_size: usize) -> Result<(), SamplingError> {
        match self.logit_bias.keys().find(|&&id| id as usize >= vocab_size) {
            Some(id) => Err(refusal("a token of logit_bias", id, &format!("below {vocab_size}"))),
            None => Ok(()),
        }
    }
}

fn refusal(field: &str, value: impl ToString, range: &str) -> SamplingError {
    let value = value.to_string();
    SamplingError::OutOfRange { field: field.to_owned(), value, range: range.to_owned() }
}

/// Above this the distribution is flat to any eye; a larger value is a mistake.
pub const MAX_TEMPERATURE: f32 = 100.0;

/// Above this no token comes twice while there is another; a larger value is a mistake.
pub const MAX_REPETITION_PENALTY: f32 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_models_own_distribution() {
        let params: SamplingParams = serde_json::from_str("{}").unwrap();
        assert_eq!(params, SamplingParams::default());
        assert!(!params.is_greedy() && !params.has_penalty());
        assert_eq!(params.validate(), Ok(()));
        assert!(SamplingParams::greedy().is_greedy());
        assert!(SamplingParams { top_k: 1, ..SamplingParams::default() }.is_greedy());
    }

    #[test]
    fn parameters_survive_json() {
        let text = r#"{"temperature": 0.5, "min_p": 0.1, "logit_bias": {"7": -1.5, "12": 100},
            "min_tokens": 3, "seed": 9}"#;
        let params: SamplingParams = serde_json::from_str(text).unwrap();
        assert_eq!(params.logit_bias, BTreeMap::from([(7, -1.5), (12, 100.0)]));
        let again = serde_json::to_string(&params).unwrap();
        assert_eq!(serde_json::from_str::<SamplingParams>(&again).unwrap(), params);
    }

    fn message(change: impl FnOnce(&mut SamplingParams)) -> Result<(), String> {
        let mut params = SamplingParams::default();
        change(&mut params);
        params.validate().map_err(|error| error.to_string())
    }

    #[test]
    fn values_at_the_ends_of_their_range_are_taken() {
        for (low, high) in [(0.0, 100.0), (100.0, 0.0)] {
            assert_eq!(message(|p| p.temperature = low), Ok(()));
            assert_eq!(message(|p| p.min_p = high / 100.0), Ok(()));
            assert_eq!(message(|p| p.presence_penalty = low / 25.0 - 2.0), Ok(()));
            assert_eq!(message(|p| p.frequency_penalty = high / 25.0 - 2.0), Ok(()));
            assert_eq!(message(|p| p.logit_bias = BTreeMap::from([(0, high), (1, -low)])), Ok(()));
        }
        for least in [f32::MIN_POSITIVE, 1.0] {
            assert_eq!(message(|p| p.top_p = least), Ok(()));
            assert_eq!(message(|p| p.repetition_penalty = least), Ok(()));
        }
        assert_eq!(message(|p| p.repetition_penalty = MAX_REPETITION_PENALTY), Ok(()));
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        type Set = fn(&mut SamplingParams, f32);
        let cases: [(Set, &[f32], &str, &str); 7] = [
            (|p, x| p.temperature = x, &[-0.5, 100.5], "temperature", "0 to 100"),
            (|p, x| p.top_p = x, &[0.0, -1.0, 1.5], "top_p", "above 0, at most 1"),
            (|p, x| p.min_p = x, &[-0.1, 1.1], "min_p", "0 to 1"),
            (
                |p, x| p.repetition_penalty = x,
                &[0.0, -1.0, 10.5],
                "repetition_penalty",
                "above 0, at most 10",
            ),
            (|p, x| p.presence_penalty = x, &[-2.5, 2.5], "presence_penalty", "-2 to 2"),
            (|p, x| p.frequency_penalty = x, &[-2.5, 2.5], "frequency_penalty", "-2 to 2"),
            (
                |p, x| p.logit_bias = BTreeMap::from([(3, 0.0), (7, x)]),
                &[-100.5, 101.0],
                "logit_bias of token 7",
                "-100 to 100",
            ),
        ];
        for (set, values, field, range) in cases {
            for &value in values.iter().chain(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]) {
                assert_eq!(
                    message(|p| set(p, value)).unwrap_err(),
                    format!("{field} is {value}; it must be {range}")
                );
            }
        }
    }

    #[test]
    fn a_bias_on_a_token_that_is_not_there_is_refused() {
        let logit_bias = BTreeMap::from([(3, 1.0), (100, 1.0)]);
        let params = SamplingParams { logit_bias, ..SamplingParams::default() };
        assert_eq!(params.validate_ids(101), Ok(()));
        assert_eq!(
            params.validate_ids(100).unwrap_err().to_string(),
            "a token of logit_bias is 100; it must be below 100"
        );
    }
}
