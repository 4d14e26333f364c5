//! The HTTP API.

mod body;
mod delivery;
mod error;
pub mod fields;
mod messages;
mod params;
mod reply;
mod request;
