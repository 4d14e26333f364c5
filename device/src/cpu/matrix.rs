//! Weight matrices packed for the kernels.
//!
//! A matrix `[out, in]` is cut into tiles of [`LANES`] outputs, each tile stored as `[in][LANES]`: a
//! kernel reads the weights of 16 outputs for one input from half a cache line, and a tile from front
//! to back. Only the last tile is padded, with zeros.

use crate::{DeviceError, MatrixPart, StorageType};

use super::Pool;
use super::memory::Memory;
use super::pool::DisjointMut;

/// Outputs of a tile.
pub const LANES: usize = 16;

/// Bytes a packed `[outputs, inputs]` matrix takes, padding included.
pub fn packed_bytes(outputs: usize, inputs: usize) -> u64 {
    outputs.div_ceil(LANES) as u64 * LANES as u64 * inputs as u64 * 2
}

/// A weight matrix `[out, in]` in bf16 tiles.
pub struct PackedMatrix {
    tiles: Memory<u16>,
    outputs: usize,
    inputs: usize,
}

impl PackedMatrix {
    /// Packs the parts, one below the other along the outputs.
    pub fn pack(pool: &Pool, parts: &[MatrixPart<'_>]) -> Result<PackedMatrix, DeviceError> {
        let inputs = parts.first().map_or(0, |part| part.cols.len());
        let mut outputs = 0usize;
        for part in parts {
            check(part, inputs)?;
            outputs += part.rows.len();
        }
        if outputs == 0 || inputs == 0 {
            return Err(shape(format!("a matrix of {outputs} outputs and {inputs} inputs")));
        }
        let tile_len = LANES * inputs;
        let mut tiles = Memory::<u16>::zeroed(
            &format!("a packed matrix [{outputs}, {inputs}]"),
            outputs.div_ceil(LANES) * tile_len,
        )?;
        // The stored row of every output, as bytes.
        let mut rows: Vec<(&[u8], StorageType)> = Vec::with_capacity(outputs);
        for part in parts {
            let size = part.dtype.size();
            for row in part.rows.clone() {
                let start = (row * part.row_len + part.cols.start) * size;
                rows.push((&part.bytes[start..start + inputs * size], part.dtype));
            }
        }
        let shared = DisjointMut::new(tiles.as_mut_slice());
        pool.run(outputs.div_ceil(LANES), &|tile| {
            // SAFETY: task i takes only tile i.
            let out = unsafe { shared.slice(tile * tile_len..(tile + 1) * tile_len) };
            for (lane, &(bytes, dtype)) in rows[tile * LANES..].iter().take(LANES).enumerate() {
                for k in 0..inputs {
                    out[k * LANES + lane] = stored_bf16(bytes, dtype, k);
                }
            }
        });
        Ok(PackedMatrix { tiles, outputs, inputs })
    }

    /// Rows of the matrix.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Columns of the matrix.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Tiles, the last one possibly padded.
    pub fn tile_count(&self) -> usize {
        self.outputs.div_ceil(LANES)
    }

    /// All tiles, end to end: bf16 bits, `[tile_count, inputs, LANES]`.
    pub fn tiles(&self) -> &[u16] {
        self.tiles.as_slice()
    }

    /// Bytes it takes.
    pub fn bytes(&self) -> u64 {
        packed_bytes(self.outputs, self.inputs)
    }
}

fn shape(detail: String) -> DeviceError {
    DeviceError::Shape { op: "pack", detail }
}

/// That a part lies inside its bytes and has `inputs` columns.
fn check(part: &MatrixPart<'_>, inputs: usize) -> Result<(), DeviceError> {
    let MatrixPart { bytes, dtype, row_len, rows, cols } = part;
    if cols.start > cols.end || cols.end > *row_len || rows.start > rows.end {
        return Err(shape(format!("rows {rows:?} and columns {cols:?} of rows of {row_len}")));
    }
    if cols.len() != inputs {
        return Err(shape(format!("{} columns below {inputs}", cols.len())));
    }
    let needed = rows.end.checked_mul(*row_len).and_then(|n| n.checked_mul(dtype.size()));
    if needed.is_none_or(|needed| needed > bytes.len()) {
        return Err(shape(format!(
            "rows up to {} of {row_len} {dtype:?} numbers from {} bytes",
            rows.end,
            bytes.len()
        )));
    }
    Ok(())
}

fn stored_bf16(bytes: &[u8], dtype: StorageType, index: usize) -> u16 {
    let at = index * dtype.size();
    match dtype {
        StorageType::Bf16 => u16::from_le_bytes([bytes[at], bytes[at + 1]]),
        StorageType::F16 => {
            let wide = half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32();
            half::bf16::from_f32(wide).to_bits()
        }
        StorageType::F32 => {
            let wide = f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            half::bf16::from_f32(wide).to_bits()
        }
    }
}
