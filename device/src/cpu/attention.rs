//! Gated full attention over a paged cache.
//!
//! A call first writes all rows' keys and values, then attends, a tile of queries at a time: some
//! consecutive rows of a segment times the query heads that share a key/value head, so that what is
//! read of the cache serves them all. Each query goes through the blocks in order with a running
//! maximum and sum (online softmax, arXiv 1805.02867), and within a block through the keys in order, so
//! its bits depend neither on the tile nor on what else is in the step.

use super::kv_cache::{KvLayout, Lists, Tile};
use super::lanes::{Arithmetic, Kernel, LANES, Lanes, Scalar};
use super::math::{exp, map, sigmoid, update};
use super::norm::normalise;
use super::pool::DisjointMut;
use super::segments::{block_writes, check_rows, pieces};
use super::strip::{Initial, Reach, STRIP, Strided, StripProduct};
use super::workspace::with_workspace;
use super::{CpuDevice, CpuKvCache, CpuTensor};
use crate::{
    AttentionShape, BlockId, DeviceError, DeviceTensor, FullAttention, KV_BLOCK_TOKENS, Segment,
};

/// Queries of a tile, unless one row has more heads: enough to make the cache's share of the time
/// small, few enough to stay in the first-level cache.
const TILE_QUERIES: usize = 24;

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
    let planned = plan(&op.shape, segments, cache.shape().blocks, &mut lists);
    if planned.is_ok() {
        append(device, op, qkv, cache, &lists);
        attend(device, op, qkv, segments, cache, &lists.tiles, out);
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
    lists: &mut Lists,
) -> Result<(), DeviceError> {
    block_writes("full_attention", segments, blocks, &mut lists.writes)?;
    lists.blocks.clear();
    for same in lists.writes.chunk_by(|a, b| a.block == b.block) {
        let start = lists.blocks.last().map_or(0, |range| range.end);
        lists.blocks.push(start..start + same.len());
    }
    lists.tiles.clear();
    let tile_rows = (TILE_QUERIES * shape.kv_heads / shape.heads).max(1);
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

/// Writes keys, normalised and rotated, and values to the cache.
fn append(
    device: &CpuDevice,
    op: &FullAttention<'_, CpuDevice>,
    qkv: &CpuTensor,
    cache: &mut CpuKvCache,
    lists: &Lists,
) {
    let AttentionShape { heads, kv_heads, head_dim, .. } = op.shape;
    let layout = cache.layout();
    let memory = DisjointMut::new(cache.layer_mut(op.layer));
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
fn attend(
    device: &CpuDevice,
    op: &FullAttention<'_, CpuDevice>,
    qkv: &CpuTensor,
    segments: &[Segment<'_>],
    cache: &CpuKvCache,
    tiles: &[Tile],
    out: &mut CpuTensor,
) {
    let AttentionShape { heads, kv_heads, head_dim, .. } = op.shape;
    let group = heads / kv_heads;
    let whole = (tiles.len() * kv_heads).max(1);
    let parts = device.pool().threads().div_ceil(whole).min(group);
    let memory = cache.layer(op.layer);
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
        let layout = cache.layout();
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

/// The queries of a tile: row by row, head by head.
#[derive(Clone, Copy)]
struct Queries<'a> {
    op: &'a FullAttention<'a, CpuDevice>,
    qkv: &'a CpuTensor,
    row: usize,
    rows: usize,
    /// Position of the first row.
    position: usize,
    head: usize,
    heads: usize,
}

impl Queries<'_> {
    fn count(&self) -> usize {
        self.rows * self.heads
    }

    /// Row of the step and head of a query.
    fn place(&self, query: usize) -> (usize, usize) {
        (self.row + query / self.heads, self.head + query % self.heads)
    }
}

/// What a tile carries from block to block, by query.
struct Running<'a> {
    /// Prepared queries, `[queries, head_dim]`.
    q: &'a mut [f32],
    /// Scores, then weights, of a block's keys, `[queries, 64]`.
    scores: &'a mut [f32],
    /// Weighted sums of values, `[queries, value strips * 16]`.
    sums: &'a mut [f32],
    /// Largest score so far.
    maxima: &'a mut [f32],
    /// Sum of weights so far.
    totals: &'a mut [f32],
    /// What the sums so far are to be multiplied by.
    scales: &'a mut [f32],
}

struct AttendTile<'a> {
    queries: Queries<'a>,
    memory: &'a [f32],
    layout: KvLayout,
    kv_head: usize,
    blocks: &'a [BlockId],
    running: Running<'a>,
    out: &'a DisjointMut<'a, f32>,
}

