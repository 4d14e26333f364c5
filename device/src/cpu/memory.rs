//! Zeroed memory for tensors, weights, caches and states: an anonymous mapping, so that it is aligned
//! to a page, backed by huge pages where the system has them, and refused instead of aborting.

use std::marker::PhantomData;

use bytemuck::Pod;
use memmap2::{Advice, MmapMut, MmapOptions};

use crate::DeviceError;

/// Mappings from this size on ask for huge pages: a streaming read then misses the TLB 512 times less.
const HUGE_FROM: usize = 2 << 20;

/// A fixed number of zeroed numbers at a page boundary.
pub struct Memory<T> {
    map: MmapMut,
    len: usize,
    _type: PhantomData<T>,
}

impl<T: Pod> Memory<T> {
    /// `len` zeros, `what` naming them in the error. Pages are populated on first touch.
    pub fn zeroed(what: &str, len: usize) -> Result<Memory<T>, DeviceError> {
        let refused = |bytes: u64, reason: String| DeviceError::OutOfMemory {
            what: what.to_string(),
            bytes,
            reason,
        };
        let bytes =
            len.checked_mul(size_of::<T>())
                .filter(|&bytes| bytes <= isize::MAX as usize)
                .ok_or_else(|| refused(u64::MAX, "the size does not fit an address".to_string()))?;
        // A mapping cannot be empty.
        let map = MmapOptions::new()
            .len(bytes.max(1))
            .map_anon()
            .map_err(|error| refused(bytes as u64, error.to_string()))?;
        if bytes >= HUGE_FROM {
            // Only advice: without huge pages everything still works.
            let _ = map.advise(Advice::HugePage);
        }
        Ok(Memory { map, len, _type: PhantomData })
    }

    /// Touches every page now, so that a lack of memory shows here and not in the middle of a step.
    pub fn populate(&mut self, what: &str) -> Result<(), DeviceError> {
        match self.map.advise(Advice::PopulateWrite) {
            Ok(()) => Ok(()),
            // Kernels before 5.14 do not know the advice: touch the pages.
            Err(error) if error.raw_os_error() == Some(nix::errno::Errno::EINVAL as i32) => {
                for page in self.map.chunks_mut(4096) {
                    page[0] = 0;
                    std::hint::black_box(&page[0]);
                }
                Ok(())
            }
            Err(error) => Err(DeviceError::OutOfMemory {
                what: what.to_string(),
                bytes: (self.len * size_of::<T>()) as u64,
                reason: error.to_string(),
            }),
        }
    }

    /// The numbers.
    pub fn as_slice(&self) -> &[T] {
        bytemuck::cast_slice(&self.map[..self.len * size_of::<T>()])
    }

    /// The numbers, to write.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        let bytes = self.len * size_of::<T>();
        bytemuck::cast_slice_mut(&mut self.map[..bytes])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_aligned_and_exactly_as_long_as_asked() {
        for len in [0, 1, 1023, 1 << 20] {
            let mut memory = Memory::<f32>::zeroed("a test", len).unwrap();
            memory.populate("a test").unwrap();
            assert_eq!(memory.as_slice().len(), len);
            assert!(memory.as_slice().iter().all(|&x| x == 0.0));
            assert_eq!(memory.as_slice().as_ptr() as usize % 64, 0);
            memory.as_mut_slice().fill(1.5);
            assert!(memory.as_slice().iter().all(|&x| x == 1.5));
        }
    }

    #[test]
    fn impossible_sizes_are_refused_by_name() {
        for len in [usize::MAX, 1 << 60, 1 << 45] {
            let error = Memory::<f32>::zeroed("the moon", len).err().unwrap();
            assert!(
                matches!(&error, DeviceError::OutOfMemory { what, .. } if what == "the moon"),
                "{error}"
            );
        }
    }
}
