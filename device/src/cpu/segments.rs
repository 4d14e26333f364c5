//! Checks that every kernel over segments makes before it trusts them with memory.

use std::ops::Range;

use crate::{BlockId, DeviceError, KV_BLOCK_TOKENS, RECURRENCE_CHUNK, Recurrence, Segment};

fn refuse(op: &'static str, detail: String) -> DeviceError {
    DeviceError::Shape { op, detail }
}

/// The segments lie end to end and fill `rows` rows exactly.
pub fn check_rows(
    op: &'static str,
    segments: &[Segment<'_>],
    rows: usize,
) -> Result<(), DeviceError> {
    let mut next = 0usize;
    for (index, segment) in segments.iter().enumerate() {
        if segment.first_row != next {
            return Err(refuse(
                op,
                format!("segment {index} starts at row {}, not {next}", segment.first_row),
            ));
        }
        next = next.checked_add(segment.rows).filter(|&end| end <= rows).ok_or_else(|| {
            refuse(op, format!("segment {index} ends past the {rows} rows of the step"))
        })?;
        if segment.position.checked_add(segment.rows).is_none() {
            return Err(refuse(op, format!("segment {index} has no last position")));
        }
    }
    if next != rows {
        return Err(refuse(op, format!("segments cover {next} of {rows} rows")));
    }
    Ok(())
}

/// Rows of a step that go to one block of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockWrite {
    /// The block.
    pub block: BlockId,
    /// Where in the block the first row goes.
    pub offset: usize,
    /// First row of the step.
    pub row: usize,
    /// Number of rows.
    pub rows: usize,
}

