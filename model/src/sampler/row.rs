//! What can be said of a row of logits without choosing from it: its largest entry and its
//! log-probabilities. Both can be computed for a part of the vocabulary and merged, so that a rank
//! may publish two or three numbers instead of its shard.

use super::SamplingError;

/// The likeliest token of a row, or of a part of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Best {
    /// Its id.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
}

impl Best {
    /// The largest of `logits`, whose first entry belongs to token `first_id`. The lowest id wins a
    /// tie.
    ///
    /// # Errors
    ///
    /// A logit that is NaN or plus infinity; no logit above minus infinity.
    pub fn of(logits: &[f32], first_id: u32) -> Result<Self, SamplingError> {
        let max = maximum(logits, first_id)?;
        // Looked up afterwards: a pass without an index to carry becomes vector code.
        let offset = logits.iter().position(|&logit| logit == max).unwrap_or_default();
        Ok(Self { id: first_id + offset as u32, logit: max })
    }

    /// The better of two parts; the lower id wins a tie, whatever the order of the parts.
    pub fn merge(self, other: Self) -> Self {
        let other_wins =
            other.logit > self.logit || (other.logit == self.logit && other.id < self.id);
        if other_wins { other } else { self }
    }
}

/// Largest logit; refuses rows that no token can be chosen from.
pub(super) fn maximum(logits: &[f32], first_id: u32) -> Result<f32, SamplingError> {
    let mut max = f32::NEG_INFINITY;
    let mut all_good = true;
    for &logit in logits {
        // False for NaN too.
        all_good &= logit < f32::INFINITY;
        max = if logit > max { logit } else { max };
    }
    if !all_good {
        return Err(bad_logit(logits, first_id));
    }
    if max == f32::NEG_INFINITY {
        return Err(SamplingError::NoCandidate { count: logits.len() });
    }
    Ok(max)
}

#[cold]
fn bad_logit(logits: &[f32], first_id: u32) -> SamplingError {
    let bad = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
    let offset = logits.iter().position(bad).unwrap_or_default();
    SamplingError::BadLogit { id: first_id + offset as u32, value: logits[offset].to_string() }
}

/// The denominator of a softmax over a row, or over a part of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogSumExp {
    /// Largest logit.
    pub max: f32,
    /// Sum of `e^(logit - max)`.
    pub sum: f64,
}

impl LogSumExp {
    /// Sums the exponentials of `logits`, in order, in float64; `first_id` is the token of the
    /// first.
    ///
    /// # Errors
    ///
    /// As [`Best::of`].
    pub fn of(logits: &[f32], first_id: u32) -> Result<Self, SamplingError> {
        let max = maximum(logits, first_id)?;
        let sum = logits.iter().map(|&logit| (f64::from(logit) - f64::from(max)).exp()).sum();
        Ok(Self { max, sum })
    }

    /// The sum over two parts.
    pub fn merge(self, other: Self) -> Self {
        let max = self.max.max(other.max);
        let scaled = |part: Self| part.sum * (f64::from(part.max) - f64::from(max)).exp();
        Self { max, sum: scaled(self) + scaled(other) }
    }

    /// Natural logarithm of the probability of a token with this logit.
    pub fn log_prob(&self, logit: f32) -> f64 {
        f64::from(logit) - f64::from(self.max) - self.sum.ln()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    #[test]
    fn lowest_id_wins_a_tie_d3() {
        assert_eq!(Best::of(&[1.0, 3.0, 2.0, 3.0], 10).unwrap(), Best { id: 11, logit: 3.0 });
        assert_eq!(Best::of(&[-0.0, 0.0], 0).unwrap().id, 0);
        assert_eq!(Best::of(&[0.0, -0.0], 0).unwrap().id, 0);
    }

    #[test]
    fn rows_that_cannot_be_sampled_are_refused() {
        let error = |logits: &[f32]| Best::of(logits, 100).unwrap_err().to_string();
        assert_eq!(error(&[0.0, f32::NAN, 1.0]), "the logit of token 101 is NaN");
        assert_eq!(error(&[f32::INFINITY]), "the logit of token 100 is inf");
        assert_eq!(error(&[]), "no token can be sampled from 0 logits");
        assert_eq!(error(&[f32::NEG_INFINITY; 3]), "no token can be sampled from 3 logits");
        assert_eq!(Best::of(&[f32::NEG_INFINITY, -5.0], 0).unwrap().id, 1);
        assert!(LogSumExp::of(&[f32::NAN], 0).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default()
        })]

        #[test]
        fn parts_of_a_row_merge_to_the_whole(
            logits in prop::collection::vec((-8_i32..8).prop_map(|x| x as f32), 2..40),
            at in any::<prop::sample::Index>(),
        ) {
            let cut = 1 + at.index(logits.len() - 1);
            let (low, high) = logits.split_at(cut);
            let whole = Best::of(&logits, 0).unwrap();
            let (a, b) = (Best::of(low, 0).unwrap(), Best::of(high, cut as u32).unwrap());
            prop_assert_eq!(a.merge(b), whole);
            prop_assert_eq!(b.merge(a), whole);

            let whole = LogSumExp::of(&logits, 0).unwrap();
            let merged = LogSumExp::of(low, 0).unwrap().merge(LogSumExp::of(high, 0).unwrap());
            prop_assert!((merged.log_prob(1.0) - whole.log_prob(1.0)).abs() < 1e-12);
        }

        #[test]
        fn probabilities_add_up_to_one(logits in prop::collection::vec(-80_f32..80.0, 1..200)) {
            let denominator = LogSumExp::of(&logits, 0).unwrap();
            let total: f64 = logits.iter().map(|&l| denominator.log_prob(l).exp()).sum();
            prop_assert!((total - 1.0).abs() < 1e-12, "{}", total);
        }
    }
}
