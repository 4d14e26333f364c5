//! What the daemon's front ends (HTTP, one-shot commands, benchmarks) say to the engine and hear
//! from it. Everything here is plain data; the actors behind it are private to this crate.

use std::path::PathBuf;
use std::time::Duration;

use pocket_collectives::{Counters, Missing, Phase, Progress};
use pocket_config::FlagSet;
use pocket_device::{KvDtype, WorkDone};
use pocket_model::forward::ModelLimits;
use serde::{Deserialize, Serialize};

use crate::coordinator::RestartLimit;
use crate::observe::{Observer, TraceHeaders};

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
    /// Name of the model, for metrics.
    pub model_name: String,
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
    /// Most prompt tokens in one forward call; a multiple of 64. Rows of generated tokens come on top.
    pub max_num_batched_tokens: usize,
    /// Sequences computed at a time: slots of recurrent state.
    pub max_num_seqs: usize,
    /// KV blocks over all sequences.
    pub kv_blocks: usize,
    /// How keys and values are stored.
    pub kv_dtype: KvDtype,
    /// Prompt tokens that are merged into one call.
    pub merge: MergeCap,
    /// Longest life of a request, which may ask for a shorter one; none lets it live.
    pub request_timeout: Option<Duration>,
    /// Experiment flags; travel to the ranks with every plan.
    pub flags: FlagSet,
    /// Whether `POCKET_FAULT` may be set while the engine runs.
    pub allow_faults: bool,
    /// A rank that has work and does not move for this long is stalled.
    pub stall_timeout: Duration,
    /// Longest time from spawn to a loaded rank.
    pub load_timeout: Duration,
    /// Ranks that have had nothing to do for this long are tested by a forward call of one token, and so
    /// are new ones before they serve; never, if there is none.
    pub self_test_interval: Option<Duration>,
    /// Requests that may wait for a slot; more are refused.
    pub max_queue: usize,
    /// Times the ranks are started again after a failure, within [`EngineOptions::restart_window`].
    pub max_restarts: usize,
    /// See [`EngineOptions::max_restarts`].
    pub restart_window: Duration,
    /// Hears of every request and call that has ended, if somebody wants to know.
    pub observer: Option<Observer>,
}

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

/// How many prompt tokens of different requests share a forward call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MergeCap {
    /// As many as bring the mean time to first token down, going by what calls have cost so far.
    #[default]
    Auto,
    /// At most so many, a single prompt's chunk excepted.
    Rows(usize),
}

impl EngineOptions {
    pub(crate) fn restart_limit(&self) -> RestartLimit {
        RestartLimit { restarts: self.max_restarts, window: self.restart_window }
    }

    /// How often a rank is looked at.
    pub(crate) fn look_interval(&self) -> Duration {
        (self.stall_timeout / 8).clamp(Duration::from_millis(10), Duration::from_millis(500))
    }

    /// The longest a rank stands still before it is noticed: it moved at one look for the last time, and
    /// the limit has passed at another.
    pub fn stall_noticed_within(&self) -> Duration {
        self.stall_timeout + 2 * self.look_interval()
    }

    /// What is shown of them.
    pub(crate) fn settings(&self) -> EngineSettings {
        EngineSettings {
            threads_per_rank: self.threads_per_rank,
            max_model_len: self.max_model_len,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_merged_rows: match self.merge {
                MergeCap::Auto => "auto".to_owned(),
                MergeCap::Rows(rows) => rows.to_string(),
            },
            max_queue: self.max_queue,
            kv_cache_dtype: self.kv_dtype,
        }
    }

    /// What ranks reserve memory for: the same for a memory plan and for the ranks.
    pub fn limits(&self) -> ModelLimits {
        ModelLimits {
            max_model_len: self.max_model_len,
            max_rows: self.max_num_batched_tokens + self.max_num_seqs,
            slots: self.max_num_seqs,
            kv_blocks: self.kv_blocks,
            kv_dtype: self.kv_dtype,
        }
    }
}

/// How tokens are chosen; defaults are greedy-free OpenAI defaults (temperature 1, top_p 1).
pub use pocket_model::sampler::{SamplingParams, TokenLogprobs};

