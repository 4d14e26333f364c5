//! Small matrix products in float32, sixteen output columns at a time: what attention and the chunked
//! delta rule are made of.
//!
//! A *strip* is a `[k, 16]` piece of a matrix, stored contiguously, so that a kernel streams through
//! it and keeps it in the first-level cache. Every output adds its products in the order of `k` with
//! fused multiply-adds onto its initial value, whatever the blocking over rows.

use super::lanes::{Kernel, LANES, Lanes};
use super::number::Number;

/// Columns of a strip.
pub const STRIP: usize = 2 * LANES;

/// Rows kept in registers: 12 accumulators of 16 registers.
pub const BLOCK_ROWS: usize = 6;

/// What an output starts from.
#[derive(Clone, Copy)]
pub enum Initial<'a> {
    /// Zero.
    Zero,
    /// What `c` holds, times this number of its row.
    Scaled(&'a [f32]),
    /// Sixteen numbers of another matrix: row `i` is `data[i * row..]`.
    From {
        /// The numbers.
        data: &'a [f32],
        /// Distance between rows.
        row: usize,
    },
}

/// How far along `k` each row goes.
#[derive(Clone, Copy)]
pub enum Reach {
    /// The same for all rows.
    All(usize),
    /// Row `i` takes `first + i / rows_per_step`, at most `limit`: a causal edge.
    Stair {
        /// Of row 0.
        first: usize,
        /// Rows that share a step.
        rows_per_step: usize,
        /// Of any row.
        limit: usize,
    },
}

impl Reach {
    /// Of one row.
    #[inline(always)]
    pub fn of(self, row: usize) -> usize {
        match self {
            Reach::All(k) => k,
            Reach::Stair { first, rows_per_step, limit } => {
                (first + row / rows_per_step).min(limit)
            }
        }
    }
}

/// A matrix of which entry `(i, p)` is at `i * row + p * col`.
#[derive(Clone, Copy)]
pub struct Strided<'a> {
    /// The numbers.
    pub data: &'a [f32],
    /// Distance between rows.
    pub row: usize,
    /// Distance between columns.
    pub col: usize,
}

/// `c[i] = initial + sum over p of a[i, p] * b[p]`, `b[p]` being the sixteen numbers `b[16 p..]`.
pub struct StripProduct<'a, B = f32> {
    /// Left operand, `[rows, reach]`.
    pub a: Strided<'a>,
    /// Rows of `a` and `c`.
    pub rows: usize,
    /// Columns of `a` and rows of `b` that count.
    pub reach: Reach,
    /// Right operand, a strip, widened to float32 as it is read.
    pub b: &'a [B],
    /// Output: row `i` is the sixteen numbers `c[i * c_row..]`.
    pub c: &'a mut [f32],
    /// Distance between output rows.
    pub c_row: usize,
    /// What outputs start from.
    pub initial: Initial<'a>,
}

impl<B: Number> StripProduct<'_, B> {
    /// Panics unless every number the kernel touches is inside its slice.
    fn check(&self) {
        let Some(last) = self.rows.checked_sub(1) else { return };
        // Stairs only ascend.
        let k = self.reach.of(last);
        if let Some(p) = k.checked_sub(1) {
            assert!(last * self.a.row + p * self.a.col < self.a.data.len());
        }
        assert!(k * STRIP <= self.b.len());
        assert!(last * self.c_row + STRIP <= self.c.len());
        match self.initial {
            Initial::Scaled(scale) => assert!(self.rows <= scale.len()),
            Initial::From { data, row } => assert!(last * row + STRIP <= data.len()),
            Initial::Zero => (),
        }
    }
}

impl<B: Number> Kernel for StripProduct<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        self.check();
        let whole = self.rows - self.rows % BLOCK_ROWS;
        // SAFETY: `check` has seen that all rows are inside the slices.
        unsafe {
            for row in (0..whole).step_by(BLOCK_ROWS) {
                block::<L, B, BLOCK_ROWS>(l, &mut self, row);
            }
            match self.rows - whole {
                1 => block::<L, B, 1>(l, &mut self, whole),
                2 => block::<L, B, 2>(l, &mut self, whole),
                3 => block::<L, B, 3>(l, &mut self, whole),
                4 => block::<L, B, 4>(l, &mut self, whole),
                5 => block::<L, B, 5>(l, &mut self, whole),
                _ => (),
            }
        }
    }
}

