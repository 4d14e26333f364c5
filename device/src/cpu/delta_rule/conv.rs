//! The causal convolution over time, channel by channel.

use crate::cpu::lanes::Lanes;
use crate::cpu::math::{map, silu, update};
use crate::cpu::prefetch::prefetch;
use crate::cpu::recurrent_state::StateLayout;
use crate::cpu::{CpuDevice, CpuTensor};
use crate::{DeviceTensor, LinearAttention, LinearShape, Segment};

/// Rows between what is worked on and what is asked for.
const AHEAD: usize = 6;

/// A run's pre-convolution channels in order of time: `kernel - 1` rows of history, then its own rows.
#[derive(Clone, Copy)]
pub struct Channels<'a> {
    projection: &'a CpuTensor,
    first_row: usize,
    /// Nothing at the start of a sequence, where the history is zero.
    history: Option<&'a [f32]>,
    shape: LinearShape,
}

impl<'a> Channels<'a> {
    /// The channels that a run of segments through one slot reads.
    pub fn new(
        op: &LinearAttention<'_, CpuDevice>,
        projection: &'a CpuTensor,
        segments: &[Segment<'_>],
        history: &'a [f32],
        layout: StateLayout,
    ) -> Channels<'a> {
        let first = &segments[0];
        let history = (first.position > 0).then(|| &history[layout.history(first.slot, op.layer)]);
        Channels { projection, first_row: first.first_row, history, shape: op.shape }
    }

    /// First row of the step.
    pub fn first_row(self) -> usize {
        self.first_row
    }

    /// A row of the run in the projection.
    pub fn row(self, row: usize) -> &'a [f32] {
        self.projection.row(self.first_row + row)
    }

    /// Asks for some columns of the row that is [`AHEAD`] rows after `row`. A head's columns of a row
    /// are a few cache lines, a whole projection away from those of the next row: no prefetcher of the
    /// processor sees that coming.
    #[inline(always)]
    pub fn prefetch(self, row: usize, column: usize, len: usize) {
        const LINE: usize = 16;
        let cols = self.projection.cols();
        let at = (self.first_row + row + AHEAD) * cols + column;
        for line in (0..len.next_multiple_of(LINE)).step_by(LINE) {
            prefetch(self.projection.as_slice().as_ptr().wrapping_add(at + line));
        }
    }

    /// Some channels at a time counted from the oldest row of history; `zeros` where there was nothing.
    #[inline(always)]
    fn at<'s>(self, time: usize, channel: usize, zeros: &'s [f32]) -> &'s [f32]
    where
        'a: 's,
    {
        let len = zeros.len();
        match (time.checked_sub(self.shape.kernel - 1), self.history) {
            (Some(row), _) => &self.row(row)[channel..channel + len],
            (None, Some(all)) => &all[time * self.shape.channels() + channel..][..len],
            (None, None) => zeros,
        }
    }

    /// Convolution and silu of some channels from `channel` on, for rows `row..` of the run, one for
    /// each `distance` numbers of `out`. `taps` as [`transpose_taps`] leaves them.
    #[inline(always)]
    pub fn convolve<L: Lanes>(
        self,
        l: L,
        taps: &[f32],
        channel: usize,
        row: usize,
        out: &mut [f32],
        distance: usize,
    ) {
        let kernel = self.shape.kernel;
        let len = taps.len() / (kernel + 1);
        let (taps, zeros) = taps.split_at(kernel * len);
        let tap = |tap: usize| &taps[tap * len..(tap + 1) * len];
        for (i, out) in out.chunks_exact_mut(distance).enumerate() {
            self.prefetch(row + i, channel, len);
            let out = &mut out[..len];
            let mut time = row + i;
            let mut next = || {
                time += 1;
                self.at(time - 1, channel, zeros)
            };
            if kernel == 4 {
                // The usual length, all in registers; the same operations as below.
                let inputs = [next(), next(), next(), next(), tap(0), tap(1), tap(2), tap(3)];
                map(
                    l,
                    out,
                    inputs,
                    #[inline(always)]
                    |[a, b, c, d, p, q, r, s]| {
                        silu(l, l.fma(d, s, l.fma(c, r, l.fma(b, q, l.mul(a, p)))))
                    },
                );
                continue;
            }
            map(
                l,
                out,
                [next(), tap(0)],
                #[inline(always)]
                |[x, w]| l.mul(x, w),
            );
            for i in 1..kernel {
                let inputs = [next(), tap(i)];
                update(
                    l,
                    out,
                    inputs,
                    #[inline(always)]
                    |sum, [x, w]| l.fma(x, w, sum),
                );
            }
            update(
                l,
                out,
                [],
                #[inline(always)]
                |x, []| silu(l, x),
            );
        }
    }
}

/// Copies the taps of some channels, `[channels, kernel]`, as `[kernel, channels]` followed by a row of
/// zeros, which stands for the rows before the start of a sequence.
#[inline(always)]
pub fn transpose_taps(taps: &[f32], kernel: usize, out: &mut [f32]) {
    let len = out.len() / (kernel + 1);
    let (out, zeros) = out.split_at_mut(kernel * len);
    zeros.fill(0.0);
    if let (4, (quads, [])) = (kernel, taps.as_chunks::<4>()) {
        // The usual kernel: with its length known, the compiler copies by vectors.
        for (tap, out) in out.chunks_exact_mut(len).enumerate() {
            out.iter_mut().zip(quads).for_each(|(to, taps)| *to = taps[tap % 4]);
        }
        return;
    }
    for (channel, taps) in taps.chunks_exact(kernel).enumerate() {
        for (tap, &x) in taps.iter().enumerate() {
            out[tap * len + channel] = x;
        }
    }
}

/// Replaces a slot's history by the last rows of a run (and of the history before it).
pub fn keep(
    shape: &LinearShape,
    projection: &CpuTensor,
    segments: &[Segment<'_>],
    history: &mut [f32],
) {
    let (kept, channels) = (shape.kernel - 1, shape.channels());
    let rows: usize = segments.iter().map(|segment| segment.rows).sum();
    if rows == 0 {
        return;
    }
    for i in 0..kept {
        let to = i * channels..(i + 1) * channels;
        match (i + rows).checked_sub(kept) {
            Some(row) => {
                let row = projection.row(segments[0].first_row + row);
                history[to].copy_from_slice(&row[..channels]);
            }
            None if segments[0].position == 0 => history[to].fill(0.0),
            None => history.copy_within((i + rows) * channels..(i + rows + 1) * channels, to.start),
        }
    }
}
