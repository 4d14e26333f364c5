//! The table of rotation angles of a step.

use super::pool::DisjointMut;
use super::segments::check_rows;
use super::{CpuDevice, CpuTensor};
use crate::{DeviceError, DeviceTensor, Segment};

/// Cosines and sines by row, see [`Device::rotary`](crate::Device::rotary).
///
/// The angle is rounded to float32, as the models were trained; its cosine and sine are exact to
/// rounding at any position.
pub fn rotary(
    device: &CpuDevice,
    segments: &[Segment<'_>],
    frequencies: &[f32],
    out: &mut CpuTensor,
) -> Result<(), DeviceError> {
    let (rows, cols, half) = (out.rows(), out.cols(), frequencies.len());
    check_rows("rotary", segments, rows)?;
    if cols != 2 * half {
        return Err(DeviceError::Shape {
            op: "rotary",
            detail: format!("{half} frequencies into rows of {cols}"),
        });
    }
    let out = DisjointMut::new(out.as_mut_slice());
    device.pool().run(rows, &|row| {
        let segment = &segments[segments.partition_point(|s| s.first_row + s.rows <= row)];
        let position = (segment.position + row - segment.first_row) as f32;
        // SAFETY: task i takes only row i.
        let (cosines, sines) =
            unsafe { out.slice(row * cols..(row + 1) * cols) }.split_at_mut(half);
        for ((frequency, cosine), sine) in frequencies.iter().zip(cosines).zip(sines) {
            let angle = position * frequency;
            let (s, c) = f64::from(angle).sin_cos();
            (*cosine, *sine) = (c as f32, s as f32);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Simd;
    use crate::cpu::testing::device;
    use crate::{Recurrence, SlotId};

    fn segment(first_row: usize, rows: usize, position: usize) -> Segment<'static> {
        let recurrence = Recurrence::Stepwise;
        Segment { slot: SlotId(0), first_row, rows, position, recurrence, blocks: &[] }
    }

    #[test]
    fn each_row_has_the_angles_of_its_position() {
        let frequencies = [1.0, 0.1, 1e-7];
        let segments =
            [segment(0, 2, 0), segment(2, 0, 9), segment(2, 1, 70), segment(3, 2, 250_000)];
        let mut out = CpuTensor::zeroed(5, 6).unwrap();
        rotary(&device(2, Simd::detect()), &segments, &frequencies, &mut out).unwrap();
        for (row, position) in [0u32, 1, 70, 250_000, 250_001].into_iter().enumerate() {
            for (j, frequency) in frequencies.into_iter().enumerate() {
                let angle = f64::from(position as f32 * frequency);
                assert_eq!(out.row(row)[j], angle.cos() as f32, "cosine {j} at {position}");
                assert_eq!(out.row(row)[3 + j], angle.sin() as f32, "sine {j} at {position}");
            }
        }
    }

    #[test]
    fn operands_that_do_not_fit_are_refused() {
        let device = device(1, Simd::detect());
        let mut out = CpuTensor::zeroed(2, 6).unwrap();
        let mut refused = |segments: &[Segment<'_>], frequencies: &[f32]| {
            rotary(&device, segments, frequencies, &mut out).err().unwrap().to_string()
        };
        assert!(refused(&[segment(0, 1, 0)], &[0.0; 3]).contains("segments cover 1 of 2 rows"));
        assert!(refused(&[segment(0, 2, 0)], &[0.0; 2]).contains("2 frequencies into rows of 6"));
    }
}
