//! Weight matrices packed for the kernels.
//!
//! A matrix `[out, in]` is cut into tiles of [`TILE`] outputs, each tile stored as `[in][TILE]`: the
//! weights of one input fill a cache line, and a product with one row reads the whole matrix from front
//! to back, the order memory is fastest in (65 GB/s on two threads, the machine's limit; with four tiles
//! of 16 outputs side by side 55). Only the last tile is padded, with zeros.

use half::{bf16, f16};

use super::Pool;
use super::arena::Arena;
use super::mapping::Region;
use super::pool::DisjointMut;
use super::weights::{Place, WeightMap};
use crate::{DeviceError, MatrixPart, StorageType};

/// Outputs of a tile.
pub const TILE: usize = 32;

/// Bytes a packed `[outputs, inputs]` matrix takes, padding included.
pub fn packed_bytes(outputs: usize, inputs: usize) -> u64 {
    let outputs = (outputs.div_ceil(TILE) as u64).saturating_mul(TILE as u64);
    outputs.saturating_mul(inputs as u64).saturating_mul(2)
}

/// Where a device has its matrices.
pub enum Weights {
    /// In memory of this process.
    Own(Arena),
    /// In memory that outlives it.
    Kept(WeightMap),
}

impl Weights {
    fn place(&self, outputs: usize, inputs: usize) -> Result<Place, DeviceError> {
        match self {
            Weights::Own(arena) => {
                let what = format!("a packed matrix [{outputs}, {inputs}]");
                arena.zeroed(&what, outputs.div_ceil(TILE) * TILE * inputs).map(Place::Empty)
            }
            Weights::Kept(map) => map.take(outputs, inputs),
        }
    }

    /// No matrix comes any more.
    pub fn loaded(&self) -> Result<(), DeviceError> {
        match self {
            Weights::Own(_) => Ok(()),
            Weights::Kept(map) => map.finish(),
        }
    }
}

/// A weight matrix `[out, in]` in bf16 tiles.
pub struct PackedMatrix {
    tiles: Region<u16>,
    outputs: usize,
    inputs: usize,
}

impl PackedMatrix {
    /// Packs the parts, one below the other along the outputs. Where an earlier process has done it,
    /// their bytes are not read.
    pub fn pack(
        pool: &Pool,
        weights: &Weights,
        parts: &[MatrixPart<'_>],
    ) -> Result<PackedMatrix, DeviceError> {
        let inputs = parts.first().map_or(0, |part| part.cols.len());
        let mut outputs = 0usize;
        for part in parts {
            check(part, inputs)?;
            // Rows without columns take no bytes, so their number is not bounded yet.
            outputs = outputs.saturating_add(part.rows.len());
        }
        if outputs == 0 || inputs == 0 {
            return Err(shape(format!("a matrix of {outputs} outputs and {inputs} inputs")));
        }
        let tile_len = TILE * inputs;
        let mut tiles = match weights.place(outputs, inputs)? {
            Place::Empty(tiles) => tiles,
            Place::Packed(tiles) => return Ok(PackedMatrix { tiles, outputs, inputs }),
        };
        // The stored row of every output.
        let mut rows = Vec::with_capacity(outputs);
        for part in parts {
            let size = part.dtype.size();
            for row in part.rows.clone() {
                let start = (row * part.row_len + part.cols.start) * size;
                let bytes = &part.bytes[start..start + inputs * size];
                rows.push(StoredRow { bytes, dtype: part.dtype });
            }
        }
        let memory = DisjointMut::new(tiles.as_mut_slice());
        pool.run(outputs.div_ceil(TILE), &|tile| {
            // SAFETY: task i takes only tile i.
            let out = unsafe { memory.slice(tile * tile_len..(tile + 1) * tile_len) };
            pack_tile(&rows[tile * TILE..outputs.min((tile + 1) * TILE)], out);
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
        self.outputs.div_ceil(TILE)
    }

    /// All tiles, end to end: bf16 bits, `[tile_count, inputs, TILE]`.
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

/// The numbers of one output as they lie in a file.
struct StoredRow<'a> {
    bytes: &'a [u8],
    dtype: StorageType,
}

/// Packs up to [`TILE`] rows into one tile.
fn pack_tile(rows: &[StoredRow<'_>], tile: &mut [u16]) {
    let inputs = tile.as_chunks_mut::<TILE>().0;
    for (lane, row) in rows.iter().enumerate() {
        match row.dtype {
            StorageType::Bf16 => pack_row(row.bytes, inputs, lane, u16::from_le_bytes),
            StorageType::F16 => pack_row(row.bytes, inputs, lane, |bytes| {
                // Widening is exact, so the number is rounded once.
                bf16::from_f32(f16::from_le_bytes(bytes).to_f32()).to_bits()
            }),
            StorageType::F32 => pack_row(row.bytes, inputs, lane, |bytes| {
                bf16::from_f32(f32::from_le_bytes(bytes)).to_bits()
            }),
        }
    }
}

/// Writes the numbers of one row, `SIZE` bytes each, into its lane.
fn pack_row<const SIZE: usize>(
    bytes: &[u8],
    inputs: &mut [[u16; TILE]],
    lane: usize,
    bf16: impl Fn([u8; SIZE]) -> u16,
) {
    for (lanes, &number) in inputs.iter_mut().zip(bytes.as_chunks().0) {
        lanes[lane] = bf16(number);
    }
}

#[cfg(test)]
mod tests;
