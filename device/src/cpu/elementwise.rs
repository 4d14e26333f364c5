//! Kernels that treat every number, or every row, on its own.

use super::lanes::{Kernel, Lanes};
use super::math::{map, silu, update};
use super::pool::DisjointMut;
use super::{CpuDevice, CpuTensor};
use crate::{DeviceError, DeviceTensor};

/// Numbers a task handles where any cut would do: enough to outweigh the hand-over.
const TASK: usize = 8192;

fn shape(tensor: &CpuTensor) -> [usize; 2] {
    [tensor.rows(), tensor.cols()]
}

/// `x += y`, see [`Device::add`](crate::Device::add).
pub fn add(device: &CpuDevice, x: &mut CpuTensor, y: &CpuTensor) -> Result<(), DeviceError> {
    if shape(x) != shape(y) {
        let detail = format!("{:?} += {:?}", shape(x), shape(y));
        return Err(DeviceError::Shape { op: "add", detail });
    }
    let y = y.as_slice();
    let x = DisjointMut::new(x.as_mut_slice());
    device.pool().run(y.len().div_ceil(TASK), &|task| {
        let range = task * TASK..y.len().min((task + 1) * TASK);
        // SAFETY: task i takes only its own range.
        let x = unsafe { x.slice(range.clone()) };
        device.simd().call(Add { x, y: &y[range] });
    });
    Ok(())
}

/// `x += bias` on every row, see [`Device::add_bias`](crate::Device::add_bias).
pub fn add_bias(
    device: &CpuDevice,
    x: &mut CpuTensor,
    bias: &CpuTensor,
) -> Result<(), DeviceError> {
    let [rows, cols] = shape(x);
    if shape(bias) != [1, cols] {
        let detail = format!("{:?} += {:?} on every row", shape(x), shape(bias));
        return Err(DeviceError::Shape { op: "add_bias", detail });
    }
    let x = DisjointMut::new(x.as_mut_slice());
    device.pool().run(rows, &|row| {
        // SAFETY: task i takes only row i.
        let x = unsafe { x.slice(row * cols..(row + 1) * cols) };
        device.simd().call(Add { x, y: bias.as_slice() });
    });
    Ok(())
}

/// `out = silu(gate) * up`, see [`Device::swiglu`](crate::Device::swiglu).
pub fn swiglu(
    device: &CpuDevice,
    gate_up: &CpuTensor,
    out: &mut CpuTensor,
) -> Result<(), DeviceError> {
    // An exponential costs about ten additions.
    const COLS: usize = TASK / 8;
    let [rows, cols] = shape(out);
    if Some(gate_up.cols()) != cols.checked_mul(2) || gate_up.rows() != rows {
        let detail = format!("{:?} into {:?}", shape(gate_up), shape(out));
        return Err(DeviceError::Shape { op: "swiglu", detail });
    }
    let pieces = cols.div_ceil(COLS);
    let out = DisjointMut::new(out.as_mut_slice());
    device.pool().run(rows * pieces, &|task| {
        let (row, piece) = (task / pieces, task % pieces);
        let range = piece * COLS..cols.min((piece + 1) * COLS);
        let (gate, up) = gate_up.row(row).split_at(cols);
        // SAFETY: each task takes its own columns of its own row.
        let out = unsafe { out.slice(row * cols + range.start..row * cols + range.end) };
        device.simd().call(SwiGlu { gate: &gate[range.clone()], up: &up[range], out });
    });
    Ok(())
}

/// `out[i] = x[rows[i]]`, see [`Device::gather_rows`](crate::Device::gather_rows).
pub fn gather_rows(
    device: &CpuDevice,
    x: &CpuTensor,
    rows: &[usize],
    out: &mut CpuTensor,
) -> Result<(), DeviceError> {
    let cols = x.cols();
    let refuse = |detail| Err(DeviceError::Shape { op: "gather_rows", detail });
    if shape(out) != [rows.len(), cols] {
        return refuse(format!("{} rows of {:?} into {:?}", rows.len(), shape(x), shape(out)));
    }
    if let Some(outside) = rows.iter().find(|&&row| row >= x.rows()) {
        return refuse(format!("row {outside} of {}", x.rows()));
    }
    let out = DisjointMut::new(out.as_mut_slice());
    device.pool().run(rows.len(), &|i| {
        // SAFETY: task i takes only row i.
        unsafe { out.slice(i * cols..(i + 1) * cols) }.copy_from_slice(x.row(rows[i]));
    });
    Ok(())
}

