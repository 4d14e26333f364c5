//! The vocabulary shared by every device: segments, shapes, weights as they come from a file.

use std::fmt;
use std::ops::{Add, AddAssign, Range, Sub};

use serde::{Deserialize, Serialize};

use crate::Device;

/// Tokens a KV block holds. Equal to [`RECURRENCE_CHUNK`], so that a prompt chunk never splits one.
pub const KV_BLOCK_TOKENS: usize = 64;

/// Tokens the chunked recurrence takes at a time, counted from position 0 of the sequence.
pub const RECURRENCE_CHUNK: usize = 64;

/// Index of a sequence's recurrent and convolution state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// Index of a KV block in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// Which form of the gated delta rule a segment goes through. The forms agree to rounding, not in
/// bits, so the choice belongs to the request (prompt or generated), never to the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recurrence {
    /// Prompt tokens: matrix products over chunks of [`RECURRENCE_CHUNK`] tokens cut at absolute
    /// multiples of it (arXiv 2412.06464, section 3.3). The segment starts at such a multiple.
    Chunked,
    /// Generated tokens, also when they are replayed: one token after the other.
    Stepwise,
}

/// Consecutive rows of a step that belong to one sequence.
#[derive(Clone, Debug)]
pub struct Segment<'a> {
    /// Recurrent state this segment reads and leaves updated. At `position` 0 the state is taken as
    /// zero, whatever the slot held.
    pub slot: SlotId,
    /// First row of the segment in the step's tensors.
    pub first_row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Position in its sequence of the first row.
    pub position: usize,
    /// Form of the recurrence.
    pub recurrence: Recurrence,
    /// KV blocks of the sequence: entry `i` holds positions `[64 i, 64 (i + 1))`. Covers at least
    /// `position + rows`.
    pub blocks: &'a [BlockId],
}

impl Segment<'_> {
    /// The segment's rows.
    pub fn range(&self) -> Range<usize> {
        self.first_row..self.first_row + self.rows
    }
}

/// How numbers are stored in a checkpoint file (little endian).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageType {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
}

impl StorageType {
    /// Bytes one number takes.
    pub fn size(self) -> usize {
        match self {
            StorageType::Bf16 | StorageType::F16 => 2,
            StorageType::F32 => 4,
        }
    }
}

/// A rectangle of a stored matrix `[out, in]`, straight from a mapped file: what a rank takes of it.
#[derive(Clone, Debug)]
pub struct MatrixPart<'a> {
    /// The whole stored matrix, row-major, not necessarily aligned.
    pub bytes: &'a [u8],
    /// Its number type.
    pub dtype: StorageType,
    /// Numbers in a stored row.
    pub row_len: usize,
    /// Output rows taken.
    pub rows: Range<usize>,
    /// Input columns taken.
    pub cols: Range<usize>,
}

/// Shape of a device tensor: float32, row-major, `rows` of at most the capacity it was made with.
pub trait DeviceTensor {
    /// Rows in use.
    fn rows(&self) -> usize;
    /// Numbers in a row.
    fn cols(&self) -> usize;
    /// Uses `rows` rows from now on; what they hold is unspecified. Panics above the capacity, which
    /// is a bug in the caller.
    fn set_rows(&mut self, rows: usize);
}

/// How a KV cache stores numbers. Attention computes in float32 either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvDtype {
    /// As computed.
    #[default]
    Float32,
    /// Rounded to bfloat16 (nearest, ties to even) when written: half the memory, and answers that
    /// differ from those of float32.
    Bf16,
}

impl KvDtype {
    /// Bytes one number takes.
    pub fn size(self) -> usize {
        match self {
            KvDtype::Float32 => 4,
            KvDtype::Bf16 => 2,
        }
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KvDtype::Float32 => "float32",
            KvDtype::Bf16 => "bf16",
        })
    }
}

/// Size of a paged KV cache, all full-attention layers of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Full-attention layers.
    pub layers: usize,
    /// Key/value heads of this rank.
    pub kv_heads: usize,
    /// Numbers in a head.
    pub head_dim: usize,
    /// Blocks of [`KV_BLOCK_TOKENS`] tokens.
    pub blocks: usize,
    /// How its numbers are stored.
    pub dtype: KvDtype,
}

impl KvShape {
    /// Bytes one block takes over all layers, keys and values.
    pub fn block_bytes(&self) -> u64 {
        let numbers = self.layers * 2 * self.kv_heads * self.head_dim * KV_BLOCK_TOKENS;
        (numbers * self.dtype.size()) as u64
    }
    /// Bytes of the whole cache.
    pub fn bytes(&self) -> u64 {
        self.block_bytes() * self.blocks as u64
    }
}

/// Shape of the linear-attention layers of a rank, and of the state of their sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearShape {
    /// Query/key heads of this rank.
    pub key_heads: usize,
    /// Value heads of this rank, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Numbers in a query or key head.
    pub key_dim: usize,
    /// Numbers in a value head.
    pub value_dim: usize,
    /// Taps of the causal convolution.
    pub kernel: usize,
}

