//! Read-only file mappings: how weights get from a checkpoint into a device without a copy of the
//! whole file in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::DeviceError;

/// A file mapped into memory. Pages are read from disk when first touched, so a rank that takes a
/// slice of a checkpoint reads only that slice.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    /// `None` for an empty file, which cannot be mapped.
    map: Option<Mmap>,
    version: FileVersion,
}

/// What tells a file from another, and from itself after it was written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileVersion {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl MappedFile {
    /// Maps the whole file as it is now. The file must not be cut short or rewritten in place while
    /// the mapping lives: reading past a new end stops the process with SIGBUS. Replacing it by a
    /// rename, as download tools do, is harmless.
    pub fn open(path: impl AsRef<Path>) -> Result<MappedFile, DeviceError> {
        let path = path.as_ref();
        let failed = |source| DeviceError::File { path: path.to_path_buf(), source };
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(failed(io::Error::other("not a regular file")));
        }
        let map = if metadata.len() == 0 {
            None
        } else {
            // SAFETY: what can go wrong is another process that changes the file in place: then the
            // bytes change under a `&[u8]`, or reading them raises SIGBUS. Nothing short of copying
            // the file prevents that. The mapping is read-only and private, this process never writes
            // checkpoints, and everything read from it (lengths, offsets, numbers) is checked as it is
            // read, so a changed file gives wrong numbers or ends the process, but no stray access.
            Some(unsafe { Mmap::map(&file) }.map_err(failed)?)
        };
        let version = FileVersion {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        };
        Ok(MappedFile { path: path.to_path_buf(), map, version })
    }

    /// What the file holds.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file as it was when it was opened.
    pub fn version(&self) -> FileVersion {
        self.version
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weights");
        for content in [&b""[..], b"x", &[7; 10_000]] {
            std::fs::write(&path, content).unwrap();
            let file = MappedFile::open(&path).unwrap();
            assert_eq!(file.bytes(), content);
            assert_eq!(file.path(), path);
        }
    }

    #[test]
    fn a_file_replaced_by_rename_keeps_its_old_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let (path, new) = (directory.path().join("weights"), directory.path().join("new"));
        std::fs::write(&path, [1; 9000]).unwrap();
        let file = MappedFile::open(&path).unwrap();
        std::fs::write(&new, [2; 3]).unwrap();
        std::fs::rename(&new, &path).unwrap();
        assert_eq!(file.bytes(), [1; 9000]);
        assert_ne!(MappedFile::open(&path).unwrap().version(), file.version());
    }

    #[test]
    fn what_is_no_file_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("no-such-file");
        let error = MappedFile::open(&missing).unwrap_err().to_string();
        assert!(error.contains("no-such-file"), "{error}");
        let error = MappedFile::open(directory.path()).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
        assert!(error.contains(&directory.path().display().to_string()), "{error}");
    }
}
