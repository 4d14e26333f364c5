//! One thing that both records measured.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::stats::{Interval, Moments, Ratio, ratio_of_means};

/// What a ratio rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The samples themselves, which are there.
    Samples,
    /// Means, standard deviations and counts.
    Summary,
    /// Values with intervals of their own.
    Estimate,
    /// Two numbers, of whose errors nothing is known.
    Number,
}

impl Basis {
    /// The word for tables.
    pub fn name(self) -> &'static str {
        match self {
            Basis::Samples => "samples",
            Basis::Summary => "summary",
            Basis::Estimate => "estimate",
            Basis::Number => "number",
        }
    }
}

/// A quantity of two records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantity {
    /// Where it is in the results, such as `mean_ttft_ms`.
    pub name: String,
    /// Its value in the first; of samples, their mean.
    pub a: f64,
    /// Its value in the second.
    pub b: f64,
    /// B over A; `None` where one of the two is not above zero, or may not be by its interval.
    pub ratio: Option<Ratio>,
    /// What it rests on.
    pub basis: Basis,
}

impl Quantity {
    /// From samples or summaries.
    pub(super) fn of_moments(name: String, a: Moments, b: Moments, basis: Basis) -> Self {
        let ratio = ratio_of_means(a, b).ok();
        Self { name, a: a.mean, b: b.mean, ratio, basis }
    }

    /// Of values with margins of their own: the margins of the logarithms are added as squares.
    pub(super) fn of_estimates(
        name: String,
        (a, ends_a): (f64, Interval),
        (b, ends_b): (f64, Interval),
    ) -> Self {
        let above_zero = ends_a.low > 0.0 && ends_b.low > 0.0;
        let ratio = ratio_of_means(Moments::single(a), Moments::single(b)).ok();
        let ratio = ratio.filter(|_| above_zero).map(|plain| {
            let share = |value: f64, ends: Interval| (ends.high - ends.low) / 2.0 / value;
            let reach = share(a, ends_a).hypot(share(b, ends_b));
            let interval = reach.is_finite().then(|| Interval {
                low: plain.ratio * (-reach).exp(),
                high: plain.ratio * reach.exp(),
            });
            Ratio { interval, ..plain }
        });
        Self { name, a, b, ratio, basis: Basis::Estimate }
    }
}

/// Mean, deviation and count of an object that summarises samples.
pub(super) fn summary(value: &Value) -> Option<Moments> {
    let number = |key: &str| value.get(key).and_then(Value::as_f64);
    moments(number("mean")?, number("std")?, number("count")?)
}

/// Moments from a standard deviation that was divided by the count, as numpy does.
pub(super) fn moments(mean: f64, population_std: f64, count: f64) -> Option<Moments> {
    if count < 1.0 {
        return None;
    }
    let std = (count > 1.0).then(|| population_std * (count / (count - 1.0)).sqrt());
    Some(Moments { count: count as usize, mean, std })
}

/// The value and interval of an object that is an estimate, or a ratio.
pub(super) fn estimate(value: &Value) -> Option<(f64, Interval)> {
    let interval = serde_json::from_value(value.get("interval")?.clone()).ok()?;
    let number = value.get("value").or_else(|| value.get("ratio"))?;
    Some((number.as_f64()?, interval))
}
