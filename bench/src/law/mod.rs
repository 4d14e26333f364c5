//! What a prefill costs: so much a forward call, so much a token, and a constant.
//!
//! ```text
//! TTFT = ms a call x calls + us a token x tokens + constant
//! ```
//!
//! [`fit_joint`] finds all three from points in which calls and tokens vary apart, [`fit_length`] finds a
//! call and a token from prompts of one call each (there the constant is inside the call). [`wave_regression`] is
//! the joint fit over the requests of a wave, each with the calls and tokens that the engine ran before its
//! first token, and [`Bimodal`] the reading of a wave of which only the mean is known. From a [`Law`] follow
//! [what merging a wave gains](Law::merge), the [fixed share](Law::fixed_share) of a prompt and what the
//! machine delivers in arithmetic.

mod bimodal;
mod coefficients;
mod curvature;
mod fit;
mod merge;

pub use bimodal::Bimodal;
pub use coefficients::{Estimate, Law, delivered_tflops};
pub use curvature::Curvature;
pub use fit::{LawFit, Shape, fit_joint, fit_length, wave_regression};
pub use merge::{Extrapolation, FirstTokens, MergePrediction, Wave};

use serde::{Deserialize, Serialize};

/// One measured prefill.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Forward calls the engine ran up to the first token, by its own count.
    pub calls: u64,
    /// Prompt tokens in those calls, by its own count.
    pub tokens: u64,
    /// Time to first token, milliseconds.
    pub ttft_ms: f64,
}

impl Point {
    /// Tokens in a call, on average.
    pub fn tokens_a_call(&self) -> f64 {
        self.tokens as f64 / self.calls.max(1) as f64
    }
}

/// What the record at hand was published with, for tests here and of those who use this.
#[cfg(test)]
pub(crate) mod published {
    use super::Point;

    /// Prompts of one call each: tokens, mean TTFT.
    pub const LENGTHS: [(u64, f64); 9] = [
        (67, 158.1),
        (115, 191.3),
        (219, 269.7),
        (320, 356.5),
        (421, 414.0),
        (629, 583.9),
        (1242, 905.7),
        (2474, 1731.5),
        (3703, 2438.7),
    ];

    /// One prompt in several calls: tokens, calls.
    pub const CALLS: [(u64, u64); 8] =
        [(3703, 1), (3703, 2), (3703, 4), (3703, 8), (1242, 1), (1242, 2), (1242, 3), (1242, 5)];

    /// The sweep of lengths.
    pub fn length_points() -> Vec<Point> {
        LENGTHS.map(|(tokens, ttft_ms)| Point { calls: 1, tokens, ttft_ms }).to_vec()
    }
}
