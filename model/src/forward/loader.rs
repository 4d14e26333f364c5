//! Takes one rank's slices of a checkpoint to its device, counting what was taken.

use std::ops::Range;

use pocket_device::Device;

use super::ForwardError;
use crate::checkpoint::Checkpoint;
use crate::shard::Shard;

/// A rectangle of a named matrix: output rows and input columns.
pub(super) struct Slice {
    pub name: String,
    pub rows: Range<usize>,
    pub cols: Range<usize>,
}

/// Reads the slices the layers ask for. Each layer knows its own slicing; the loader only walks names.
pub(super) struct Loader<'a, D: Device> {
    pub device: &'a D,
    pub checkpoint: &'a Checkpoint,
    pub shard: &'a Shard,
    loaded: u64,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl<'a, D: Device> Loader<'a, D> {
    pub fn new(
        device: &'a D,
        checkpoint: &'a Checkpoint,
        shard: &'a Shard,
        total: u64,
        progress: &'a mut dyn FnMut(u64, u64),
    ) -> Self {
        progress(0, total);
        Loader { device, checkpoint, shard, loaded: 0, total, progress }
    }

    /// Packs the slices into one matrix, one below the other.
    pub fn matrix(&mut self, slices: &[Slice]) -> Result<D::Matrix, ForwardError> {
        let parts = slices
            .iter()
            .map(|slice| {
                self.checkpoint
                    .tensor(&slice.name)?
                    .part(slice.rows.clone(), slice.cols.clone())
                    .map_err(ForwardError::from)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let matrix = self.device.pack(&parts)?;
        let outputs = slices.iter().map(|slice| slice.rows.len()).sum();
        let inputs = slices.first().map_or(0, |slice| slice.cols.len());
        self.loaded += self.device.packed_bytes(outputs, inputs);
        (self.progress)(self.loaded.min(self.total), self.total);
        Ok(matrix)
    }

    /// Rows of a stored tensor as float32, whatever follows its first axis flattened.
    pub fn numbers(&self, name: &str, rows: Range<usize>) -> Result<Vec<f32>, ForwardError> {
        Ok(self.checkpoint.tensor(name)?.f32_rows(rows)?)
    }

    /// A zero-centred norm weight as the device wants it: `1 + w`, `[1, cols]`.
    pub fn norm(&self, name: &str, cols: usize) -> Result<D::Tensor, ForwardError> {
        let weight: Vec<f32> = self.numbers(name, 0..cols)?.iter().map(|w| 1.0 + w).collect();
        Ok(self.device.upload(&weight, cols)?)
    }

    /// Rows of several stored vectors joined into one parameter `[1, n]`.
    pub fn joined(&self, parts: &[(String, Range<usize>)]) -> Result<D::Tensor, ForwardError> {
        let mut values = Vec::new();
        for (name, rows) in parts {
            values.extend(self.numbers(name, rows.clone())?);
        }
        Ok(self.device.upload(&values, values.len())?)
    }
}
