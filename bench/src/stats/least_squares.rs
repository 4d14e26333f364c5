//! Least squares by QR, ordinary and weighted.

use nalgebra::{DMatrix, DVector};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::influence::Influence;
use super::student::{CONFIDENCE, Interval};

/// The sine of the angle between a column and the others below which the two are taken for one.
const COLLINEAR: f64 = 1e-8;

/// Which distances are made small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weighting {
    /// Distances as they are: an error of 10 ms counts the same at 100 ms and at 10 s.
    Ordinary,
    /// Distances relative to the value fitted: right when noise grows with what is measured, as times do.
    /// Weights are one over the square of a first fit's values, which in turn is weighted by the measured
    /// values; that keeps points which happen to lie low from pulling harder.
    Relative,
}

/// Why no line goes through the points.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum FitError {
    /// There are fewer points than parameters.
    #[error("{points} points cannot give {parameters} parameters; measure more points")]
    TooFewPoints {
        /// Points there are.
        points: usize,
        /// Parameters to find.
        parameters: usize,
    },
    /// Two causes rise together in all points.
    #[error(
        "the points cannot tell '{name}' from the other parameters: it varies with them or not at all; \
         measure points in which it alone changes"
    )]
    Collinear {
        /// The parameter that cannot be told apart.
        name: String,
    },
    /// A value is not a number, or cannot be weighted.
    #[error("point {} has the value {value}; {}", .point + 1, .needed)]
    BadValue {
        /// Which point, from 0.
        point: usize,
        /// What it has.
        value: f64,
        /// What it should have.
        needed: &'static str,
    },
    /// The first fit is not above zero everywhere, so distances relative to it mean nothing.
    #[error(
        "the fitted value at point {} is {value:.3}, and errors relative to a value that is not above zero \
         mean nothing; use the ordinary fit, or look at what the points have in common",
        .point + 1
    )]
    NotPositive {
        /// Which point, from 0.
        point: usize,
        /// The value fitted there.
        value: f64,
    },
}

/// One parameter of a fit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Coefficient {
    /// What it is.
    pub name: String,
    /// The estimate.
    pub value: f64,
    /// Standard error; `None` when there are no more points than parameters.
    pub standard_error: Option<f64>,
    /// Interval at [`CONFIDENCE`].
    pub interval: Option<Interval>,
}

/// One point beside the fit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Residual {
    /// What was measured.
    pub measured: f64,
    /// What the fit says.
    pub fitted: f64,
    /// Measured less fitted, in the unit of what was measured.
    pub residual: f64,
}

/// A fit and what is known about how good it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// Which distances were made small.
    pub weighting: Weighting,
    /// The parameters, in the order of the columns.
    pub coefficients: Vec<Coefficient>,
    /// Covariances of the estimates, row by row; `None` when there are no more points than parameters.
    pub covariance: Option<Vec<Vec<f64>>>,
    /// Points less parameters.
    pub degrees_of_freedom: usize,
    /// Standard deviation of a point about the fit: in the unit of what was measured in an ordinary fit,
    /// as a share of the value in a relative one.
    pub scatter: Option<f64>,
    /// Share of the (weighted) variance that the fit explains; `None` when there is none to explain.
    pub r_squared: Option<f64>,
    /// Every point, in the order given.
    pub residuals: Vec<Residual>,
    /// What leaving each point out would change, in the order given.
    pub influence: Vec<Influence>,
}

impl Fit {
    /// The largest residual by size, in the unit of what was measured.
    pub fn largest_residual(&self) -> f64 {
        self.residuals.iter().map(|point| point.residual.abs()).fold(0.0, f64::max)
    }

    /// The estimates alone.
    pub fn values(&self) -> Vec<f64> {
        self.coefficients.iter().map(|coefficient| coefficient.value).collect()
    }
}

/// Finds the parameters for which `rows` times parameters comes closest to `measured`.
///
/// `names` are the parameters, one a column of each row. Columns are scaled to the same length before the
/// decomposition, so that tokens in thousands and a constant of one are equally well determined.
pub fn least_squares(
    names: &[&str],
    rows: &[Vec<f64>],
    measured: &[f64],
    weighting: Weighting,
) -> Result<Fit, FitError> {
    debug_assert_eq!(rows.len(), measured.len());
    debug_assert!(rows.iter().all(|row| row.len() == names.len()));
    if rows.len() < names.len() {
        return Err(FitError::TooFewPoints { points: rows.len(), parameters: names.len() });
    }
    check(measured, weighting)?;
    let weights = match weighting {
        Weighting::Ordinary => vec![1.0; rows.len()],
        Weighting::Relative => {
            let first = Solution::of(names, rows, measured, &relative(measured))?;
            let fitted = first.fitted(rows);
            if let Some(point) = fitted.iter().position(|value| *value <= 0.0) {
                return Err(FitError::NotPositive { point, value: fitted[point] });
            }
            relative(&fitted)
        }
    };
    let solution = Solution::of(names, rows, measured, &weights)?;
    Ok(solution.describe(names, rows, measured, &weights, weighting))
}

