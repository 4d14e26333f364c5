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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Simd;
    use crate::cpu::testing::{Numbers, bits, device, devices, relative_error};

    fn run(device: &CpuDevice, x: &CpuTensor, weight: &CpuTensor) -> CpuTensor {
        let mut out = CpuTensor::zeroed(x.rows(), x.cols()).unwrap();
        rms_norm(device, x, weight, 1e-6, &mut out).unwrap();
        out
    }

    #[test]
    fn rows_are_divided_by_their_size_and_weighted() {
        for cols in [1, 7, 8, 33, 96, 1000] {
            let mut numbers = Numbers(cols as u64);
            let (x, weight) =
                (numbers.tensor(3, cols, -3.0, 3.0), numbers.tensor(1, cols, 0.0, 2.0));
            let out = run(&device(2, Simd::detect()), &x, &weight);
            for row in 0..3 {
                let x: Vec<f64> = x.row(row).iter().map(|&x| f64::from(x)).collect();
                let mean = x.iter().map(|x| x * x).sum::<f64>() / cols as f64;
                let weights = weight.row(0).iter().map(|&w| f64::from(w));
                let expected: Vec<f64> =
                    x.iter().zip(weights).map(|(x, w)| x / (mean + 1e-6).sqrt() * w).collect();
                assert!(relative_error(out.row(row), &expected) < 1e-6);
            }
        }
    }

    #[test]
    fn neither_company_nor_threads_nor_instructions_change_a_bit() {
        let mut numbers = Numbers(1);
        let (x, weight) = (numbers.tensor(37, 93, -3.0, 3.0), numbers.tensor(1, 93, 0.0, 2.0));
        let together = run(&device(1, Simd::detect()), &x, &weight);
        for device in devices() {
            assert_eq!(bits(run(&device, &x, &weight).as_slice()), bits(together.as_slice()));
        }
        for row in 0..x.rows() {
            let alone = CpuTensor::from_slice(x.row(row), 93).unwrap();
            let alone = run(&device(1, Simd::detect()), &alone, &weight);
            assert_eq!(bits(alone.as_slice()), bits(together.row(row)));
        }
    }

    #[test]
    fn operands_that_do_not_fit_are_refused() {
        let device = device(1, Simd::detect());
        let tensor = |rows, cols| CpuTensor::zeroed(rows, cols).unwrap();
        for (weight, mut out) in [
            (tensor(1, 3), tensor(2, 4)),
            (tensor(2, 4), tensor(2, 4)),
            (tensor(1, 4), tensor(1, 4)),
        ] {
            let error = rms_norm(&device, &tensor(2, 4), &weight, 1e-6, &mut out).err().unwrap();
            assert!(matches!(error, DeviceError::Shape { op: "rms_norm", .. }), "{error}");
        }
    }
}
