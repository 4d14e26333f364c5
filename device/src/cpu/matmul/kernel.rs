//! The kernel: weights go from memory through a register into the sums.
//!
//! A *block* is some rows by one tile or a part of it, its sums in registers for all inputs. The blocks
//! of one tile follow each other, so its weights come from memory once and from the cache for the rest.
//! Widening them anew for each block is hidden behind the multiplications: keeping a widened copy, and
//! the activations in the order of use, has been measured to be 5% slower at 512 rows and twice as slow
//! at 8.

use std::ops::Range;

use super::super::lanes::LANES;
use super::super::matrix::TILE;
use super::super::prefetch::prefetch_far;
use super::super::wide::{Wide, WideKernel};
use super::Product;

/// The most rows that leave narrow registers for the sums of a whole tile.
const WHOLE_TILE_ROWS: usize = 3;

/// Narrow vectors of weights that a tile has for one input.
const VECTORS: usize = TILE / LANES;

/// How far ahead of their use one or two rows fetch weights, in inputs: 1 KiB, as far as helps the
/// processor's own prefetching (2 KiB and more disturb it: a quarter slower).
const NEAR: usize = 16;

/// The same for more rows: 16 KiB. Their arithmetic keeps the processor from looking ahead itself.
const FAR: usize = 256;

/// Activations that go through the tiles together: half a second-level cache.
const PASS_BYTES: usize = 512 << 10;

/// Rows that go through the tiles together: whole blocks, whatever the vectors.
fn pass_rows(inputs: usize) -> usize {
    const BLOCK: usize = 12;
    (PASS_BYTES / (inputs * size_of::<f32>()) / BLOCK).max(1) * BLOCK
}

/// How often a product of so many rows reads its weights from memory.
pub(super) fn passes(rows: usize, inputs: usize) -> usize {
    rows.div_ceil(pass_rows(inputs))
}

/// Some tiles of a product.
pub(super) struct Task<'a> {
    pub(super) product: &'a Product<'a>,
    /// No other task has these.
    pub(super) tiles: Range<usize>,
}

impl WideKernel for Task<'_> {
    #[inline(always)]
    fn run<W: Wide>(self, w: W) {
        let pass = pass_rows(self.product.w.inputs());
        for first in (0..self.product.rows).step_by(pass) {
            let rows = first..self.product.rows.min(first + pass);
            for tile in self.tiles.clone() {
                if W::WIDTH == LANES && rows.len() <= WHOLE_TILE_ROWS {
                    self.narrow_tile(w, rows.clone(), tile);
                } else {
                    self.tile(w, rows.clone(), tile);
                }
            }
        }
    }
}

