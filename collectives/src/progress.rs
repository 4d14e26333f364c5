//! Where a rank is: written by the rank's compute thread with plain stores, read by anyone.

use serde::{Deserialize, Serialize};

/// What a rank is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum Phase {
    /// The process started and has not attached or been told its shard yet.
    #[default]
    Starting = 0,
    /// Reading and packing weights.
    Load = 1,
    /// Waiting for a plan.
    Idle = 2,
    /// In a forward pass that carries prompt tokens.
    Prefill = 3,
    /// In a forward pass of generated tokens only.
    Decode = 4,
    /// In an all-reduce, waiting for peers or adding.
    AllReduce = 5,
    /// Handing logits to the coordinator.
    Logits = 6,
}

/// A reading of one rank's progress cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What it is doing.
    pub phase: Phase,
    /// Layer it is in, while in a forward pass; `u32::MAX` outside the layers.
    pub layer: u32,
    /// Steps begun in this epoch.
    pub step: u64,
    /// All-reduce calls begun in this epoch, skipped ones included.
    pub all_reduce: u64,
    /// Counts every report: it moves as long as the rank does.
    pub beat: u64,
}

/// Where a forward pass says how far it is; every call also counts a beat. Implementations are a few
/// relaxed stores.
pub trait ProgressSink {
    /// A step begins in `phase`.
    fn begin_step(&self, step: u64, phase: Phase);
    /// The pass enters `layer`.
    fn enter_layer(&self, layer: u32);
    /// Anything else moved (bytes loaded, a piece of logits taken).
    fn beat(&self, phase: Phase);
}

impl ProgressSink for () {
    fn begin_step(&self, _step: u64, _phase: Phase) {}
    fn enter_layer(&self, _layer: u32) {}
    fn beat(&self, _phase: Phase) {}
}
