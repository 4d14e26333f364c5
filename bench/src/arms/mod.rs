//! Own servers for the arms of a measurement, and the proof that what an arm was to do was done.
//!
//! An arm is a `pocketd serve` of this same program with its own options and experiment flags, which
//! nobody else gets: see [`server`]. What it did is counted by the server itself ([`counters`]), and a
//! flag that was to act must show in those counts ([`control`]).

pub mod control;
pub mod counters;
pub mod fleet;
mod log;
mod random;
pub mod server;
pub mod tally;
pub mod wave;

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

pub use control::{Act, Control};
pub use counters::Counts;
pub use fleet::Fleet;
pub use random::RandomPrompts;
pub use server::{Launch, OwnServer, remove_folders};
pub use tally::{ArmCounts, filled};
pub use wave::{Prompt, Wave};

/// The exit code of a server that was asked for what cannot be.
pub const BAD_INPUT: i32 = 2;

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
    /// It answers with something else than was asked for.
    #[error("the server of arm {arm:?} refused {what}: {reason}")]
    Refused {
        /// Whose.
        arm: String,
        /// What was asked.
        what: &'static str,
        /// Its answer.
        reason: String,
    },
}

impl ArmError {
    /// Whether what was asked for is at fault, and not the machine: its server says so by its exit code.
    pub fn is_bad_input(&self) -> bool {
        matches!(self, ArmError::Ended { status, .. } if status.code() == Some(BAD_INPUT))
    }
}
