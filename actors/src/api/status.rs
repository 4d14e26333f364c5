//! What the engine says of itself.

use pocket_collectives::{Counters, Missing, Phase, Progress};
use pocket_device::KvDtype;
use serde::{Deserialize, Serialize};

use super::Timings;

/// The settings that results depend on, also those that nobody has set, under their own names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineSettings {
    /// Compute threads of each rank.
    pub threads_per_rank: usize,
    /// Positions a sequence may have.
    pub max_model_len: usize,
    /// Sequences computed at a time.
    pub max_num_seqs: usize,
    /// Most prompt tokens in one forward call.
    pub max_num_batched_tokens: usize,
    /// Prompt tokens that are merged into one call: a number, or `auto`.
    pub max_merged_rows: String,
    /// Requests that may wait for a slot.
    pub max_queue: usize,
    /// How keys and values are stored.
    pub kv_cache_dtype: KvDtype,
}

/// State of the engine as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "reason")]
pub enum EngineState {
    /// Ranks are starting or loading.
    Starting,
    /// Requests are served.
    Ready,
    /// A rank died or stalled, for this reason, and the ranks are being started again. Requests wait.
    Recovering(String),
    /// No new requests; live ones finish.
    Draining,
    /// A rank died or stalled; the reason names rank, phase, call and layer.
    Failed(String),
}

/// One rank as seen by the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankStatus {
    /// Rank number.
    pub rank: usize,
    /// Process id.
    pub pid: u32,
    /// `starting`, `loading`, `ready`, `busy`, `stalled` or `dead`.
    pub state: String,
    /// What it runs on.
    pub device: String,
    /// Where it is.
    pub progress: Progress,
    /// Its all-reduces.
    pub counters: Counters,
    /// Fraction of its weights loaded, 0 to 1.
    pub loaded: f64,
}

/// A rank that has not come to an all-reduce in which others wait for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingRank {
    /// Rank number.
    pub rank: usize,
    /// The all-reduce it is missing in, counted from 1 in this epoch.
    pub call: u64,
    /// Where it is instead: the phase it last reported,
    pub phase: Phase,
    /// the layer, none outside the layers,
    pub layer: Option<u32>,
    /// and the step it last began.
    pub step: u64,
}

impl From<&Missing> for MissingRank {
    fn from(missing: &Missing) -> Self {
        let Missing { rank, call, phase, layer, step } = *missing;
        Self { rank, call, phase, layer: (layer != u32::MAX).then_some(layer), step }
    }
}

/// A live request, for operators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestStatus {
    /// The engine's name for it.
    pub id: String,
    /// Its client's name for it.
    pub label: Option<String>,
    /// Seconds since its arrival.
    pub age_s: f64,
    /// Its answers that are being computed.
    pub running: usize,
    /// Its answers that wait.
    pub waiting: usize,
    /// Where its time went so far.
    pub timings: Timings,
}

/// Tokens an engine has worked on since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// Rows of prompts computed, those computed again included.
    pub prompt: u64,
    /// Tokens generated.
    pub generated: u64,
    /// Requests that have their first token.
    pub begun: u64,
    /// Microseconds from the arrival of those to their first token, added up.
    pub begun_us: u64,
}

/// What a forward call costs: a fixed part, and a part for each row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallCost {
    /// Microseconds of any call.
    pub fixed_us: f64,
    /// Microseconds of each row.
    pub row_us: f64,
}

/// The self-tests of an idle engine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelfTestStatus {
    /// How many were passed; one that is not ends the ranks.
    pub passed: u64,
    /// Seconds since the last one.
    pub age_s: f64,
    /// What it took, milliseconds.
    pub took_ms: f64,
}

/// The engine as seen by the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineStatus {
    /// Overall state.
    #[serde(flatten)]
    pub state: EngineState,
    /// Epoch of the rank group.
    pub epoch: u64,
    /// Times the ranks were started again.
    pub restarts: u64,
    /// Forward calls so far, self-tests not among them.
    pub forward_passes: u64,
    /// All-reduces of each rank in a forward call; with one rank there are none.
    pub all_reduces_per_pass: u64,
    /// Seconds since the last completed forward call, self-tests among them.
    pub last_step_age_s: Option<f64>,
    /// The last self-test.
    pub last_self_test: Option<SelfTestStatus>,
    /// Sequences being computed; each of a request's `n` answers is one.
    pub running: usize,
    /// Sequences waiting for a slot or for memory.
    pub waiting: usize,
    /// KV blocks held.
    pub kv_blocks_used: usize,
    /// KV blocks there are.
    pub kv_blocks: usize,
    /// What forward calls cost, as measured while running; none before there is enough to tell.
    pub call_cost: Option<CallCost>,
    /// What was set; none once the engine is gone.
    pub settings: Option<EngineSettings>,
    /// Every rank.
    pub ranks: Vec<RankStatus>,
    /// Ranks that others wait for, as the keeper of the shared segment answers. One that is on its way
    /// shows too; one that stays keeps the step from ending.
    pub missing: Vec<MissingRank>,
    /// Experiment flags that are not at their defaults, `NAME=value`.
    pub flags: Vec<String>,
    /// Set when a flag makes outputs wrong by request.
    pub outputs_wrong: Option<String>,
    /// Notes on flags that cannot act here (a skip at one rank).
    pub notes: Vec<String>,
}
