//! What the coordinator tells of: levels, calls, and how requests leave.

use std::time::Duration;

use pocket_device::WorkDone;

use crate::api::CallCost;

/// How a request left, beside the ways in which an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All its answers are complete.
    Finished,
    /// Its client cancelled it or went away.
    Cancelled,
    /// Its deadline passed.
    DeadlineExceeded,
    /// The engine failed or stopped.
    Failed,
    /// It was wrong in itself.
    Invalid,
    /// The queue was full.
    QueueFull,
    /// The engine did not serve.
    Unavailable,
}

impl Outcome {
    /// All of them, and their names in the series.
    pub(super) const ALL: [(Self, &'static str); 7] = [
        (Self::Finished, "finished"),
        (Self::Cancelled, "cancelled"),
        (Self::DeadlineExceeded, "deadline_exceeded"),
        (Self::Failed, "failed"),
        (Self::Invalid, "invalid"),
        (Self::QueueFull, "queue_full"),
        (Self::Unavailable, "unavailable"),
    ];

    /// Its name in the series.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(outcome, _)| *outcome == self).map_or("", |(_, name)| *name)
    }
}

/// Numbers that hold now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Levels {
    /// Sequences with a slot.
    pub running: usize,
    /// Sequences without.
    pub waiting: usize,
    /// Slots there are.
    pub slots: usize,
    /// KV blocks held.
    pub kv_blocks_used: usize,
    /// KV blocks there are.
    pub kv_blocks: usize,
    /// What calls cost.
    pub cost: Option<CallCost>,
}

/// What a forward call did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// Its rows.
    pub rows: usize,
    /// Those of prompts, and of generated tokens computed again.
    pub prefill_rows: usize,
    /// From plan to the last report.
    pub took: Duration,
    /// Work of rank 0.
    pub work: WorkDone,
}
