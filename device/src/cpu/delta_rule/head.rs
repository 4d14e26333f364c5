//! One query/key head of one sequence, from the projection to the output.

use std::ops::Range;

use super::chunked::{self, Chunk, ChunkMemory, KeyProducts};
use super::conv::{Channels, transpose_taps};
use super::gates::{keep_gates, write_gates};
use super::stepwise::Steps;
use crate::cpu::CpuDevice;
use crate::cpu::lanes::{Kernel, Lanes};
use crate::cpu::math::{map, silu, sum_of_squares, update};
use crate::cpu::norm::inverse_rms;
use crate::cpu::pool::DisjointMut;
use crate::cpu::recurrent_state::StateLayout;
use crate::cpu::segments::pieces;
use crate::cpu::strip::STRIP;
use crate::{LinearAttention, LinearShape, Recurrence, Segment};

/// Added to the sum of squares of the L2 norm of queries and keys.
const L2_EPS: f32 = 1e-6;

/// What a task reads and writes.
pub struct HeadTask<'a> {
    /// The operation.
    pub op: &'a LinearAttention<'a, CpuDevice>,
    /// The run's channels.
    pub channels: Channels<'a>,
    /// The run's segments.
    pub segments: &'a [Segment<'a>],
    /// The query/key head.
    pub key_head: usize,
    /// Those of its value heads that this task takes.
    pub value_heads: Range<usize>,
    /// Where the matrices are.
    pub layout: StateLayout,
    /// All matrices.
    pub matrices: &'a DisjointMut<'a, f32>,
    /// The step's output.
    pub out: &'a DisjointMut<'a, f32>,
}

/// Pieces of workspace, see [`workspace`].
const PIECES: usize = 8 + chunked::PIECES;

/// Lengths of the workspace of a task whose pieces have at most `rows` rows.
pub fn workspace(shape: &LinearShape, rows: usize, chunked: bool) -> [usize; PIECES] {
    let LinearShape { key_dim, value_dim, kernel, .. } = *shape;
    let mut lengths = [0; PIECES];
    lengths[..8].copy_from_slice(&[
        (kernel + 1) * key_dim,
        (kernel + 1) * key_dim,
        (kernel + 1) * value_dim,
        rows * key_dim,
        rows * key_dim,
        rows * value_dim.next_multiple_of(STRIP),
        rows,
        rows,
    ]);
    if chunked {
        lengths[8..].copy_from_slice(&ChunkMemory::lengths(key_dim));
    }
    lengths
}

struct Memory<'a> {
    q_taps: &'a mut [f32],
    k_taps: &'a mut [f32],
    v_taps: &'a mut [f32],
    /// Queries of a piece, `[rows, key_dim]`.
    q: &'a mut [f32],
    /// Keys of a piece, `[rows, key_dim]`.
    k: &'a mut [f32],
    /// Values, then outputs, of a piece and a value head, `[rows, value strips * 16]`.
    values: &'a mut [f32],
    /// What the state is multiplied by, by row.
    keep: &'a mut [f32],
    /// Share of the error that is written, by row.
    write: &'a mut [f32],
    chunk: ChunkMemory<'a>,
}

impl<'a> HeadTask<'a> {
    /// The kernel, with its workspace.
    pub fn with(self, memory: [&'a mut [f32]; PIECES]) -> impl Kernel<Output = ()> {
        let [q_taps, k_taps, v_taps, q, k, values, keep, write, chunk @ ..] = memory;
        let chunk = ChunkMemory::new(chunk);
        let memory = Memory { q_taps, k_taps, v_taps, q, k, values, keep, write, chunk };
        HeadKernel { task: self, memory }
    }

    /// First channel of the query head, of the key head and of a value head.
    fn q_channel(&self) -> usize {
        self.key_head * self.op.shape.key_dim
    }
    fn k_channel(&self) -> usize {
        (self.op.shape.key_heads + self.key_head) * self.op.shape.key_dim
    }
    fn v_channel(&self, head: usize) -> usize {
        let LinearShape { key_heads, key_dim, value_dim, .. } = self.op.shape;
        2 * key_heads * key_dim + head * value_dim
    }

    fn taps(&self, channel: usize, len: usize) -> &'a [f32] {
        let kernel = self.op.shape.kernel;
        &self.op.conv.as_slice()[channel * kernel..(channel + len) * kernel]
    }
}

struct HeadKernel<'a> {
    task: HeadTask<'a>,
    memory: Memory<'a>,
}

impl Kernel for HeadKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        let (task, memory) = (&self.task, &mut self.memory);
        let LinearShape { key_dim, value_dim, kernel, .. } = task.op.shape;
        transpose_taps(task.taps(task.q_channel(), key_dim), kernel, memory.q_taps);
        transpose_taps(task.taps(task.k_channel(), key_dim), kernel, memory.k_taps);
        let one_head = task.value_heads.len() == 1;
        if one_head {
            let channel = task.v_channel(task.value_heads.start);
            transpose_taps(task.taps(channel, value_dim), kernel, memory.v_taps);
        }
        let mut row = 0;
        for segment in task.segments {
            for piece in pieces(segment) {
                let position = segment.position + piece.start;
                let first = row + piece.start;
                prepare_keys(l, task, memory, first, piece.len());
                if segment.recurrence == Recurrence::Chunked {
                    l.call(KeyProducts {
                        q: &memory.q[..piece.len() * key_dim],
                        k: &memory.k[..piece.len() * key_dim],
                        key_dim,
                        memory: &mut memory.chunk,
                    });
                }
                for head in task.value_heads.clone() {
                    if !one_head {
                        let taps = task.taps(task.v_channel(head), value_dim);
                        transpose_taps(taps, kernel, memory.v_taps);
                    }
                    prepare_values(l, task, memory, head, first, piece.len());
                    let range = task.layout.matrix(segment.slot, task.op.layer, head);
                    // SAFETY: tasks differ in slot or in value heads.
                    let matrix = unsafe { task.matrices.slice(range) };
                    if position == 0 {
                        matrix.fill(0.0);
                    }
                    apply_rule(l, task, memory, segment.recurrence, matrix, piece.len());
                    write_output(l, task, memory, head, first, piece.len());
                }
            }
            row += segment.rows;
        }
    }
}

