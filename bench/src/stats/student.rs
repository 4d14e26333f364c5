//! Student's t: how far a mean of few samples may be off.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::summary::{mean, sample_std};

/// The share of intervals that hold the true value, unless said otherwise.
pub const CONFIDENCE: f64 = 0.95;

/// A range that holds the true value with the confidence it was made with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// `value` plus and minus the t quantile times the standard error; `None` without degrees of freedom.
    pub fn around(value: f64, standard_error: f64, freedom: f64, confidence: f64) -> Option<Self> {
        let reach = t_quantile(freedom, confidence)? * standard_error;
        Some(Self { low: value - reach, high: value + reach })
    }

    /// Whether the value is inside, ends included.
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// How many standard errors a two-sided interval of this confidence reaches with so many degrees of
/// freedom. `None` unless the degrees are positive and the confidence lies between 0 and 1.
pub fn t_quantile(freedom: f64, confidence: f64) -> Option<f64> {
    if !(confidence > 0.0 && confidence < 1.0) {
        return None;
    }
    let student = StudentsT::new(0.0, 1.0, freedom).ok()?;
    Some(student.inverse_cdf(0.5 + confidence / 2.0))
}

/// The chance that a true zero looks at least this many standard errors away, both sides counted.
pub fn p_value(t: f64, freedom: f64) -> Option<f64> {
    let student = StudentsT::new(0.0, 1.0, freedom).ok()?;
    Some((2.0 * student.cdf(-t.abs())).min(1.0))
}

/// The interval of the mean of what the samples were drawn from; `None` below two samples.
pub fn mean_interval(samples: &[f64], confidence: f64) -> Option<Interval> {
    let count = samples.len() as f64;
    let error = sample_std(samples)? / count.sqrt();
    Interval::around(mean(samples)?, error, count - 1.0, confidence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (freedom, confidence, expected) in [
            (1.0, 0.95, 12.7062),
            (2.0, 0.95, 4.30265),
            (7.0, 0.95, 2.36462),
            (14.0, 0.95, 2.14479),
            (14.0, 0.99, 2.97684),
            (1000.0, 0.95, 1.96234),
        ] {
            let quantile = t_quantile(freedom, confidence).unwrap();
            assert!((quantile / expected - 1.0).abs() < 1e-5, "{freedom}: {quantile}");
            let chance = p_value(quantile, freedom).unwrap();
            assert!((chance - (1.0 - confidence)).abs() < 1e-6, "{freedom}: {chance}");
        }
        assert_eq!(t_quantile(0.0, 0.95), None);
        assert_eq!(t_quantile(5.0, 1.0), None);
        assert_eq!(p_value(0.0, 3.0), Some(1.0));
    }

    #[test]
    fn the_interval_of_a_mean_narrows_with_samples() {
        let four = mean_interval(&[1.0, 2.0, 3.0, 4.0], CONFIDENCE).unwrap();
        // 2.5 +- 3.18245 * 1.29099 / 2
        assert!((four.low - 0.445739).abs() < 1e-5 && (four.high - 4.554261).abs() < 1e-5);
        assert!(four.contains(2.5) && !four.contains(0.0));
        assert_eq!(mean_interval(&[1.0], CONFIDENCE), None);
    }
}
