//! `pocketd bench`: measurements of this machine and this engine.

mod prompts;
pub mod roofline;
pub mod wave;
mod work;
