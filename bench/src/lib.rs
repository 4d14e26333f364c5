//! What a benchmark of a serving daemon is made of: load, samples, fits, records and reports.
//!
//! - [`stats`]: summaries, least squares with errors and influence, intervals, ratios;
//! - [`ab`]: two arms in turn, pair by pair;
//! - [`arms`]: own servers with flags of their own, and the proof that these acted;
//! - [`law`]: the cost of a prefill as calls, tokens and a constant, and what follows from it;
//! - [`load`]: requests, arrival times and streams of any OpenAI-compatible server, and what its client
//!   measures;
//! - [`points`]: reading points from CSV and JSON; [`fit`]: what they say, as tables and plots;
//! - [`ladder`]: the same load at rising widths;
//! - [`limit`]: the largest sizes that start;
//! - [`prefill`]: the cost of a prefill call, measured, fitted and checked;
//! - [`record`]: `record.json`, with what is needed to judge and to repeat a measurement;
//! - [`report`]: pages, Markdown and text, with plots;
//! - [`compare`]: two records beside each other.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod ab;
pub mod arms;
pub mod compare;
pub mod fit;
pub mod ladder;
pub mod law;
pub mod limit;
pub mod load;
pub mod points;
pub mod prefill;
pub mod record;
pub mod report;
pub mod stats;
