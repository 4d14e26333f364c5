//! Checkpoints made to order.

mod fill;
mod random;
mod scripted;
mod shape;
mod tensors;
mod tokenizer;
mod write;

pub use random::{RandomOptions, write_random};
pub use scripted::{End, Script, ScriptError, ScriptedCheckpoint};
pub use shape::Shape;
pub use tokenizer::Vocabulary;
