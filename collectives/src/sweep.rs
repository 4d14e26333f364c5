//! Removes what killed daemons left in `/dev/shm`.
//!
//! The maker of a segment holds a lock on it for as long as the name exists. The kernel drops the lock
//! when the process dies, however it dies, and a lock works across containers that share the
//! directory, where process ids would lie. So a stale segment is one whose lock can be had.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

use crate::room::DIR;

/// How the names of all segments begin.
pub(crate) const PREFIX: &str = "pocketd-";

/// Removes this user's segments whose maker is gone, and answers their names. What cannot be looked
/// at or removed is logged and left.
pub fn sweep_stale() -> Vec<String> {
    sweep_dir(Path::new(DIR))
}

fn sweep_dir(dir: &Path) -> Vec<String> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::warn!(dir = %dir.display(), %error, "cannot look for stale segments");
            return Vec::new();
        }
    };
    let mut swept = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !is_ours(&name) {
            continue;
        }
        match remove_if_stale(&entry.path()) {
            Ok(true) => swept.push(name.to_string_lossy().into_owned()),
            Ok(false) => {}
            Err(error) => tracing::warn!(?name, %error, "cannot sweep a shared segment"),
        }
    }
    swept
}

/// Whether a name is one that [`crate::SegmentSpec`] makes: prefix, run id, numbers.
fn is_ours(name: &OsStr) -> bool {
    let rest = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
    rest.and_then(|rest| rest.rsplit_once('-')).is_some_and(|(run_id, number)| {
        !run_id.is_empty() && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    })
}

fn remove_if_stale(path: &Path) -> io::Result<bool> {
    let Some(facts) = found(fs::symlink_metadata(path))? else { return Ok(false) };
    if !facts.is_file() || facts.uid() != nix::unistd::geteuid().as_raw() {
        return Ok(false);
    }
    let open = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path);
    let Some(file) = found(open)? else { return Ok(false) };
    let Ok(file) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { return Ok(false) };
    // The name may have gone to another file while the lock was taken. It cannot any more: only who
    // has a file's lock removes its name.
    let locked = file.metadata()?;
    match found(fs::symlink_metadata(path))? {
        Some(now) if now.dev() == locked.dev() && now.ino() == locked.ino() => {
            Ok(found(fs::remove_file(path))?.is_some())
        }
        _ => Ok(false),
    }
}

/// A file that went away meanwhile is no error: somebody else swept or unlinked it.
fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::{chown, symlink};

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn only_our_unlocked_plain_files_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        File::create(path("pocketd-stale-1")).unwrap();
        File::create(path("pocketd-stale-2")).unwrap();
        File::create(path("other-stale")).unwrap();
        File::create(path("pocketd-notes")).unwrap();
        fs::create_dir(path("pocketd-dir-1")).unwrap();
        symlink(path("other-stale"), path("pocketd-link-1")).unwrap();
        let live = File::create(path("pocketd-live-1")).unwrap();
        let live = Flock::lock(live, FlockArg::LockExclusiveNonblock).unwrap();

        let mut swept = sweep_dir(dir.path());
        swept.sort();
        assert_eq!(swept, ["pocketd-stale-1", "pocketd-stale-2"]);
        assert_eq!(
            names(dir.path()),
            ["other-stale", "pocketd-dir-1", "pocketd-link-1", "pocketd-live-1", "pocketd-notes"]
        );

        drop(live);
        assert_eq!(sweep_dir(dir.path()), ["pocketd-live-1"], "its maker is gone now");
    }

    #[test]
    fn files_of_other_users_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pocketd-theirs-1");
        File::create(&path).unwrap();
        let another = nix::unistd::geteuid().as_raw() + 1;
        if chown(&path, Some(another), None).is_err() {
            eprintln!("not root: cannot make a file of another user, nothing shown");
            return;
        }
        assert!(sweep_dir(dir.path()).is_empty());
        assert_eq!(names(dir.path()), ["pocketd-theirs-1"]);
    }

    #[test]
    fn a_missing_directory_is_nothing_to_sweep() {
        let dir = tempfile::tempdir().unwrap();
        assert!(sweep_dir(&dir.path().join("absent")).is_empty());
    }
}
