//! What is known of model and machine without asking a server.

use serde::{Deserialize, Serialize};

/// The model and its split, as far as results depend on them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Name of the model.
    pub model: String,
    /// Token ids there are.
    pub vocab_size: usize,
    /// Ranks.
    pub tensor_parallel_size: usize,
    /// Compute threads of each.
    pub threads_per_rank: usize,
    /// Floating-point operations of the matrix products of a row, all ranks together, head left out.
    pub flops_per_row: f64,
    /// Those of the head for a row that a token is chosen from.
    pub flops_per_output: f64,
    /// Bytes of weights a call reads at least.
    pub bytes_per_call: f64,
}

impl Facts {
    /// Floating-point operations of a call with so many rows, of so many of which a token is chosen.
    pub fn flops(&self, rows: f64, outputs: f64) -> f64 {
        rows * self.flops_per_row + outputs * self.flops_per_output
    }
}

/// What the machine can do, as measured beside the rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes a second that memory gives.
    pub bandwidth: f64,
    /// Floating-point operations a second out of registers.
    pub peak: f64,
    /// Instructions that reached them.
    pub peak_instructions: String,
}
