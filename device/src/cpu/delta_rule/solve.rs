//! Forward substitution with a unit lower triangular matrix.

use crate::RECURRENCE_CHUNK;
use crate::cpu::lanes::{Kernel, Lanes};
use crate::cpu::strip::{BLOCK_ROWS, STRIP, accumulate, load_rows, store_rows};

/// Solves `(I - a) x = d` in place for a strip `d`, `[rows, 16]`, where only the entries of `a` below
/// the diagonal count: `d[i] += sum over j < i of a[i, j] * d[j]`, in order of `j`.
pub struct Solve<'a> {
    /// `[rows, RECURRENCE_CHUNK]`.
    pub a: &'a [f32],
    /// Rows, at most [`RECURRENCE_CHUNK`].
    pub rows: usize,
    /// Right-hand side, then solution.
    pub d: &'a mut [f32],
}

impl Kernel for Solve<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Solve { a, rows, d } = self;
        assert!(rows <= RECURRENCE_CHUNK && rows * RECURRENCE_CHUNK <= a.len());
        assert!(rows * STRIP <= d.len());
        let whole = rows - rows % BLOCK_ROWS;
        // SAFETY: all rows are inside the slices, as asserted.
        unsafe {
            for row in (0..whole).step_by(BLOCK_ROWS) {
                block::<L, BLOCK_ROWS>(l, a, d, row);
            }
            match rows - whole {
                1 => block::<L, 1>(l, a, d, whole),
                2 => block::<L, 2>(l, a, d, whole),
                3 => block::<L, 3>(l, a, d, whole),
                4 => block::<L, 4>(l, a, d, whole),
                5 => block::<L, 5>(l, a, d, whole),
                _ => (),
            }
        }
    }
}

/// `M` rows from `row` on; those before are solved.
///
/// # Safety
/// The rows must be inside the slices.
#[inline(always)]
unsafe fn block<L: Lanes, const M: usize>(l: L, a: &[f32], d: &mut [f32], row: usize) {
    // SAFETY: inside the slices by the caller's promise, here and below.
    let (a, to) =
        unsafe { (a.as_ptr().add(row * RECURRENCE_CHUNK), d.as_mut_ptr().add(row * STRIP)) };
    // SAFETY: as above.
    let mut sums: [[L::V; 2]; M] = unsafe { load_rows(l, to, STRIP) };
    // SAFETY: as above.
    unsafe { accumulate(l, &mut sums, a, RECURRENCE_CHUNK, 1, d.as_ptr(), 0..row) };
    for i in 1..M {
        let (solved, open) = sums.split_at_mut(i);
        for (j, solved) in solved.iter().enumerate() {
            // SAFETY: as above.
            let x = l.splat(unsafe { *a.add(i * RECURRENCE_CHUNK + row + j) });
            for (open, &solved) in open[0].iter_mut().zip(solved) {
                *open = l.fma(x, solved, *open);
            }
        }
    }
    // SAFETY: as above.
    unsafe { store_rows(l, &sums, to, STRIP) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Simd;

    #[test]
    fn substitution_goes_row_by_row_in_order() {
        let number = |i: usize| ((i * 7919 % 1009) as f32 - 504.0) / 2018.0;
        let a: Vec<f32> = (0..RECURRENCE_CHUNK * RECURRENCE_CHUNK).map(number).collect();
        for rows in 0..=RECURRENCE_CHUNK {
            let start: Vec<f32> = (0..rows * STRIP).map(|i| number(i + 17)).collect();
            let mut expected = start.clone();
            for i in 0..rows {
                for (j, col) in (0..i).flat_map(|j| (0..STRIP).map(move |col| (j, col))) {
                    let x = a[i * RECURRENCE_CHUNK + j];
                    expected[i * STRIP + col] =
                        x.mul_add(expected[j * STRIP + col], expected[i * STRIP + col]);
                }
            }
            for simd in [Simd::detect(), Simd::Portable] {
                let mut d = start.clone();
                simd.call(Solve { a: &a, rows, d: &mut d });
                assert_eq!(d, expected, "{rows} rows, {simd}");
            }
        }
    }
}
