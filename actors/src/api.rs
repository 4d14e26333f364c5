//! What the daemon's front ends (HTTP, one-shot commands, benchmarks) say to the engine and hear
//! from it. Everything here is plain data; the actors behind it are private to this crate.

use std::path::PathBuf;
use std::time::Duration;

use pocket_collectives::{Counters, Progress};
use pocket_config::FlagSet;
use pocket_device::KV_BLOCK_TOKENS;
use pocket_model::forward::ModelLimits;
use serde::{Deserialize, Serialize};

/// Where the weights come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ModelSource {
    /// The checkpoint embedded in the binary.
    Demo,
    /// A directory with `config.json`, safetensors and a tokenizer.
    Directory(PathBuf),
}

/// Everything needed to start ranks.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Weights and tokenizer.
    pub model: ModelSource,
    /// The program started as `PROGRAM rank`: this binary itself.
    pub rank_program: PathBuf,
    /// Variables set for the ranks, beside those they inherit: how they log.
    pub rank_environment: Vec<(String, String)>,
    /// Number of ranks.
    pub world: usize,
    /// Compute threads of each rank.
    pub threads_per_rank: usize,
    /// Positions a sequence may have, prompt and answer together.
    pub max_model_len: usize,
    /// Most prompt tokens in one forward call; a multiple of 64.
    pub max_num_batched_tokens: usize,
    /// Experiment flags; travel to the ranks with every plan.
    pub flags: FlagSet,
    /// A rank that has work and does not move for this long is stalled.
    pub stall_timeout: Duration,
    /// Longest time from spawn to a loaded rank.
    pub load_timeout: Duration,
    /// Waiting requests beyond the live one; more are refused.
    pub max_queue: usize,
}

/// Sequences computed at a time.
const SLOTS: usize = 1;

impl EngineOptions {
    /// What ranks reserve memory for: the same for a memory plan and for the ranks.
    pub fn limits(&self) -> ModelLimits {
        ModelLimits {
            max_model_len: self.max_model_len,
            max_rows: self.max_num_batched_tokens,
            slots: SLOTS,
            // Every sequence may grow to the full context.
            kv_blocks: SLOTS * self.max_model_len.div_ceil(KV_BLOCK_TOKENS),
        }
    }
}

/// How tokens are chosen; defaults are greedy-free OpenAI defaults (temperature 1, top_p 1).
pub use pocket_model::sampler::SamplingParams;

/// A request to generate.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    /// Name of the request in logs, status and `cancel`.
    pub id: String,
    /// Prompt token ids, at least one.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Most tokens to generate; `None` is as many as fit.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// Go on past end-of-sequence tokens.
    pub ignore_eos: bool,
}

/// A request to score every token of a text.
#[derive(Clone, Debug)]
pub struct ScoreRequest {
    /// Name of the request.
    pub id: String,
    /// The tokens, at least one.
    pub ids: Vec<u32>,
    /// Tokens a forward call, a multiple of 64; `None` is the engine's own budget.
    pub chunk: Option<usize>,
    /// Return the last row's logits too.
    pub last_logits: bool,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end-of-sequence token or a stop text.
    Stop,
    /// `max_tokens` or the context is used up.
    Length,
    /// The client cancelled it.
    Cancelled,
}

/// Where a request's time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    /// From arrival to the first forward call, milliseconds.
    pub queue_ms: f64,
    /// From the first forward call to the first token, milliseconds.
    pub prefill_ms: f64,
    /// From the first token to the last, milliseconds.
    pub decode_ms: f64,
    /// Forward calls that carried its prompt.
    pub prefill_calls: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Generated tokens, an end-of-sequence token included.
    pub completion_tokens: u64,
}

/// What the engine did for one request or in total.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngineCounters {
    /// Forward calls.
    pub forward_passes: u64,
    /// All-reduces by rank.
    pub ranks: Vec<Counters>,
}

/// What a client hears, in order; the last is `Finished` or `Failed`.
#[derive(Clone, Debug)]
pub enum Event {
    /// A token, and the text it completed (empty while a character or a possible stop is open).
    Token {
        /// Token id.
        id: u32,
        /// Text that can be shown.
        text: String,
    },
    /// The answer is complete.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// Text held back until now.
        text: String,
        /// Where its time went.
        timings: Timings,
        /// What its forward calls did.
        counters: EngineCounters,
    },
    /// The answer cannot be completed.
    Failed(RequestError),
}

/// The outcome of a [`ScoreRequest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Natural-log probability of each token given those before it; none for the first.
    pub logprobs: Vec<Option<f64>>,
    /// Logits of the last row, `[vocab]`, when asked for.
    pub last_logits: Option<Vec<f32>>,
    /// What its forward calls did.
    pub counters: EngineCounters,
}

/// Why a request was refused or ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum RequestError {
    /// The request itself is wrong: HTTP 400, exit code 2.
    #[error("{0}")]
    Invalid(String),
    /// The waiting queue is full: HTTP 429.
    #[error("the queue is full: {waiting} requests wait (--max-queue {limit})")]
    QueueFull {
        /// Waiting now.
        waiting: usize,
        /// The limit.
        limit: usize,
    },
    /// The engine is starting, draining or has failed: HTTP 503.
    #[error("{0}")]
    Unavailable(String),
    /// A rank died or stalled while the request ran: HTTP 500 or an error event.
    #[error("{0}")]
    RankFailed(String),
}

/// State of the engine as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "reason")]
pub enum EngineState {
    /// Ranks are starting or loading.
    Starting,
    /// Requests are served.
    Ready,
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

/// The engine as seen by the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineStatus {
    /// Overall state.
    #[serde(flatten)]
    pub state: EngineState,
    /// Epoch of the rank group.
    pub epoch: u64,
    /// Forward calls so far.
    pub forward_passes: u64,
    /// Requests being computed.
    pub running: usize,
    /// Requests waiting.
    pub waiting: usize,
    /// Every rank.
    pub ranks: Vec<RankStatus>,
    /// Experiment flags that are not at their defaults, `NAME=value`.
    pub flags: Vec<String>,
    /// Set when a flag makes outputs wrong by request.
    pub outputs_wrong: Option<String>,
    /// Notes on flags that cannot act here (a skip at one rank).
    pub notes: Vec<String>,
}
