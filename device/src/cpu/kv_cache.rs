//! Keys and values of all full-attention layers, in blocks.
//!
//! A block holds [`KV_BLOCK_TOKENS`] tokens of one layer and one head, both parts as strips of
//! [`STRIP`] columns (see [`super::strip`]), so that attention is two strip products:
//!
//! - keys: for each sixteen tokens a `[head_dim, 16]` strip, lanes over tokens;
//! - values: for each sixteen numbers of a head a `[64, 16]` strip, lanes over numbers.

use std::ops::Range;

use half::bf16;

use super::memory::Memory;
use super::number::Number;
use super::segments::BlockWrite;
use super::strip::STRIP;
use crate::{BlockId, DeviceError, KV_BLOCK_TOKENS, KvDtype, KvShape};

/// A paged KV cache, its memory populated.
pub struct CpuKvCache {
    shape: KvShape,
    pub(super) memory: KvMemory,
    /// Lists that a call fills, kept for the next.
    pub(super) lists: Lists,
}

/// The numbers of all layers.
pub(super) enum KvMemory {
    Float32(Memory<f32>),
    Bf16(Memory<bf16>),
}

/// What a call has to do.
#[derive(Default)]
pub(super) struct Lists {
    /// Rows by block.
    pub writes: Vec<BlockWrite>,
    /// Writes to the same block, as ranges of `writes`.
    pub blocks: Vec<Range<usize>>,
    /// Queries that are attended together.
    pub tiles: Vec<Tile>,
}

/// Rows of one segment whose positions lie in one block.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// The segment.
    pub segment: usize,
    /// First row, counted from the segment's first.
    pub first: usize,
    /// Number of rows.
    pub rows: usize,
}

/// Where numbers are in one layer's part of the cache: block by block, head by head, keys first.
#[derive(Clone, Copy)]
pub struct KvLayout {
    kv_heads: usize,
    head_dim: usize,
    value_strips: usize,
}

impl KvLayout {
    /// For a cache of this shape.
    pub fn new(shape: KvShape) -> KvLayout {
        let KvShape { kv_heads, head_dim, .. } = shape;
        KvLayout { kv_heads, head_dim, value_strips: head_dim.div_ceil(STRIP) }
    }

    /// One head's keys and values of a block.
    pub fn range(self, block: BlockId, head: usize) -> Range<usize> {
        let start = (block.0 as usize * self.kv_heads + head) * self.numbers();
        start..start + self.numbers()
    }

    /// Numbers of a block's keys of one head.
    pub fn keys(self) -> usize {
        self.head_dim.saturating_mul(KV_BLOCK_TOKENS)
    }

    /// Numbers of a block's keys and values of one head.
    pub fn numbers(self) -> usize {
        self.keys().saturating_add(self.value_strips.saturating_mul(STRIP * KV_BLOCK_TOKENS))
    }

    /// Sixteen tokens' keys among the keys.
    pub fn key_strip(self, strip: usize) -> Range<usize> {
        let len = self.head_dim * STRIP;
        strip * len..(strip + 1) * len
    }

    /// Sixteen columns of the values among the values.
    pub fn value_strip(self, strip: usize) -> Range<usize> {
        let len = KV_BLOCK_TOKENS * STRIP;
        strip * len..(strip + 1) * len
    }

    /// Strips of the values.
    pub fn value_strips(self) -> usize {
        self.value_strips
    }

    /// Writes tokens `first..` of a block: `keys` `[tokens, head_dim]`, and the values of token `i`
    /// as `value(i)`, `head_dim` long.
    pub fn write<'a, T: Number>(
        self,
        block: &mut [T],
        first: usize,
        keys: &[f32],
        value: impl Fn(usize) -> &'a [f32],
    ) {
        let (key_part, value_part) = block.split_at_mut(self.keys());
        for (i, key) in keys.chunks_exact(self.head_dim).enumerate() {
            let token = first + i;
            let strip = &mut key_part[self.key_strip(token / STRIP)];
            for (to, &x) in strip.iter_mut().skip(token % STRIP).step_by(STRIP).zip(key) {
                *to = T::round(x);
            }
            for (strip, x) in value(i).chunks(STRIP).enumerate() {
                let at = self.value_strip(strip).start + token * STRIP;
                for (to, &x) in value_part[at..at + x.len()].iter_mut().zip(x) {
                    *to = T::round(x);
                }
            }
        }
    }
}

impl CpuKvCache {
    /// A cache of this shape, zeroed.
    pub fn new(shape: KvShape) -> Result<CpuKvCache, DeviceError> {
        let layout = KvLayout::new(shape);
        let len = [shape.layers, shape.blocks, shape.kv_heads]
            .iter()
            .try_fold(layout.numbers(), |len, &n| len.checked_mul(n))
            .unwrap_or(usize::MAX);
        let memory = match shape.dtype {
            KvDtype::Float32 => KvMemory::Float32(populated(len)?),
            KvDtype::Bf16 => KvMemory::Bf16(populated(len)?),
        };
        Ok(CpuKvCache { shape, memory, lists: Lists::default() })
    }

    /// Its shape.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Layout of a layer's part of the memory.
    pub fn layout(&self) -> KvLayout {
        KvLayout::new(self.shape)
    }

    /// One layer's part of the memory.
    pub fn layer(&self, layer: usize) -> Range<usize> {
        let len = self.shape.blocks * self.block_len();
        layer * len..(layer + 1) * len
    }

    /// Copies a block's keys and values to another block, all layers and heads.
    pub fn copy_block(&mut self, from: BlockId, to: BlockId) -> Result<(), DeviceError> {
        if let Some(outside) = [from, to].iter().find(|id| id.0 as usize >= self.shape.blocks) {
            return Err(DeviceError::Shape {
                op: "copy_block",
                detail: format!("block {} of {}", outside.0, self.shape.blocks),
            });
        }
        for layer in 0..self.shape.layers {
            let (start, len) = (self.layer(layer).start, self.block_len());
            let from = start + from.0 as usize * len;
            let (from, to) = (from..from + len, start + to.0 as usize * len);
            match &mut self.memory {
                KvMemory::Float32(memory) => memory.as_mut_slice().copy_within(from, to),
                KvMemory::Bf16(memory) => memory.as_mut_slice().copy_within(from, to),
            }
        }
        Ok(())
    }

    /// Numbers of a block in one layer.
    fn block_len(&self) -> usize {
        self.shape.kv_heads * self.layout().numbers()
    }
}

fn populated<T: Number>(len: usize) -> Result<Memory<T>, DeviceError> {
    let mut memory = Memory::zeroed("the KV cache", len)?;
    memory.populate("the KV cache")?;
    Ok(memory)
}

#[cfg(test)]
mod tests;
