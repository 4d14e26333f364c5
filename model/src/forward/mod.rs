//! The forward pass of one rank: weights of its shard, state of its sequences, and the layers
//! between them. Written once over [`pocket_device::Device`].

mod step;

pub use step::{OutputRow, RowResult, Step, StepSegment, Want};
