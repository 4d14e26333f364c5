//! Errors of loading and running a model on a rank.

use pocket_collectives::CollectiveError;
use pocket_device::DeviceError;

use crate::error::ModelError;

/// Why a rank could not load its shard or run a step.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The device refused or failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The ranks did not meet.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The checkpoint does not hold what the model needs.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The step does not fit what this rank was loaded for: a bug in the coordinator.
    #[error("step {number}: {detail}")]
    Step {
        /// Number of the step.
        number: u64,
        /// What does not fit.
        detail: String,
    },
    /// Whoever takes the results failed.
    #[error("result of output {output}: {reason}")]
    Result {
        /// Index among the step's outputs.
        output: usize,
        /// What it said.
        reason: String,
    },
}
