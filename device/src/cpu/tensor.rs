//! Activations in memory.

use super::memory::Memory;
use crate::{DeviceError, DeviceTensor};

/// Float32 `[rows, cols]`, row-major and contiguous, at a 64-byte (in fact a page) boundary.
pub struct CpuTensor {
    memory: Memory<f32>,
    rows: usize,
    cols: usize,
    capacity: usize,
}

impl CpuTensor {
    /// Zeros, with room for `rows` rows, all in use; the memory is populated, so that a step cannot
    /// fail for the lack of it.
    pub fn zeroed(rows: usize, cols: usize) -> Result<CpuTensor, DeviceError> {
        let len = rows.saturating_mul(cols);
        let what = format!("a tensor [{rows}, {cols}]");
        let mut memory = Memory::zeroed(&what, len)?;
        memory.populate(&what)?;
        Ok(CpuTensor { memory, rows, cols, capacity: rows })
    }

    /// A copy of `data`, `[data.len() / cols, cols]`.
    pub fn from_slice(data: &[f32], cols: usize) -> Result<CpuTensor, DeviceError> {
        if cols == 0 || !data.len().is_multiple_of(cols) {
            return Err(DeviceError::Shape {
                op: "upload",
                detail: format!("{} numbers are not rows of {cols}", data.len()),
            });
        }
        let mut tensor = CpuTensor::zeroed(data.len() / cols, cols)?;
        tensor.as_mut_slice().copy_from_slice(data);
        Ok(tensor)
    }

    /// Rows there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The rows in use, end to end.
    pub fn as_slice(&self) -> &[f32] {
        &self.memory.as_slice()[..self.rows * self.cols]
    }

    /// The rows in use, end to end.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.memory.as_mut_slice()[..self.rows * self.cols]
    }

    /// One row. Panics past the rows in use.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.as_slice()[row * self.cols..][..self.cols]
    }

    /// One row. Panics past the rows in use.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        let cols = self.cols;
        &mut self.as_mut_slice()[row * cols..][..cols]
    }
}

impl DeviceTensor for CpuTensor {
    fn rows(&self) -> usize {
        self.rows
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn set_rows(&mut self, rows: usize) {
        assert!(rows <= self.capacity, "{rows} rows in a tensor made for {}", self.capacity);
        self.rows = rows;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_lie_end_to_end_and_can_shrink_and_grow_back() {
        let mut tensor = CpuTensor::from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2).unwrap();
        assert_eq!((tensor.rows(), tensor.cols(), tensor.capacity()), (3, 2, 3));
        assert_eq!(tensor.row(1), [3.0, 4.0]);
        tensor.set_rows(1);
        assert_eq!(tensor.as_slice(), [1.0, 2.0]);
        tensor.set_rows(3);
        tensor.row_mut(2).fill(0.0);
        assert_eq!(tensor.as_slice(), [1.0, 2.0, 3.0, 4.0, 0.0, 0.0]);
    }

    #[test]
    #[should_panic(expected = "4 rows in a tensor made for 3")]
    fn more_rows_than_the_capacity_is_a_bug() {
        CpuTensor::zeroed(3, 2).unwrap().set_rows(4);
    }

    #[test]
    fn data_that_is_no_whole_number_of_rows_is_refused() {
        assert!(CpuTensor::from_slice(&[1.0; 5], 2).is_err());
        assert!(CpuTensor::from_slice(&[], 0).is_err());
        assert!(CpuTensor::zeroed(usize::MAX, 2).is_err());
    }
}
