//! How ranks meet: an all-reduce over a bounded shared-memory segment, and beside it in the same
//! segment the progress cells and the path by which logits reach the coordinator.
//!
//! The problem: a forward pass meets some hundred times, with planes from a few kilobytes (a decoded
//! token) to some megabytes (a prompt), on machines with a core a rank and on machines without, and
//! any party may die or stop at any moment.
//!
//! The design: the coordinator makes a [`SegmentOwner`], each rank a [`RankPort`]. Data lies in slots
//! of fixed size; sequence stamps say whose turn it is; who finds nobody asleep makes no system call;
//! every wait has a deadline and ends at once when the epoch is poisoned. `meeting` holds these three
//! ideas, `reduce` and `pieces` the two protocols built on them, `mapping` the real memory below.
//!
//! Given up: an epoch does not survive the loss of a party. There is no way to let one rank leave and
//! another come; the group is torn down and the next epoch has a segment of its own.

#![warn(missing_docs)]

mod collective;
mod coordinator;
mod cpu;
mod error;
mod futex;
mod layout;
mod mapping;
mod meeting;
mod party;
mod pieces;
mod port;
mod progress;
mod reduce;
mod room;
mod segment;
mod sweep;

#[cfg(test)]
mod awake_tests;
#[cfg(test)]
mod loom_tests;

pub use collective::{AllReduce, Counters, SingleRank};
pub use coordinator::{LogitsReceiver, Missing, Watch};
pub use error::CollectiveError;
pub use party::Party;
pub use port::{LogitsSender, ProgressCell, RankPort, SharedAllReduce};
pub use progress::{Phase, Progress, ProgressSink};
pub use segment::{SegmentOwner, SegmentSpec};
pub use sweep::sweep_stale;
