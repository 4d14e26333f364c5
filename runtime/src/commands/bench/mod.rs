//! `pocketd bench`: measurements of this machine and this engine.

pub mod roofline;
