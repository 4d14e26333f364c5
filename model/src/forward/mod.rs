//! The forward pass of one rank: weights of its shard, state of its sequences, and the layers
//! between them. Written once over [`pocket_device::Device`].

mod attention;
mod check;
mod error;
mod identity;
mod linear_attention;
mod loader;
mod matrices;
mod mlp;
mod profile;
mod rank_model;
mod step;

pub use error::ForwardError;
pub use identity::weights_identity;
pub use matrices::matrices;
pub use profile::{Lap, PassPhase, PassProfile, PhaseTimes};
pub(crate) use rank_model::HEAD_ROWS;
pub use rank_model::{ModelLimits, RankModel, RowSink, all_reduces};
pub use step::{Fork, OutputRow, RowResult, Step, StepSegment, Want};
