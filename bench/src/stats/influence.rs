//! What one point does to a fit.

use nalgebra::{DMatrix, DVector};
use serde::{Deserialize, Serialize};

use super::least_squares::Fit;

/// A leverage so near to one that the fit goes through the point whatever its value.
const ALONE: f64 = 1.0 - 1e-9;

/// What leaving one point out changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Influence {
    /// How much the point draws the fit to itself, 0 to 1.
    pub leverage: f64,
    /// Each parameter with the point, less the parameter without it. `None` when a parameter rests on this
    /// point alone, so that there is no fit without it. In a relative fit the other points keep their
    /// weights.
    pub moves: Option<Vec<f64>>,
}

/// The point that moves a parameter most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LargestMove {
    /// Which point, from 0.
    pub point: usize,
    /// The parameter with the point, less the parameter without it.
    pub by: f64,
}

impl Influence {
    /// Of a point with this row, weight and residual, from the inverse of the normal matrix.
    pub(super) fn of(inverse: &DMatrix<f64>, row: &[f64], weight: f64, residual: f64) -> Self {
        let pull = inverse * DVector::from_column_slice(row);
        let leverage =
            (weight * pull.iter().zip(row).map(|(pull, x)| pull * x).sum::<f64>()).clamp(0.0, 1.0);
        let moves = (leverage < ALONE).then(|| {
            let step = weight * residual / (1.0 - leverage);
            pull.iter().map(|pull| pull * step).collect()
        });
        Self { leverage, moves }
    }
}

impl Fit {
    /// The point that moves this parameter most; `None` when some parameter rests on a single point.
    pub fn largest_move(&self, parameter: usize) -> Option<LargestMove> {
        let mut largest = LargestMove { point: 0, by: 0.0 };
        for (point, influence) in self.influence.iter().enumerate() {
            let by = *influence.moves.as_ref()?.get(parameter)?;
            if by.abs() > largest.by.abs() {
                largest = LargestMove { point, by };
            }
        }
        Some(largest)
    }
}
