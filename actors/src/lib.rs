//! The actors that run a model over rank processes.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod api;
mod engine;
mod error;
mod rank;

pub use engine::{Engine, EngineHandle, LoadProgress, RequestStream};
pub use error::EngineError;
pub use rank::rank_main;
