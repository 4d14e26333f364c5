//! The two forms of the gated delta rule, 512 tokens through 16 linear-attention layers of the 27B
//! model, on one thread and on one for each core: `cargo bench -p pocket-device --bench recurrence`.
//!
//! - `chunked`: the prompt, one call a layer.
//! - `one_token_form`: as tokens are generated, each going through all layers before the next. Their
//!   state, 48 MiB of the model's 144, is more than the last-level cache holds, as when the weights pass
//!   through it between two tokens.
//! - `one_token_form_in_cache`: the same arithmetic with all tokens in one call a layer, as when
//!   generated tokens are replayed. It does as many multiplications as the chunked form and keeps a part
//!   of the state in the first-level cache: what chunks save is the way to memory and back.
//! - `sequences_16`: one token of each of sixteen sequences in one call a layer, at the sizes of the 0.8B
//!   model. The bytes are those of the states, read and written: the memory's share of a decode step.
#![expect(clippy::unwrap_used, reason = "nothing to recover from in a benchmark")]

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use pocket_device::cpu::{CpuDevice, CpuOptions, CpuRecurrentState, CpuTensor};
use pocket_device::{Device, LinearAttention, LinearShape, Recurrence, Segment, SlotId};

const SHAPE: LinearShape =
    LinearShape { key_heads: 16, value_heads: 48, key_dim: 128, value_dim: 128, kernel: 4 };
const TOKENS: usize = 512;
const LAYERS: usize = 16;

/// Layers with made-up numbers of a trained one's size.
struct Layers {
    device: CpuDevice,
    prompt: CpuTensor,
    token: CpuTensor,
    conv: CpuTensor,
    decay: CpuTensor,
    dt_bias: CpuTensor,
    norm: CpuTensor,
    state: CpuRecurrentState,
    out: CpuTensor,
    token_out: CpuTensor,
}

impl Layers {
    fn new(threads: usize) -> Layers {
        let device = CpuDevice::new(CpuOptions { threads, ..CpuOptions::default() }).unwrap();
        let mut seed = 1u64;
        let mut numbers = |rows: usize, cols: usize, from: f32, to: f32| {
            let next = |_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                from + (to - from) * (seed >> 40) as f32 / (1u64 << 24) as f32
            };
            device.upload(&(0..rows * cols).map(next).collect::<Vec<f32>>(), cols).unwrap()
        };
        let width = SHAPE.value_heads * SHAPE.value_dim;
        Layers {
            prompt: numbers(TOKENS, SHAPE.projection(), -2.0, 2.0),
            token: numbers(1, SHAPE.projection(), -2.0, 2.0),
            conv: numbers(SHAPE.channels(), SHAPE.kernel, -0.5, 0.5),
            decay: numbers(1, SHAPE.value_heads, -1.0, -0.01),
            dt_bias: numbers(1, SHAPE.value_heads, -3.0, 1.0),
            norm: numbers(1, SHAPE.value_dim, 0.5, 1.5),
            state: device.recurrent_state(SHAPE, LAYERS, 1).unwrap(),
            out: device.tensor(TOKENS, width).unwrap(),
            token_out: device.tensor(1, width).unwrap(),
            device,
        }
    }

    /// All tokens in one call a layer.
    fn together(&mut self, recurrence: Recurrence) {
        let Layers { device, prompt, conv, decay, dt_bias, norm, state, out, .. } = self;
        for layer in 0..LAYERS {
            let op = LinearAttention { shape: SHAPE, layer, conv, decay, dt_bias, norm, eps: 1e-6 };
            let segments = [segment(TOKENS, 0, recurrence)];
            device.linear_attention(&op, prompt, &segments, state, out).unwrap();
        }
    }

    /// One token after the other, layer after layer.
    fn one_by_one(&mut self) {
        let Layers { device, token, conv, decay, dt_bias, norm, state, token_out, .. } = self;
        for position in 0..TOKENS {
            for layer in 0..LAYERS {
                let op =
                    LinearAttention { shape: SHAPE, layer, conv, decay, dt_bias, norm, eps: 1e-6 };
                let segments = [segment(1, position, Recurrence::Stepwise)];
                device.linear_attention(&op, token, &segments, state, token_out).unwrap();
            }
        }
    }
}

fn segment(rows: usize, position: usize, recurrence: Recurrence) -> Segment<'static> {
    Segment { slot: SlotId(0), first_row: 0, rows, position, recurrence, blocks: &[] }
}

fn thread_counts() -> Vec<usize> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores > 1 { vec![1, cores] } else { vec![1] }
}

#[divan::bench(sample_count = 5, sample_size = 1, args = thread_counts())]
fn chunked(bencher: Bencher<'_, '_>, threads: usize) {
    let mut layers = Layers::new(threads);
    bencher
        .counter(ItemsCount::new(TOKENS * LAYERS))
        .bench_local(|| layers.together(Recurrence::Chunked));
}

#[divan::bench(sample_count = 5, sample_size = 1, args = thread_counts())]
fn one_token_form(bencher: Bencher<'_, '_>, threads: usize) {
    let mut layers = Layers::new(threads);
    bencher.counter(ItemsCount::new(TOKENS * LAYERS)).bench_local(|| layers.one_by_one());
}

#[divan::bench(sample_count = 5, sample_size = 1, args = thread_counts())]
fn one_token_form_in_cache(bencher: Bencher<'_, '_>, threads: usize) {
    let mut layers = Layers::new(threads);
    bencher
        .counter(ItemsCount::new(TOKENS * LAYERS))
        .bench_local(|| layers.together(Recurrence::Stepwise));
}

#[divan::bench(sample_count = 10, sample_size = 1, args = thread_counts())]
fn sequences_16(bencher: Bencher<'_, '_>, threads: usize) {
    const SMALL: LinearShape = LinearShape { value_heads: 16, ..SHAPE };
    const SEQUENCES: usize = 16;
    let Layers { device, .. } = Layers::new(threads);
    let numbers = |rows: usize, cols| device.upload(&vec![0.1; rows * cols], cols).unwrap();
    let projection = numbers(SEQUENCES, SMALL.projection());
    let (conv, norm) = (numbers(SMALL.channels(), SMALL.kernel), numbers(1, SMALL.value_dim));
    let (decay, dt_bias) = (numbers(1, SMALL.value_heads), numbers(1, SMALL.value_heads));
    let mut state = device.recurrent_state(SMALL, LAYERS, SEQUENCES).unwrap();
    let mut out = device.tensor(SEQUENCES, SMALL.value_heads * SMALL.value_dim).unwrap();
    let segments: Vec<Segment<'_>> = (0..SEQUENCES)
        .map(|i| Segment {
            slot: SlotId(i as u32),
            first_row: i,
            ..segment(1, 100, Recurrence::Stepwise)
        })
        .collect();
    let bytes = 2 * SEQUENCES * LAYERS * SMALL.state_bytes() as usize;
    bencher.counter(BytesCount::new(bytes)).bench_local(|| {
        for layer in 0..LAYERS {
            let (conv, decay, dt_bias, norm) = (&conv, &decay, &dt_bias, &norm);
            let op = LinearAttention { shape: SMALL, layer, conv, decay, dt_bias, norm, eps: 1e-6 };
            device.linear_attention(&op, &projection, &segments, &mut state, &mut out).unwrap();
        }
    });
}

fn main() {
    divan::main();
}
