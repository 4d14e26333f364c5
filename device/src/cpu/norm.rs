//! Root-mean-square norms.

use super::lanes::{Kernel, Lanes};
use super::math::{map, sum_of_squares};
use super::pool::DisjointMut;
use super::{CpuDevice, CpuTensor};
use crate::{DeviceError, DeviceTensor};

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
pub fn inverse_rms<L: Lanes>(l: L, x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_squares(l, x) / x.len() as f32 + eps).sqrt()
}

/// `out = x * inverse_rms(x) * weight`.
#[inline(always)]
pub fn normalise<L: Lanes>(l: L, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let inverse = l.splat(inverse_rms(l, x, eps));
    map(
        l,
        out,
        [x, weight],
        #[inline(always)]
        |[x, w]| l.mul(l.mul(x, inverse), w),
    );
}

/// Norm of each row, see [`Device::rms_norm`](crate::Device::rms_norm).
pub fn rms_norm(
    device: &CpuDevice,
    x: &CpuTensor,
    weight: &CpuTensor,
    eps: f32,
    out: &mut CpuTensor,
) -> Result<(), DeviceError> {
    let (rows, cols) = (x.rows(), x.cols());
    if (weight.rows(), weight.cols()) != (1, cols) || (out.rows(), out.cols()) != (rows, cols) {
        return Err(DeviceError::Shape {
            op: "rms_norm",
            detail: format!(
                "[{rows}, {cols}] with weight [{}, {}] into [{}, {}]",
                weight.rows(),
                weight.cols(),
                out.rows(),
                out.cols()
            ),
        });
    }
    let out = DisjointMut::new(out.as_mut_slice());
    device.pool().run(rows, &|row| {
        // SAFETY: task i takes only row i.
        let out = unsafe { out.slice(row * cols..(row + 1) * cols) };
        device.simd().call(NormRow { x: x.row(row), weight: weight.as_slice(), eps, out });
    });
    Ok(())
}

struct NormRow<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for NormRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        normalise(l, self.x, self.weight, self.eps, self.out);
    }
}
