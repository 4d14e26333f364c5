//! Errors of a device.

/// Why a device could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Memory for a tensor, a packed matrix, a cache or a state could not be had.
    #[error("cannot allocate {bytes} bytes for {what}: {reason}")]
    OutOfMemory {
        /// What the memory was for.
        what: String,
        /// Bytes asked for.
        bytes: u64,
        /// What the system said.
        reason: String,
    },
    /// Operands do not fit together: a bug in the caller, reported instead of computed.
    #[error("{op}: {detail}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// Expected and found.
        detail: String,
    },
    /// The device itself refused or failed.
    #[error("device {device}: {detail}")]
    Failed {
        /// Name of the device.
        device: String,
        /// What happened.
        detail: String,
    },
    /// A file could not be opened or mapped.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Packed weights that are kept for a rank are not the ones it needs.
    #[error("packed weights at {store}: {detail}")]
    Weights {
        /// Where they are.
        store: String,
        /// What is wrong with them.
        detail: String,
    },
}