/// Queries and keys of a piece: convolved, normalised, queries scaled by `key_dim^-0.5`.
#[inline(always)]
fn prepare_keys<L: Lanes>(
    l: L,
    task: &HeadTask<'_>,
    memory: &mut Memory<'_>,
    first: usize,
    rows: usize,
) {
    let key_dim = task.op.shape.key_dim;
    let Memory { q, k, q_taps, k_taps, .. } = memory;
    let (q, k) = (&mut q[..rows * key_dim], &mut k[..rows * key_dim]);
    task.channels.convolve(l, q_taps, task.q_channel(), first, q, key_dim);
    task.channels.convolve(l, k_taps, task.k_channel(), first, k, key_dim);
    for (x, scale) in [(q, 1.0 / (key_dim as f32).sqrt()), (k, 1.0)] {
        for x in x.chunks_exact_mut(key_dim) {
            let inverse = l.splat(scale / (sum_of_squares(l, x) + L2_EPS).sqrt());
            update(
                l,
                x,
                [],
                #[inline(always)]
                |x, []| l.mul(x, inverse),
            );
        }
    }
}

/// Values and gates of a piece and a value head.
#[inline(always)]
fn prepare_values<L: Lanes>(
    l: L,
    task: &HeadTask<'_>,
    memory: &mut Memory<'_>,
    head: usize,
    first: usize,
    rows: usize,
) {
    let shape = &task.op.shape;
    let width = shape.value_dim.next_multiple_of(STRIP);
    let values = &mut memory.values[..rows * width];
    task.channels.convolve(l, memory.v_taps, task.v_channel(head), first, values, width);
    let write_at = shape.channels() + shape.value_heads * shape.value_dim + head;
    let (decay, dt_bias) = (task.op.decay.as_slice()[head], task.op.dt_bias.as_slice()[head]);
    for (i, values) in values.chunks_exact_mut(width).enumerate() {
        values[shape.value_dim..].fill(0.0);
        task.channels.prefetch(first + i, write_at, 1);
        task.channels.prefetch(first + i, write_at + shape.value_heads, 1);
        let projection = task.channels.row(first + i);
        memory.write[i] = projection[write_at];
        memory.keep[i] = projection[write_at + shape.value_heads];
    }
    write_gates(l, &mut memory.write[..rows]);
    keep_gates(l, &mut memory.keep[..rows], dt_bias, decay);
}

/// Values become outputs, the matrix the one after the piece.
#[inline(always)]
fn apply_rule<L: Lanes>(
    l: L,
    task: &HeadTask<'_>,
    memory: &mut Memory<'_>,
    recurrence: Recurrence,
    matrix: &mut [f32],
    rows: usize,
) {
    let LinearShape { key_dim, value_dim, .. } = task.op.shape;
    let width = value_dim.next_multiple_of(STRIP);
    let Memory { q, k, values, keep, write, chunk, .. } = memory;
    let (q, k) = (&q[..rows * key_dim], &k[..rows * key_dim]);
    let (keep, write) = (&keep[..rows], &write[..rows]);
    match recurrence {
        Recurrence::Stepwise => {
            for (i, strip) in matrix.chunks_exact_mut(task.layout.strip_len()).enumerate() {
                let values = &mut values[i * STRIP..];
                l.call(Steps { q, k, key_dim, keep, write, values, distance: width, strip });
            }
        }
        Recurrence::Chunked => {
            l.call(Chunk {
                q,
                k,
                key_dim,
                keep,
                write,
                values,
                distance: width,
                matrix,
                memory: chunk,
            });
        }
    }
}

/// `norm * (o * rsqrt(mean(o^2) + eps)) * silu(z)`.
#[inline(always)]
fn write_output<L: Lanes>(
    l: L,
    task: &HeadTask<'_>,
    memory: &Memory<'_>,
    head: usize,
    first: usize,
    rows: usize,
) {
    let LinearShape { value_heads, value_dim, .. } = task.op.shape;
    let weight = task.op.norm.as_slice();
    let z_at = task.op.shape.channels() + head * value_dim;
    let width = value_dim.next_multiple_of(STRIP);
    for (i, o) in memory.values.chunks_exact(width).enumerate().take(rows) {
        let o = &o[..value_dim];
        task.channels.prefetch(first + i, z_at, value_dim);
        let z = &task.channels.row(first + i)[z_at..z_at + value_dim];
        let at = ((task.channels.first_row() + first + i) * value_heads + head) * value_dim;
        // SAFETY: tasks differ in rows or in value heads.
        let out = unsafe { task.out.slice(at..at + value_dim) };
        let inverse = l.splat(inverse_rms(l, o, task.op.eps));
        map(
            l,
            out,
            [o, weight, z],
            #[inline(always)]
            |[o, w, z]| l.mul(l.mul(l.mul(o, inverse), w), silu(l, z)),
        );
    }
}
