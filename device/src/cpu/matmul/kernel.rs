//! The kernel: weights go from memory through a register into the sums.
//!
//! A *block* is up to [`ROWS`] rows by one or a few tiles, its sums in registers for all inputs. The
//! blocks of one tile follow each other, so its weights come from memory once and from the cache for
//! the rest. Widening them anew for each block is hidden behind the multiplications: keeping a widened
//! copy, and the activations in the order of use, has been measured to be 5% slower at 512 rows and
//! twice as slow at 8.

use std::ops::Range;

use super::super::lanes::{Kernel, LANES, Lanes};
use super::super::matrix::TILE;
use super::super::prefetch::{prefetch, prefetch_far};
use super::Product;

/// The most rows multiplied at once: twelve sums, three quarters of the registers.
const ROWS: usize = 6;

/// Tiles one row takes side by side: eight sums, as many as it takes to hide the latency of an addition.
pub(super) const TILES: usize = 4;

/// How far ahead of the arithmetic one row fetches weights, in inputs: 512 bytes of each tile.
const NEAR: usize = 16;

/// The same for more rows, over all tiles side by side: 8 KiB. Arithmetic then keeps the processor
/// from looking far ahead itself, so the fetching must (6 rows: 92% of the arithmetic peak out of
/// memory; 78% when fetching like one row).
const FAR: usize = 256;

/// Activations that go through the tiles together: half a second-level cache.
const PASS_BYTES: usize = 512 << 10;

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
        let row_bytes = self.product.w.inputs() * size_of::<f32>();
        let pass = (PASS_BYTES / row_bytes / ROWS).max(1) * ROWS;
        for first in (0..self.product.rows).step_by(pass) {
            self.pass(l, first..self.product.rows.min(first + pass));
        }
    }
}

impl Task<'_> {
    /// These rows of all tiles.
    #[inline(always)]
    fn pass<L: Lanes>(&self, l: L, rows: Range<usize>) {
        // Blocks as equal as possible.
        let blocks = rows.len().div_ceil(ROWS);
        let together = match rows.len() {
            1 => TILES,
            2 | 3 => 2,
            _ => 1,
        };
        let mut tile = self.tiles.start;
        while tile < self.tiles.end {
            // Tiles left over at the end go one by one.
            let count = if tile + together <= self.tiles.end { together } else { 1 };
            for block in 0..blocks {
                let first = rows.start + rows.len() * block / blocks;
                let last = rows.start + rows.len() * (block + 1) / blocks;
                // With several blocks, each fetches the tiles after these; a single one fetches its
                // own a little ahead of use.
                let ahead = if blocks > 1 { self.product.w.inputs() } else { FAR / count };
                match (last - first, count) {
                    (1, TILES) => self.block::<L, 1, TILES>(l, first, tile, NEAR),
                    (1, _) => self.block::<L, 1, 1>(l, first, tile, ahead),
                    (2, 2) => self.block::<L, 2, 2>(l, first, tile, ahead),
                    (2, _) => self.block::<L, 2, 1>(l, first, tile, ahead),
                    (3, 2) => self.block::<L, 3, 2>(l, first, tile, ahead),
                    (3, _) => self.block::<L, 3, 1>(l, first, tile, ahead),
                    (4, _) => self.block::<L, 4, 1>(l, first, tile, ahead),
                    (5, _) => self.block::<L, 5, 1>(l, first, tile, ahead),
                    _ => self.block::<L, ROWS, 1>(l, first, tile, ahead),
                }
            }
            tile += count;
        }
    }

    /// `M` rows from `row` on by `N` tiles from `tile` on, fetching weights `ahead` inputs ahead.
    #[inline(always)]
    fn block<L: Lanes, const M: usize, const N: usize>(
        &self,
        l: L,
        row: usize,
        tile: usize,
        ahead: usize,
    ) {
        let inputs = self.product.w.inputs();
        let x = &self.product.x[row * inputs..(row + M) * inputs];
        let weights = &self.product.w.tiles()[tile * TILE * inputs..(tile + N) * TILE * inputs];
        let mut sums = [[[l.splat(0.0); 2]; N]; M];
        // The last inputs fetch the beginning of the tiles after these.
        let own = inputs.saturating_sub(ahead);
        let here = weights.as_ptr();
        let after = here.wrapping_add(weights.len());
        // SAFETY: `x` holds M rows and `weights` N tiles of `inputs` inputs.
        unsafe {
            let x = x.as_ptr();
            let fetch = here.wrapping_add(ahead * TILE);
            accumulate(l, &mut sums, x, here, inputs, 0..own, fetch);
            let fetch = after.wrapping_sub(own * TILE);
            accumulate(l, &mut sums, x, here, inputs, own..inputs, fetch);
        }
        for (i, sums) in sums.iter().enumerate() {
            for (j, &sums) in sums.iter().enumerate() {
                // SAFETY: these columns belong to this task alone.
                unsafe { self.product.out.store(l, sums, row + i, tile + j) };
            }
        }
    }
}

/// `sums[i][j] += x[i, k] * tile j[k]` for each `k` of the range, in order, fetching the weights at
/// `fetch[k]` of each tile.
///
/// # Safety
/// `x[i * inputs + k]` and the weights of input `k` in `N` tiles of `inputs` must be readable.
#[inline(always)]
unsafe fn accumulate<L: Lanes, const M: usize, const N: usize>(
    l: L,
    sums: &mut [[[L::V; 2]; N]; M],
    x: *const f32,
    tiles: *const u16,
    inputs: usize,
    range: Range<usize>,
    fetch: *const u16,
) {
    let (mut k, end) = (range.start, range.end);
    // SAFETY: the caller's promise.
    unsafe {
        // The weights of two inputs fill a cache line: one prefetch.
        while k + 2 <= end {
            for j in 0..N {
                let line = fetch.wrapping_add((j * inputs + k) * TILE);
                if M == 1 { prefetch(line) } else { prefetch_far(line) }
            }
            step(l, sums, x, tiles, inputs, k);
            step(l, sums, x, tiles, inputs, k + 1);
            k += 2;
        }
        if k < end {
            step(l, sums, x, tiles, inputs, k);
        }
    }
}

/// One input of [`accumulate`].
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn step<L: Lanes, const M: usize, const N: usize>(
    l: L,
    sums: &mut [[[L::V; 2]; N]; M],
    x: *const f32,
    tiles: *const u16,
    inputs: usize,
    k: usize,
) {
    // What is kept in registers beside the sums: of several tiles the numbers of x, of one tile the
    // weights. Three rows by two tiles and six by one would not fit otherwise.
    // SAFETY: the caller's promise.
    unsafe {
        if N > 1 {
            let mut numbers = [l.splat(0.0); M];
            for (i, number) in numbers.iter_mut().enumerate() {
                *number = l.splat(*x.add(i * inputs + k));
            }
            for j in 0..N {
                for half in 0..2 {
                    let at = tiles.add((j * inputs + k) * TILE + half * LANES);
                    let weights = l.load_bf16_at(at);
                    for (sums, &number) in sums.iter_mut().zip(&numbers) {
                        sums[j][half] = l.fma(number, weights, sums[j][half]);
                    }
                }
            }
        } else {
            let at = tiles.add(k * TILE);
            let weights = [l.load_bf16_at(at), l.load_bf16_at(at.add(LANES))];
            for (i, sums) in sums.iter_mut().enumerate() {
                let number = l.splat(*x.add(i * inputs + k));
                sums[0][0] = l.fma(number, weights[0], sums[0][0]);
                sums[0][1] = l.fma(number, weights[1], sums[0][1]);
            }
        }
    }
}
