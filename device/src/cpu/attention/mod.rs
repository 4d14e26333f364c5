//! Gated full attention over a paged cache.
//!
//! A call first writes all rows' keys and values, then attends, a tile of queries at a time: some
//! consecutive rows of a segment times the query heads that share a key/value head, so that what is
//! read of the cache serves them all. Each query goes through the blocks in order with a running
//! maximum and sum (online softmax, arXiv 1805.02867), and within a block through the keys in order, so
//! its bits depend neither on the tile nor on what else is in the step.

mod prepare;
#[cfg(test)]
mod tests;
mod tile;

use self::prepare::PrepareHead;
use self::tile::{AttendTile, Queries, Running};
use super::kv_cache::{KvLayout, KvMemory, Lists, Tile};
use super::number::Number;
use super::pool::DisjointMut;
use super::segments::{block_writes, check_rows, pieces};
use super::strip::STRIP;
use super::workspace::with_workspace;
use super::{CpuDevice, CpuKvCache, CpuTensor};
use crate::{AttentionShape, DeviceError, DeviceTensor, FullAttention, KV_BLOCK_TOKENS, Segment};

/// Queries of a tile, unless one row has more heads: enough to make the cache's share of the time
/// small (512 rows behind 4096 tokens: 66 GFLOP/s with 24 queries, 93 with 128).
const TILE_QUERIES: usize = 128;

/// Queries of a tile where larger ones would leave threads without work.
const SMALL_TILE_QUERIES: usize = 24;

/// Attention of each segment, see [`Device::full_attention`](crate::Device::full_attention).
pub fn full_attention(
    device: &CpuDevice,
    op: &FullAttention<'_, CpuDevice>,
    qkv: &CpuTensor,
    segments: &[Segment<'_>],
    cache: &mut CpuKvCache,
    out: &mut CpuTensor,
) -> Result<(), DeviceError> {
    check_shapes(op, qkv, cache, out)?;
    check_rows("full_attention", segments, qkv.rows())?;
    let mut lists = std::mem::take(&mut cache.lists);
    let threads = device.pool().threads();
    let planned = plan(&op.shape, segments, cache.shape().blocks, threads, &mut lists);
    if planned.is_ok() {
        device.work.attention(segments);
        let (layout, layer) = (cache.layout(), cache.layer(op.layer));
        let call = Call { device, op, qkv, segments, layout, lists: &lists };
        match &mut cache.memory {
            KvMemory::Float32(memory) => call.run(&mut memory.as_mut_slice()[layer], out),
            KvMemory::Bf16(memory) => call.run(&mut memory.as_mut_slice()[layer], out),
        }
    }
    cache.lists = lists;
    planned
}

fn check_shapes(
    op: &FullAttention<'_, CpuDevice>,
    qkv: &CpuTensor,
    cache: &CpuKvCache,
    out: &CpuTensor,
) -> Result<(), DeviceError> {
    let (shape, kv, rows) = (&op.shape, cache.shape(), qkv.rows());
    let AttentionShape { heads, kv_heads, head_dim, rotary_dim, .. } = *shape;
    let is = |tensor: &CpuTensor, rows, cols| (tensor.rows(), tensor.cols()) == (rows, cols);
    let problem = if kv_heads == 0 || head_dim == 0 || heads == 0 || !heads.is_multiple_of(kv_heads)
    {
        Some("heads do not divide among key/value heads")
    } else if rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
        Some("rotary numbers do not pair up within a head")
    } else if kv.kv_heads != kv_heads || kv.head_dim != head_dim || op.layer >= kv.layers {
        Some("the cache is for another shape")
    } else if qkv.cols() != shape.projection() || !is(out, rows, heads * head_dim) {
        Some("projection or output has another width")
    } else if !is(op.q_norm, 1, head_dim) || !is(op.k_norm, 1, head_dim) {
        Some("norm weights have another length")
    } else if !is(op.rotary, rows, rotary_dim) {
        Some("the rotary table is of another step")
    } else {
        None
    };
    match problem {
        None => Ok(()),
        Some(problem) => Err(DeviceError::Shape {
            op: "full_attention",
            detail: format!(
                "{problem}: {shape:?}, layer {} of {kv:?}, projection [{rows}, {}], rotary [{}, {}], \
                 norms {} and {}, output [{}, {}]",
                op.layer,
                qkv.cols(),
                op.rotary.rows(),
                op.rotary.cols(),
                op.q_norm.cols(),
                op.k_norm.cols(),
                out.rows(),
                out.cols()
            ),
        }),
    }
}

