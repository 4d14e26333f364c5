//! How likely a token was, and which were the likeliest.

use serde::{Deserialize, Serialize};

use super::row::LogSumExp;
use super::{SamplingError, select};

/// How likely the model found one token, and the likeliest ones in its place.
///
/// All of it is about the model's own distribution, before bias, penalties and temperature, as by
/// vLLM's default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprobs {
    /// Natural logarithm of the token's probability; minus infinity for a token that cannot be.
    pub logprob: f64,
    /// The token's place among all, by probability and then by id; 1 is the likeliest.
    pub rank: u32,
    /// The likeliest tokens and their log-probabilities, likeliest first. The lower id comes first
    /// in a tie.
    pub top: Vec<(u32, f64)>,
}

impl TokenLogprobs {
    /// What there is to say of `token` and of the `top` likeliest tokens (all, if there are fewer),
    /// given the logits of the whole vocabulary in id order.
    ///
    /// # Errors
    ///
    /// A logit that is NaN or plus infinity, or none above minus infinity; a token that the row
    /// does not have.
    pub fn of(logits: &[f32], token: u32, top: usize) -> Result<Self, SamplingError> {
        let Some(&logit) = logits.get(token as usize) else {
            return Err(SamplingError::OutOfRange {
                field: "token".to_owned(),
                value: token.to_string(),
                range: format!("below {}", logits.len()),
            });
        };
        let denominator = LogSumExp::of(logits, 0)?;
        let likeliest = select::ranked(logits, top);
        Ok(Self {
            logprob: denominator.log_prob(logit),
            rank: select::place(logits, token),
            top: likeliest.iter().map(|c| (c.id, denominator.log_prob(c.logit))).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    #[test]
    fn what_is_said_of_a_row() {
        let logits: Vec<f32> = [0.1_f32, 0.2, 0.5, 0.2].iter().map(|p| p.ln()).collect();
        let found = TokenLogprobs::of(&logits, 3, 3).unwrap();
        assert!((found.logprob - 0.2_f64.ln()).abs() < 1e-6);
        assert_eq!(found.rank, 3);
        let ids: Vec<u32> = found.top.iter().map(|&(id, _)| id).collect();
        assert_eq!(ids, [2, 1, 3]);
        assert_eq!(found.top[2].1, found.logprob);
        assert_eq!(TokenLogprobs::of(&logits, 2, 0).unwrap().top, []);
        assert_eq!(TokenLogprobs::of(&logits, 2, 99).unwrap().top.len(), 4);
    }

    #[test]
    fn a_token_that_cannot_be_comes_last() {
        let logits = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];
        let found = TokenLogprobs::of(&logits, 2, 3).unwrap();
        assert_eq!((found.logprob, found.rank), (f64::NEG_INFINITY, 3));
        let expected = [(1, 0.0), (0, f64::NEG_INFINITY), (2, f64::NEG_INFINITY)];
        assert_eq!(found.top, expected);
    }

    #[test]
    fn rows_and_tokens_that_are_wrong_are_refused() {
        let error = |logits: &[f32], token| TokenLogprobs::of(logits, token, 1).unwrap_err();
        assert_eq!(error(&[0.0, 1.0], 2).to_string(), "token is 2; it must be below 2");
        assert_eq!(error(&[0.0, f32::NAN], 0).to_string(), "the logit of token 1 is NaN");
        assert!(matches!(error(&[f32::NEG_INFINITY], 0), SamplingError::NoCandidate { .. }));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default()
        })]

        #[test]
        fn same_as_by_sorting(
            // Few distinct values, so that there are ties.
            logits in prop::collection::vec((-20_i32..20).prop_map(|x| x as f32 / 4.0), 1..300),
            token in any::<prop::sample::Index>(),
            top in 0_usize..40,
        ) {
            let token = token.index(logits.len()) as u32;
            let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            let mut sorted: Vec<(u32, f64)> =
                (0..).zip(logits.iter().map(|&logit| f64::from(logit) - total.ln())).collect();
            // Stable: equal ones stay in the order of their ids.
            sorted.sort_by(|(_, a), (_, b)| b.total_cmp(a));

            let found = TokenLogprobs::of(&logits, token, top).unwrap();
            let place = sorted.iter().position(|&(id, _)| id == token).unwrap();
            prop_assert_eq!(found.rank as usize, place + 1);
            prop_assert!((found.logprob - sorted[place].1).abs() < 1e-12);
            prop_assert_eq!(found.top.len(), top.min(logits.len()));
            for (&(id, logprob), &(expected, exact)) in found.top.iter().zip(&sorted) {
                prop_assert_eq!(id, expected);
                prop_assert!((logprob - exact).abs() < 1e-12);
            }
        }
    }
}
