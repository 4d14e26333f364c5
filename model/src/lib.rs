//! The Qwen3.5 dense hybrid family: checkpoints, sharding, the forward pass, and the text side
//! (tokenizer, chat template, sampler).

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod forward;
pub mod sampler;
