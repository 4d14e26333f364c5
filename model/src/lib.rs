//! The Qwen3.5 dense hybrid family: checkpoints, sharding, the forward pass, and the text side
//! (tokenizer, chat template, sampler).

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod error;

pub mod chat;
pub mod checkpoint;
pub mod config;
pub mod demo;
pub mod detokenize;
pub mod forward;
pub mod generation;
pub mod hub;
pub mod inspect;
pub mod memory;
pub mod reasoning;
pub mod sampler;
pub mod shard;
pub mod stop;
pub mod tokenizer;

pub use checkpoint::{Checkpoint, TensorView};
pub use config::{LayerKind, ModelConfig};
pub use error::ModelError;
pub use generation::GenerationConfig;
pub use memory::MemoryPlan;
pub use shard::Shard;
