//! Memory that kernels work in, kept by each thread from one call to the next.

use std::cell::Cell;

/// A cache line: pieces start at one.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([f32; LINE]);

// SAFETY: sixteen numbers fill the 64 bytes, so there is no padding, and every bit pattern is valid.
unsafe impl bytemuck::Pod for Line {}
// SAFETY: zeros are numbers.
unsafe impl bytemuck::Zeroable for Line {}

const LINE: usize = 16;

thread_local! {
    static KEPT: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Calls `work` with `N` separate pieces of the given lengths, each at the start of a cache line.
/// What they hold is unspecified (in tests: not a number).
pub fn with_workspace<const N: usize, R>(
    lengths: [usize; N],
    work: impl FnOnce([&mut [f32]; N]) -> R,
) -> R {
    let lines = lengths.map(|length| length.div_ceil(LINE));
    let needed = lines.iter().sum();
    // Taken out for the time of the call: a nested call would find nothing and make its own.
    let mut memory = KEPT.take();
    if memory.len() < needed {
        memory.resize(needed, Line([0.0; LINE]));
    }
    let mut rest: &mut [f32] = bytemuck::cast_slice_mut(&mut memory);
    if cfg!(test) {
        rest.fill(f32::NAN);
    }
    let mut index = 0;
    let pieces = lengths.map(|length| {
        let (piece, after) = std::mem::take(&mut rest).split_at_mut(lines[index] * LINE);
        rest = after;
        index += 1;
        &mut piece[..length]
    });
    let result = work(pieces);
    KEPT.set(memory);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_separate_aligned_and_as_long_as_asked() {
        for lengths in [[3, 0, 17], [100, 16, 1], [1, 1, 1]] {
            with_workspace(lengths, |pieces| {
                let mut ends = 0;
                for (piece, length) in pieces.into_iter().zip(lengths) {
                    assert_eq!(piece.len(), length);
                    assert_eq!(piece.as_ptr() as usize % 64, 0);
                    assert!(piece.as_ptr() as usize >= ends);
                    ends = piece.as_ptr() as usize + length * 4;
                }
            });
        }
    }

    #[test]
    fn a_nested_call_gets_memory_of_its_own() {
        with_workspace([8], |[outer]| {
            outer.fill(1.0);
            with_workspace([8], |[inner]| inner.fill(2.0));
            assert!(outer.iter().all(|&x| x == 1.0));
        });
    }
}
