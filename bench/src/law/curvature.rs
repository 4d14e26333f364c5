//! Whether the cost of a call is a straight line of its tokens.

use serde::{Deserialize, Serialize};

use super::Point;
use super::fit::columns;
use crate::stats::{FitError, Weighting, least_squares, p_value};

/// Below this chance of seeing such a bend in a straight line, the bend is taken for real.
const SIGNIFICANT: f64 = 0.05;

/// What the points say about a term that grows with the square of a call's tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curvature {
    /// Nanoseconds for each pair of tokens in one call.
    pub per_token_squared_ns: f64,
    /// The chance to see at least this much of it in points of a straight line.
    pub p: f64,
    /// ms a call, us a token and (unless every point has one call) the constant beside that term.
    beside: Vec<f64>,
}

impl Curvature {
    /// Tries the term beside those of the law. `None` when the points cannot tell: no point to spare, or
    /// too few lengths of call.
    pub(super) fn of(points: &[Point], joint: bool, weighting: Weighting) -> Option<Self> {
        let bent = fit(points, joint, weighting).ok()?;
        let term = bent.coefficients.last()?;
        let freedom = bent.degrees_of_freedom as f64;
        let p = p_value(term.value / term.standard_error?, freedom)?;
        let mut beside = bent.values();
        beside.pop();
        Some(Self { per_token_squared_ns: term.value, p, beside })
    }

    /// Whether the bend is more than noise would make.
    pub fn is_significant(&self) -> bool {
        self.p < SIGNIFICANT
    }

    /// Milliseconds by the bent law for so many calls of so many tokens each.
    pub fn ttft_ms(&self, calls: f64, tokens_a_call: f64) -> f64 {
        let tokens = calls * tokens_a_call;
        let straight = [calls, tokens / 1e3, 1.0];
        let straight: f64 = self.beside.iter().zip(straight).map(|(b, x)| b * x).sum();
        straight + self.per_token_squared_ns * tokens * tokens_a_call / 1e6
    }
}

fn fit(points: &[Point], joint: bool, weighting: Weighting) -> Result<crate::stats::Fit, FitError> {
    let (mut names, mut rows, measured) = columns(points, joint);
    names.push("ns a token squared");
    for (row, point) in rows.iter_mut().zip(points) {
        row.push(point.tokens as f64 * point.tokens_a_call() / 1e6);
    }
    least_squares(&names, &rows, &measured, weighting)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bent(per_token_squared_ns: f64) -> Vec<Point> {
        // Errors of a tenth of a percent that repeat every four points, so that no bend is in them.
        let noise = [1.001, 0.999, 0.999, 1.001];
        (1..=16u32)
            .map(|at| {
                let tokens = u64::from(at) * 200;
                let square = (tokens * tokens) as f64 * per_token_squared_ns / 1e6;
                let ms = 100.0 + 0.5 * tokens as f64 + square;
                Point { calls: 1, tokens, ttft_ms: ms * noise[at as usize % 4] }
            })
            .collect()
    }

    #[test]
    fn a_bend_is_seen_and_a_straight_line_is_not_called_bent() {
        let curve = Curvature::of(&bent(20.0), false, Weighting::Relative).unwrap();
        assert!(curve.is_significant(), "{curve:?}");
        assert!((curve.per_token_squared_ns - 20.0).abs() < 2.0, "{curve:?}");
        let at = curve.ttft_ms(1.0, 6400.0);
        let truth = 100.0 + 3200.0 + 20.0 * 6400.0f64.powi(2) / 1e6;
        assert!((at / truth - 1.0).abs() < 0.02, "{at} beside {truth}");
        let straight = Curvature::of(&bent(0.0), false, Weighting::Relative).unwrap();
        assert!(!straight.is_significant(), "{straight:?}");
    }

    #[test]
    fn two_lengths_cannot_tell() {
        let points = [(100, 1.0), (100, 1.1), (200, 2.0), (200, 2.1)];
        let points = points.map(|(tokens, ttft_ms)| Point { calls: 1, tokens, ttft_ms });
        assert_eq!(Curvature::of(&points, false, Weighting::Ordinary), None);
    }
}