impl Kernel for AttendTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let AttendTile { queries, memory, layout, kv_head, blocks, running, out } = self;
        let Running { q, scores, sums, maxima, totals, scales } = running;
        let AttentionShape { heads, head_dim, eps, .. } = queries.op.shape;
        let (count, padded) = (queries.count(), layout.value_strips() * STRIP);
        for (query, q) in q.chunks_exact_mut(head_dim).enumerate() {
            let (row, head) = queries.place(query);
            l.call(PrepareHead {
                x: &queries.qkv.row(row)[2 * head * head_dim..(2 * head + 1) * head_dim],
                weight: queries.op.q_norm.as_slice(),
                eps,
                rotary: queries.op.rotary.row(row),
                scale: 1.0 / (head_dim as f32).sqrt(),
                out: q,
            });
        }
        sums.fill(0.0);
        maxima.fill(f32::NEG_INFINITY);
        totals.fill(0.0);
        let last = queries.position / KV_BLOCK_TOKENS;
        for (index, &block) in blocks[..=last].iter().enumerate() {
            let (keys, values) = memory[layout.range(block, kv_head)].split_at(layout.keys());
            // The tile lies in its last block: only there is an edge.
            let reach = if index < last {
                Reach::All(KV_BLOCK_TOKENS)
            } else {
                Reach::Stair {
                    first: queries.position % KV_BLOCK_TOKENS + 1,
                    rows_per_step: queries.heads,
                    limit: KV_BLOCK_TOKENS,
                }
            };
            for strip in 0..reach.of(count - 1).div_ceil(STRIP) {
                l.call(StripProduct {
                    a: Strided { data: q, row: head_dim, col: 1 },
                    rows: count,
                    reach: Reach::All(head_dim),
                    b: &keys[layout.key_strip(strip)],
                    c: &mut scores[strip * STRIP..],
                    c_row: KV_BLOCK_TOKENS,
                    initial: Initial::Zero,
                });
            }
            for (query, scores) in
                scores.as_chunks_mut::<KV_BLOCK_TOKENS>().0.iter_mut().enumerate()
            {
                let (maximum, total) = (&mut maxima[query], &mut totals[query]);
                scales[query] = weigh(l, scores, reach.of(query), maximum, total);
            }
            for strip in 0..layout.value_strips() {
                l.call(StripProduct {
                    a: Strided { data: scores, row: KV_BLOCK_TOKENS, col: 1 },
                    rows: count,
                    reach,
                    b: &values[layout.value_strip(strip)],
                    c: &mut sums[strip * STRIP..],
                    c_row: padded,
                    initial: Initial::Scaled(scales),
                });
            }
        }
        for (query, sums) in sums.chunks_exact(padded).enumerate() {
            let (row, head) = queries.place(query);
            let gate = &queries.qkv.row(row)[(2 * head + 1) * head_dim..(2 * head + 2) * head_dim];
            let at = (row * heads + head) * head_dim;
            // SAFETY: tiles share no row, and the tasks of a tile no head.
            let out = unsafe { out.slice(at..at + head_dim) };
            let inverse = l.splat(1.0 / totals[query]);
            map(
                l,
                out,
                [&sums[..head_dim], gate],
                #[inline(always)]
                |[sum, gate]| l.mul(l.mul(sum, inverse), sigmoid(l, gate)),
            );
        }
    }
}

/// Turns the first `visible` scores of a block into weights against the running maximum, the others
/// into zeros, and returns what everything before is to be multiplied by.
#[inline(always)]
fn weigh<L: Lanes>(
    l: L,
    scores: &mut [f32; KV_BLOCK_TOKENS],
    visible: usize,
    maximum: &mut f32,
    total: &mut f32,
) -> f32 {
    scores[visible..].fill(f32::NEG_INFINITY);
    let (vectors, _) = scores.as_chunks_mut::<LANES>();
    let mut largest = l.splat(f32::NEG_INFINITY);
    for scores in vectors.iter() {
        largest = l.max(l.load(scores), largest);
    }
    let new_maximum = Scalar.max(l.largest(largest), *maximum);
    let shift = l.splat(new_maximum);
    let mut sum = l.splat(0.0);
    for scores in vectors {
        let weights = exp(l, l.sub(l.load(scores), shift));
        l.store(weights, scores);
        // A masked key adds a zero, which changes nothing.
        sum = l.add(sum, weights);
    }
    let scale = exp(Scalar, *maximum - new_maximum);
    *maximum = new_maximum;
    *total = Scalar.fma(*total, scale, l.sum(sum));
    scale
}

/// `out = rotate(norm(x) * weight) * scale`.
struct PrepareHead<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    /// Cosines, then sines, of the row.
    rotary: &'a [f32],
    scale: f32,
    out: &'a mut [f32],
}

impl Kernel for PrepareHead<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let PrepareHead { x, weight, eps, rotary, scale, out } = self;
        normalise(l, x, weight, eps, out);
        let half = rotary.len() / 2;
        let (cosines, sines) = rotary.split_at(half);
        let (first, second) = out[..2 * half].split_at_mut(half);
        let pairs = first.chunks_mut(LANES).zip(second.chunks_mut(LANES));
        let angles = cosines.chunks(LANES).zip(sines.chunks(LANES));
        for ((first, second), (cosine, sine)) in pairs.zip(angles) {
            let (a, b) = (l.load_part(first), l.load_part(second));
            let (c, s) = (l.load_part(cosine), l.load_part(sine));
            l.store_part(l.fnma(b, s, l.mul(a, c)), first);
            l.store_part(l.fma(a, s, l.mul(b, c)), second);
        }
        let scale = l.splat(scale);
        update(
            l,
            out,
            [],
            #[inline(always)]
            |x, []| l.mul(x, scale),
        );
    }
}
