//! Memory for weights: matrices lie one behind the other in large mappings.
//!
//! A huge page is 2 MiB and has to lie inside one mapping. In a mapping of its own, a matrix of 3.5 MiB
//! would have one of them and the rest in small pages, which a decoding step, reading every weight once,
//! pays for with a walk through the page tables every 4 KiB (25 instead of 33 GB/s).

use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::Pod;
use memmap2::{Advice, MmapMut, MmapOptions};

use crate::DeviceError;

const HUGE_PAGE: usize = 2 << 20;

/// Size of a mapping, unless a matrix needs more. Only pages that are written take memory.
const MAPPING: usize = 64 << 20;

/// Regions start at cache lines.
const ALIGNMENT: usize = 64;

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

struct Mapping {
    /// Keeps the memory; all access goes through `start`.
    _map: MmapMut,
    /// The first huge page boundary.
    start: *mut u8,
    len: usize,
}

// SAFETY: the memory belongs to the mapping and may be used from any thread; who may use which part is
// up to the regions.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared mapping offers nothing but its address.
unsafe impl Sync for Mapping {}

/// A fixed number of zeroed numbers at a cache line, part of a mapping.
pub struct Region<T> {
    mapping: Arc<Mapping>,
    offset: usize,
    len: usize,
    _type: std::marker::PhantomData<T>,
}

impl Arena {
    /// `len` zeros, `what` naming them in the error. Pages are populated on first touch.
    pub fn zeroed<T: Pod>(&self, what: &str, len: usize) -> Result<Region<T>, DeviceError> {
        const { assert!(align_of::<T>() <= ALIGNMENT) };
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
        let fitting = current.take().filter(|cursor| cursor.mapping.len - cursor.used >= bytes);
        let mut cursor = match fitting {
            Some(cursor) => cursor,
            None => Cursor { mapping: Arc::new(Mapping::new(what, bytes)?), used: 0 },
        };
        // Parts are handed out once only, so regions never overlap and are still zero.
        let (mapping, offset) = (cursor.mapping.clone(), cursor.used);
        cursor.used += bytes;
        *current = Some(cursor);
        Ok(Region { mapping, offset, len, _type: std::marker::PhantomData })
    }
}

impl Mapping {
    fn new(what: &str, bytes: usize) -> Result<Mapping, DeviceError> {
        let len = bytes.max(MAPPING).next_multiple_of(HUGE_PAGE);
        // One more, for the kernel need not put it at a huge page boundary.
        let mut map = MmapOptions::new().len(len + HUGE_PAGE).map_anon().map_err(|error| {
            DeviceError::OutOfMemory {
                what: what.to_string(),
                bytes: bytes as u64,
                reason: error.to_string(),
            }
        })?;
        // Only advice: without huge pages everything still works.
        let _ = map.advise(Advice::HugePage);
        let start = map.as_mut_ptr();
        let start = start.wrapping_add(start.align_offset(HUGE_PAGE));
        Ok(Mapping { _map: map, start, len })
    }
}

impl<T: Pod> Region<T> {
    fn start(&self) -> *mut T {
        self.mapping.start.wrapping_add(self.offset).cast()
    }

    /// The numbers.
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: `len` numbers from here on lie inside the mapping, which this keeps, and belong to
        // this region alone. They are aligned (see `ALIGNMENT`) and any bits are a number.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }

    /// The numbers, to write.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above, and this region is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
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