/// What the step writes, in order of blocks. Each segment's blocks must cover it and be among the
/// cache's, and no two rows may go to the same place.
pub fn block_writes(
    op: &'static str,
    segments: &[Segment<'_>],
    blocks: usize,
    writes: &mut Vec<BlockWrite>,
) -> Result<(), DeviceError> {
    writes.clear();
    for (index, segment) in segments.iter().enumerate() {
        let end = segment.position + segment.rows;
        let needed = end.div_ceil(KV_BLOCK_TOKENS);
        let Some(used) = segment.blocks.get(..needed) else {
            let found = segment.blocks.len();
            return Err(refuse(
                op,
                format!(
                    "segment {index} ends at position {end} and has {found} blocks, not {needed}"
                ),
            ));
        };
        if let Some(outside) = used.iter().find(|block| block.0 as usize >= blocks) {
            return Err(refuse(
                op,
                format!("segment {index} names block {} of {blocks}", outside.0),
            ));
        }
        for piece in pieces(segment) {
            let position = segment.position + piece.start;
            writes.push(BlockWrite {
                block: used[position / KV_BLOCK_TOKENS],
                offset: position % KV_BLOCK_TOKENS,
                row: segment.first_row + piece.start,
                rows: piece.len(),
            });
        }
    }
    writes.sort_unstable();
    for pair in writes.windows(2) {
        let BlockWrite { block, offset, .. } = pair[1];
        if pair[0].block == block && offset < pair[0].offset + pair[0].rows {
            return Err(refuse(
                op,
                format!("offset {offset} of block {} is written twice", block.0),
            ));
        }
    }
    Ok(())
}

/// A segment's rows (counted from its first) cut at absolute multiples of a block, which are those of
/// a recurrence chunk.
pub fn pieces(segment: &Segment<'_>) -> impl Iterator<Item = Range<usize>> {
    const { assert!(KV_BLOCK_TOKENS == RECURRENCE_CHUNK) };
    let (position, rows) = (segment.position, segment.rows);
    let mut start = 0;
    std::iter::from_fn(move || {
        let length = (KV_BLOCK_TOKENS - (position + start) % KV_BLOCK_TOKENS).min(rows - start);
        let piece = start..start + length;
        start += length;
        (length > 0).then_some(piece)
    })
}

/// Neighbouring segments that go through one slot, as ranges of segment indices: one sequence's
/// prompt followed by its replayed tokens, say. A slot appears in one such run only, since runs are
/// computed side by side, and a run has no gap.
pub fn slot_runs(
    op: &'static str,
    segments: &[Segment<'_>],
    slots: usize,
    runs: &mut Vec<Range<usize>>,
) -> Result<(), DeviceError> {
    runs.clear();
    for (index, segment) in segments.iter().enumerate() {
        let slot = segment.slot.0 as usize;
        if slot >= slots {
            return Err(refuse(op, format!("segment {index} names slot {slot} of {slots}")));
        }
        if segment.recurrence == Recurrence::Chunked
            && !segment.position.is_multiple_of(RECURRENCE_CHUNK)
        {
            return Err(refuse(
                op,
                format!(
                    "segment {index} is chunked and starts at position {}, no multiple of {RECURRENCE_CHUNK}",
                    segment.position
                ),
            ));
        }
        match runs.last_mut() {
            Some(run) if segments[index - 1].slot == segment.slot => {
                let before = &segments[index - 1];
                if segment.position != before.position + before.rows {
                    return Err(refuse(
                        op,
                        format!(
                            "segment {index} continues slot {slot} at position {}, not {}",
                            segment.position,
                            before.position + before.rows
                        ),
                    ));
                }
                run.end = index + 1;
            }
            _ => {
                if runs.iter().any(|run| segments[run.start].slot == segment.slot) {
                    return Err(refuse(op, format!("slot {slot} appears twice in the step")));
                }
                runs.push(index..index + 1);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SlotId;

    fn segment(slot: u32, first_row: usize, rows: usize, position: usize) -> Segment<'static> {
        const BLOCKS: [BlockId; 3] = [BlockId(2), BlockId(0), BlockId(1)];
        Segment {
            slot: SlotId(slot),
            first_row,
            rows,
            position,
            recurrence: Recurrence::Stepwise,
            blocks: &BLOCKS,
        }
    }

    fn detail(result: Result<impl Sized, DeviceError>) -> String {
        result.err().unwrap().to_string()
    }

    #[test]
    fn rows_must_be_covered_once() {
        check_rows("op", &[segment(0, 0, 3, 0), segment(1, 3, 1, 9)], 4).unwrap();
        check_rows("op", &[], 0).unwrap();
        for (segments, what) in [
            (vec![segment(0, 1, 3, 0)], "starts at row 1, not 0"),
            (vec![segment(0, 0, 3, 0), segment(1, 2, 2, 0)], "starts at row 2, not 3"),
            (vec![segment(0, 0, 5, 0)], "ends past the 4 rows"),
            (vec![segment(0, 0, usize::MAX, 0)], "ends past the 4 rows"),
            (vec![segment(0, 0, 3, 0)], "cover 3 of 4 rows"),
            (vec![segment(0, 0, 4, usize::MAX)], "no last position"),
        ] {
            assert!(detail(check_rows("op", &segments, 4)).contains(what), "{what}");
        }
    }

    #[test]
    fn blocks_must_cover_exist_and_not_be_written_twice() {
        let writes = |segments: &[Segment<'_>], blocks| {
            let mut writes = Vec::new();
            block_writes("op", segments, blocks, &mut writes).map(|()| writes)
        };
        let write =
            |block, offset, row, rows| BlockWrite { block: BlockId(block), offset, row, rows };
        let whole = [write(0, 0, 64, 64), write(1, 0, 128, 64), write(2, 0, 0, 64)];
        assert_eq!(writes(&[segment(0, 0, 192, 0)], 3).unwrap(), whole);
        // One sequence's neighbouring pieces may share a block.
        let shared = [write(0, 0, 64, 6), write(0, 6, 70, 30), write(2, 0, 0, 64)];
        let parts = [segment(0, 0, 70, 0), segment(0, 70, 30, 70)];
        assert_eq!(writes(&parts, 3).unwrap(), shared);
        for (segments, what) in [
            (vec![segment(0, 0, 193, 0)], "3 blocks, not 4"),
            (
                vec![segment(0, 0, 1, 64), segment(1, 1, 1, 64)],
                "offset 0 of block 0 is written twice",
            ),
            (vec![segment(0, 0, 70, 0), segment(0, 70, 30, 69)], "offset 5 of block 0"),
        ] {
            assert!(detail(writes(&segments, 3)).contains(what), "{what}");
        }
        assert!(detail(writes(&[segment(0, 0, 1, 0)], 2)).contains("block 2 of 2"));
    }

    #[test]
    fn pieces_end_at_multiples_of_a_block() {
        let cut = |position, rows| pieces(&segment(0, 0, rows, position)).collect::<Vec<_>>();
        assert_eq!(cut(0, 130), [0..64, 64..128, 128..130]);
        assert_eq!(cut(63, 2), [0..1, 1..2]);
        assert_eq!(cut(64, 65), [0..64, 64..65]);
        assert!(cut(5, 0).is_empty());
    }

    #[test]
    fn a_slot_is_one_unbroken_run() {
        let runs = |segments: &[Segment<'_>]| {
            let mut runs = Vec::new();
            slot_runs("op", segments, 4, &mut runs).map(|()| runs)
        };
        let parts = [segment(3, 0, 3, 64), segment(3, 3, 2, 67), segment(1, 5, 1, 9)];
        assert_eq!(runs(&parts).unwrap(), [0..2, 2..3]);
        let mut chunked = segment(0, 0, 3, 65);
        chunked.recurrence = Recurrence::Chunked;
        for (segments, what) in [
            (vec![segment(4, 0, 1, 0)], "slot 4 of 4"),
            (vec![segment(0, 0, 1, 0), segment(0, 1, 1, 2)], "position 2, not 1"),
            (vec![segment(0, 0, 1, 0), segment(1, 1, 1, 0), segment(0, 2, 1, 1)], "appears twice"),
            (vec![chunked], "no multiple of 64"),
        ] {
            assert!(detail(runs(&segments)).contains(what), "{what}");
        }
    }
}
