//! What a rank asks of the hardware it is pinned to.
//!
//! [`Device`] lists only the operations a Gated DeltaNet / full-attention decoder needs: memory,
//! packing of weights, and a dozen kernels. The forward pass in `pocket-model` is generic over it, so
//! one pass serves every backend; a backend with streams queues the kernels and waits in
//! [`Device::synchronize`] and [`Device::download`]. The CPU implementation is [`cpu::CpuDevice`].
//!
//! Two promises hold for every implementation (they are what makes a request's bits independent of
//! its company):
//! - a kernel's order of additions for one row does not depend on how many rows there are;
//! - a kernel sees segments (see [`Segment`]), and no number of one segment reaches another.

#![warn(missing_docs)]

mod error;
mod ops;
mod types;

pub mod cpu;
pub mod file;

pub use error::DeviceError;
pub use ops::Device;
pub use types::{
    AttentionShape, BlockId, DeviceTensor, FullAttention, KV_BLOCK_TOKENS, KvDtype, KvShape,
    LinearAttention, LinearShape, MatrixPart, RECURRENCE_CHUNK, Recurrence, RowStats, Segment,
    SlotId, StorageType, WorkDone,
};
