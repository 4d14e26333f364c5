//! Whether a segment fits where segments live.
//!
//! A tmpfs gives a file any length and allocates a page when it is first touched; if there is none
//! left then, the process dies of SIGBUS. So room is looked for, and then taken, when the segment is
//! made.

use std::fs::File;

use nix::errno::Errno;
use nix::fcntl::posix_fallocate;
use nix::sys::statvfs::{Statvfs, statvfs};

use crate::CollectiveError;

/// Where `shm_open` puts its files on Linux.
pub(crate) const DIR: &str = "/dev/shm";

/// Refuses a segment of `needed` bytes that cannot fit.
pub(crate) fn look(name: &str, needed: u64) -> Result<(), CollectiveError> {
    match free_bytes(&stat(name)?) {
        Some(available) if available < needed => Err(no_space(needed, available)),
        _ => Ok(()),
    }
}

/// Allocates the first `needed` bytes of the segment's file.
pub(crate) fn take(name: &str, file: &File, needed: u64) -> Result<(), CollectiveError> {
    let len = libc::off_t::try_from(needed).unwrap_or(libc::off_t::MAX);
    loop {
        match posix_fallocate(file, 0, len) {
            Ok(()) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(Errno::ENOSPC) => {
                // What a failed allocation held is free again.
                let available = free_bytes(&stat(name)?).unwrap_or(0);
                return Err(no_space(needed, available));
            }
            Err(errno) => return Err(system(name, "allocate", errno)),
        }
    }
}

/// Bytes that may still be allocated; `None` where the file system has no limit of its own (a tmpfs
/// mounted with `size=0` counts no blocks at all).
fn free_bytes(stat: &Statvfs) -> Option<u64> {
    limit(stat.blocks(), stat.blocks_available(), stat.fragment_size())
}

fn limit(blocks: u64, available: u64, block_bytes: u64) -> Option<u64> {
    (blocks != 0).then(|| available.saturating_mul(block_bytes))
}

fn stat(name: &str) -> Result<Statvfs, CollectiveError> {
    statvfs(DIR).map_err(|errno| system(name, "find the free space of /dev/shm", errno))
}

fn no_space(needed: u64, available: u64) -> CollectiveError {
    CollectiveError::NoSpace { dir: DIR.into(), needed, available }
}

pub(crate) fn system(
    name: &str,
    action: &'static str,
    reason: impl std::fmt::Display,
) -> CollectiveError {
    CollectiveError::System { name: name.into(), action, reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_blocks_times_their_size() {
        assert_eq!(limit(16_384, 100, 4096), Some(409_600));
        assert_eq!(limit(16_384, 0, 4096), Some(0));
        assert_eq!(limit(u64::MAX, u64::MAX, 4096), Some(u64::MAX));
    }

    #[test]
    fn a_tmpfs_without_limit_counts_no_blocks() {
        assert_eq!(limit(0, 0, 4096), None);
    }

    #[test]
    fn what_the_file_system_cannot_allocate_is_refused_with_both_numbers() {
        let stat = statvfs(DIR).unwrap();
        if stat.blocks() == 0 {
            eprintln!("{DIR} has no limit: nothing is too large to allocate, nothing shown");
            return;
        }
        // More than the whole file system has: refused before a page is taken.
        let needed = (stat.blocks() + 1) * stat.fragment_size();
        let file = tempfile::tempfile_in(DIR).unwrap();
        let error = take("/pocketd-room", &file, needed).unwrap_err();
        assert!(
            matches!(error, CollectiveError::NoSpace { needed: told, available, .. }
                if told == needed && available < needed),
            "{error}"
        );
    }

    #[test]
    fn what_is_larger_than_everything_is_refused_with_both_numbers() {
        let error = look("/pocketd-room", u64::MAX).unwrap_err();
        let CollectiveError::NoSpace { dir, needed, available } = error else {
            panic!("{error}");
        };
        assert_eq!((dir.as_str(), needed), (DIR, u64::MAX));
        assert!(available < needed);
    }
}
