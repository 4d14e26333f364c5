//! What the daemon's front ends (HTTP, one-shot commands, benchmarks) say to the engine and hear
//! from it. Everything here is plain data; the actors behind it are private to this crate.

mod status;

use std::path::PathBuf;
use std::time::Duration;

use pocket_collectives::Counters;
use pocket_config::FlagSet;
use pocket_device::{KvDtype, WorkDone};
use pocket_model::forward::ModelLimits;
use serde::{Deserialize, Serialize};

use crate::coordinator::RestartLimit;
use crate::observe::{Observer, TraceHeaders};

pub use status::{
    CallCost, EngineSettings, EngineState, EngineStatus, MissingRank, RankStatus, RequestStatus,
    SelfTestStatus, TokenCounts,
};

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
