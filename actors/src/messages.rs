//! What the coordinator and a rank process say to each other. [`crate::wire`] carries it.
//!
//! The coordinator speaks first ([`ToRank::Assign`]); a rank reports how far it is and then answers
//! plans and pings until it is told to leave or its socket closes. A rank's clock decides nothing.

use pocket_collectives::Counters;
use pocket_config::FlagSet;
use pocket_device::WorkDone;
use pocket_model::forward::{Lap, ModelLimits, Step};
use pocket_model::shard::Shard;
use serde::{Deserialize, Serialize};

use crate::api::ModelSource;

/// From the coordinator to a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ToRank {
    /// What to attach to and what to load; the first message.
    Assign(Box<Assignment>),
    /// Run this step. The next plan comes only after its report.
    Plan(StepPlan),
    /// Answer at once with the same number, also in the middle of a step.
    Ping(u64),
    /// Leave now, whatever is running.
    Exit,
}

/// From a rank to the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum FromRank {
    /// The process is up and asks for its assignment.
    Hello {
        /// Its own process id.
        pid: u32,
    },
    /// It has mapped the shared segment.
    Attached,
    /// Weights loaded so far.
    Loading {
        /// Bytes packed.
        loaded: u64,
        /// Bytes to pack.
        total: u64,
    },
    /// It waits for plans.
    Ready {
        /// What it runs on, in words.
        device: String,
    },
    /// It cannot serve: the reason. It exits next.
    LoadFailed(String),
    /// A step is done.
    Done(StepReport),
    /// A step could not be done. Its state is then unknown, so it exits next.
    StepFailed {
        /// Number of the step.
        step: u64,
        /// Why.
        reason: String,
        /// It waited for another rank in vain: the fault lies there.
        waited_for_peer: bool,
    },
    /// Answer to a ping.
    Pong(u64),
}

/// What a rank is: everything it needs to know before it can take plans.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Assignment {
    /// Rank number.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// Where the weights are.
    pub model: ModelSource,
    /// Its heads, rows and vocabulary.
    pub shard: Shard,
    /// What to reserve memory for.
    pub limits: ModelLimits,
    /// Compute threads.
    pub threads: usize,
    /// Cores to pin the compute threads to, one each; none leaves them to the system.
    pub cpus: Option<Vec<usize>>,
    /// Where its packed weights are kept; none keeps them in its own memory.
    pub weights: Option<WeightsAt>,
    /// Name of the shared segment.
    pub segment: String,
    /// Generation of the rank group; the segment carries the same number.
    pub epoch: u64,
    /// Longest wait for a peer in a collective, milliseconds. Longer than the coordinator's own
    /// limit: the coordinator is to decide who is at fault, this is for when it cannot.
    pub peer_deadline_ms: u64,
    /// Experiment flags at start; those that may change while running come again with every plan.
    pub flags: FlagSet,
}

/// Memory that outlives the rank, for its packed weights:
/// a [`WeightStore`](pocket_device::cpu::WeightStore) of the coordinator's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct WeightsAt {
    /// Where to open it.
    pub path: String,
    /// What it is for: [`weights_identity`](pocket_model::forward::weights_identity) of the checkpoint
    /// as the coordinator found it, and of the rank's shard.
    pub identity: [u8; 32],
}

/// One forward call and the flags it runs under.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepPlan {
    /// What to compute.
    pub step: Step,
    /// Experiment flags. They travel with the step, so that ranks cannot disagree about them.
    pub flags: FlagSet,
    /// It is nobody's work: injected faults of other phases do not count it.
    pub self_test: bool,
    /// The report is to say where the time went.
    pub profile: bool,
}

/// What a rank has to say about a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepReport {
    /// Number of the step.
    pub step: u64,
    /// One entry an output of the step; none where the logits went through the shared segment.
    pub rows: Vec<Option<ShardStats>>,
    /// All this rank's all-reduces since it started.
    pub counters: Counters,
    /// All this rank's work since it started.
    pub work: WorkDone,
    /// Microseconds from plan to report.
    pub elapsed_us: u64,
    /// Where they went, if the plan asked for it.
    pub profile: Option<Box<StepProfile>>,
}

/// Where the time of a step went on one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepProfile {
    /// When the rank took the plan up, by the machine's monotonic clock, which all its processes share:
    /// microseconds.
    pub began_us: u64,
    /// Microseconds from then to the first lap.
    pub wait_us: u64,
    /// The laps, end to end.
    pub laps: Vec<Lap>,
}

/// A row's logits as seen by one rank: [`pocket_model::forward::RowResult::Stats`] on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ShardStats {
    /// Token id of the shard's largest logit.
    pub argmax: u32,
    /// That logit.
    pub max: f32,
    /// Sum of `exp(logit - max)` over the shard.
    pub sum_exp: f64,
    /// The target's logit, if it lies in this shard.
    pub target: Option<f32>,
}