/// Lists the writes by block and the tiles, cut where the positions enter another block.
fn plan(
    shape: &AttentionShape,
    segments: &[Segment<'_>],
    blocks: usize,
    threads: usize,
    lists: &mut Lists,
) -> Result<(), DeviceError> {
    block_writes("full_attention", segments, blocks, &mut lists.writes)?;
    lists.blocks.clear();
    for same in lists.writes.chunk_by(|a, b| a.block == b.block) {
        let start = lists.blocks.last().map_or(0, |range| range.end);
        lists.blocks.push(start..start + same.len());
    }
    lists.tiles.clear();
    let rows_of = |queries: usize| (queries * shape.kv_heads / shape.heads).max(1);
    let tiles_of = |rows: usize| {
        let pieces = segments.iter().flat_map(pieces);
        pieces.map(|piece| piece.len().div_ceil(rows)).sum::<usize>()
    };
    let mut tile_rows = rows_of(TILE_QUERIES);
    // Several tiles a thread, since the last to finish is waited for.
    if tiles_of(tile_rows) * shape.kv_heads < 4 * threads {
        tile_rows = rows_of(SMALL_TILE_QUERIES);
    }
    for (segment, parts) in segments.iter().enumerate() {
        for piece in pieces(parts) {
            for first in piece.clone().step_by(tile_rows) {
                let rows = tile_rows.min(piece.end - first);
                lists.tiles.push(Tile { segment, first, rows });
            }
        }
    }
    // Late rows see the most keys: begun first, they do not end last.
    lists.tiles.reverse();
    Ok(())
}

/// A call whose operands have been checked.
struct Call<'a> {
    device: &'a CpuDevice,
    op: &'a FullAttention<'a, CpuDevice>,
    qkv: &'a CpuTensor,
    segments: &'a [Segment<'a>],
    layout: KvLayout,
    lists: &'a Lists,
}

impl Call<'_> {
    /// The call, on the layer's part of the cache.
    fn run<T: Number>(&self, memory: &mut [T], out: &mut CpuTensor) {
        self.append(memory);
        self.attend(memory, out);
    }

    /// Writes keys, normalised and rotated, and values to the cache.
    fn append<T: Number>(&self, memory: &mut [T]) {
        let Call { device, op, qkv, layout, lists, .. } = *self;
        let AttentionShape { heads, kv_heads, head_dim, .. } = op.shape;
        let memory = DisjointMut::new(memory);
        device.pool().run(lists.blocks.len() * kv_heads, &|task| {
            let (index, head) = (task / kv_heads, task % kv_heads);
            let writes = &lists.writes[lists.blocks[index].clone()];
            // SAFETY: blocks are listed once, and each task takes another block and head.
            let block = unsafe { memory.slice(layout.range(writes[0].block, head)) };
            let key_at = (2 * heads + head) * head_dim;
            let value_at = (2 * heads + kv_heads + head) * head_dim;
            for write in writes {
                with_workspace([write.rows * head_dim], |[keys]| {
                    for (i, key) in keys.chunks_exact_mut(head_dim).enumerate() {
                        let row = write.row + i;
                        device.simd().call(PrepareHead {
                            x: &qkv.row(row)[key_at..key_at + head_dim],
                            weight: op.k_norm.as_slice(),
                            eps: op.shape.eps,
                            rotary: op.rotary.row(row),
                            scale: 1.0,
                            out: key,
                        });
                    }
                    let value = |i: usize| &qkv.row(write.row + i)[value_at..value_at + head_dim];
                    layout.write(block, write.offset, keys, value);
                });
            }
        });
    }

    /// Attends tile by tile; a task takes the query heads of one key/value head, or some of them where
    /// there would be fewer tasks than threads.
    fn attend<T: Number>(&self, memory: &[T], out: &mut CpuTensor) {
        let Call { device, op, qkv, segments, layout, lists } = *self;
        let AttentionShape { heads, kv_heads, head_dim, .. } = op.shape;
        let (group, tiles) = (heads / kv_heads, &lists.tiles);
        let whole = (tiles.len() * kv_heads).max(1);
        let parts = device.pool().threads().div_ceil(whole).min(group);
        let out = DisjointMut::new(out.as_mut_slice());
        device.pool().run(tiles.len() * kv_heads * parts, &|task| {
            let (index, part) = (task / parts, task % parts);
            let (tile, kv_head) = (tiles[index / kv_heads], index % kv_heads);
            let segment = &segments[tile.segment];
            let first_head = kv_head * group + part * group / parts;
            let end_head = kv_head * group + (part + 1) * group / parts;
            let queries = Queries {
                op,
                qkv,
                row: segment.first_row + tile.first,
                rows: tile.rows,
                position: segment.position + tile.first,
                head: first_head,
                heads: end_head - first_head,
            };
            let count = queries.count();
            let padded = layout.value_strips() * STRIP;
            let lengths =
                [count * head_dim, count * KV_BLOCK_TOKENS, count * padded, count, count, count];
            with_workspace(lengths, |[q, scores, sums, maxima, totals, scales]| {
                let running = Running { q, scores, sums, maxima, totals, scales };
                let blocks = segment.blocks;
                device.simd().call(AttendTile {
                    queries,
                    memory,
                    layout,
                    kv_head,
                    blocks,
                    running,
                    out: &out,
                });
            });
        });
    }
}
