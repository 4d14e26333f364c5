//! Load for any server of OpenAI's API: prompts, arrival times, streams, and what a client measures.
//!
//! A [`Workload`] makes [`Planned`] requests, [`Arrivals`] their times, a [`Plan`] sends them through a
//! [`Client`], and a [`Measured`] says what came of it under the names of `vllm bench serve`. Everything
//! runs on one thread: a client that takes more than that is said to be the bottleneck
//! ([`Overhead`]).

mod arrivals;
mod bar;
mod client;
mod failure;
mod measured;
mod overhead;
mod peaks;
mod reading;
mod report;
mod run;
mod session;
mod tally;
mod tokens;
mod view;
mod wire;
mod workload;

pub use arrivals::Arrivals;
pub use bar::Bar;
pub use client::{Backend, Client, Outcome, Target};
pub use failure::Failure;
pub use measured::{Goodput, Measured, Metric, Slo};
pub use overhead::{Late, Overhead};
pub use reading::{Answer, CountedBy};
pub use report::report;
pub use run::{Plan, Ran};
pub use session::{CACHED_SHARE, Session, Told};
pub use tally::{Counts, Tally};
pub use tokens::{ServerTokens, TextCodec, Tokens};
pub use view::{FirstModel, ServerView, first_model};
pub use workload::{CustomSet, Lengths, RandomSet, ShareGptSet, Workload};

/// A prompt, in one of the forms servers take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A text.
    Text(String),
    /// Token ids, for `/v1/completions` only.
    Ids(Vec<u32>),
}

/// A request as it will be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The prompt.
    pub prompt: Prompt,
    /// Its tokens, where they are known exactly.
    pub prompt_tokens: Option<usize>,
    /// Most tokens of the answer.
    pub output_tokens: usize,
}

/// A load cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// An arrival process without arrivals.
    #[error("the {what} is {value}; a number above 0 is needed (inf: {infinite})")]
    Arrivals {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: f64,
        /// What an infinite one means.
        infinite: &'static str,
    },
    /// No HTTP client.
    #[error("the HTTP client cannot be set up: {0}")]
    Client(String),
    /// Lengths of prompts or answers that cannot be.
    #[error("{0}")]
    Lengths(String),
    /// A data set that cannot be used.
    #[error("{path}: {reason}")]
    DataSet {
        /// The file.
        path: String,
        /// What is wrong with it, or with its reading.
        reason: String,
    },
    /// A tokenizer that failed.
    #[error("tokenizing: {0}")]
    Tokens(String),
    /// A server that does not answer a question about itself.
    #[error("{url}: {reason}")]
    Server {
        /// What was asked.
        url: String,
        /// What came of it.
        reason: String,
    },
}
