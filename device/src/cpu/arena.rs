//! Memory for weights: matrices lie one behind the other in large mappings.
//!
//! A huge page is 2 MiB and has to lie inside one mapping. In a mapping of its own, a matrix of 3.5 MiB
//! would have one of them and the rest in small pages, which a decoding step, reading every weight once,
//! pays for with a walk through the page tables every 4 KiB (25 instead of 33 GB/s).

use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::Pod;

use super::mapping::{ALIGNMENT, HUGE_PAGE, Mapping, Region};
use crate::DeviceError;

/// Size of a mapping, unless a matrix needs more. Only pages that are written take memory.
const MAPPING: usize = 64 << 20;

/// Hands out regions of mappings, front to back. A mapping goes back to the system with its last region.
#[derive(Default)]
pub struct Arena {
    current: Mutex<Option<Cursor>>,
}

/// The mapping in use and where its free part starts.
struct Cursor {
    mapping: Arc<Mapping>,
    used: usize,
}

impl Arena {
    /// `len` zeros, `what` naming them in the error. Pages are populated on first touch.
    pub fn zeroed<T: Pod>(&self, what: &str, len: usize) -> Result<Region<T>, DeviceError> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .filter(|&bytes| bytes <= isize::MAX as usize - 2 * HUGE_PAGE)
            .ok_or_else(|| DeviceError::OutOfMemory {
                what: what.to_string(),
                bytes: u64::MAX,
                reason: "the size does not fit an address".to_string(),
            })?
            .next_multiple_of(ALIGNMENT);
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = current.take().filter(|cursor| cursor.mapping.len() - cursor.used >= bytes);
        let mut cursor = match fitting {
            Some(cursor) => cursor,
            None => {
                let mapping = Mapping::anonymous(bytes.max(MAPPING)).map_err(|error| {
                    DeviceError::OutOfMemory {
                        what: what.to_string(),
                        bytes: bytes as u64,
                        reason: error.to_string(),
                    }
                })?;
                Cursor { mapping: Arc::new(mapping), used: 0 }
            }
        };
        let (mapping, offset) = (cursor.mapping.clone(), cursor.used);
        cursor.used += bytes;
        *current = Some(cursor);
        // SAFETY: parts are handed out once only, so regions never overlap, and are still zero; the
        // mapping is this process's own.
        Ok(unsafe { Region::new(mapping, offset, len) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_zeroed_aligned_separate_and_outlive_the_arena() {
        let arena = Arena::default();
        let lens = [1, 0, 33, 100_000, MAPPING / 2, MAPPING, 7];
        let mut regions: Vec<Region<u16>> =
            lens.iter().map(|&len| arena.zeroed("a test", len).unwrap()).collect();
        drop(arena);
        for (i, region) in regions.iter_mut().enumerate() {
            assert_eq!(region.as_slice().len(), lens[i]);
            assert_eq!(region.as_slice().as_ptr() as usize % ALIGNMENT, 0);
            assert!(region.as_slice().iter().all(|&x| x == 0));
            region.as_mut_slice().fill(i as u16 + 1);
        }
        for (i, region) in regions.iter().enumerate() {
            assert!(region.as_slice().iter().all(|&x| x == i as u16 + 1), "{i}");
        }
    }

    #[test]
    fn small_regions_share_a_mapping_that_starts_at_a_huge_page() {
        let arena = Arena::default();
        let first: Region<u16> = arena.zeroed("a test", 5).unwrap();
        let second: Region<u16> = arena.zeroed("a test", 5).unwrap();
        let address = first.as_slice().as_ptr() as usize;
        assert_eq!(address % HUGE_PAGE, 0);
        assert_eq!(second.as_slice().as_ptr() as usize, address + ALIGNMENT);
    }

    #[test]
    fn impossible_sizes_are_refused_by_name_and_harmless() {
        let arena = Arena::default();
        for len in [usize::MAX, usize::MAX / 4, 1 << 46] {
            let error = arena.zeroed::<u16>("the moon", len).err().unwrap();
            assert!(
                matches!(&error, DeviceError::OutOfMemory { what, .. } if what == "the moon"),
                "{error}"
            );
        }
        assert_eq!(arena.zeroed::<u16>("a test", 9).unwrap().as_slice(), [0; 9]);
    }
}
