//! The header of a safetensors file, checked in full before any number is believed.
//!
//! The `safetensors` crate defines the types and has the last word. It reports most faults without
//! saying which tensor or which numbers, and keeps only the last of two tensors of one name, so every
//! rule is checked here first, with a message that lets the reader find the byte.

use std::collections::HashMap;
use std::ops::Range;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::value::RawValue;

use super::distinct::Distinct;
use super::shown;
use crate::ModelError;

/// Bytes before the header: its length.
const LENGTH_BYTES: usize = 8;

/// Longest header believed, the limit of the format's reference implementation.
const LONGEST_HEADER: u64 = 100_000_000;

/// A tensor as its file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Name as stored.
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// Its bytes, counted from the start of the file.
    pub(super) bytes: Range<usize>,
}

/// The tensors of a file whose whole contents are `bytes`, in the order they lie in it. `file` names
/// it in errors.
pub(super) fn parse(file: &str, bytes: &[u8]) -> Result<Vec<Entry>, ModelError> {
    let wrong = |detail: String| ModelError::Safetensors { file: file.to_owned(), detail };
    let size = bytes.len();
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(wrong(format!(
            "{size} bytes long, too short for a safetensors file: download it again"
        )));
    };
    let length = u64::from_le_bytes(*length);
    if length > LONGEST_HEADER {
        return Err(wrong(format!(
            "its header claims {length} bytes, above the limit of {LONGEST_HEADER}: this is no \
             safetensors file"
        )));
    }
    let length = length as usize;
    let Some((header, data)) = rest.split_at_checked(length) else {
        return Err(wrong(format!(
            "its header claims {length} bytes, but the file ends after {} of them: it is truncated, \
             download it again",
            rest.len()
        )));
    };
    let entries = entries(header).map_err(&wrong)?;
    check_layout(&entries, data.len()).map_err(&wrong)?;
    Metadata::new(None, entries.clone()).map_err(|error| wrong(error.to_string()))?;
    let start = LENGTH_BYTES + length;
    Ok(entries
        .into_iter()
        .map(|(name, info)| Entry {
            name,
            dtype: info.dtype,
            shape: info.shape,
            bytes: start + info.data_offsets.0..start + info.data_offsets.1,
        })
        .collect())
}

/// The header's entries, sorted by where they lie.
fn entries(header: &[u8]) -> Result<Vec<(String, TensorInfo)>, String> {
    let text =
        std::str::from_utf8(header).map_err(|error| format!("its header is not text: {error}"))?;
    let raw: Distinct<&RawValue> =
        serde_json::from_str(text).map_err(|error| format!("its header is not right: {error}"))?;
    let mut entries = Vec::with_capacity(raw.0.len());
    for (name, value) in raw.0 {
        if name == "__metadata__" {
            serde_json::from_str::<HashMap<String, String>>(value.get())
                .map_err(|error| format!("__metadata__ of its header is not right: {error}"))?;
            continue;
        }
        let info: TensorInfo = serde_json::from_str(value.get())
            .map_err(|error| format!("tensor {} has a bad header entry: {error}", shown(&name)))?;
        entries.push((name, info));
    }
    entries.sort_by_key(|(_, info)| info.data_offsets);
    Ok(entries)
}

/// Every tensor as large as its shape says, one after the other without gap or overlap, up to the end.
fn check_layout(entries: &[(String, TensorInfo)], data: usize) -> Result<(), String> {
    let mut next = 0;
    let mut before = None;
    for (name, info) in entries {
        let name = shown(name);
        let (start, end) = info.data_offsets;
        if end < start {
            return Err(format!("tensor {name} ends at byte {end}, before its start at {start}"));
        }
        if end > data {
            return Err(format!(
                "tensor {name} ends at byte {end} of the data, but the file holds {data}: it is \
                 truncated, download it again"
            ));
        }
        let bits = info
            .shape
            .iter()
            .try_fold(info.dtype.bitsize(), |product, dim| product.checked_mul(*dim))
            .filter(|bits| bits.is_multiple_of(8));
        if bits != Some(8 * (end - start)) {
            return Err(format!(
                "tensor {name} of type {} and shape {:?} has {} bytes of data",
                info.dtype,
                info.shape,
                end - start
            ));
        }
        match before {
            Some(before) if start < next => {
                return Err(format!(
                    "tensor {name} starts at byte {start} of the data, inside tensor {before}, which \
                     ends at {next}"
                ));
            }
            _ if start != next => {
                return Err(format!(
                    "bytes {next} to {start} of the data, before tensor {name}, belong to no tensor"
                ));
            }
            _ => {}
        }
        next = end;
        before = Some(name);
    }
    if next != data {
        return Err(format!("bytes {next} to {data} of the data belong to no tensor"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
