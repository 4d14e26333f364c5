//! What greedy decoding and log-probabilities need of a row of logits.

use super::lanes::{Kernel, LANES, Lanes};
use super::math::exp;
use super::pool::DisjointMut;
use super::{CpuDevice, CpuTensor};
use crate::{DeviceError, DeviceTensor, RowStats};

/// Statistics of each row, see [`Device::row_stats`](crate::Device::row_stats).
pub fn row_stats(
    device: &CpuDevice,
    logits: &CpuTensor,
    targets: &[Option<usize>],
) -> Result<Vec<RowStats>, DeviceError> {
    let (rows, cols) = (logits.rows(), logits.cols());
    let refuse = |detail| Err(DeviceError::Shape { op: "row_stats", detail });
    if targets.len() != rows || cols == 0 {
        return refuse(format!("[{rows}, {cols}] with {} targets", targets.len()));
    }
    if let Some(outside) = targets.iter().flatten().find(|&&target| target >= cols) {
        return refuse(format!("target {outside} of {cols} columns"));
    }
    let nothing = RowStats { argmax: 0, max: f32::NEG_INFINITY, sum_exp: 0.0, target: None };
    let mut found = vec![nothing; rows];
    let places = DisjointMut::new(&mut found);
    device.pool().run(rows, &|row| {
        let x = logits.row(row);
        // SAFETY: task i takes only place i.
        let place = unsafe { places.slice(row..row + 1) };
        let target = targets[row].map(|target| x[target]);
        place[0] = match device.simd().call(Stats { x }) {
            Largest::At(argmax, sum_exp) => RowStats { argmax, max: x[argmax], sum_exp, target },
            Largest::Nothing => RowStats { target, ..nothing },
            Largest::NotANumber => RowStats { max: f32::NAN, sum_exp: f64::NAN, target, ..nothing },
        };
    });
    Ok(found)
}

/// What there is to say of a row.
enum Largest {
    /// Column of the largest number, and the sum of exponentials.
    At(usize, f64),
    /// All are minus infinity.
    Nothing,
    /// One is NaN or plus infinity: nothing sensible can be chosen from the row.
    NotANumber,
}

/// The statistics of one row.
struct Stats<'a> {
    x: &'a [f32],
}

