//! Memory for weights, and the parts of it that matrices hold.
//!
//! A processor finds the memory behind an address through tables, by pages of 4 KiB or huge ones of
//! 2 MiB. A step with one row reads every weight once, so it pays for the walk through the tables once
//! a page. A huge page has to lie inside one mapping and at a multiple of its size, in memory as in the
//! file that is mapped.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;
use memmap2::{Advice, MmapMut, MmapOptions};
use nix::errno::Errno;
use nix::fcntl::Flock;
use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap};

/// Size of a huge page.
pub const HUGE_PAGE: usize = 2 << 20;

/// Regions start at cache lines.
pub const ALIGNMENT: usize = 64;

/// Memory at a huge page boundary.
pub struct Mapping {
    /// Keeps the addresses; all access goes through `start`.
    map: MmapMut,
    start: *mut u8,
    len: usize,
    /// What is mapped, if it is a file. After `map`: the lock outlives the mapping.
    file: Option<Flock<File>>,
}

// SAFETY: the memory belongs to the mapping and may be used from any thread; who may use which part is
// up to the regions.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared mapping offers nothing but its address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// At least `bytes` zero bytes of this process alone. Pages are populated on first touch.
    pub fn anonymous(bytes: usize) -> io::Result<Mapping> {
        Mapping::reserve(&mut MmapOptions::new(), bytes)
    }

    /// The first `bytes` bytes of a file, shared with whoever maps it too: of the lock's holders there
    /// is one.
    pub fn of_file(file: Flock<File>, bytes: usize) -> io::Result<Mapping> {
        let mut mapping = Mapping::reserve(MmapOptions::new().no_reserve_swap(), bytes)?;
        let Some(length) = NonZeroUsize::new(mapping.len) else {
            return Err(io::Error::from(Errno::EINVAL));
        };
        // A plain mapping of a file starts wherever a page is free, which is no huge page boundary. So
        // addresses are taken first, and the file is put there.
        // SAFETY: the addresses from `start` on, `len` of them, belong to `map`, nothing has been told
        // them yet, and `map` gives them back as it would those it replaced.
        unsafe {
            let at = NonZeroUsize::new(mapping.start as usize);
            let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            mmap(at, length, access, MapFlags::MAP_SHARED | MapFlags::MAP_FIXED, &*file, 0)?;
        }
        // Enough where the system's `shmem_enabled` is "advise"; see `populate` for the others.
        let _ = mapping.map.advise(Advice::HugePage);
        mapping.file = Some(file);
        Ok(mapping)
    }

    fn reserve(options: &mut MmapOptions, bytes: usize) -> io::Result<Mapping> {
        let len = bytes.next_multiple_of(HUGE_PAGE);
        // One more, for the system need not put it at a huge page boundary.
        let mut map = options.len(len + HUGE_PAGE).map_anon()?;
        // Only advice: without huge pages everything still works.
        let _ = map.advise(Advice::HugePage);
        let start = map.as_mut_ptr();
        let start = start.wrapping_add(start.align_offset(HUGE_PAGE));
        Ok(Mapping { map, start, len, file: None })
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The file that is mapped, if it is one.
    pub fn file(&self) -> Option<&File> {
        self.file.as_deref()
    }

    /// Puts memory behind a range of a mapped file, so that a lack of it shows here, and answers
    /// whether it is in huge pages throughout.
    ///
    /// Files in memory have small pages unless `shmem_enabled` says otherwise, which by default it does
    /// not, and products with one to eight rows are then 8 to 15 % slower. Since Linux 6.1 they become
    /// huge ones by request, whatever it says, and nothing is left of that. The request takes ranges
    /// that hold something: a huge page of which one small page was touched costs no more than one that
    /// was huge at first touch (0.15 s a GB), one that was filled is copied.
    pub fn populate(&self, range: Range<usize>) -> io::Result<bool> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        let huge = range.start / HUGE_PAGE * HUGE_PAGE..range.end.next_multiple_of(HUGE_PAGE);
        for page in huge.clone().step_by(HUGE_PAGE) {
            if !self.touch(page..page + 1)? {
                return Ok(false);
            }
        }
        // Neither memmap2 nor nix has this advice.
        // SAFETY: the range lies in this mapping, and the advice changes the pages behind the
        // addresses, not what they hold.
        let huge = unsafe {
            let start = self.start.wrapping_add(huge.start);
            libc::madvise(start.cast(), huge.len(), libc::MADV_COLLAPSE) == 0
        };
        self.touch(range)?;
        Ok(huge)
    }

    /// Populates the pages of a range; `false` from kernels before 5.14, which cannot.
    fn touch(&self, range: Range<usize>) -> io::Result<bool> {
        let skipped = self.start as usize - self.map.as_ptr() as usize;
        match self.map.advise_range(Advice::PopulateWrite, skipped + range.start, range.len()) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// A fixed number of numbers at a cache line, part of a mapping.
pub struct Region<T> {
    mapping: Arc<Mapping>,
    offset: usize,
    len: usize,
    _type: PhantomData<T>,
}

impl<T: Pod> Region<T> {
    /// `len` numbers from byte `offset` on. Panics if they are not aligned or not in the mapping, which
    /// is a bug in the caller.
    ///
    /// # Safety
    /// Nobody else uses these bytes while the region lives: no other region, and, of a file, no other
    /// process.
    pub unsafe fn new(mapping: Arc<Mapping>, offset: usize, len: usize) -> Region<T> {
        const { assert!(align_of::<T>() <= ALIGNMENT) };
        let fits = len.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(offset));
        assert!(fits.is_some_and(|end| end <= mapping.len), "{len} at {offset} of {}", mapping.len);
        assert!(offset.is_multiple_of(ALIGNMENT), "{offset}");
        Region { mapping, offset, len, _type: PhantomData }
    }

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
