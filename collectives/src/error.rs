//! Errors of the collectives.

/// Why ranks could not meet.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    /// A peer did not arrive in time.
    #[error("{waiter} waited {waited_ms} ms for {missing} in {what} {call}: past the deadline")]
    Deadline {
        /// Who waited: "rank 1" or "the coordinator".
        waiter: String,
        /// Who did not arrive, as far as the stamps tell.
        missing: String,
        /// What was to be done together: "all-reduce" or "row of logits".
        what: &'static str,
        /// Its number in this epoch, from 1.
        call: u64,
        /// How long it waited.
        waited_ms: u64,
    },
    /// A peer or the coordinator gave the epoch up.
    #[error("epoch {epoch} was poisoned by {by}")]
    Poisoned {
        /// The epoch.
        epoch: u64,
        /// Who poisoned it, and whom that party had waited for if it says.
        by: String,
    },
    /// The segment cannot be allocated in full.
    #[error(
        "shared memory: {needed} bytes needed in {dir}, {available} available; enlarge it (for a \
         container: --shm-size) or lower --tensor-parallel-size"
    )]
    NoSpace {
        /// Where segments live.
        dir: String,
        /// Bytes of the segment.
        needed: u64,
        /// Bytes free there.
        available: u64,
    },
    /// A segment is not the one this party was told of, or the parties do not agree what it carries.
    #[error("shared segment {name}: {detail}")]
    Mismatch {
        /// Name of the segment.
        name: String,
        /// Expected and found.
        detail: String,
    },
    /// A system call failed.
    #[error("shared segment {name}: {action}: {reason}")]
    System {
        /// Name of the segment.
        name: String,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        reason: String,
    },
}