impl Kernel for Stats<'_> {
    type Output = Largest;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Self::Output {
        let x = self.x;
        let (vectors, rest) = x.as_chunks::<LANES>();
        let mut largest = l.splat(f32::NEG_INFINITY);
        // Zero as long as every number is one: anything times zero is zero or not a number.
        let mut check = l.splat(0.0);
        let bound = l.splat(f32::MAX);
        for v in vectors {
            let v = l.load(v);
            largest = l.max(v, largest);
            // The operand order keeps NaN and takes away the infinities.
            let finite = l.min(bound, l.max(l.splat(f32::MIN), v));
            check = l.fma(finite, l.splat(0.0), check);
        }
        let mut max = l.largest(largest);
        let mut bad = l.sum(check).is_nan();
        for &x in rest {
            max = if x > max { x } else { max };
            bad |= x.is_nan();
        }
        if bad || max == f32::INFINITY {
            return Largest::NotANumber;
        }
        // Of equal numbers (0 and -0 are) the first.
        let first = x.iter().position(|&x| x == max).filter(|_| max > f32::NEG_INFINITY);
        let Some(argmax) = first else { return Largest::Nothing };
        let shift = l.splat(x[argmax]);
        let mut sum = 0.0f64;
        for v in vectors {
            for term in l.to_array(exp(l, l.sub(l.load(v), shift))) {
                sum += f64::from(term);
            }
        }
        let last = l.to_array(exp(l, l.sub(l.load_part(rest), shift)));
        for &term in &last[..rest.len()] {
            sum += f64::from(term);
        }
        Largest::At(argmax, sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Simd;
    use crate::cpu::testing::{Numbers, device, devices};

    fn stats(
        device: &CpuDevice,
        row: &[f32],
        target: Option<usize>,
    ) -> Result<RowStats, DeviceError> {
        let logits = CpuTensor::from_slice(row, row.len()).unwrap();
        row_stats(device, &logits, &[target]).map(|stats| stats[0])
    }

    #[test]
    fn maximum_sum_and_target_are_those_of_the_row() {
        for cols in [1, 5, 8, 250, 10_001] {
            let logits = Numbers(1).tensor(3, cols, -20.0, 20.0);
            let targets = [None, Some(cols / 2), Some(cols - 1)];
            let all: Vec<Vec<RowStats>> = devices()
                .iter()
                .map(|device| row_stats(device, &logits, &targets).unwrap())
                .collect();
            for found in &all {
                // Equal down to the bits of the sum.
                assert_eq!(*found, all[0]);
            }
            for (row, found) in all[0].iter().enumerate() {
                let x = logits.row(row);
                let max = x.iter().copied().fold(f32::MIN, f32::max);
                assert_eq!(found.max, max);
                assert_eq!(Some(found.argmax), x.iter().position(|&x| x == max));
                assert_eq!(found.target, targets[row].map(|target| x[target]));
                let sum: f64 = x.iter().map(|&x| (f64::from(x) - f64::from(max)).exp()).sum();
                assert!((found.sum_exp - sum).abs() < 1e-6 * sum, "{} {sum}", found.sum_exp);
            }
        }
    }

    /// D3: equal logits, the lowest id wins on every path.
    #[test]
    fn of_equal_logits_the_first_is_taken_wherever_they_are() {
        for device in devices() {
            for (first, second) in [(0, 1), (7, 8), (3, 99), (90, 98), (96, 99), (97, 98)] {
                let mut row = [-1.0; 100];
                (row[first], row[second]) = (5.0, 5.0);
                assert_eq!(stats(&device, &row, None).unwrap().argmax, first);
            }
            let found = stats(&device, &[-1.0, -0.0, 0.0, -0.0], None).unwrap();
            assert_eq!((found.argmax, found.max.to_bits()), (1, (-0.0f32).to_bits()));
        }
    }

    #[test]
    fn masked_logits_count_for_nothing() {
        let mut row = [f32::NEG_INFINITY; 20];
        row[11] = -3.0;
        let found = stats(&device(1, Simd::detect()), &row, Some(4)).unwrap();
        assert_eq!((found.argmax, found.max, found.sum_exp), (11, -3.0, 1.0));
        assert_eq!(found.target, Some(f32::NEG_INFINITY));
    }

    /// H19: one row without a sensible largest logit is that row's misfortune only.
    #[test]
    fn nothing_is_chosen_among_numbers_that_are_none() {
        for device in devices() {
            for (col, bad) in [0, 7, 8, 16].into_iter().zip([f32::NAN, f32::INFINITY].repeat(2)) {
                let mut row = [1.0; 17];
                row[col] = bad;
                let logits = CpuTensor::from_slice(&[[1.0; 17], row].concat(), 17).unwrap();
                let found = row_stats(&device, &logits, &[None, Some(3)]).unwrap();
                assert_eq!((found[0].argmax, found[0].max), (0, 1.0));
                assert!(found[1].max.is_nan() && found[1].sum_exp.is_nan(), "{found:?}");
            }
            let found = stats(&device, &[f32::NEG_INFINITY; 9], None).unwrap();
            assert_eq!((found.max, found.sum_exp), (f32::NEG_INFINITY, 0.0));
        }
    }

    #[test]
    fn operands_that_do_not_fit_are_refused() {
        let device = device(1, Simd::detect());
        let refused = |logits: &CpuTensor, targets: &[Option<usize>]| {
            let error = row_stats(&device, logits, targets).err().unwrap();
            assert!(matches!(error, DeviceError::Shape { op: "row_stats", .. }), "{error}");
            error.to_string()
        };
        let logits = CpuTensor::zeroed(2, 5).unwrap();
        assert!(refused(&logits, &[None]).contains("[2, 5] with 1 targets"));
        assert!(refused(&logits, &[None, Some(5)]).contains("target 5 of 5 columns"));
        assert!(refused(&CpuTensor::zeroed(1, 0).unwrap(), &[None]).contains("[1, 0]"));
    }
}
