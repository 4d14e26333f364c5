//! A rank's side of packed weights: it fills the store, or finds it filled.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, Flock, FlockArg, SealFlag, fallocate, fcntl};

use super::super::mapping::{Mapping, Region};
use super::super::packed_bytes;
use super::header::Header;
use super::{HEADER, LINE, refused};
use crate::DeviceError;

/// How long a lock is waited for.
const PATIENCE: Duration = Duration::from_millis(250);

/// A store of packed weights, open and mapped in the one process that uses it; see [`super`].
///
/// Matrices are taken from it one after the other, in the same order by every process. Clones are the
/// same store.
#[derive(Clone)]
pub struct WeightMap {
    store: Arc<str>,
    mapping: Arc<Mapping>,
    /// Where the last matrix ends, if an earlier process has packed them all.
    complete: Option<usize>,
    taken: Arc<Mutex<Taken>>,
}

/// How far the store is handed out.
struct Taken {
    matrices: usize,
    /// End of the last matrix.
    end: usize,
    /// No more are to come.
    finished: bool,
    /// Bytes of matrices that are not in huge pages throughout.
    small: u64,
}

/// Where a matrix lies.
pub(in super::super) enum Place {
    /// Zeros, to pack into.
    Empty(Region<u16>),
    /// Packed by an earlier process.
    Packed(Region<u16>),
}

impl WeightMap {
    /// Opens the store at `path`, where [`WeightStore::path`](super::WeightStore::path) said. Refuses
    /// what is no store, one of another identity or layout, and one that another process has open. What
    /// a process that did not finish has packed is thrown away.
    pub fn open(path: &str, identity: [u8; 32]) -> Result<WeightMap, DeviceError> {
        let system = |source| DeviceError::File { path: path.into(), source };
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(system)?;
        let file = match lock(file) {
            Ok(file) => file,
            Err(Errno::EWOULDBLOCK) => return Err(refused(path, "another process uses them")),
            Err(errno) => return Err(system(errno.into())),
        };
        let header = check(&file, identity).map_err(|detail| refused(path, detail))?;
        // On a machine where this does not fit, neither would a mapping.
        let bytes = usize::try_from(header.bytes).map_err(|_| system(Errno::ENOMEM.into()))?;
        let end = header.end.unwrap_or(header.bytes);
        let complete = match usize::try_from(end) {
            Ok(end) if end <= bytes => header.end.is_some().then_some(end),
            _ => return Err(refused(path, format!("they end at {end} of {bytes} bytes"))),
        };
        if complete.is_none() {
            let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            fallocate(&*file, mode, HEADER as i64, (bytes - HEADER) as i64)
                .map_err(|errno| system(errno.into()))?;
        }
        let mapping = Arc::new(Mapping::of_file(file, bytes).map_err(system)?);
        let taken = Taken { matrices: 0, end: HEADER, finished: false, small: 0 };
        let taken = Arc::new(Mutex::new(taken));
        Ok(WeightMap { store: path.into(), mapping, complete, taken })
    }

    /// Whether an earlier process has packed all weights: none will be read.
    pub fn was_complete(&self) -> bool {
        self.complete.is_some()
    }

    /// Bytes of matrices that the system did not give huge pages for throughout. Reading them is slower.
    pub fn small_page_bytes(&self) -> u64 {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).small
    }

    /// The place of the next matrix, its memory populated.
    pub(in super::super) fn take(
        &self,
        outputs: usize,
        inputs: usize,
    ) -> Result<Place, DeviceError> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let number = taken.matrices;
        let bytes = packed_bytes(outputs, inputs);
        let limit = self.complete.unwrap_or(self.mapping.len());
        let line = taken.end;
        let start = line + LINE;
        let end = usize::try_from(bytes).ok().and_then(|bytes| start.checked_add(bytes));
        let Some(end) = end.filter(|&end| end <= limit && !taken.finished) else {
            let detail = format!(
                "matrix {number}, [{outputs}, {inputs}], takes {bytes} bytes from byte {start} on, \
                 and there {} {limit}",
                if taken.finished { "are no more up to" } else { "is room up to" },
            );
            return Err(refused(&self.store, detail));
        };
        let huge = self.mapping.populate(line..end).map_err(|error| DeviceError::OutOfMemory {
            what: format!("a packed matrix [{outputs}, {inputs}]"),
            bytes,
            reason: error.to_string(),
        })?;
        // SAFETY: both regions lie behind all that were handed out before, and `taken` is moved on
        // before it is unlocked. No other process has the file: this one holds its lock, as long as
        // there is a mapping, and opens it only through `WeightMap`.
        let (mut line, tiles) = unsafe {
            let words = LINE / size_of::<u64>();
            let line = Region::<u64>::new(self.mapping.clone(), line, words);
            (line, Region::new(self.mapping.clone(), start, (end - start) / size_of::<u16>()))
        };
        let size = [outputs as u64, inputs as u64];
        if self.complete.is_none() {
            line.as_mut_slice()[..2].copy_from_slice(&size);
        } else if line.as_slice()[..2] != size {
            let found = &line.as_slice()[..2];
            let detail =
                format!("matrix {number}: expected [{outputs}, {inputs}], found {found:?}");
            return Err(refused(&self.store, detail));
        }
        taken.matrices += 1;
        taken.end = end;
        if !huge {
            taken.small += bytes;
        }
        Ok(if self.complete.is_some() { Place::Packed(tiles) } else { Place::Empty(tiles) })
    }

    /// Takes note that all matrices are taken and packed: from now on the store is complete. A store
    /// that was so before is refused if it holds more.
    pub(in super::super) fn finish(&self) -> Result<(), DeviceError> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.finished = true;
        match (self.complete, self.mapping.file()) {
            (Some(end), _) if end != taken.end => {
                let (matrices, found) = (taken.matrices, taken.end);
                let detail = format!("{matrices} matrices end at byte {found}, all at {end}");
                Err(refused(&self.store, detail))
            }
            (None, Some(file)) => Header::complete(file, taken.end as u64).map_err(|source| {
                DeviceError::File { path: self.store.to_string().into(), source }
            }),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for WeightMap {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("WeightMap")
            .field("store", &self.store)
            .field("complete", &self.complete)
            .finish_non_exhaustive()
    }
}

/// Takes the lock, which an ended process has given back unless somebody is just looking at its memory
/// (`/proc/PID/smaps` keeps that, and with it the file, until it is read).
fn lock(mut file: File) -> Result<Flock<File>, Errno> {
    let first = Instant::now();
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => return Ok(file),
            Err((again, Errno::EWOULDBLOCK)) if first.elapsed() < PATIENCE => file = again,
            Err((_, errno)) => return Err(errno),
        }
        std::thread::sleep(PATIENCE / 50);
    }
}

/// The header of a locked file, if it is a store of this identity; otherwise what is wrong.
fn check(file: &File, identity: [u8; 32]) -> Result<Header, String> {
    // Only a file in memory has seals; with this one it is never cut short under a mapping.
    let seals = fcntl(file, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_retain);
    if !seals.is_ok_and(|seals| seals.contains(SealFlag::F_SEAL_SHRINK)) {
        return Err("it is not a file that pocketd made for them".to_string());
    }
    let header = Header::read(file)?;
    let bytes = file.metadata().map_err(|error| error.to_string())?.len();
    if header.bytes != bytes || bytes < HEADER as u64 {
        return Err(format!("the file has {bytes} bytes, its header says {}", header.bytes));
    }
    if header.identity != identity {
        return Err("they are of another checkpoint or another share of it".to_string());
    }
    Ok(header)
}
