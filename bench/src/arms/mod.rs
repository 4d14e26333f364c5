//! Own servers for the arms of a measurement: a `pocketd serve` of this same program with its own options
//! and experiment flags, which nobody else gets.

mod log;
pub mod server;

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

pub use server::{Launch, OwnServer};

/// Why an arm cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum ArmError {
    /// The program cannot be started.
    #[error("cannot start {program}: {source}")]
    Spawn {
        /// What was to be started.
        program: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Its folder, or a signal to it.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// It has ended by itself.
    #[error("the server of arm {arm:?} ended ({status}): {said}")]
    Ended {
        /// Whose.
        arm: String,
        /// How.
        status: ExitStatus,
        /// Its last words.
        said: String,
    },
    /// It does not get ready.
    #[error("the server of arm {arm:?} was not ready within {limit:?}: {said}")]
    NotReady {
        /// Whose.
        arm: String,
        /// How long it had.
        limit: Duration,
        /// Its last words.
        said: String,
    },
    /// It does not answer.
    #[error("the server of arm {arm:?} does not answer {what}: {reason}")]
    Silent {
        /// Whose.
        arm: String,
        /// What was asked.
        what: &'static str,
        /// Why not.
        reason: String,
    },
}
