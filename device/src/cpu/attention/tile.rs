//! The queries that are attended together.

use super::prepare::PrepareHead;
use crate::cpu::kv_cache::KvLayout;
use crate::cpu::lanes::{Arithmetic, Kernel, LANES, Lanes, Scalar};
use crate::cpu::math::{exp, map, sigmoid};
use crate::cpu::number::Number;
use crate::cpu::pool::DisjointMut;
use crate::cpu::strip::{Initial, Reach, STRIP, Strided, StripProduct};
use crate::cpu::{CpuDevice, CpuTensor};
use crate::{AttentionShape, BlockId, FullAttention, KV_BLOCK_TOKENS};

/// The queries of a tile: row by row, head by head.
#[derive(Clone, Copy)]
pub struct Queries<'a> {
    /// The operation.
    pub op: &'a FullAttention<'a, CpuDevice>,
    /// The projection.
    pub qkv: &'a CpuTensor,
    /// First row of the step.
    pub row: usize,
    /// Number of rows, whose positions lie in one block.
    pub rows: usize,
    /// Position of the first row.
    pub position: usize,
    /// First query head.
    pub head: usize,
    /// Query heads, all of one key/value head.
    pub heads: usize,
}

impl Queries<'_> {
    /// Rows times heads.
    pub fn count(&self) -> usize {
        self.rows * self.heads
    }

    /// Row of the step and head of a query.
    fn place(&self, query: usize) -> (usize, usize) {
        (self.row + query / self.heads, self.head + query % self.heads)
    }
}

/// What a tile carries from block to block, by query.
pub struct Running<'a> {
    /// Prepared queries, `[queries, head_dim]`.
    pub q: &'a mut [f32],
    /// Scores, then weights, of a block's keys, `[queries, 64]`.
    pub scores: &'a mut [f32],
    /// Weighted sums of values, `[queries, value strips * 16]`.
    pub sums: &'a mut [f32],
    /// Largest score so far.
    pub maxima: &'a mut [f32],
    /// Sum of weights so far.
    pub totals: &'a mut [f32],
    /// What the sums so far are to be multiplied by.
    pub scales: &'a mut [f32],
}

/// Attention of one tile.
pub struct AttendTile<'a, T> {
    /// The queries.
    pub queries: Queries<'a>,
    /// The layer's part of the cache.
    pub memory: &'a [T],
    /// Where things are in it.
    pub layout: KvLayout,
    /// The key/value head.
    pub kv_head: usize,
    /// Blocks of the sequence.
    pub blocks: &'a [BlockId],
    /// Workspace.
    pub running: Running<'a>,
    /// The step's output, of which the tile writes its rows and heads.
    pub out: &'a DisjointMut<'a, f32>,
}

impl<T: Number> Kernel for AttendTile<'_, T> {
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
