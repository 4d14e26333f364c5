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
