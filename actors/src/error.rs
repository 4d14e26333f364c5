//! Errors of starting and running a group of ranks.

use std::path::PathBuf;
use std::time::Duration;

use pocket_collectives::CollectiveError;
use pocket_device::DeviceError;
use pocket_model::ModelError;
use pocket_model::tokenizer::TokenizerError;

use crate::metrics::MetricsError;

/// Why the engine could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    // --- what was asked for
    /// The options contradict each other or the model.
    #[error("{0}")]
    Options(String),
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The checkpoint's tokenizer cannot be used.
    #[error("{checkpoint}: {error}")]
    Tokenizer {
        /// The checkpoint.
        checkpoint: String,
        /// What is wrong.
        error: TokenizerError,
    },

    /// The metrics cannot be made.
    #[error(transparent)]
    Metrics(#[from] MetricsError),

    // --- what the machine refused
    /// Memory for the packed weights could not be made.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The shared segment could not be made.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A rank process, a thread or a socket could not be made.
    #[error("cannot start {what}: {source}")]
    Spawn {
        /// What was to be started.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The program started as a rank is not the one that started it.
    #[error("rank {rank}: {detail}; is {} being replaced while it runs?", program.display())]
    Handshake {
        /// The rank.
        rank: usize,
        /// The program it was started from.
        program: PathBuf,
        /// Which version was expected and which answered.
        detail: String,
    },

    // --- what happened to a rank
    /// A rank ended, reported an error or stopped moving.
    #[error("{0}")]
    RankFailed(String),
    /// A rank was not ready in time.
    #[error("rank {rank} is not ready after {} s, {stage} (--load-timeout)", limit.as_secs_f64())]
    LoadTimeout {
        /// The rank.
        rank: usize,
        /// What it was doing.
        stage: String,
        /// The limit.
        limit: Duration,
    },
    /// The engine was told to stop before it was ready.
    #[error("stopped while starting")]
    Stopped,
    /// Ranks were still there after the time given for stopping, and were killed.
    #[error("ranks {ranks:?} did not stop within {} s and were killed", limit.as_secs_f64())]
    Killed {
        /// The ranks.
        ranks: Vec<usize>,
        /// The limit.
        limit: Duration,
    },
    /// A thread of the engine itself ended: a bug, its message is on standard error.
    #[error("the engine's own thread ended")]
    Crashed,
}

impl EngineError {
    /// Whether the caller asked for something that cannot be (exit code 2), rather than something
    /// having failed (exit code 1).
    pub fn is_bad_input(&self) -> bool {
        use EngineError::{Model, Options, Tokenizer};
        matches!(self, Options(_) | Model(_) | Tokenizer { .. })
    }
}