struct Add<'a> {
    x: &'a mut [f32],
    y: &'a [f32],
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Add { x, y } = self;
        update(
            l,
            x,
            [y],
            #[inline(always)]
            |x, [y]| l.add(x, y),
        );
    }
}

struct SwiGlu<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for SwiGlu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let SwiGlu { gate, up, out } = self;
        map(
            l,
            out,
            [gate, up],
            #[inline(always)]
            |[gate, up]| l.mul(silu(l, gate), up),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Simd;
    use crate::cpu::lanes::Scalar;
    use crate::cpu::testing::{Numbers, bits, device, devices};

    const SIZES: [[usize; 2]; 5] = [[1, 1], [3, 13], [2, 64], [5, 1030], [1, 20_000]];

    #[test]
    fn sums_are_those_of_the_numbers_one_by_one() {
        for [rows, cols] in SIZES {
            let mut numbers = Numbers(1);
            let x = numbers.tensor(rows, cols, -2.0, 2.0);
            let y = numbers.tensor(rows, cols, -2.0, 2.0);
            let sum = |y: &dyn Fn(usize) -> f32| -> Vec<f32> {
                x.as_slice().iter().enumerate().map(|(i, x)| x + y(i)).collect()
            };
            let with_y = sum(&|i| y.as_slice()[i]);
            let with_bias = sum(&|i| y.row(0)[i % cols]);
            let bias = CpuTensor::from_slice(y.row(0), cols).unwrap();
            for device in devices() {
                let mut found = CpuTensor::from_slice(x.as_slice(), cols).unwrap();
                add(&device, &mut found, &y).unwrap();
                assert_eq!(bits(found.as_slice()), bits(&with_y));
                let mut found = CpuTensor::from_slice(x.as_slice(), cols).unwrap();
                add_bias(&device, &mut found, &bias).unwrap();
                assert_eq!(bits(found.as_slice()), bits(&with_bias));
            }
        }
    }

    #[test]
    fn swiglu_is_that_of_the_numbers_one_by_one() {
        for [rows, cols] in SIZES {
            let gate_up = Numbers(2).tensor(rows, 2 * cols, -9.0, 9.0);
            let expected: Vec<f32> = (0..rows * cols)
                .map(|i| (gate_up.row(i / cols), i % cols))
                .map(|(row, col)| silu(Scalar, row[col]) * row[cols + col])
                .collect();
            for device in devices() {
                let mut out = CpuTensor::zeroed(rows, cols).unwrap();
                swiglu(&device, &gate_up, &mut out).unwrap();
                assert_eq!(bits(out.as_slice()), bits(&expected));
            }
        }
    }

    #[test]
    fn rows_are_gathered_in_any_order_any_number_of_times() {
        let x = Numbers(3).tensor(5, 7, -1.0, 1.0);
        let rows = [4, 0, 0, 3];
        let mut out = CpuTensor::zeroed(4, 7).unwrap();
        gather_rows(&device(2, Simd::detect()), &x, &rows, &mut out).unwrap();
        for (i, row) in rows.into_iter().enumerate() {
            assert_eq!(out.row(i), x.row(row));
        }
    }

    #[test]
    fn operands_that_do_not_fit_are_refused() {
        let device = device(1, Simd::detect());
        let tensor = |rows, cols| CpuTensor::zeroed(rows, cols).unwrap();
        let refused = |result: Result<(), DeviceError>, what: &str| {
            let error = result.err().unwrap();
            assert!(matches!(error, DeviceError::Shape { .. }), "{error}");
            assert!(error.to_string().contains(what), "{error}");
        };
        refused(add(&device, &mut tensor(2, 3), &tensor(3, 2)), "add: [2, 3] += [3, 2]");
        refused(add_bias(&device, &mut tensor(2, 3), &tensor(1, 2)), "[2, 3] += [1, 2]");
        refused(add_bias(&device, &mut tensor(2, 3), &tensor(2, 3)), "[2, 3] += [2, 3]");
        refused(swiglu(&device, &tensor(2, 5), &mut tensor(2, 3)), "swiglu: [2, 5] into [2, 3]");
        refused(swiglu(&device, &tensor(1, 6), &mut tensor(2, 3)), "[1, 6] into [2, 3]");
        refused(gather_rows(&device, &tensor(2, 3), &[0], &mut tensor(2, 3)), "1 rows of [2, 3]");
        refused(gather_rows(&device, &tensor(2, 3), &[2], &mut tensor(1, 3)), "row 2 of 2");
    }
}
