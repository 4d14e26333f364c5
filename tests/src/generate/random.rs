//! Checkpoints with random weights: they say nothing sensible, at the speed of a real model.

use std::path::Path;

use anyhow::ensure;

use super::shape::Shape;
use super::tensors;
use super::tokenizer::Vocabulary;
use super::write::{Checkpoint, write};

/// How a random checkpoint is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomOptions {
    /// The same seed gives the same numbers.
    pub seed: u64,
    /// Safetensors files; with more than one there is an index.
    pub shards: usize,
}

impl Default for RandomOptions {
    fn default() -> Self {
        Self { seed: 0, shards: 1 }
    }
}

/// Writes a random checkpoint of this shape into `directory` and answers its parameter count. The
/// tokenizer has a token for every byte, then tokens ` w256`, ` w257` and so on, so that any answer is
/// text.
///
/// # Errors
///
/// A vocabulary too small for the bytes and special tokens, a directory that cannot be written or
/// holds a checkpoint.
pub fn write_random(
    shape: &Shape,
    options: RandomOptions,
    directory: &Path,
) -> anyhow::Result<u64> {
    let least = Vocabulary::new([]).len();
    ensure!(
        shape.vocab_size >= least,
        "vocab_size is {}; a byte-level tokenizer needs at least {least}",
        shape.vocab_size
    );
    let fillers = (256..256 + shape.vocab_size - least).map(|id| format!(" w{id}").into_bytes());
    let vocabulary = Vocabulary::new(fillers);
    let tensors = tensors::random(shape, options.seed);
    let checkpoint = Checkpoint {
        config: shape.config(vocabulary.end_id())?,
        vocabulary: &vocabulary,
        tensors: &tensors,
        shards: options.shards,
    };
    write(&checkpoint, directory)?;
    Ok(tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>() as u64).sum())
}
