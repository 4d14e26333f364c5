//! The coordinator's side of packed weights: it makes the file and keeps it open.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::header::Header;
use crate::DeviceError;
use crate::cpu::mapping::HUGE_PAGE;

/// Memory for one rank's packed weights, in the process that made it; see [`super`].
///
/// Keeping it keeps the memory. Once it is dropped nobody can open it any more, and the memory goes
/// with the last [`WeightMap`](super::WeightMap).
#[derive(Debug)]
pub struct WeightStore {
    file: File,
    bytes: u64,
}

impl WeightStore {
    /// Makes an empty store of `bytes`, see [`weight_store_bytes`](super::weight_store_bytes), for the
    /// weights that `identity` stands for. It takes no memory but the header's until a rank packs.
    pub fn create(bytes: u64, identity: [u8; 32]) -> Result<WeightStore, DeviceError> {
        // A mapping goes on to the end of a huge page; the file must not end before it.
        let bytes = bytes.checked_next_multiple_of(HUGE_PAGE as u64).unwrap_or(u64::MAX);
        let make = || -> io::Result<File> {
            let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
            let file = File::from(memfd_create("pocketd-weights", flags)?);
            file.set_permissions(Permissions::from_mode(0o600))?;
            file.set_len(bytes)?;
            Header { bytes, identity, end: None }.write(&file)?;
            // A mapping of a file that is cut short ends its process: this one never is.
            fcntl(
                &file,
                FcntlArg::F_ADD_SEALS(
                    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL,
                ),
            )?;
            Ok(file)
        };
        match make() {
            Ok(file) => Ok(WeightStore { file, bytes }),
            Err(error) => Err(DeviceError::OutOfMemory {
                what: "a rank's packed weights".to_string(),
                bytes,
                reason: error.to_string(),
            }),
        }
    }

    /// Where processes of this user can open it, as long as this lives: at this process's open file.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Bytes it may take.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a rank has packed all its weights.
    pub fn is_complete(&self) -> bool {
        Header::read(&self.file).is_ok_and(|header| header.end.is_some())
    }
}
