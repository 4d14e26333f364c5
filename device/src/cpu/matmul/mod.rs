//! Matrix products with packed weights.
//!
//! Every output is one chain of fused multiply-adds that takes its inputs in order, starting from
//! zero, so the bits of a row depend neither on the rows beside it, nor on the threads, nor on the
//! instruction set. Threads divide the outputs, never the inputs.

mod kernel;

use super::pool::DisjointMut;
use super::wide::Wide;
use super::{CpuDevice, CpuTensor, PackedMatrix, Simd};
use crate::{DeviceError, DeviceTensor};

/// `out = x @ w.T`, see [`Device::matmul`](crate::Device::matmul). Of `x` `[rows, in]`, `w`
/// `[out, in]` and `out` `[rows, out]`.
pub fn matmul(
    device: &CpuDevice,
    x: &CpuTensor,
    w: &PackedMatrix,
    out: &mut CpuTensor,
) -> Result<(), DeviceError> {
    let rows = x.rows();
    if x.cols() != w.inputs() || out.rows() != rows || out.cols() != w.outputs() {
        return Err(DeviceError::Shape {
            op: "matmul",
            detail: format!(
                "[{rows}, {}] by [{}, {}] transposed into [{}, {}]",
                x.cols(),
                w.outputs(),
                w.inputs(),
                out.rows(),
                out.cols()
            ),
        });
    }
    if rows > 0 {
        device.work.gemm(kernel::passes(rows, w.inputs()) as u64 * w.bytes());
    }
    let outputs = out.cols();
    let product = Product {
        simd: device.simd(),
        x: x.as_slice(),
        rows,
        w,
        out: Columns { memory: DisjointMut::new(out.as_mut_slice()), outputs },
    };
    let tiles = w.tile_count();
    let step = tiles_a_task(tiles, device.pool().threads());
    device.pool().run(tiles.div_ceil(step), &|task| {
        let tiles = task * step..tiles.min((task + 1) * step);
        product.simd.call_wide(kernel::Task { product: &product, tiles });
    });
    Ok(())
}

/// A product whose shapes have been checked.
struct Product<'a> {
    simd: Simd,
    /// `[rows, w.inputs()]`.
    x: &'a [f32],
    rows: usize,
    w: &'a PackedMatrix,
    out: Columns<'a>,
}

/// The output `[rows, outputs]`, of which each task writes its own columns.
struct Columns<'a> {
    memory: DisjointMut<'a, f32>,
    outputs: usize,
}

impl Columns<'_> {
    /// Writes `N` vectors of sums to the columns from `column` on; those past the edge are dropped.
    ///
    /// # Safety
    /// No reference to these columns may be live.
    #[inline(always)]
    unsafe fn store<W: Wide, const N: usize>(
        &self,
        w: W,
        sums: &[W::V; N],
        row: usize,
        column: usize,
    ) {
        let start = row * self.outputs + column;
        let len = (N * W::WIDTH).min(self.outputs - column);
        // SAFETY: the caller's promise.
        let columns = unsafe { self.memory.slice(start..start + len) };
        for (columns, &sums) in columns.chunks_mut(W::WIDTH).zip(sums) {
            w.store_part(sums, columns);
        }
    }
}

/// Tiles a task takes: several tasks for each thread, so that one that is held up does not hold up all.
fn tiles_a_task(tiles: usize, threads: usize) -> usize {
    let tasks = if threads == 1 { 1 } else { threads * 4 };
    tiles.div_ceil(tasks)
}

#[cfg(test)]
mod tests;
