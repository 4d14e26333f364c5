//! What can be wrong with a checkpoint, or with asking for it to be split or fitted.

use std::ops::Range;
use std::path::PathBuf;

use pocket_device::DeviceError;

use crate::checkpoint::Fault;
use crate::memory::Bytes;

/// Why a checkpoint cannot be used as asked. Each variant carries the facts: which file, which key or
/// tensor, what was expected and what is there.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    // --- files
    /// The checkpoint directory is not there.
    #[error("no checkpoint at {}: {reason}", path.display())]
    NoCheckpoint {
        /// What was asked for.
        path: PathBuf,
        /// Why it is none.
        reason: String,
    },
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not valid JSON, or not of the kind expected.
    #[error("{file}: {detail}")]
    Json {
        /// The file.
        file: String,
        /// What is wrong, with line and column.
        detail: String,
    },
    /// A file could not be mapped, or a device call failed.
    #[error(transparent)]
    Device(#[from] DeviceError),

    // --- config.json and generation_config.json
    /// A key has to be there and is not.
    #[error("{file}: {key} is missing: expected {expected}")]
    KeyMissing {
        /// The file.
        file: String,
        /// The key, with its path.
        key: String,
        /// What would be right.
        expected: String,
    },
    /// A key has a value that cannot be right.
    #[error("{file}: {key} is {value}: expected {expected}")]
    KeyValue {
        /// The file.
        file: String,
        /// The key, with its path.
        key: String,
        /// The value, as JSON.
        value: String,
        /// What would be right.
        expected: String,
    },
    /// Keys that contradict each other.
    #[error("{file}: {detail}")]
    KeyConflict {
        /// The file.
        file: String,
        /// Both keys and both values.
        detail: String,
    },
    /// A model of another family.
    #[error("{file}: {key} {found} is not supported: this program runs {supported}")]
    UnknownArchitecture {
        /// The file.
        file: String,
        /// `model_type` or `architectures`.
        key: &'static str,
        /// What it names.
        found: String,
        /// The names that work.
        supported: String,
    },

    // --- weights
    /// A safetensors file whose header cannot be right.
    #[error("{file}: {detail}")]
    Safetensors {
        /// The file.
        file: String,
        /// What is wrong, with tensor and numbers.
        detail: String,
    },
    /// A checkpoint that is not complete, or not of the model its config.json describes.
    #[error("{checkpoint}: {fault}{}", and_more(*more))]
    Unsound {
        /// The checkpoint.
        checkpoint: String,
        /// The first thing that is wrong.
        fault: Box<Fault>,
        /// How many more there are.
        more: usize,
    },
    /// A tensor was asked for that the model does not have.
    #[error("{checkpoint}: tensor {tensor} is not one of the model's")]
    NoTensor {
        /// The checkpoint.
        checkpoint: String,
        /// The name asked for.
        tensor: String,
    },
    /// A slice was asked for that reaches outside its tensor.
    #[error("tensor {tensor}: {what} {range:?} asked of shape {shape:?}")]
    Slice {
        /// The tensor.
        tensor: String,
        /// Rows or columns.
        what: &'static str,
        /// The range asked for.
        range: Range<usize>,
        /// The tensor's shape.
        shape: Vec<usize>,
    },

    // --- splitting and fitting
    /// The model does not split over so many ranks.
    #[error(
        "tensor-parallel size {world} does not fit this model: {reason}; sizes that work: {}",
        join(sizes)
    )]
    Split {
        /// The number of ranks asked for.
        world: usize,
        /// Which count it does not divide.
        reason: String,
        /// The numbers of ranks that work.
        sizes: Vec<usize>,
    },
    /// A context longer than the model's, or none.
    #[error("max-model-len is {asked}: expected 1 to {longest}")]
    ContextLength {
        /// What was asked for.
        asked: usize,
        /// Positions the model was trained for.
        longest: usize,
    },
    /// The plan takes more memory than there is.
    #[error(
        "not enough memory for max-num-seqs {slots} and max-model-len {context}: {needed} needed, \
         {available} available ({from}): {advice}"
    )]
    Memory {
        /// Sequences with recurrent state.
        slots: usize,
        /// Positions of a sequence.
        context: usize,
        /// Over all ranks.
        needed: Bytes,
        /// What the host has left.
        available: Bytes,
        /// Who says so.
        from: String,
        /// What would fit.
        advice: String,
    },
    /// The budget for keys and values holds no whole sequence.
    #[error(
        "max-model-len is {context}, of which one sequence needs {needed} of keys and values, and \
         {budget} leaves {there} for all slots (max-num-seqs {slots}): {}", longest_context(*largest)
    )]
    KvBudget {
        /// Sequences with recurrent state.
        slots: usize,
        /// Positions of a sequence.
        context: usize,
        /// Keys and values of one sequence, over all ranks.
        needed: Bytes,
        /// What the budget gives, over all ranks.
        there: Bytes,
        /// Which budget.
        budget: String,
        /// The longest context the budget holds, a multiple of a block; 0 if none.
        largest: usize,
    },
    /// A rank outside the world.
    #[error("rank {rank} of {world}: ranks are counted from 0")]
    NoSuchRank {
        /// The rank asked for.
        rank: usize,
        /// The number of ranks.
        world: usize,
    },
}

fn join<T: ToString>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

fn longest_context(largest: usize) -> String {
    match largest {
        0 => "no context fits, raise the KV budget".to_owned(),
        _ => format!("the largest max-model-len that fits is {largest}"),
    }
}

fn and_more(more: usize) -> String {
    match more {
        0 => String::new(),
        _ => format!(" (and {more} more, which `pocketd inspect` lists)"),
    }
}
