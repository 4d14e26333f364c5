//! What a request says about sampling, checked before it reaches the engine.

use serde::{Deserialize, Serialize};

/// How the tokens of one request are chosen.
///
/// The defaults are those of the OpenAI API: the model's own distribution, untouched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// Divides the logits; 0 always takes the likeliest token. 0 to 100.
    pub temperature: f32,
    /// Only the likeliest tokens whose probabilities add up to this are kept. Above 0, at most 1.
    pub top_p: f32,
    /// Only this many of the likeliest tokens are kept; 0 keeps all.
    pub top_k: usize,
    /// Makes the answer repeatable; without one the caller draws a fresh seed for the request.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, top_k: 0, seed: None }
    }
}

impl SamplingParams {
    /// Always the likeliest token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether the likeliest token is always the one taken, so that a rank's maximum is all that
    /// has to be known of its logits.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    /// Refuses values outside their range, NaN included.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let refuse = |field, value: f32, range| {
            Err(SamplingError::OutOfRange { field, value: value.to_string(), range })
        };
        if !(0.0..=MAX_TEMPERATURE).contains(&self.temperature) {
            return refuse("temperature", self.temperature, "0 to 100");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return refuse("top_p", self.top_p, "above 0, at most 1");
        }
        Ok(())
    }
}

/// Above this the distribution is flat to any eye; a larger value is a mistake.
const MAX_TEMPERATURE: f32 = 100.0;

/// Why nothing could be sampled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SamplingError {
    /// A parameter has a value it cannot have: the request is wrong.
    #[error("{field} is {value}; it must be {range}")]
    OutOfRange {
        /// Name of the parameter.
        field: &'static str,
        /// The value given.
        value: String,
        /// The values it may have.
        range: &'static str,
    },
    /// The model computed a logit that is not a number (or plus infinity): the engine is wrong.
    #[error("the logit of token {id} is {value}")]
    BadLogit {
        /// The first such token.
        id: u32,
        /// NaN or inf.
        value: String,
    },
    /// There is no token to choose: the row is empty or every logit is minus infinity.
    #[error("no token can be sampled from {count} logits")]
    NoCandidate {
        /// Length of the row.
        count: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_models_own_distribution() {
        let params: SamplingParams = serde_json::from_str("{}").unwrap();
        assert_eq!(params, SamplingParams::default());
        assert!(!params.is_greedy());
        assert_eq!(params.validate(), Ok(()));
        assert!(SamplingParams::greedy().is_greedy());
        assert!(SamplingParams { top_k: 1, ..SamplingParams::default() }.is_greedy());
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let with = |temperature, top_p| {
            SamplingParams { temperature, top_p, ..SamplingParams::default() }
                .validate()
                .map_err(|error| error.to_string())
        };
        assert_eq!(with(0.0, 1.0), Ok(()));
        assert_eq!(with(100.0, f32::MIN_POSITIVE), Ok(()));
        assert_eq!(with(-0.5, 1.0).unwrap_err(), "temperature is -0.5; it must be 0 to 100");
        assert_eq!(with(f32::NAN, 1.0).unwrap_err(), "temperature is NaN; it must be 0 to 100");
        assert_eq!(
            with(f32::INFINITY, 1.0).unwrap_err(),
            "temperature is inf; it must be 0 to 100"
        );
        for top_p in [0.0, -1.0, 1.5, f32::NAN] {
            let message = with(1.0, top_p).unwrap_err();
            assert_eq!(message, format!("top_p is {top_p}; it must be above 0, at most 1"));
        }
    }
}