/// `M` rows from `row` on.
///
/// # Safety
/// The rows must be inside the operands, as [`StripProduct::check`] asserts.
#[inline(always)]
unsafe fn block<L: Lanes, B: Number, const M: usize>(
    l: L,
    product: &mut StripProduct<'_, B>,
    row: usize,
) {
    let Strided { data, row: a_row, col: a_col } = product.a;
    let b = product.b.as_ptr();
    // SAFETY: inside the operands by the caller's promise, here and below.
    let (a, c) = unsafe {
        (data.as_ptr().add(row * a_row), product.c.as_mut_ptr().add(row * product.c_row))
    };
    let mut sums = match product.initial {
        Initial::Zero => [[l.splat(0.0); 2]; M],
        // SAFETY: as above.
        Initial::From { data, row: distance } => unsafe {
            load_rows(l, data.as_ptr().add(row * distance), distance)
        },
        Initial::Scaled(scale) => {
            // SAFETY: as above.
            let mut kept: [[L::V; 2]; M] = unsafe { load_rows(l, c, product.c_row) };
            for (i, kept) in kept.iter_mut().enumerate() {
                let scale = l.splat(scale[row + i]);
                *kept = [l.mul(kept[0], scale), l.mul(kept[1], scale)];
            }
            kept
        }
    };
    let common = product.reach.of(row);
    // SAFETY: as above; the first row reaches least far.
    unsafe { accumulate(l, &mut sums, a, a_row, a_col, b, 0..common) };
    if let Reach::Stair { .. } = product.reach {
        for (i, sum) in sums.iter_mut().enumerate() {
            let mut one = [*sum];
            // SAFETY: as above.
            unsafe {
                let a = a.add(i * a_row);
                accumulate(l, &mut one, a, 0, a_col, b, common..product.reach.of(row + i));
            }
            *sum = one[0];
        }
    }
    // SAFETY: as above.
    unsafe { store_rows(l, &sums, c, product.c_row) };
}

/// `M` rows of sixteen numbers, `distance` apart.
///
/// # Safety
/// They must be readable.
#[inline(always)]
pub unsafe fn load_rows<L: Lanes, const M: usize>(
    l: L,
    from: *const f32,
    distance: usize,
) -> [[L::V; 2]; M] {
    let mut rows = [[l.splat(0.0); 2]; M];
    for (i, row) in rows.iter_mut().enumerate() {
        for (j, v) in row.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *v = unsafe { l.load_at(from.add(i * distance + j * LANES)) };
        }
    }
    rows
}

/// Writes `M` rows of sixteen numbers, `distance` apart.
///
/// # Safety
/// They must be writable.
#[inline(always)]
pub unsafe fn store_rows<L: Lanes, const M: usize>(
    l: L,
    rows: &[[L::V; 2]; M],
    to: *mut f32,
    distance: usize,
) {
    for (i, row) in rows.iter().enumerate() {
        for (j, &v) in row.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { l.store_at(v, to.add(i * distance + j * LANES)) };
        }
    }
}

