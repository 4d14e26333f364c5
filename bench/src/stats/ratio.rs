//! Ratios of two measurements, with intervals.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::student::{CONFIDENCE, Interval, mean_interval};
use super::summary::{mean, sample_std};

/// `b` over `a`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The estimate.
    pub ratio: f64,
    /// Interval at [`CONFIDENCE`]; `None` when there are too few samples for one.
    pub interval: Option<Interval>,
}

/// Why two measurements have no ratio.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum RatioError {
    /// There is nothing to compare.
    #[error("there are no samples to take a ratio of")]
    Empty,
    /// Samples that should be pairs are not.
    #[error("{a} samples and {b} samples are not pairs")]
    Unpaired {
        /// Samples of the first.
        a: usize,
        /// Samples of the second.
        b: usize,
    },
    /// A ratio of such a value says nothing.
    #[error("the value {value} is not above zero, so a ratio of it says nothing")]
    NotPositive {
        /// The value.
        value: f64,
    },
}

/// What is known of a measurement when its samples are not there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moments {
    /// How many samples there were.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation, divided by the count less one; `None` where it is not known.
    pub std: Option<f64>,
}

impl Moments {
    /// Of samples that are there.
    pub fn of(samples: &[f64]) -> Option<Self> {
        Some(Self { count: samples.len(), mean: mean(samples)?, std: sample_std(samples) })
    }

    /// A single number of which nothing else is known.
    pub fn single(value: f64) -> Self {
        Self { count: 1, mean: value, std: None }
    }

    /// The variance of the logarithm of the mean, to first order.
    fn log_variance(&self) -> Option<f64> {
        let std = self.std?;
        (self.count > 1).then(|| (std / self.mean).powi(2) / self.count as f64)
    }
}

/// The ratio `b / a` of samples measured in pairs, such as the two arms of an experiment in turn: the
/// geometric mean of the pairs' ratios. What moves both of a pair alike (a machine that slows down) cancels.
pub fn paired_ratio(a: &[f64], b: &[f64]) -> Result<Ratio, RatioError> {
    if a.len() != b.len() {
        return Err(RatioError::Unpaired { a: a.len(), b: b.len() });
    }
    for value in a.iter().chain(b) {
        positive(*value)?;
    }
    let logs: Vec<f64> = a.iter().zip(b).map(|(a, b)| (b / a).ln()).collect();
    let middle = mean(&logs).ok_or(RatioError::Empty)?;
    let interval = mean_interval(&logs, CONFIDENCE);
    Ok(Ratio { ratio: middle.exp(), interval: interval.map(exponential) })
}

/// The ratio `b / a` of two means of independent samples. The interval is Welch's on the logarithms: the two
/// may differ in scatter and in number.
pub fn ratio_of_means(a: Moments, b: Moments) -> Result<Ratio, RatioError> {
    if a.count == 0 || b.count == 0 {
        return Err(RatioError::Empty);
    }
    positive(a.mean)?;
    positive(b.mean)?;
    let ratio = b.mean / a.mean;
    let interval = a.log_variance().zip(b.log_variance()).and_then(|(of_a, of_b)| {
        let variance = of_a + of_b;
        if variance == 0.0 {
            return Some(Interval { low: ratio.ln(), high: ratio.ln() });
        }
        let freedom = variance.powi(2)
            / (of_a.powi(2) / (a.count - 1) as f64 + of_b.powi(2) / (b.count - 1) as f64);
        Interval::around(ratio.ln(), variance.sqrt(), freedom, CONFIDENCE)
    });
    Ok(Ratio { ratio, interval: interval.map(exponential) })
}

fn positive(value: f64) -> Result<(), RatioError> {
    if value > 0.0 && value.is_finite() { Ok(()) } else { Err(RatioError::NotPositive { value }) }
}

fn exponential(interval: Interval) -> Interval {
    Interval { low: interval.low.exp(), high: interval.high.exp() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_cancel_what_moves_both() {
        // A machine that gets ten times slower on the way, and b always 2 % above a.
        let a: Vec<f64> = (0..10).map(|at| 100.0 * f64::from(at + 1)).collect();
        let b: Vec<f64> = a.iter().map(|a| a * 1.02).collect();
        let paired = paired_ratio(&a, &b).unwrap();
        assert!((paired.ratio - 1.02).abs() < 1e-12);
        let Interval { low, high } = paired.interval.unwrap();
        assert!(low > 1.0199 && high < 1.0201);
        let apart = ratio_of_means(Moments::of(&a).unwrap(), Moments::of(&b).unwrap()).unwrap();
        assert!(apart.interval.unwrap().contains(1.0), "means alone cannot see 2 % in that");
    }

    #[test]
    fn a_ratio_needs_values_above_zero_and_pairs() {
        assert_eq!(paired_ratio(&[1.0], &[]), Err(RatioError::Unpaired { a: 1, b: 0 }));
        assert_eq!(paired_ratio(&[], &[]), Err(RatioError::Empty));
        assert_eq!(paired_ratio(&[0.0], &[1.0]), Err(RatioError::NotPositive { value: 0.0 }));
        let one = paired_ratio(&[2.0], &[3.0]).unwrap();
        assert!((one.ratio - 1.5).abs() < 1e-12 && one.interval.is_none());
        let single = ratio_of_means(Moments::single(2.0), Moments::single(3.0)).unwrap();
        assert_eq!(single, Ratio { ratio: 1.5, interval: None });
        let broken = ratio_of_means(Moments::single(-1.0), Moments::single(3.0));
        assert_eq!(broken, Err(RatioError::NotPositive { value: -1.0 }));
    }

    #[test]
    fn welch_weighs_each_sides_scatter() {
        let a = Moments { count: 10, mean: 100.0, std: Some(5.0) };
        let b = Moments { count: 20, mean: 110.0, std: Some(11.0) };
        let ratio = ratio_of_means(a, b).unwrap();
        // ln 1.1 +- t(27.98) * sqrt(0.05^2 / 10 + 0.1^2 / 20), t = 2.04848
        let reach = 2.04848 * (0.00025f64 + 0.0005).sqrt();
        let Interval { low, high } = ratio.interval.unwrap();
        assert!((low.ln() - (1.1f64.ln() - reach)).abs() < 2e-5, "{low}");
        assert!((high.ln() - (1.1f64.ln() + reach)).abs() < 2e-5, "{high}");
        let exact = Moments { count: 3, mean: 4.0, std: Some(0.0) };
        let same = ratio_of_means(exact, exact).unwrap();
        assert_eq!(same.interval, Some(Interval { low: 1.0, high: 1.0 }));
    }
}
