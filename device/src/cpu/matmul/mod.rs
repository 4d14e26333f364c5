//! Matrix products with packed weights.

use super::matrix::LANES;
use super::pool::DisjointMut;
use super::{CpuDevice, CpuTensor, PackedMatrix};
use crate::{DeviceError, DeviceTensor};

/// `out = x @ w.T`, see [`Device::matmul`](crate::Device::matmul).
pub fn matmul(
    device: &CpuDevice,
    x: &CpuTensor,
    w: &PackedMatrix,
    out: &mut CpuTensor,
) -> Result<(), DeviceError> {
    let (rows, inputs, outputs) = (x.rows(), w.inputs(), w.outputs());
    if x.cols() != inputs || out.rows() != rows || out.cols() != outputs {
        return Err(DeviceError::Shape {
            op: "matmul",
            detail: format!(
                "[{rows}, {}] by [{outputs}, {inputs}] transposed into [{}, {}]",
                x.cols(),
                out.rows(),
                out.cols()
            ),
        });
    }
    let x = x.as_slice();
    let out = DisjointMut::new(out.as_mut_slice());
    device.pool().run(w.tile_count(), &|tile| {
        let weights = &w.tiles()[tile * LANES * inputs..][..LANES * inputs];
        let lanes = LANES.min(outputs - tile * LANES);
        for (row, x) in x.chunks_exact(inputs).enumerate() {
            let mut sums = [0.0f32; LANES];
            for (&x, weights) in x.iter().zip(weights.chunks_exact(LANES)) {
                for (sum, &bits) in sums.iter_mut().zip(weights) {
                    *sum = x.mul_add(f32::from_bits((bits as u32) << 16), *sum);
                }
            }
            let start = row * outputs + tile * LANES;
            // SAFETY: a task takes only the columns of its own tile.
            unsafe { out.slice(start..start + lanes) }.copy_from_slice(&sums[..lanes]);
        }
    });
    Ok(())
}
