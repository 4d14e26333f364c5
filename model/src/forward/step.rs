//! What one forward call computes: segments laid end to end as rows, and what is wanted of which row.
//! The coordinator writes it, every rank runs the same one.

use serde::{Deserialize, Serialize};

/// One forward call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Number of the call in its epoch.
    pub number: u64,
    /// Segments, end to end; their tokens are the rows.
    pub segments: Vec<StepSegment>,
    /// Rows that go through the head, in ascending order of `row`.
    pub outputs: Vec<OutputRow>,
    /// States copied once the last layer is done.
    pub forks: Vec<Fork>,
}

impl Step {
    /// Rows of the call.
    pub fn rows(&self) -> usize {
        self.segments.iter().map(|segment| segment.tokens.len()).sum()
    }

    /// Whether any segment carries prompt tokens.
    pub fn has_prompt(&self) -> bool {
        self.segments.iter().any(|segment| !segment.generated)
    }
}

/// Consecutive tokens of one sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepSegment {
    /// Recurrent-state slot of the sequence.
    pub slot: u32,
    /// Token ids, at least one.
    pub tokens: Vec<u32>,
    /// Position in the sequence of the first token; 0 starts from a zero state. A multiple of 64 for
    /// prompt tokens.
    pub position: usize,
    /// Generated tokens (also when replayed) take the one-token recurrence, prompt tokens the chunked
    /// one: the choice decides bits, so it goes with the token and never with the batch.
    pub generated: bool,
    /// KV blocks of the sequence, from position 0, covering `position + tokens.len()`.
    pub blocks: Vec<u32>,
}

/// A second sequence that goes on from where a segment of the step ends: several answers of one
/// prompt compute it once. The full KV blocks are shared, for nobody writes them any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// Slot of the segment whose end is copied.
    pub from_slot: u32,
    /// Slot that receives the copy; no segment of the step uses it.
    pub to_slot: u32,
    /// The last KV block of the segment, if partly filled, and the block it is copied to.
    pub block: Option<(u32, u32)>,
}

/// A row whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputRow {
    /// Row of the step.
    pub row: usize,
    /// In which form.
    pub want: Want,
}

/// In which form a row's logits are wanted; the smaller ones spare the traffic of a vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Want {
    /// The largest logit and its id.
    Greedy,
    /// Maximum, sum of exponentials and the logit of this token id.
    Target(u32),
    /// All logits.
    Logits,
}

/// A rank's answer for one output row: its own vocabulary shard's part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowResult<'a> {
    /// For [`Want::Greedy`] and [`Want::Target`].
    Stats {
        /// Token id of the shard's largest logit, the lowest id on ties.
        argmax: u32,
        /// That logit.
        max: f32,
        /// Sum of `exp(logit - max)` over the shard.
        sum_exp: f64,
        /// The target's logit, if the target lies in this shard.
        target: Option<f32>,
    },
    /// For [`Want::Logits`]: the shard's logits, ids ascending.
    Logits(&'a [f32]),
}
