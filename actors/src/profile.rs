//! Where the time of forward calls went, as the ranks and the coordinator measured it while a recording
//! ran: sums, and everything on one time line.

use std::time::Duration;

pub use pocket_model::forward::{Lap, PassPhase, PhaseTimes};

/// A recording that has ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// How long it ran.
    pub took: Duration,
    /// It ended by itself, at its limit.
    pub timed_out: bool,
    /// One entry a rank.
    pub ranks: Vec<RankProfile>,
    /// The coordinator's part.
    pub coordinator: CoordinatorProfile,
    /// The time line, call by call and in order of their ends.
    pub trace: Trace,
}

/// What one rank did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankProfile {
    /// Its last process.
    pub pid: u32,
    /// In calls that carried prompt rows.
    pub prefill: CallsProfile,
    /// In all others.
    pub decode: CallsProfile,
}

/// Where the time of a kind of calls went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallsProfile {
    /// Calls.
    pub calls: u64,
    /// Their rows.
    pub rows: u64,
    /// Microseconds from plan to report; what is in no phase is the way in and out, and simulated delays.
    pub elapsed_us: u64,
    /// Microseconds by phase.
    pub times: PhaseTimes,
}

/// What the coordinator did for those calls: microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoordinatorProfile {
    /// Deciding what a call carries, and sending it out.
    pub plan_us: u64,
    /// From plan to the last report and the last sampled row.
    pub call_us: u64,
    /// Turning what came back into answers.
    pub serve_us: u64,
    /// The sampling thread's wait for logits, which is most of the call it waits for.
    pub logits_us: u64,
    /// Choosing tokens from them.
    pub sample_us: u64,
}

/// The time line. Moments are microseconds since the recording began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Calls, once for each rank.
    pub calls: Vec<TracedCall>,
    /// What the coordinator did.
    pub slices: Vec<Slice>,
    /// Laps and slices that found no room: the time line ends early, the sums do not.
    pub left_out: u64,
}

/// A call on one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct TracedCall {
    /// The rank.
    pub rank: usize,
    /// The call.
    pub call: CallId,
    /// When the rank took it up.
    pub began_us: u64,
    /// How long the rank had it.
    pub elapsed_us: u64,
    /// From its beginning to the first lap.
    pub wait_us: u64,
    /// The laps, end to end.
    pub laps: Vec<Lap>,
}

/// Which call, and what it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallId {
    /// Generation of the group of ranks.
    pub epoch: u64,
    /// Number of the call in its epoch.
    pub step: u64,
    /// Rows.
    pub rows: usize,
    /// Whether it carries prompt rows.
    pub prefill: bool,
}

impl CallId {
    /// What kind of call it is.
    pub fn kind(&self) -> &'static str {
        if self.prefill { "prefill" } else { "decode" }
    }
}

/// Something the coordinator did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// What.
    pub what: Activity,
    /// For which call.
    pub call: CallId,
    /// When it began.
    pub began_us: u64,
    /// How long it took.
    pub us: u64,
}

/// What the coordinator does for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Deciding what it carries, and sending it out.
    Plan,
    /// Turning what came back into answers.
    Serve,
    /// Waiting for logits; on the sampling thread.
    Logits,
    /// Choosing tokens from them; on the sampling thread.
    Sample,
}

impl Activity {
    /// Its name in tables and traces.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Serve => "serve",
            Self::Logits => "wait for logits",
            Self::Sample => "sample",
        }
    }

    /// Whether the sampling thread does it.
    pub fn samples(self) -> bool {
        matches!(self, Self::Logits | Self::Sample)
    }
}
