//! How ranks meet: an all-reduce over a bounded shared-memory segment, and beside it in the same
//! segment the progress cells and the path by which sampled logits reach the coordinator.

#![warn(missing_docs)]

mod collective;
mod error;
mod progress;

pub use collective::{AllReduce, Counters, SingleRank};
pub use error::CollectiveError;
pub use progress::{Phase, Progress, ProgressSink};
