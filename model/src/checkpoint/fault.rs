//! What can be wrong with the tensors of a checkpoint.

use serde::Serialize;

use super::index::INDEX;

/// What keeps a checkpoint from being loaded. Every kind names the tensor or the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum Fault {
    /// A weight file is not there.
    #[error("{shard} is not there, though {because}: download it again")]
    AbsentShard {
        /// The file.
        shard: String,
        /// Why it should be there.
        because: String,
    },
    /// A tensor that no file of the checkpoint was ever meant to hold.
    #[error("tensor {tensor} {shape:?} was never in this checkpoint: {searched}")]
    NeverHere {
        /// The tensor.
        tensor: String,
        /// Its shape by config.json.
        shape: Vec<usize>,
        /// Where it is not, and what that means.
        searched: String,
    },
    /// A tensor whose file is not there.
    #[error("tensor {tensor} is in {shard}, which is not there: download it again")]
    ShardAbsent {
        /// The tensor.
        tensor: String,
        /// The file, or the files it may be in.
        shard: String,
    },
    /// A tensor that the index puts in a file whose header does not have it.
    #[error("tensor {tensor} should be in {shard} by {INDEX}, but the header of {shard} lacks it")]
    NotInHeader {
        /// The tensor.
        tensor: String,
        /// The file.
        shard: String,
    },
    /// A tensor in another file than the index says.
    #[error("tensor {tensor} is in {found}, but {INDEX} {says}")]
    NotAsIndexed {
        /// The tensor.
        tensor: String,
        /// The file whose header has it.
        found: String,
        /// What the index says.
        says: String,
    },
    /// A tensor of another shape than config.json asks for.
    #[error("tensor {tensor} in {file} has shape {found:?}: config.json asks for {expected:?}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// The file.
        file: String,
        /// The shape config.json asks for.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },
    /// A tensor of a number type that is not computed with.
    #[error("tensor {tensor} in {file} is {found}: expected BF16, F16 or F32")]
    Type {
        /// The tensor.
        tensor: String,
        /// The file.
        file: String,
        /// The type in the file.
        found: String,
    },
    /// A tensor the model has no place for.
    #[error("unexpected tensor {tensor} in {file}: the model of config.json has no place for it")]
    Unexpected {
        /// The tensor.
        tensor: String,
        /// The file.
        file: String,
    },
    /// A tensor that is there twice.
    #[error("tensor {tensor} is both in {first} and in {second}")]
    Twice {
        /// The tensor.
        tensor: String,
        /// One file.
        first: String,
        /// The other file, or the same with another prefix.
        second: String,
    },
}
