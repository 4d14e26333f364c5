//! A tensor as it lies in a mapped file.

use std::ops::Range;

use half::{bf16, f16};
use pocket_device::{MatrixPart, StorageType};

use crate::ModelError;

/// A stored tensor: a view, nothing of it is read until it is asked for.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Its name, without any prefix variant.
    pub name: &'a str,
    /// Its number type.
    pub dtype: StorageType,
    /// Its shape, outputs first.
    pub shape: &'a [usize],
    /// Its numbers, little endian, row-major, not necessarily aligned.
    pub bytes: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// Length of the first dimension; a vector has one number a row.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Numbers a row of the first dimension holds: a convolution's `[channels, 1, taps]` has `taps`.
    pub fn row_len(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// The rectangle of `rows` (outputs) and `cols` (inputs) that a rank takes of a matrix.
    pub fn part(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> Result<MatrixPart<'a>, ModelError> {
        self.check("rows", &rows, self.rows())?;
        self.check("columns", &cols, self.row_len())?;
        Ok(MatrixPart { bytes: self.bytes, dtype: self.dtype, row_len: self.row_len(), rows, cols })
    }

    /// All numbers as float32.
    pub fn to_f32(&self) -> Vec<f32> {
        widen(self.dtype, self.bytes)
    }

    /// The numbers of some rows as float32, `[rows, row_len]`.
    pub fn f32_rows(&self, rows: Range<usize>) -> Result<Vec<f32>, ModelError> {
        self.check("rows", &rows, self.rows())?;
        let row_bytes = self.row_len() * self.dtype.size();
        Ok(widen(self.dtype, &self.bytes[rows.start * row_bytes..rows.end * row_bytes]))
    }

    fn check(
        &self,
        what: &'static str,
        range: &Range<usize>,
        length: usize,
    ) -> Result<(), ModelError> {
        if range.start <= range.end && range.end <= length {
            return Ok(());
        }
        Err(ModelError::Slice {
            tensor: self.name.to_owned(),
            what,
            range: range.clone(),
            shape: self.shape.to_vec(),
        })
    }
}

fn widen(dtype: StorageType, bytes: &[u8]) -> Vec<f32> {
    let (pairs, _) = bytes.as_chunks::<2>();
    match dtype {
        StorageType::Bf16 => pairs.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        StorageType::F16 => pairs.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        StorageType::F32 => {
            bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_widen_exactly_from_any_alignment() {
        let numbers = [1.0f32, -0.5, 3.25, 1024.0, 0.0, -7.0];
        let shape = [3, 2];
        for dtype in [StorageType::Bf16, StorageType::F16, StorageType::F32] {
            // One byte in front puts every number off its natural alignment in one of the two cases.
            for pad in [0, 1] {
                let mut bytes = vec![0u8; pad];
                for x in numbers {
                    match dtype {
                        StorageType::Bf16 => bytes.extend(bf16::from_f32(x).to_le_bytes()),
                        StorageType::F16 => bytes.extend(f16::from_f32(x).to_le_bytes()),
                        StorageType::F32 => bytes.extend(x.to_le_bytes()),
                    }
                }
                let view = TensorView { name: "w", dtype, shape: &shape, bytes: &bytes[pad..] };
                assert_eq!(view.to_f32(), numbers);
                assert_eq!(view.f32_rows(1..3).unwrap(), numbers[2..]);
                assert!(view.f32_rows(1..1).unwrap().is_empty());
            }
        }
    }

    #[test]
    fn a_slice_outside_the_tensor_is_refused() {
        let bytes = [0u8; 16];
        let view = TensorView {
            name: "model.norm.weight",
            dtype: StorageType::Bf16,
            shape: &[2, 1, 4],
            bytes: &bytes,
        };
        let part = view.part(1..2, 0..3).unwrap();
        assert_eq!((part.row_len, part.rows, part.cols), (4, 1..2, 0..3));
        assert_eq!(
            view.part(1..3, 0..4).unwrap_err().to_string(),
            "tensor model.norm.weight: rows 1..3 asked of shape [2, 1, 4]"
        );
        assert!(view.part(0..1, 2..5).is_err());
        assert!(view.f32_rows(Range { start: 2, end: 1 }).is_err());
    }
}
