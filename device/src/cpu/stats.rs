//! What greedy decoding and log-probabilities need of a row of logits.

use super::lanes::{Kernel, LANES, Lanes};
use super::math::exp;
use super::pool::DisjointMut;
use super::{CpuDevice, CpuTensor, failed};
use crate::{DeviceError, DeviceTensor, RowStats};

/// Statistics of each row, see [`Device::row_stats`](crate::Device::row_stats). A row whose largest
/// logit is not a finite number is refused: nothing sensible can be chosen from it.
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
    let mut found = vec![None; rows];
    let places = DisjointMut::new(&mut found);
    device.pool().run(rows, &|row| {
        let x = logits.row(row);
        let stats = device.simd().call(Stats { x }).map(|(argmax, sum_exp)| RowStats {
            argmax,
            max: x[argmax],
            sum_exp,
            target: targets[row].map(|target| x[target]),
        });
        // SAFETY: task i takes only place i.
        let place = unsafe { places.slice(row..row + 1) };
        place[0] = stats;
    });
    let complete = |(row, stats): (usize, Option<RowStats>)| {
        stats.ok_or_else(|| {
            let nan = logits.row(row).iter().position(|x| x.is_nan());
            failed(match nan {
                Some(col) => format!("logit {col} of row {row} is not a number"),
                None => format!("the largest logit of row {row} is infinite"),
            })
        })
    };
    found.into_iter().enumerate().map(complete).collect()
}

/// Column of the largest number and sum of exponentials of one row.
struct Stats<'a> {
    x: &'a [f32],
}

impl Kernel for Stats<'_> {
    type Output = Option<(usize, f64)>;

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
        if bad || !max.is_finite() {
            return None;
        }
        // Of equal numbers (0 and -0 are) the first.
        let argmax = x.iter().position(|&x| x == max)?;
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
        Some((argmax, sum))
    }
}