impl Task<'_> {
    /// Few rows by a tile of narrow vectors, as one block.
    #[inline(always)]
    fn narrow_tile<W: Wide>(&self, w: W, rows: Range<usize>, tile: usize) {
        match rows.len() {
            1 => self.block::<W, 1, VECTORS>(w, rows.start, tile * TILE, NEAR),
            2 => self.block::<W, 2, VECTORS>(w, rows.start, tile * TILE, NEAR),
            _ => self.block::<W, WHOLE_TILE_ROWS, VECTORS>(w, rows.start, tile * TILE, FAR),
        }
    }

    /// Blocks of rows, as equal as possible, by two vectors: half a tile of narrow ones, a whole tile of
    /// wide ones.
    #[inline(always)]
    fn tile<W: Wide>(&self, w: W, rows: Range<usize>, tile: usize) {
        let blocks = rows.len().div_ceil(W::ROWS);
        // A single block fetches ahead within its tile, and at the end the beginning of the next one,
        // which follows in memory. Several fetch the next tile: their own has been fetched by those of
        // the tile before.
        let single = blocks == 1 && 2 * W::WIDTH == TILE;
        let ahead = match rows.len() {
            _ if !single => self.product.w.inputs(),
            1 | 2 => NEAR,
            _ => FAR,
        };
        for column in (tile * TILE..(tile + 1) * TILE).step_by(2 * W::WIDTH) {
            if column >= self.product.out.outputs {
                // Nothing but padding.
                break;
            }
            for block in 0..blocks {
                let first = rows.start + rows.len() * block / blocks;
                let last = rows.start + rows.len() * (block + 1) / blocks;
                match last - first {
                    1 => self.block::<W, 1, 2>(w, first, column, ahead),
                    2 => self.block::<W, 2, 2>(w, first, column, ahead),
                    3 => self.block::<W, 3, 2>(w, first, column, ahead),
                    4 => self.block::<W, 4, 2>(w, first, column, ahead),
                    5 => self.block::<W, 5, 2>(w, first, column, ahead),
                    7 if W::ROWS > 6 => self.block::<W, 7, 2>(w, first, column, ahead),
                    8 if W::ROWS > 6 => self.block::<W, 8, 2>(w, first, column, ahead),
                    9 if W::ROWS > 6 => self.block::<W, 9, 2>(w, first, column, ahead),
                    10 if W::ROWS > 6 => self.block::<W, 10, 2>(w, first, column, ahead),
                    11 if W::ROWS > 6 => self.block::<W, 11, 2>(w, first, column, ahead),
                    12 if W::ROWS > 6 => self.block::<W, 12, 2>(w, first, column, ahead),
                    _ => self.block::<W, 6, 2>(w, first, column, ahead),
                }
            }
        }
    }

    /// `M` rows from `row` on by `N` vectors of outputs from `column` on, which one tile holds, fetching
    /// weights `ahead` inputs ahead.
    #[inline(always)]
    fn block<W: Wide, const M: usize, const N: usize>(
        &self,
        w: W,
        row: usize,
        column: usize,
        ahead: usize,
    ) {
        let inputs = self.product.w.inputs();
        let x = &self.product.x[row * inputs..(row + M) * inputs];
        let tile_start = column / TILE * TILE * inputs;
        let weights = &self.product.w.tiles()[tile_start..tile_start + TILE * inputs];
        let offset = column % TILE;
        assert!(offset + N * W::WIDTH <= TILE);
        let mut sums = [[w.splat(0.0); N]; M];
        // SAFETY: `x` holds M rows of `inputs` numbers and `weights` as many lines of TILE, in which N
        // vectors follow `offset`.
        unsafe {
            let weights = weights.as_ptr();
            let fetch = weights.wrapping_add(ahead * TILE);
            accumulate(w, &mut sums, x.as_ptr(), weights.add(offset), inputs, fetch);
        }
        for (i, sums) in sums.iter().enumerate() {
            // SAFETY: these columns belong to this task alone.
            unsafe { self.product.out.store(w, sums, row + i, column) };
        }
    }
}

/// `sums[i] += x[i, k] * weights[k]` for each input `k` in order, `weights[k]` being the `N` vectors at
/// `weights + k * TILE`, fetching the line at `fetch + k * TILE`.
///
/// # Safety
/// `M` rows of `inputs` numbers at `x`, and the vectors, must be readable.
#[inline(always)]
unsafe fn accumulate<W: Wide, const M: usize, const N: usize>(
    w: W,
    sums: &mut [[W::V; N]; M],
    x: *const f32,
    weights: *const u16,
    inputs: usize,
    fetch: *const u16,
) {
    for k in 0..inputs {
        prefetch_far(fetch.wrapping_add(k * TILE));
        // What is kept in registers beside the sums: for a few rows their numbers, for many the
        // weights. Three rows by four vectors and six by two would not fit the other way round.
        // SAFETY: the caller's promise.
        unsafe {
            if M <= WHOLE_TILE_ROWS {
                let mut numbers = [w.splat(0.0); M];
                for (i, number) in numbers.iter_mut().enumerate() {
                    *number = w.splat(*x.add(i * inputs + k));
                }
                for j in 0..N {
                    let weights = w.load_bf16_at(weights.add(k * TILE + j * W::WIDTH));
                    for (sums, &number) in sums.iter_mut().zip(&numbers) {
                        sums[j] = w.fma(number, weights, sums[j]);
                    }
                }
            } else {
                let mut line = [w.splat(0.0); N];
                for (j, line) in line.iter_mut().enumerate() {
                    *line = w.load_bf16_at(weights.add(k * TILE + j * W::WIDTH));
                }
                for (i, sums) in sums.iter_mut().enumerate() {
                    let number = w.splat(*x.add(i * inputs + k));
                    for (sum, &weights) in sums.iter_mut().zip(&line) {
                        *sum = w.fma(number, weights, *sum);
                    }
                }
            }
        }
    }
}