fn check(measured: &[f64], weighting: Weighting) -> Result<(), FitError> {
    let bad = |value: &f64| match weighting {
        Weighting::Ordinary => !value.is_finite(),
        Weighting::Relative => !(value.is_finite() && *value > 0.0),
    };
    match measured.iter().position(bad) {
        None => Ok(()),
        Some(point) => Err(FitError::BadValue {
            point,
            value: measured[point],
            needed: match weighting {
                Weighting::Ordinary => "a finite number is needed",
                Weighting::Relative => "a number above zero is needed",
            },
        }),
    }
}

/// Weights for distances as shares of these values.
fn relative(values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| value.powi(-2)).collect()
}

/// The parameters, and the inverse of the normal matrix.
struct Solution {
    parameters: DVector<f64>,
    inverse: DMatrix<f64>,
}

impl Solution {
    fn of(
        names: &[&str],
        rows: &[Vec<f64>],
        measured: &[f64],
        weights: &[f64],
    ) -> Result<Self, FitError> {
        let roots: Vec<f64> = weights.iter().map(|weight| weight.sqrt()).collect();
        let mut design =
            DMatrix::from_fn(rows.len(), names.len(), |row, column| rows[row][column] * roots[row]);
        let right = DVector::from_fn(rows.len(), |row, _| measured[row] * roots[row]);
        let mut lengths = Vec::with_capacity(names.len());
        for (name, mut column) in names.iter().zip(design.column_iter_mut()) {
            let length = column.norm();
            if length == 0.0 || !length.is_finite() {
                return Err(FitError::Collinear { name: (*name).to_owned() });
            }
            column /= length;
            lengths.push(length);
        }
        let (q, r) = design.qr().unpack();
        if let Some(column) = (0..names.len()).find(|at| r[(*at, *at)].abs() < COLLINEAR) {
            return Err(FitError::Collinear { name: names[column].to_owned() });
        }
        let collinear = || FitError::Collinear { name: names[names.len() - 1].to_owned() };
        let scaled = r.solve_upper_triangular(&(q.transpose() * right)).ok_or_else(collinear)?;
        let identity = DMatrix::identity(names.len(), names.len());
        let r_inverse = r.solve_upper_triangular(&identity).ok_or_else(collinear)?;
        let unscale = DMatrix::from_diagonal(&DVector::from_iterator(
            names.len(),
            lengths.iter().map(|length| length.recip()),
        ));
        let r_inverse = &unscale * r_inverse;
        Ok(Self { parameters: &unscale * scaled, inverse: &r_inverse * r_inverse.transpose() })
    }

    fn fitted(&self, rows: &[Vec<f64>]) -> Vec<f64> {
        let value = |row: &Vec<f64>| row.iter().zip(&self.parameters).map(|(x, b)| x * b).sum();
        rows.iter().map(value).collect()
    }

    fn describe(
        &self,
        names: &[&str],
        rows: &[Vec<f64>],
        measured: &[f64],
        weights: &[f64],
        weighting: Weighting,
    ) -> Fit {
        let residuals: Vec<Residual> = measured
            .iter()
            .zip(self.fitted(rows))
            .map(|(measured, fitted)| Residual {
                measured: *measured,
                fitted,
                residual: measured - fitted,
            })
            .collect();
        let left: f64 = residuals.iter().zip(weights).map(|(p, w)| w * p.residual.powi(2)).sum();
        let freedom = rows.len() - names.len();
        let variance = (freedom > 0).then(|| left / freedom as f64);
        let coefficient = |(at, name): (usize, &&str)| {
            let value = self.parameters[at];
            let error = variance.map(|variance| (variance * self.inverse[(at, at)]).sqrt());
            Coefficient {
                name: (*name).to_owned(),
                value,
                standard_error: error,
                interval: error
                    .and_then(|error| Interval::around(value, error, freedom as f64, CONFIDENCE)),
            }
        };
        let influence = rows.iter().zip(weights).zip(&residuals).map(|((row, weight), point)| {
            Influence::of(&self.inverse, row, *weight, point.residual)
        });
        Fit {
            weighting,
            coefficients: names.iter().enumerate().map(coefficient).collect(),
            covariance: variance.map(|variance| {
                let scaled = &self.inverse * variance;
                scaled.row_iter().map(|row| row.iter().copied().collect()).collect()
            }),
            degrees_of_freedom: freedom,
            scatter: variance.map(f64::sqrt),
            r_squared: r_squared(measured, weights, left),
            influence: influence.collect(),
            residuals,
        }
    }
}

/// One less the share of the weighted squares about the weighted mean that is left.
fn r_squared(measured: &[f64], weights: &[f64], left: f64) -> Option<f64> {
    let total_weight: f64 = weights.iter().sum();
    let mean = measured.iter().zip(weights).map(|(y, w)| y * w).sum::<f64>() / total_weight;
    let all: f64 = measured.iter().zip(weights).map(|(y, w)| w * (y - mean).powi(2)).sum();
    (all > 0.0).then(|| 1.0 - left / all)
}

#[cfg(test)]
mod tests;
