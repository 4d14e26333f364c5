//! Packed weights that outlive the process that packed them.
//!
//! Packing reads a whole checkpoint; a rank that crashed shall not do it again. So the matrices lie in
//! a file without a name, in memory, that the coordinator made and keeps open ([`WeightStore`]). A rank
//! opens it at `/proc/PID/fd/N` and packs into it ([`WeightMap`]); when all is packed it says so in the
//! file, and the next rank finds its matrices there. The file goes with the last of the two processes,
//! however they end.
//!
//! ```text
//! 0          4096                                                        a multiple of 2 MiB
//! | header   | 64 bytes | matrix 0, packed | 64 bytes | matrix 1, packed |   ...   |
//! ```
//!
//! The line before a matrix holds its outputs and inputs. One process at a time has the file open: it
//! holds a lock, which the system takes back when it ends.

mod header;
mod map;
mod store;

pub(super) use map::Place;
pub use map::WeightMap;
pub use store::WeightStore;

use super::mapping::{ALIGNMENT, HUGE_PAGE};
use super::packed_bytes;
use crate::DeviceError;

/// Bytes before the first matrix: a page.
const HEADER: usize = 4096;

/// Bytes before a matrix, so that it starts at a cache line.
const LINE: usize = ALIGNMENT;

/// Bytes of a store for matrices of these sizes, `(outputs, inputs)` each.
pub fn weight_store_bytes(sizes: &[(usize, usize)]) -> u64 {
    sizes
        .iter()
        .map(|&(outputs, inputs)| packed_bytes(outputs, inputs).saturating_add(LINE as u64))
        .fold(HEADER as u64, u64::saturating_add)
        .checked_next_multiple_of(HUGE_PAGE as u64)
        .unwrap_or(u64::MAX)
}

fn refused(store: &str, detail: impl Into<String>) -> DeviceError {
    DeviceError::Weights { store: store.to_string(), detail: detail.into() }
}

#[cfg(test)]
mod tests;