impl LinearShape {
    /// Channels of the convolution: all q heads, all k heads, all v heads.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }
    /// Columns of the fused input projection: channels, then z, then b, then a.
    pub fn projection(&self) -> usize {
        self.channels() + self.value_heads * self.value_dim + 2 * self.value_heads
    }
    /// Bytes of one sequence's state in one layer: `S` and the last `kernel - 1` rows of
    /// pre-convolution channels, float32.
    pub fn state_bytes(&self) -> u64 {
        let s = self.value_heads * self.key_dim * self.value_dim;
        ((s + (self.kernel - 1) * self.channels()) * 4) as u64
    }
}

/// Shape of the full-attention layers of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads of this rank, a multiple of `kv_heads`.
    pub heads: usize,
    /// Key/value heads of this rank.
    pub kv_heads: usize,
    /// Numbers in a head.
    pub head_dim: usize,
    /// Leading numbers of a head that rotate.
    pub rotary_dim: usize,
    /// Epsilon of the query and key norms.
    pub eps: f32,
}

impl AttentionShape {
    /// Columns of the fused projection: for each query head D query then D gate numbers, then all
    /// keys, then all values.
    pub fn projection(&self) -> usize {
        (2 * self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

/// One full-attention layer's mixer between its two projections.
pub struct FullAttention<'a, D: Device + ?Sized> {
    /// Shape on this rank.
    pub shape: AttentionShape,
    /// Index among the full-attention layers: the layer of the KV cache.
    pub layer: usize,
    /// `1 + q_norm.weight`, `[1, head_dim]`.
    pub q_norm: &'a D::Tensor,
    /// `1 + k_norm.weight`, `[1, head_dim]`.
    pub k_norm: &'a D::Tensor,
    /// What [`Device::rotary`] made for this step.
    pub rotary: &'a D::Tensor,
}

/// One linear-attention (Gated DeltaNet) layer's mixer between its two projections.
pub struct LinearAttention<'a, D: Device + ?Sized> {
    /// Shape on this rank.
    pub shape: LinearShape,
    /// Index among the linear-attention layers: the layer of the recurrent state.
    pub layer: usize,
    /// Convolution taps, oldest first, `[channels, kernel]`.
    pub conv: &'a D::Tensor,
    /// `-exp(A_log)`, `[1, value_heads]`.
    pub decay: &'a D::Tensor,
    /// `dt_bias`, `[1, value_heads]`.
    pub dt_bias: &'a D::Tensor,
    /// `linear_attn.norm.weight` (not zero-centred), `[1, value_dim]`.
    pub norm: &'a D::Tensor,
    /// Epsilon of the gated norm.
    pub eps: f32,
}

/// What greedy decoding and log-probabilities need of one row of a rank's logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowStats {
    /// Column of the largest logit, the lowest such column on ties.
    pub argmax: usize,
    /// The largest logit.
    pub max: f32,
    /// Sum over the row of `exp(logit - max)`, added in column order in float64.
    pub sum_exp: f64,
    /// Logit of the target column, if one was asked for.
    pub target: Option<f32>,
}

/// Work that kernels were asked for, counted in what does not depend on the machine: the proof that
/// merging requests into one step saves something. Counted per device, that is per rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkDone {
    /// Matrix products with packed weights: calls of [`Device::matmul`] with at least one row. The
    /// embedding only looks rows up and does not count.
    pub gemm_calls: u64,
    /// Packed bytes (padding included) that those products read from memory. A product whose rows do
    /// not fit the cache together goes over its weights several times, and counts them each time.
    pub weight_bytes: u64,
    /// Pairs of a query row and a key it sees: for each call of [`Device::full_attention`] (one a
    /// layer) and each of its rows, the row's position + 1. Not multiplied by heads.
    pub query_key_pairs: u64,
}

impl Add for WorkDone {
    type Output = WorkDone;

    fn add(self, other: WorkDone) -> WorkDone {
        WorkDone {
            gemm_calls: self.gemm_calls.wrapping_add(other.gemm_calls),
            weight_bytes: self.weight_bytes.wrapping_add(other.weight_bytes),
            query_key_pairs: self.query_key_pairs.wrapping_add(other.query_key_pairs),
        }
    }
}

impl AddAssign for WorkDone {
    fn add_assign(&mut self, other: WorkDone) {
        *self = *self + other;
    }
}

impl Sub for WorkDone {
    type Output = WorkDone;

    /// What was done since `earlier`; zero where a count is smaller, as after a restart.
    fn sub(self, earlier: WorkDone) -> WorkDone {
        WorkDone {
            gemm_calls: self.gemm_calls.saturating_sub(earlier.gemm_calls),
            weight_bytes: self.weight_bytes.saturating_sub(earlier.weight_bytes),
            query_key_pairs: self.query_key_pairs.saturating_sub(earlier.query_key_pairs),
        }
    }
}