/// `sums[i] += a[i, p] * b[p]` for each `p` of the range, in order.
///
/// # Safety
/// `a[i * a_row + p * a_col]` and the sixteen numbers at `b[16 p]` must be readable.
#[inline(always)]
pub unsafe fn accumulate<L: Lanes, B: Number, const M: usize>(
    l: L,
    sums: &mut [[L::V; 2]; M],
    a: *const f32,
    a_row: usize,
    a_col: usize,
    b: *const B,
    range: std::ops::Range<usize>,
) {
    for p in range {
        // SAFETY: the caller's promise.
        unsafe {
            let left = B::load_at(l, b.add(p * STRIP));
            let right = B::load_at(l, b.add(p * STRIP + LANES));
            for (i, sum) in sums.iter_mut().enumerate() {
                let x = l.splat(*a.add(i * a_row + p * a_col));
                sum[0] = l.fma(x, left, sum[0]);
                sum[1] = l.fma(x, right, sum[1]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Simd;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 504.0 - 1.0).collect()
    }

    /// One output after the other, term by term.
    fn expected(a: Strided<'_>, rows: usize, reach: Reach, b: &[f32], c: &[f32]) -> Vec<f32> {
        let mut c = c.to_vec();
        for (i, row) in c.chunks_mut(STRIP).enumerate().take(rows) {
            for (j, sum) in row.iter_mut().enumerate() {
                for p in 0..reach.of(i) {
                    *sum = a.data[i * a.row + p * a.col].mul_add(b[p * STRIP + j], *sum);
                }
            }
        }
        c
    }

    #[test]
    fn each_output_is_one_chain_of_fused_additions_in_order() {
        let (k, data, b) = (37, numbers(40 * 37, 1), numbers(37 * STRIP, 2));
        let shapes = [(37, 1), (1, 40)];
        for (rows, (row, col)) in (0..=20).flat_map(|rows| shapes.map(|shape| (rows, shape))) {
            let stair = Reach::Stair { first: 3, rows_per_step: 2, limit: 9 };
            for (reach, simd) in [Reach::All(k), Reach::All(0), stair]
                .map(|r| [(r, Simd::detect()), (r, Simd::Portable)])
                .concat()
            {
                let a = Strided { data: &data, row, col };
                let start = numbers(rows * STRIP, 3);
                let scale = numbers(rows, 4);
                let scaled: Vec<f32> =
                    start.iter().enumerate().map(|(i, x)| x * scale[i / STRIP]).collect();
                let other = numbers(rows * (STRIP + 3), 5);
                let from_other: Vec<f32> =
                    other.chunks(STRIP + 3).flat_map(|row| &row[..STRIP]).copied().collect();
                for (initial, from) in [
                    (Initial::Zero, vec![0.0; start.len()]),
                    (Initial::Scaled(&scale), scaled),
                    (Initial::From { data: &other, row: STRIP + 3 }, from_other),
                ] {
                    let mut c = start.clone();
                    let product =
                        StripProduct { a, rows, reach, b: &b, c: &mut c, c_row: STRIP, initial };
                    simd.call(product);
                    assert_eq!(c, expected(a, rows, reach, &b, &from), "{rows} rows, {simd}");
                }
            }
        }
    }

    #[test]
    fn a_strip_of_bf16_is_the_strip_of_its_widened_numbers() {
        let (rows, k, a) = (8, 21, numbers(8 * 21, 6));
        let stored: Vec<half::bf16> =
            numbers(k * STRIP, 7).into_iter().map(half::bf16::from_f32).collect();
        let widened: Vec<f32> = stored.iter().map(|x| x.to_f32()).collect();
        let (a, reach) = (Strided { data: &a, row: k, col: 1 }, Reach::All(k));
        let expected = expected(a, rows, reach, &widened, &vec![0.0; rows * STRIP]);
        for simd in [Simd::detect(), Simd::Portable] {
            let mut c = vec![f32::NAN; rows * STRIP];
            let (b, initial) = (&stored[..], Initial::Zero);
            simd.call(StripProduct { a, rows, reach, b, c: &mut c, c_row: STRIP, initial });
            assert_eq!(c, expected, "{simd}");
        }
    }

    #[test]
    #[should_panic(expected = "self.b.len()")]
    fn a_strip_that_is_too_short_is_caught() {
        Simd::detect().call(StripProduct {
            a: Strided { data: &[0.0; 4], row: 4, col: 1 },
            rows: 1,
            reach: Reach::All(4),
            b: &[0.0; 3 * STRIP],
            c: &mut [0.0; STRIP],
            c_row: STRIP,
            initial: Initial::Zero,
        });
    }
}
