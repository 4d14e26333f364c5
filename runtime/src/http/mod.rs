//! The HTTP API: OpenAI's completions and chat, models, health (`info`, `pulse`); tokens, cancelling, metrics, and the
//! description of it all.
//!
//! A request goes through these files in order: `tls`, `cors`, `auth`, `server` (route),
//! `inference` (admission, body), `body` and `fields` (JSON against the table of fields), `params`, `sampling`, `length`, `messages`,
//! `request` (values and their ranges), `prompt` (chat template, tokenizer), the engine, `stream` (its
//! events, as they come), `answers` and `entries` (the one fold of events), `delivery`, `logprobs` and
//! `reply` (to JSON). Errors on any of these ways are an `error::ApiError`.

mod answers;
mod auth;
mod body;
mod connection;
mod cors;
mod delivery;
mod entries;
mod error;
pub mod fields;
mod heads;
mod inference;
mod info;
mod label;
mod length;
mod limits;
mod logprobs;
mod messages;
mod metrics;
mod openapi;
#[cfg(test)]
mod pages;
mod params;
mod prompt;
mod pulse;
mod reply;
mod request;
mod requests;
mod sampling;
mod server;
mod state;
mod stream;
#[cfg(test)]
mod testing;
mod tls;
mod tokenize;

pub use auth::Keys;
pub use heads::expect_long_names;
pub use info::Report;
pub use limits::Limits;
pub use prompt::TextSide;
pub use pulse::watch as watch_pulse;
pub use reply::unix_seconds;
pub use sampling::SamplingDefaults;
pub use server::{Front, Place, listen};
pub use state::{App, ServedModel, Serving, Stage};
pub use tls::Certificates;
