//! Token embedding.

use super::matrix::TILE;
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
                let tile = &table.tiles()[entry / TILE * TILE * hidden..][..TILE * hidden];
                for (out, weights) in out.iter_mut().zip(tile.chunks_exact(TILE)) {
                    *out = f32::from_bits((weights[entry % TILE] as u32) << 16);
                }
            }
            None => out.fill(0.0),
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::devices;
    use crate::{Device, MatrixPart, StorageType};

    #[test]
    fn ids_of_the_shard_give_their_rows_and_others_zeros() {
        // 40 rows of 5 numbers: row r, column c holds 5 r + c, which bf16 holds exactly.
        let (rows, hidden) = (40, 5);
        let number = |row: usize, col: usize| (5 * row + col) as f32;
        let bytes: Vec<u8> =
            (0..rows * hidden).flat_map(|i| number(i / hidden, i % hidden).to_le_bytes()).collect();
        let dtype = StorageType::F32;
        let part =
            MatrixPart { bytes: &bytes, dtype, row_len: hidden, rows: 0..rows, cols: 0..hidden };
        for device in devices() {
            let table = device.pack(std::slice::from_ref(&part)).unwrap();
            let ids = [100, 139, 99, 140, 132, 131, 0, u32::MAX, 100];
            let mut out = device.tensor(ids.len(), hidden).unwrap();
            out.as_mut_slice().fill(f32::NAN);
            device.embed(&table, 100, &ids, &mut out).unwrap();
            for (i, id) in ids.into_iter().enumerate() {
                let expected: Vec<f32> = match id {
                    100..=139 => (0..hidden).map(|col| number(id as usize - 100, col)).collect(),
                    _ => vec![0.0; hidden],
                };
                assert_eq!(out.row(i), expected, "{id}");
            }
        }
    }

    #[test]
    fn an_output_of_the_wrong_shape_is_refused() {
        let device = &devices()[0];
        let dtype = StorageType::Bf16;
        let part = MatrixPart { bytes: &[0; 24], dtype, row_len: 4, rows: 0..3, cols: 0..4 };
        let table = device.pack(&[part]).unwrap();
        for (rows, cols) in [(1, 4), (2, 3)] {
            let mut out = device.tensor(rows, cols).unwrap();
            let error = device.embed(&table, 0, &[0, 1], &mut out).unwrap_err();
            assert!(matches!(error, DeviceError::Shape { op: "embed", .. }), "{error}");
        }
    }
}
