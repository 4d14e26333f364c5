//! Matrix products with packed weights.
//!
//! Every output is one chain of fused multiply-adds that takes its inputs in order, starting from
//! zero, so the bits of a row depend neither on the rows beside it, nor on the threads, nor on the
//! instruction set. Threads divide the outputs, never the inputs.

mod kernel;

use super::lanes::{LANES, Lanes};
use super::matrix::TILE;
use super::pool::DisjointMut;
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
        product.simd.call(kernel::Task { product: &product, tiles });
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
    /// The columns of a tile in one row: fewer than [`TILE`] at the edge.
    ///
    /// # Safety
    /// No other reference to them may be live.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "as in DisjointMut")]
    unsafe fn of(&self, row: usize, tile: usize) -> &mut [f32] {
        let start = row * self.outputs + tile * TILE;
        let len = TILE.min(self.outputs - tile * TILE);
        // SAFETY: the caller's promise.
        unsafe { self.memory.slice(start..start + len) }
    }

    /// Writes the columns of a tile; sums past the edge are dropped.
    ///
    /// # Safety
    /// As for [`Columns::of`].
    #[inline(always)]
    unsafe fn store<L: Lanes>(&self, l: L, sums: [L::V; 2], row: usize, tile: usize) {
        // SAFETY: the caller's promise.
        let columns = unsafe { self.of(row, tile) };
        if let Ok([left, right]) = <&mut [[f32; LANES]; 2]>::try_from(columns.as_chunks_mut().0) {
            l.store(sums[0], left);
            l.store(sums[1], right);
        } else {
            let (left, right) = columns.split_at_mut(columns.len().min(LANES));
            l.store_part(sums[0], left);
            l.store_part(sums[1], right);
        }
    }
}

/// Tiles a task takes: a whole number of what the kernel takes side by side, and several tasks for
/// each thread, so that one that is held up does not hold up all.
fn tiles_a_task(tiles: usize, threads: usize) -> usize {
    let tasks = if threads == 1 { 1 } else { threads * 8 };
    tiles.div_ceil(tasks).next_multiple_of(kernel::TILES)
}

#[cfg(test)]
mod tests;
