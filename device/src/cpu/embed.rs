//! Token embedding.

use super::matrix::LANES;
use super::pool::DisjointMut;
use super::{CpuDevice, CpuTensor, PackedMatrix};
use crate::{DeviceError, DeviceTensor};

/// Rows of the table by id, see [`Device::embed`](crate::Device::embed).
pub fn embed(
    device: &CpuDevice,
    table: &PackedMatrix,
    first_id: u32,
    ids: &[u32],
    out: &mut CpuTensor,
) -> Result<(), DeviceError> {
    let hidden = table.inputs();
    if out.rows() != ids.len() || out.cols() != hidden {
        return Err(DeviceError::Shape {
            op: "embed",
            detail: format!(
                "{} ids from a table [{}, {hidden}] into [{}, {}]",
                ids.len(),
                table.outputs(),
                out.rows(),
                out.cols()
            ),
        });
    }
    let out = DisjointMut::new(out.as_mut_slice());
    device.pool().run(ids.len(), &|row| {
        // SAFETY: task i takes only row i.
        let out = unsafe { out.slice(row * hidden..(row + 1) * hidden) };
        let entry = ids[row].checked_sub(first_id).map(|entry| entry as usize);
        match entry.filter(|&entry| entry < table.outputs()) {
            Some(entry) => {
                let tile = &table.tiles()[entry / LANES * LANES * hidden..][..LANES * hidden];
                for (out, weights) in out.iter_mut().zip(tile.chunks_exact(LANES)) {
                    *out = f32::from_bits((weights[entry % LANES] as u32) << 16);
                }
            }
            None => out.fill(0.0),
        }
    });
    Ok(())
}
