//! Gated DeltaNet (arXiv 2412.06464): convolution, gated delta rule, gated norm.
//!
//! A task takes one sequence's rows and one query/key head with the value heads it serves, from the
//! projection to the output: what it works on stays in the second-level cache. Rows go through in
//! pieces cut at absolute multiples of [`RECURRENCE_CHUNK`], so a piece has the same bits wherever a
//! prompt was cut. The convolution's history is replaced only when all tasks have read it.

mod chunked;
mod conv;
mod gates;
mod head;
mod solve;
mod stepwise;
#[cfg(test)]
mod tests;

use std::ops::Range;

use self::conv::Channels;
use self::head::HeadTask;
use super::pool::DisjointMut;
use super::segments::{check_rows, slot_runs};
use super::workspace::with_workspace;
use super::{CpuDevice, CpuRecurrentState, CpuTensor};
use crate::{
    DeviceError, DeviceTensor, LinearAttention, LinearShape, RECURRENCE_CHUNK, Recurrence, Segment,
};

/// The mixer of each segment, see [`Device::linear_attention`](crate::Device::linear_attention).
pub fn linear_attention(
    device: &CpuDevice,
    op: &LinearAttention<'_, CpuDevice>,
    projection: &CpuTensor,
    segments: &[Segment<'_>],
    state: &mut CpuRecurrentState,
    out: &mut CpuTensor,
) -> Result<(), DeviceError> {
    check_shapes(op, projection, state, out)?;
    check_rows("linear_attention", segments, projection.rows())?;
    let mut runs = std::mem::take(&mut state.runs);
    let planned = slot_runs("linear_attention", segments, state.slots(), &mut runs);
    if planned.is_ok() {
        mix(device, op, projection, segments, &runs, state, out);
        keep_history(device, op, projection, segments, &runs, state);
    }
    state.runs = runs;
    planned
}

fn check_shapes(
    op: &LinearAttention<'_, CpuDevice>,
    projection: &CpuTensor,
    state: &CpuRecurrentState,
    out: &CpuTensor,
) -> Result<(), DeviceError> {
    let LinearShape { key_heads, value_heads, key_dim, value_dim, kernel } = op.shape;
    let rows = projection.rows();
    let is = |tensor: &CpuTensor, rows, cols| (tensor.rows(), tensor.cols()) == (rows, cols);
    let problem = if key_heads == 0 || value_heads == 0 || !value_heads.is_multiple_of(key_heads) {
        Some("value heads do not divide among key heads")
    } else if key_dim == 0 || value_dim == 0 || kernel == 0 {
        Some("a dimension is zero")
    } else if state.shape() != op.shape || op.layer >= state.layers() {
        Some("the state is for another shape")
    } else if projection.cols() != op.shape.projection() {
        Some("the projection has another width")
    } else if !is(out, rows, value_heads * value_dim) {
        Some("the output has another shape")
    } else if !is(op.conv, op.shape.channels(), kernel) {
        Some("the convolution taps have another shape")
    } else if !is(op.decay, 1, value_heads) || !is(op.dt_bias, 1, value_heads) {
        Some("the decay parameters have another length")
    } else if !is(op.norm, 1, value_dim) {
        Some("the norm weight has another length")
    } else {
        None
    };
    match problem {
        None => Ok(()),
        Some(problem) => Err(DeviceError::Shape {
            op: "linear_attention",
            detail: format!(
                "{problem}: {:?}, layer {} of {} of {:?}, projection [{rows}, {}], taps [{}, {}], \
                 decay {}, dt_bias {}, norm {}, output [{}, {}]",
                op.shape,
                op.layer,
                state.layers(),
                state.shape(),
                projection.cols(),
                op.conv.rows(),
                op.conv.cols(),
                op.decay.cols(),
                op.dt_bias.cols(),
                op.norm.cols(),
                out.rows(),
                out.cols()
            ),
        }),
    }
}

/// Everything but the new history.
fn mix(
    device: &CpuDevice,
    op: &LinearAttention<'_, CpuDevice>,
    projection: &CpuTensor,
    segments: &[Segment<'_>],
    runs: &[Range<usize>],
    state: &mut CpuRecurrentState,
    out: &mut CpuTensor,
) {
    let LinearShape { key_heads, value_heads, .. } = op.shape;
    let group = value_heads / key_heads;
    let whole = (runs.len() * key_heads).max(1);
    // With fewer tasks than threads, value heads of a group part, each part with its own q and k.
    let parts = device.pool().threads().div_ceil(whole).min(group);
    let layout = state.layout();
    let history = state.history.as_slice();
    let matrices = DisjointMut::new(state.matrices.as_mut_slice());
    let out = DisjointMut::new(out.as_mut_slice());
    device.pool().run(runs.len() * key_heads * parts, &|task| {
        let (index, part) = (task / parts, task % parts);
        let (run, key_head) = (&runs[index / key_heads], index % key_heads);
        let segments = &segments[run.clone()];
        let first = key_head * group;
        let head_task = HeadTask {
            op,
            channels: Channels::new(op, projection, segments, history, layout),
            segments,
            key_head,
            value_heads: first + part * group / parts..first + (part + 1) * group / parts,
            layout,
            matrices: &matrices,
            out: &out,
        };
        let chunked = segments.iter().any(|s| s.recurrence == Recurrence::Chunked);
        let longest = segments.iter().map(|s| s.rows).max().unwrap_or(0);
        let lengths = head::workspace(&op.shape, longest.min(RECURRENCE_CHUNK), chunked);
        with_workspace(lengths, |pieces| device.simd().call(head_task.with(pieces)));
    });
}

/// Leaves each slot the last rows of its channels.
fn keep_history(
    device: &CpuDevice,
    op: &LinearAttention<'_, CpuDevice>,
    projection: &CpuTensor,
    segments: &[Segment<'_>],
    runs: &[Range<usize>],
    state: &mut CpuRecurrentState,
) {
    let layout = state.layout();
    let memory = DisjointMut::new(state.history.as_mut_slice());
    device.pool().run(runs.len(), &|run| {
        let segments = &segments[runs[run].clone()];
        // SAFETY: a slot appears in one run.
        let history = unsafe { memory.slice(layout.history(segments[0].slot, op.layer)) };
        conv::keep(&op.shape, projection, segments, history);
    });
}
