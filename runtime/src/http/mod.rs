//! The HTTP API: OpenAI's completions and chat, models, health; tokens, cancelling, metrics, and the
//! description of it all.
//!
//! A request goes through these files in order: `server` (route), `inference` (admission, body),
//! `body` and `fields` (JSON against the table of fields), `params`, `sampling`, `length`, `messages`,
//! `request` (values and their ranges), `prompt` (chat template, tokenizer), the engine, `stream` (its
//! events, as they come), `answers` and `entries` (the one fold of events), `delivery`, `logprobs` and
//! `reply` (to JSON). Errors on any of these ways are an `error::ApiError`.

mod answers;
mod body;
mod connection;
mod delivery;
mod entries;
mod error;
pub mod fields;
mod inference;
mod info;
mod label;
mod length;
mod logprobs;
mod messages;
mod metrics;
mod openapi;
#[cfg(test)]
mod pages;
mod params;
mod prompt;
mod reply;
mod request;
mod requests;
mod sampling;
mod server;
mod state;
mod stream;
#[cfg(test)]
mod testing;
mod tokenize;

pub use info::Report;
pub use prompt::TextSide;
pub use reply::unix_seconds;
pub use sampling::SamplingDefaults;
pub use server::listen;
pub use state::{App, ServedModel, Serving, Stage};
