//! The kernel: weights go from memory through a register into the sums.
//!
//! A *block* is up to [`ROWS`] rows by a tile or half a tile, its sums in registers for all inputs. The
//! blocks of one tile follow each other, so its weights come from memory once and from the cache for
//! the rest. Widening them anew for each block is hidden behind the multiplications: keeping a widened
//! copy, and the activations in the order of use, has been measured to be 5% slower at 512 rows and
//! twice as slow at 8.

use std::ops::Range;

use super::super::lanes::{Kernel, LANES, Lanes};
use super::super::matrix::TILE;
use super::super::prefetch::prefetch_far;
use super::Product;

/// The most rows multiplied at once: with half a tile, twelve sums, three quarters of the registers.
const ROWS: usize = 6;

/// The most rows that leave registers for the sums of a whole tile.
const WHOLE_TILE_ROWS: usize = 3;

/// Vectors of weights that a tile has for one input.
const VECTORS: usize = TILE / LANES;

/// How far ahead of their use one or two rows fetch weights, in inputs: 1 KiB, as far as helps the
/// processor's own prefetching (2 KiB and more disturb it: a quarter slower).
const NEAR: usize = 16;

/// The same for three rows: 16 KiB. Their arithmetic keeps the processor from looking ahead itself.
const FAR: usize = 256;

/// Activations that go through the tiles together: half a second-level cache.
const PASS_BYTES: usize = 512 << 10;

/// Rows that go through the tiles together.
fn pass_rows(inputs: usize) -> usize {
    (PASS_BYTES / (inputs * size_of::<f32>()) / ROWS).max(1) * ROWS
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

impl Kernel for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let pass = pass_rows(self.product.w.inputs());
        for first in (0..self.product.rows).step_by(pass) {
            let rows = first..self.product.rows.min(first + pass);
            for tile in self.tiles.clone() {
                if rows.len() <= WHOLE_TILE_ROWS {
                    self.whole_tile(l, rows.clone(), tile);
                } else {
                    self.two_halves(l, rows.clone(), tile);
                }
            }
        }
    }
}

impl Task<'_> {
    /// One block. It fetches ahead within its tile, and at the end the beginning of the next one, which
    /// follows in memory.
    #[inline(always)]
    fn whole_tile<L: Lanes>(&self, l: L, rows: Range<usize>, tile: usize) {
        match rows.len() {
            1 => self.block::<L, 1, VECTORS>(l, rows.start, tile * TILE, NEAR),
            2 => self.block::<L, 2, VECTORS>(l, rows.start, tile * TILE, NEAR),
            _ => self.block::<L, WHOLE_TILE_ROWS, VECTORS>(l, rows.start, tile * TILE, FAR),
        }
    }

    /// Blocks of rows, as equal as possible, by half a tile. Each fetches the next tile: its own has
    /// been fetched by the blocks of the tile before.
    #[inline(always)]
    fn two_halves<L: Lanes>(&self, l: L, rows: Range<usize>, tile: usize) {
        let ahead = self.product.w.inputs();
        let blocks = rows.len().div_ceil(ROWS);
        for column in [tile * TILE, tile * TILE + TILE / 2] {
            if column >= self.product.out.outputs {
                // Nothing but padding.
                break;
            }
            for block in 0..blocks {
                let first = rows.start + rows.len() * block / blocks;
                let last = rows.start + rows.len() * (block + 1) / blocks;
                match last - first {
                    1 => self.block::<L, 1, { VECTORS / 2 }>(l, first, column, ahead),
                    2 => self.block::<L, 2, { VECTORS / 2 }>(l, first, column, ahead),
                    3 => self.block::<L, 3, { VECTORS / 2 }>(l, first, column, ahead),
                    4 => self.block::<L, 4, { VECTORS / 2 }>(l, first, column, ahead),
                    5 => self.block::<L, 5, { VECTORS / 2 }>(l, first, column, ahead),
                    _ => self.block::<L, ROWS, { VECTORS / 2 }>(l, first, column, ahead),
                }
            }
        }
    }

    /// `M` rows from `row` on by `N` vectors of outputs from `column` on, which one tile holds, fetching
    /// weights `ahead` inputs ahead.
    #[inline(always)]
    fn block<L: Lanes, const M: usize, const N: usize>(
        &self,
        l: L,
        row: usize,
        column: usize,
        ahead: usize,
    ) {
        let inputs = self.product.w.inputs();
        let x = &self.product.x[row * inputs..(row + M) * inputs];
        let tile_start = column / TILE * TILE * inputs;
        let weights = &self.product.w.tiles()[tile_start..tile_start + TILE * inputs];
        let offset = column % TILE;
        assert!(offset + N * LANES <= TILE);
        let mut sums = [[l.splat(0.0); N]; M];
        // SAFETY: `x` holds M rows of `inputs` numbers and `weights` as many lines of TILE, in which N
        // vectors follow `offset`.
        unsafe {
            let weights = weights.as_ptr();
            let fetch = weights.wrapping_add(ahead * TILE);
            accumulate(l, &mut sums, x.as_ptr(), weights.add(offset), inputs, fetch);
        }
        for (i, sums) in sums.iter().enumerate() {
            // SAFETY: these columns belong to this task alone.
            unsafe { self.product.out.store(l, sums, row + i, column) };
        }
    }
}

/// `sums[i] += x[i, k] * weights[k]` for each input `k` in order, `weights[k]` being the `N` vectors at
/// `weights + k * TILE`, fetching the line at `fetch + k * TILE`.
///
/// # Safety
/// `M` rows of `inputs` numbers at `x`, and the vectors, must be readable.
#[inline(always)]
unsafe fn accumulate<L: Lanes, const M: usize, const N: usize>(
    l: L,
    sums: &mut [[L::V; N]; M],
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
                let mut numbers = [l.splat(0.0); M];
                for (i, number) in numbers.iter_mut().enumerate() {
                    *number = l.splat(*x.add(i * inputs + k));
                }
                for j in 0..N {
                    let weights = l.load_bf16_at(weights.add(k * TILE + j * LANES));
                    for (sums, &number) in sums.iter_mut().zip(&numbers) {
                        sums[j] = l.fma(number, weights, sums[j]);
                    }
                }
            } else {
                let mut line = [l.splat(0.0); N];
                for (j, line) in line.iter_mut().enumerate() {
                    *line = l.load_bf16_at(weights.add(k * TILE + j * LANES));
                }
                for (i, sums) in sums.iter_mut().enumerate() {
                    let number = l.splat(*x.add(i * inputs + k));
                    for (sum, &weights) in sums.iter_mut().zip(&line) {
                        *sum = l.fma(number, weights, *sum);
                    }
                }
            }
        }
    }
}
