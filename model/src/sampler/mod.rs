//! Choosing the next token from a row of logits.
//!
//! The coordinator samples, once, for all ranks: the same seed then gives the same text at any
//! number of ranks and in any company.

mod params;

pub use params::{SamplingError, SamplingParams};
