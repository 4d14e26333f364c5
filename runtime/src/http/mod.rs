//! The HTTP API: OpenAI's completions and chat, models, health.
//!
//! A request goes through these files in order: `server` (route), `inference` (admission, body),
//! `body` and `fields` (JSON against the table of fields), `params`, `messages`, `request` (values and
//! their ranges), `prompt` (chat template, tokenizer), the engine, `delivery` and `reply` (events to
//! JSON). Errors on any of these ways are an `error::ApiError`.

mod body;
mod delivery;
mod error;
pub mod fields;
mod inference;
mod info;
mod messages;
mod params;
mod prompt;
mod reply;
mod request;
mod server;
mod state;

pub use params::SamplingDefaults;
pub use prompt::TextSide;
pub use reply::unix_seconds;
pub use server::listen;
pub use state::{App, ServedModel, Serving};
