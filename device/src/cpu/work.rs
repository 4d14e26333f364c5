//! Counts of the work that a device was asked for.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{Segment, WorkDone};

/// Counted once a call, before the kernels start.
#[derive(Default)]
pub struct Counters {
    gemm_calls: AtomicU64,
    weight_bytes: AtomicU64,
    query_key_pairs: AtomicU64,
}

impl Counters {
    /// A product that reads `weight_bytes` of packed weights.
    pub fn gemm(&self, weight_bytes: u64) {
        self.gemm_calls.fetch_add(1, Relaxed);
        self.weight_bytes.fetch_add(weight_bytes, Relaxed);
    }

    /// Causal attention of these segments in one layer.
    pub fn attention(&self, segments: &[Segment<'_>]) {
        self.query_key_pairs.fetch_add(segments.iter().map(pairs).sum(), Relaxed);
    }

    /// Everything so far.
    pub fn read(&self) -> WorkDone {
        WorkDone {
            gemm_calls: self.gemm_calls.load(Relaxed),
            weight_bytes: self.weight_bytes.load(Relaxed),
            query_key_pairs: self.query_key_pairs.load(Relaxed),
        }
    }
}

/// The sum of position + 1 over a segment's rows.
fn pairs(segment: &Segment<'_>) -> u64 {
    let (rows, position) = (segment.rows as u64, segment.position as u64);
    rows * position + rows * (rows + 1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Recurrence, SlotId};

    #[test]
    fn each_row_sees_the_keys_up_to_its_own() {
        let segment = |rows, position| Segment {
            slot: SlotId(0),
            first_row: 0,
            rows,
            position,
            recurrence: Recurrence::Stepwise,
            blocks: &[],
        };
        for (rows, position) in [(0, 7), (1, 0), (1, 100), (5, 0), (70, 64)] {
            let by_row = (0..rows).map(|row| (position + row + 1) as u64).sum::<u64>();
            assert_eq!(pairs(&segment(rows, position)), by_row);
        }
    }
}
