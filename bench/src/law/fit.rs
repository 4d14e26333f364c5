//! Fitting the law to points.

use serde::{Deserialize, Serialize};

use super::coefficients::Certainty;
use super::curvature::Curvature;
use super::{Law, Point};
use crate::stats::{Coefficient, Fit, FitError, Weighting, least_squares};

/// What the cost of a call is called in fits.
pub(super) const PER_CALL: &str = "ms a call";
/// What the cost of a token is called in fits.
pub(super) const PER_TOKEN: &str = "us a token";
/// What the rest is called in fits.
pub(super) const CONSTANT: &str = "constant ms";

/// Which law was fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// A call, a token and a constant.
    Joint,
    /// A call and a token, of prompts in one call each; a request's constant is in the call.
    Length,
    /// A call, a token and a constant, over the requests of waves.
    Wave,
}

/// A law and the fit that it comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LawFit {
    /// Which law.
    pub shape: Shape,
    /// Its numbers, for predictions.
    pub law: Law,
    /// Errors, residuals and influence. Parameters are in the law's order; [`Shape::Length`] has two.
    pub fit: Fit,
    /// What was fitted, in the order of the residuals.
    pub points: Vec<Point>,
}

impl LawFit {
    /// The cost of a call, in milliseconds.
    pub fn per_call_ms(&self) -> &Coefficient {
        &self.fit.coefficients[0]
    }

    /// The cost of a token, in microseconds.
    pub fn per_token_us(&self) -> &Coefficient {
        &self.fit.coefficients[1]
    }

    /// What a request costs besides, in milliseconds; `None` where it is inside the call.
    pub fn constant_ms(&self) -> Option<&Coefficient> {
        self.fit.coefficients.get(2)
    }
}

/// A call, a token and a constant, from points in which calls and tokens vary apart from each other.
pub fn fit_joint(points: &[Point], weighting: Weighting) -> Result<LawFit, FitError> {
    fit(points, Shape::Joint, weighting)
}

/// A call and a token, from prompts of one call each. Points with several calls are an error: leave them
/// out, or fit jointly.
pub fn fit_length(points: &[Point], weighting: Weighting) -> Result<LawFit, FitError> {
    match points.iter().position(|point| point.calls != 1) {
        None => fit(points, Shape::Length, weighting),
        Some(point) => Err(FitError::BadValue {
            point,
            value: points[point].calls as f64,
            needed: "a fit of lengths needs points of one call each",
        }),
    }
}

/// The joint law over the requests of one or several waves, each with the calls and tokens that the engine
/// ran before that request's first token. In one wave of equal prompts calls and tokens rise together; put
/// the same wave under a smaller budget beside it.
pub fn wave_regression(requests: &[Point], weighting: Weighting) -> Result<LawFit, FitError> {
    fit(requests, Shape::Wave, weighting)
}

fn fit(points: &[Point], shape: Shape, weighting: Weighting) -> Result<LawFit, FitError> {
    let joint = shape != Shape::Length;
    let (names, rows, measured) = columns(points, joint);
    let fit = least_squares(&names, &rows, &measured, weighting)?;
    let value = |at: usize| fit.coefficients.get(at).map_or(0.0, |found| found.value);
    let certainty = fit.covariance.as_ref().map(|covariance| {
        let entry = |row: usize, column: usize| {
            covariance.get(row).and_then(|row| row.get(column)).copied().unwrap_or_default()
        };
        Certainty {
            covariance: std::array::from_fn(|row| std::array::from_fn(|at| entry(row, at))),
            degrees_of_freedom: fit.degrees_of_freedom,
        }
    });
    let law = Law {
        per_call_ms: value(0),
        per_token_us: value(1),
        constant_ms: value(2),
        certainty,
        tokens_a_call: range(points),
        curvature: Curvature::of(points, joint, weighting),
    };
    Ok(LawFit { shape, law, fit, points: points.to_vec() })
}

fn range(points: &[Point]) -> Option<(f64, f64)> {
    let sizes = points.iter().map(Point::tokens_a_call);
    let ends = sizes.fold(None, |ends: Option<(f64, f64)>, size| match ends {
        None => Some((size, size)),
        Some((low, high)) => Some((low.min(size), high.max(size))),
    });
    ends.filter(|(low, high)| low < high)
}

/// Names, rows and measured times of the law's parameters. Tokens are in thousands, so that what is found
/// is microseconds a token.
pub(super) fn columns(
    points: &[Point],
    joint: bool,
) -> (Vec<&'static str>, Vec<Vec<f64>>, Vec<f64>) {
    let (names, parameters) = if joint {
        (vec![PER_CALL, PER_TOKEN, CONSTANT], 3)
    } else {
        (vec![PER_CALL, PER_TOKEN], 2)
    };
    let row = |point: &Point| {
        let counts = super::coefficients::counts(point.calls as f64, point.tokens as f64);
        counts[..parameters].to_vec()
    };
    let rows = points.iter().map(row).collect();
    (names, rows, points.iter().map(|point| point.ttft_ms).collect())
}

#[cfg(test)]
mod tests;
