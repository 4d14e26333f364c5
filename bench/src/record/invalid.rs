//! Why a measurement cannot be believed.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// One reason.
#[derive(Clone, Debug, PartialEq, Error, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Invalid {
    /// The server of the second half is not the one of the first.
    #[error("the {server} restarted during the run: {what} was {before} and became {after}")]
    ServerRestarted {
        /// Which server, by its name in the record.
        server: String,
        /// What shows it, such as its process id or its group's epoch.
        what: String,
        /// Its value before.
        before: String,
        /// Its value after.
        after: String,
    },
    /// Who was measured is gone, or does not say how it is.
    #[error("the {server} no longer answered at the end of the run")]
    ServerSilent {
        /// Which server, by its name in the record.
        server: String,
    },
    /// The server did not serve all the time.
    #[error("the {server} did not stay ready during the run: it was {before} and became {after}")]
    StateChanged {
        /// Which server, by its name in the record.
        server: String,
        /// Its state before.
        before: String,
        /// Its state after.
        after: String,
    },
    /// Part of the samples were taken under one value, part under another.
    #[error("the flag {flag} of the {server} changed during the run, from {before} to {after}")]
    FlagChanged {
        /// Which server, by its name in the record.
        server: String,
        /// Which flag.
        flag: String,
        /// Its value before.
        before: String,
        /// Its value after.
        after: String,
    },
    /// A control was set and nothing happened.
    #[error(
        "the control {control} did not act: {counter} went from {before} to {after}, where {expected} was \
         expected"
    )]
    ControlDidNotAct {
        /// The control, as `K=V`.
        control: String,
        /// The counter that shows it.
        counter: String,
        /// The counter before.
        before: f64,
        /// The counter after.
        after: f64,
        /// What it should have done.
        expected: String,
    },
    /// A control that cannot do anything here.
    #[error("the control {control} has nothing to act on: {why}")]
    NothingToActOn {
        /// The control, as `K=V`.
        control: String,
        /// Why not.
        why: String,
    },
    /// Prompts were answered from a cache, so their prefill was not measured.
    #[error(
        "a prefix cache served {tokens} prompt tokens, so the times are not those of prefill; use fresh \
         prompts (another --seed)"
    )]
    PrefixCacheServed {
        /// Prompt tokens that were not computed.
        tokens: u64,
    },
    /// There is no result to speak of.
    #[error("all {requests} requests failed; the first: {first}")]
    AllFailed {
        /// How many.
        requests: usize,
        /// Why the first one did.
        first: String,
    },
    /// A load with a hole is not the load that was to be measured.
    #[error("{failed} of {requests} requests failed; the first: {first}")]
    SomeFailed {
        /// How many failed.
        failed: usize,
        /// How many there were.
        requests: usize,
        /// Why the first one did.
        first: String,
    },
    /// Somebody ended the run early.
    #[error("interrupted after {done} of {planned} {what}")]
    Interrupted {
        /// How many were measured.
        done: usize,
        /// How many were to be.
        planned: usize,
        /// Of what.
        what: String,
    },
    /// What was measured is not what was asked for.
    #[error("{what}: {expected} was expected and {found} was found")]
    Unexpected {
        /// What was looked at.
        what: String,
        /// What it should have been.
        expected: String,
        /// What it was.
        found: String,
    },
}

/// A record that cannot be believed, as the error that ends the program.
#[derive(Clone, Debug, PartialEq, Error)]
pub struct InvalidRecord {
    /// Why not; at least one reason.
    pub reasons: Vec<Invalid>,
}

impl fmt::Display for InvalidRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the record is INVALID: ")?;
        for (at, reason) in self.reasons.iter().enumerate() {
            let between = if at == 0 { "" } else { "; " };
            write!(f, "{between}{reason}")?;
        }
        Ok(())
    }
}
