//! Keys and values of all full-attention layers, in blocks.
//!
//! A block holds [`KV_BLOCK_TOKENS`] tokens of one layer and one head, both parts as strips of
//! [`STRIP`] columns (see [`super::strip`]), so that attention is two strip products:
//!
//! - keys: for each sixteen tokens a `[head_dim, 16]` strip, lanes over tokens;
//! - values: for each sixteen numbers of a head a `[64, 16]` strip, lanes over numbers.

use std::ops::Range;

use super::memory::Memory;
use super::segments::BlockWrite;
use super::strip::STRIP;
use crate::{BlockId, DeviceError, KV_BLOCK_TOKENS, KvShape};

/// A paged KV cache, its memory populated.
pub struct CpuKvCache {
    shape: KvShape,
    memory: Memory<f32>,
    /// Lists that a call fills, kept for the next.
    pub(super) lists: Lists,
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
    pub fn write<'a>(
        self,
        block: &mut [f32],
        first: usize,
        keys: &[f32],
        value: impl Fn(usize) -> &'a [f32],
    ) {
        let (key_part, value_part) = block.split_at_mut(self.keys());
        for (i, key) in keys.chunks_exact(self.head_dim).enumerate() {
            let token = first + i;
            let strip = &mut key_part[self.key_strip(token / STRIP)];
            for (to, &x) in strip.iter_mut().skip(token % STRIP).step_by(STRIP).zip(key) {
                *to = x;
            }
            for (strip, x) in value(i).chunks(STRIP).enumerate() {
                let at = self.value_strip(strip).start + token * STRIP;
                value_part[at..at + x.len()].copy_from_slice(x);
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
        let mut memory = Memory::zeroed("the KV cache", len)?;
        memory.populate("the KV cache")?;
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
    pub fn layer(&self, layer: usize) -> &[f32] {
        let len = self.layer_len();
        &self.memory.as_slice()[layer * len..(layer + 1) * len]
    }

    /// One layer's part of the memory.
    pub fn layer_mut(&mut self, layer: usize) -> &mut [f32] {
        let len = self.layer_len();
        &mut self.memory.as_mut_slice()[layer * len..(layer + 1) * len]
    }

    /// Copies a block's keys and values to another block, all layers and heads.
    pub fn copy_block(&mut self, from: BlockId, to: BlockId) -> Result<(), DeviceError> {
        if let Some(outside) = [from, to].iter().find(|id| id.0 as usize >= self.shape.blocks) {
            return Err(DeviceError::Shape {
                op: "copy_block",
                detail: format!("block {} of {}", outside.0, self.shape.blocks),
            });
        }
        let len = self.shape.kv_heads * self.layout().numbers();
        for layer in 0..self.shape.layers {
            let start = from.0 as usize * len;
            self.layer_mut(layer).copy_within(start..start + len, to.0 as usize * len);
        }
        Ok(())
    }

    fn layer_len(&self) -> usize {
        self.shape.blocks * self.shape.kv_heads * self.layout().numbers()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KvDtype;

    #[test]
    fn every_number_of_a_block_has_its_own_place() {
        let shape =
            KvShape { layers: 2, kv_heads: 3, head_dim: 20, blocks: 4, dtype: KvDtype::Float32 };
        let mut cache = CpuKvCache::new(shape).unwrap();
        let layout = cache.layout();
        let mut ranges: Vec<Range<usize>> = (0..4)
            .flat_map(|block| (0..3).map(move |head| layout.range(BlockId(block), head)))
            .collect();
        ranges.sort_by_key(|range| range.start);
        assert_eq!(ranges[0].start, 0);
        assert_eq!(ranges[11].end, cache.layer(1).len());
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));

        let number = |token: usize, i: usize| (token * 100 + i) as f32;
        let keys: Vec<f32> =
            (0..64).flat_map(|token| (0..20).map(move |i| -number(token, i))).collect();
        let values: Vec<f32> = keys.iter().map(|x| -x).collect();
        let range = layout.range(BlockId(2), 1);
        let block = &mut cache.layer_mut(1)[range.clone()];
        // In two pieces, as a prompt and what follows it.
        layout.write(block, 50, &keys[50 * 20..], |i| &values[(50 + i) * 20..][..20]);
        layout.write(block, 0, &keys[..50 * 20], |i| &values[i * 20..][..20]);
        let (key_part, value_part) = cache.layer(1)[range.clone()].split_at(layout.keys());
        for (token, i) in (0..64).flat_map(|token| (0..20).map(move |i| (token, i))) {
            let key = key_part[layout.key_strip(token / 16)][i * 16 + token % 16];
            let value = value_part[layout.value_strip(i / 16)][token * 16 + i % 16];
            assert_eq!((key, value), (-number(token, i), number(token, i)));
        }
        let outside =
            [&cache.layer(1)[..range.start], &cache.layer(1)[range.end..], cache.layer(0)];
        assert!(outside.concat().iter().all(|&x| x == 0.0));
    }

    #[test]
    fn impossible_sizes_are_refused_by_name() {
        for shape in [
            KvShape {
                layers: 1,
                kv_heads: 1,
                head_dim: 256,
                blocks: usize::MAX,
                dtype: KvDtype::Float32,
            },
            KvShape {
                layers: 1 << 20,
                kv_heads: 1 << 20,
                head_dim: 1 << 20,
                blocks: 1 << 20,
                dtype: KvDtype::Float32,
            },
            KvShape {
                layers: 1,
                kv_heads: 1,
                head_dim: usize::MAX,
                blocks: 1,
                dtype: KvDtype::Float32,
            },
            KvShape {
                layers: 16,
                kv_heads: 4,
                head_dim: 256,
                blocks: 1 << 28,
                dtype: KvDtype::Float32,
            },
        ] {
            let error = CpuKvCache::new(shape).err().unwrap();
            assert!(
                matches!(&error, DeviceError::OutOfMemory { what, .. } if what == "the KV cache"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_cache_takes_what_its_shape_says_for_heads_of_whole_strips() {
        let shape =
            KvShape { layers: 3, kv_heads: 2, head_dim: 64, blocks: 5, dtype: KvDtype::Float32 };
        let cache = CpuKvCache::new(shape).unwrap();
        assert_eq!((cache.memory.as_slice().len() * 4) as u64, shape.bytes());
    }
}