/// Most answers to one prompt.
pub const MAX_ANSWERS: usize = 16;
/// Most alternatives shown beside a token.
pub const MAX_TOP_LOGPROBS: usize = 20;

/// A request to generate.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    /// Name of the request in logs, status and `cancel`; no live request has the same.
    pub id: String,
    /// The name its client gave it; `cancel` understands it too, and several may have the same.
    pub label: Option<String>,
    /// The trace it belongs to.
    pub trace: Option<TraceHeaders>,
    /// Prompt token ids, at least one.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Answers to give, 1 to [`MAX_ANSWERS`]. They share the prompt's state; answer `i` is seeded with
    /// the seed plus `i`.
    pub n: usize,
    /// Most tokens to generate in each answer; `None` is as many as fit. None at all is allowed where
    /// the prompt's log-probabilities are asked for.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// Tokens that end the answer, as end-of-sequence tokens do.
    pub stop_token_ids: Vec<u32>,
    /// Go on past end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Log-probabilities of the answer's tokens, with so many alternatives, at most
    /// [`MAX_TOP_LOGPROBS`].
    pub logprobs: Option<usize>,
    /// The same of the prompt's tokens.
    pub prompt_logprobs: Option<usize>,
    /// How long it may take from its arrival, queue included; `None` is the engine's own limit.
    pub timeout: Option<Duration>,
}

impl GenerateRequest {
    /// One greedy answer to a prompt, as long as it gets.
    pub fn greedy(id: impl Into<String>, prompt: Vec<u32>) -> Self {
        Self {
            id: id.into(),
            label: None,
            trace: None,
            prompt,
            sampling: SamplingParams::greedy(),
            n: 1,
            max_tokens: None,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            prompt_logprobs: None,
            timeout: None,
        }
    }
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
    /// Forward calls, whoever they were for, that ended between its arrival and its first token: what it
    /// waited for. 0 before there is one.
    pub calls_before_first_token: u64,
    /// Rows of those calls.
    pub rows_before_first_token: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Prompt tokens whose state was there already; there is no cache across requests, so 0.
    pub cached_tokens: u64,
    /// Generated tokens of all answers, end-of-sequence tokens included.
    pub completion_tokens: u64,
    /// Times a sequence of it gave its memory up to an older one and was computed again.
    pub preemptions: u64,
}

/// What the engine did for one request or in total.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngineCounters {
    /// Forward calls.
    pub forward_passes: u64,
    /// All-reduces by rank.
    pub ranks: Vec<Counters>,
    /// Matrix products, weight bytes and query-key pairs of rank 0, of whole calls: those of the other
    /// requests in them are not told apart.
    pub work: WorkDone,
}

/// What a client hears, in order; the last is `Finished` or `Failed`.
#[derive(Clone, Debug)]
pub enum Event {
    /// The log-probabilities of the prompt's tokens, none for the first; before any token, when asked
    /// for. Without alternatives a token's rank is not known, and 0.
    Prompt {
        /// One entry a prompt token.
        logprobs: Vec<Option<TokenLogprobs>>,
    },
    /// A token, and the text it completed (empty while a character or a possible stop is open).
    Token {
        /// Which of the answers.
        choice: usize,
        /// Token id.
        id: u32,
        /// Text that can be shown.
        text: String,
        /// When asked for; none for a token that ends the answer and is not part of it.
        logprobs: Option<TokenLogprobs>,
    },
    /// One of the answers is complete.
    Ended {
        /// Which of the answers.
        choice: usize,
        /// Why it ended.
        reason: FinishReason,
        /// Text held back until now.
        text: String,
    },
    /// All answers are complete.
    Finished {
        /// Where the request's time went.
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
    /// Its deadline has passed: HTTP 504.
    #[error("the request was not done within {0:?}")]
    DeadlineExceeded(Duration),
    /// Somebody cancelled it.
    #[error("the request was cancelled before its answer was complete")]
    Cancelled,
    /// Its client does not read.
    #[error("the client does not read its answer: {0} events wait for it")]
    Unread(usize),
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

/// Why an operator's wish is not granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The wish itself is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The engine is in no state for it.
    #[error("{0}")]
    NotServing(String),
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
