//! Read-only file mappings: how weights reach a rank without a copy of the file in its memory.

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::DeviceError;

/// A file mapped for reading.
///
/// The mapping is private to the process and read page by page as it is touched. A file that another
/// process truncates while it is mapped kills this one with SIGBUS at the next touch behind the new
/// end: replace checkpoint files, never rewrite them in place.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    /// None for an empty file, which cannot be mapped.
    map: Option<Mmap>,
}

impl MappedFile {
    /// Maps `path` whole.
    pub fn open(path: &Path) -> Result<MappedFile, DeviceError> {
        let fault = |source| DeviceError::File { path: path.to_path_buf(), source };
        let file = File::open(path).map_err(fault)?;
        let metadata = file.metadata().map_err(fault)?;
        if !metadata.is_file() {
            return Err(fault(std::io::Error::other("not a regular file")));
        }
        let map = if metadata.len() == 0 {
            None
        } else {
            // SAFETY: the mapping is read-only and only handed out as `&[u8]`. Memory safety further
            // needs the file's content not to change while it is mapped, which no process can enforce
            // on Linux; the type's documentation makes it the operator's duty, and every reader
            // bounds-checks against the length taken here.
            Some(unsafe { Mmap::map(&file) }.map_err(fault)?)
        };
        Ok(MappedFile { path: path.to_path_buf(), map })
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_what_the_file_holds() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(MappedFile::open(file.path()).unwrap().bytes(), b"");
        std::fs::write(file.path(), b"weights").unwrap();
        let mapped = MappedFile::open(file.path()).unwrap();
        assert_eq!(mapped.bytes(), b"weights");
        assert_eq!(mapped.path(), file.path());
    }

    #[test]
    fn names_the_file_that_cannot_be_mapped() {
        let error = MappedFile::open(Path::new("/nonexistent/model.safetensors")).unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent/model.safetensors: "), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let error = MappedFile::open(folder.path()).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
}
