//! What a set of samples looks like.

use serde::{Deserialize, Serialize};

/// The arithmetic mean; `None` of nothing.
pub fn mean(samples: &[f64]) -> Option<f64> {
    (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64)
}

/// The percentile at `percent` (0 to 100), interpolated linearly between the two nearest samples, which is
/// numpy's default and what `vllm bench serve` prints. `None` of nothing. The order of the samples does
/// not matter.
pub fn percentile(samples: &[f64], percent: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    of_sorted(&sorted, percent)
}

/// The middle sample, or the mean of the middle two.
pub fn median(samples: &[f64]) -> Option<f64> {
    percentile(samples, 50.0)
}

/// The standard deviation of the samples themselves (divided by their number), as numpy and
/// `vllm bench serve` have it.
pub fn population_std(samples: &[f64]) -> Option<f64> {
    squares(samples).map(|squares| (squares / samples.len() as f64).sqrt())
}

/// The standard deviation of what the samples were drawn from (divided by their number less one), the one
/// that intervals need. `None` below two samples.
pub fn sample_std(samples: &[f64]) -> Option<f64> {
    if samples.len() < 2 {
        return None;
    }
    squares(samples).map(|squares| (squares / (samples.len() - 1) as f64).sqrt())
}

/// The sum of squared distances from the mean.
fn squares(samples: &[f64]) -> Option<f64> {
    let mean = mean(samples)?;
    Some(samples.iter().map(|sample| (sample - mean).powi(2)).sum())
}

fn of_sorted(sorted: &[f64], percent: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = (percent.clamp(0.0, 100.0) / 100.0) * last as f64;
    let (below, above) = (at.floor() as usize, at.ceil() as usize);
    Some(sorted[below] + (sorted[above] - sorted[below]) * (at - below as f64))
}

/// The usual numbers about a set of samples, all in the samples' own unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many samples there are.
    pub count: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// 50th percentile.
    pub median: f64,
    /// Standard deviation, divided by `count` (see [`population_std`]).
    pub std: f64,
    /// Least sample.
    pub min: f64,
    /// Largest sample.
    pub max: f64,
    /// Percentiles that were asked for, as (percent, value).
    pub percentiles: Vec<(f64, f64)>,
}

impl Summary {
    /// Of these samples, with these percentiles; `None` of nothing.
    pub fn of(samples: &[f64], percents: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let percentiles = percents
            .iter()
            .map(|percent| of_sorted(&sorted, *percent).map(|value| (*percent, value)))
            .collect::<Option<_>>()?;
        Some(Self {
            count: sorted.len(),
            mean: mean(&sorted)?,
            median: of_sorted(&sorted, 50.0)?,
            std: population_std(&sorted)?,
            min: *sorted.first()?,
            max: *sorted.last()?,
            percentiles,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_numpys() {
        // numpy.percentile([1, 2, 4, 8, 16], [0, 10, 50, 90, 99, 100])
        let samples = [16.0, 1.0, 8.0, 2.0, 4.0];
        for (percent, expected) in
            [(0.0, 1.0), (10.0, 1.4), (50.0, 4.0), (90.0, 12.8), (99.0, 15.68), (100.0, 16.0)]
        {
            let value = percentile(&samples, percent).unwrap();
            assert!((value - expected).abs() < 1e-12, "p{percent}: {value}, not {expected}");
        }
        assert_eq!(percentile(&[7.0], 99.0), Some(7.0));
        assert_eq!(percentile(&[], 50.0), None);
    }

    #[test]
    fn deviations_divide_by_all_or_by_all_but_one() {
        let samples = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert_eq!(population_std(&samples), Some(2.0));
        assert!((sample_std(&samples).unwrap() - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(sample_std(&[1.0]), None);
        assert_eq!(population_std(&[1.0]), Some(0.0));
        assert_eq!((mean(&[]), population_std(&[])), (None, None));
    }

    #[test]
    fn a_summary_agrees_with_its_parts() {
        let samples = [3.0, 1.0, 2.0, 10.0];
        let summary = Summary::of(&samples, &[99.0]).unwrap();
        assert_eq!((summary.count, summary.mean, summary.median), (4, 4.0, 2.5));
        assert_eq!((summary.min, summary.max), (1.0, 10.0));
        assert_eq!(summary.percentiles, [(99.0, percentile(&samples, 99.0).unwrap())]);
        assert_eq!(Summary::of(&[], &[]), None);
    }
}
