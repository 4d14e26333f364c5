//! Attention against its formulas in float64, and against itself under every way to cut and merge.

mod bf16;
mod sharing;

use proptest::prelude::*;

use super::full_attention;
use crate::cpu::rotary::rotary;
use crate::cpu::testing::{Numbers, bits, device, devices, relative_error};
use crate::cpu::{CpuDevice, CpuKvCache, CpuTensor, Simd};
use crate::{
    AttentionShape, BlockId, DeviceError, DeviceTensor, FullAttention, KV_BLOCK_TOKENS, KvDtype,
    KvShape, Recurrence, Segment, SlotId,
};

/// Odd sizes, several query heads a key/value head.
const SMALL: AttentionShape =
    AttentionShape { heads: 6, kv_heads: 2, head_dim: 20, rotary_dim: 10, eps: 1e-6 };
/// The sizes of trained models.
const TRAINED: AttentionShape =
    AttentionShape { heads: 4, kv_heads: 1, head_dim: 256, rotary_dim: 64, eps: 1e-6 };
const LAYERS: usize = 2;

struct Layer {
    shape: AttentionShape,
    q_norm: CpuTensor,
    k_norm: CpuTensor,
    frequencies: Vec<f32>,
    dtype: KvDtype,
}

impl Layer {
    fn new(shape: AttentionShape, seed: u64) -> Layer {
        let mut numbers = Numbers(seed);
        let half = shape.rotary_dim / 2;
        Layer {
            shape,
            q_norm: numbers.tensor(1, shape.head_dim, 0.5, 2.5),
            k_norm: numbers.tensor(1, shape.head_dim, 0.5, 2.5),
            frequencies: (0..half).map(|j| 1e7f32.powf(-(j as f32) / half as f32)).collect(),
            dtype: KvDtype::Float32,
        }
    }

    fn width(&self) -> usize {
        self.shape.heads * self.shape.head_dim
    }

    fn cache(&self, blocks: usize) -> CpuKvCache {
        let AttentionShape { kv_heads, head_dim, .. } = self.shape;
        let (layers, dtype) = (LAYERS, self.dtype);
        CpuKvCache::new(KvShape { layers, kv_heads, head_dim, blocks, dtype }).unwrap()
    }

    /// One step of any segments.
    fn step(
        &self,
        device: &CpuDevice,
        qkv: &CpuTensor,
        segments: &[Segment<'_>],
        cache: &mut CpuKvCache,
    ) -> CpuTensor {
        let mut table = CpuTensor::zeroed(qkv.rows(), self.shape.rotary_dim).unwrap();
        rotary(device, segments, &self.frequencies, &mut table).unwrap();
        let Layer { shape, q_norm, k_norm, .. } = self;
        let op = FullAttention { shape: *shape, layer: 1, q_norm, k_norm, rotary: &table };
        let mut out = CpuTensor::zeroed(qkv.rows(), self.width()).unwrap();
        full_attention(device, &op, qkv, segments, cache, &mut out).unwrap();
        out
    }

    /// What the mixer computes, query by query, in float64.
    fn expected(&self, qkv: &[f32]) -> Vec<f64> {
        let AttentionShape { heads, kv_heads, head_dim, rotary_dim, eps } = self.shape;
        let rows: Vec<&[f32]> = qkv.chunks(self.shape.projection()).collect();
        let prepare = |x: &[f32], weight: &CpuTensor, position: usize| -> Vec<f64> {
            let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
            let mean = x.iter().map(|x| x * x).sum::<f64>() / head_dim as f64;
            let weights = weight.row(0).iter().map(|&w| f64::from(w));
            let x: Vec<f64> = x
                .iter()
                .zip(weights)
                .map(|(x, w)| x / (mean + f64::from(eps)).sqrt() * w)
                .collect();
            let mut rotated = x.clone();
            let half = rotary_dim / 2;
            for (i, frequency) in self.frequencies.iter().enumerate() {
                let (sine, cosine) = f64::from(position as f32 * frequency).sin_cos();
                rotated[i] = x[i] * cosine - x[i + half] * sine;
                rotated[i + half] = x[i + half] * cosine + x[i] * sine;
            }
            rotated
        };
        let mut out = Vec::new();
        for (t, row) in rows.iter().enumerate() {
            for head in 0..heads {
                let kv_head = head / (heads / kv_heads);
                let q = prepare(&row[2 * head * head_dim..][..head_dim], &self.q_norm, t);
                let key_at = (2 * heads + kv_head) * head_dim;
                let value_at = key_at + kv_heads * head_dim;
                let scores: Vec<f64> = (0..=t)
                    .map(|s| {
                        let k = prepare(&rows[s][key_at..][..head_dim], &self.k_norm, s);
                        let dot: f64 = q.iter().zip(&k).map(|(q, k)| q * k).sum();
                        dot / (head_dim as f64).sqrt()
                    })
                    .collect();
                let max = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let total: f64 = weights.iter().sum();
                out.extend((0..head_dim).map(|i| {
                    let gate = f64::from(row[(2 * head + 1) * head_dim + i]);
                    let values = rows.iter().map(|row| f64::from(row[value_at + i]));
                    let sum: f64 = weights.iter().zip(values).map(|(w, v)| w * v).sum();
                    sum / total / (1.0 + (-gate).exp())
                }));
            }
        }
        out
    }

    fn sequence(&self, rows: usize, seed: u64) -> Vec<f32> {
        Numbers(seed).take(rows * self.shape.projection(), -2.0, 2.0)
    }

    /// A sequence alone in one step, in blocks one after the other.
    fn alone(&self, device: &CpuDevice, qkv: &[f32]) -> Vec<f32> {
        let qkv = CpuTensor::from_slice(qkv, self.shape.projection()).unwrap();
        let blocks = blocks(0..qkv.rows().div_ceil(KV_BLOCK_TOKENS));
        let mut cache = self.cache(blocks.len());
        let segments = [segment(0, 0, qkv.rows(), 0, &blocks)];
        self.step(device, &qkv, &segments, &mut cache).as_slice().to_vec()
    }
}

fn blocks(ids: impl IntoIterator<Item = usize>) -> Vec<BlockId> {
    ids.into_iter().map(|id| BlockId(id as u32)).collect()
}

fn segment(
    slot: u32,
    first_row: usize,
    rows: usize,
    position: usize,
    blocks: &[BlockId],
) -> Segment<'_> {
    let recurrence = Recurrence::Stepwise;
    Segment { slot: SlotId(slot), first_row, rows, position, recurrence, blocks }
}

#[test]
fn attention_computes_the_formulas() {
    let tiny = AttentionShape { heads: 1, kv_heads: 1, head_dim: 1, rotary_dim: 0, eps: 1e-6 };
    // More query heads on one key/value head than a tile has rows.
    let wide = AttentionShape { heads: 30, kv_heads: 1, head_dim: 8, rotary_dim: 8, eps: 1e-6 };
    for (shape, rows) in [(SMALL, 200), (TRAINED, 130), (tiny, 70), (wide, 66)] {
        let layer = Layer::new(shape, 1);
        let qkv = layer.sequence(rows, 2);
        let expected = layer.expected(&qkv);
        let found = layer.alone(&device(1, Simd::detect()), &qkv);
        for (t, (found, expected)) in
            found.chunks(layer.width()).zip(expected.chunks(layer.width())).enumerate()
        {
            let error = relative_error(found, expected);
            assert!(error < 1e-5, "{shape:?}, position {t}: {error:e}");
        }
    }
}

#[test]
fn threads_and_instructions_do_not_change_a_bit() {
    let dtypes = [KvDtype::Float32, KvDtype::Bf16];
    let shapes = [(SMALL, 150), (TRAINED, 70)];
    for (dtype, (shape, rows)) in dtypes.into_iter().flat_map(|dtype| shapes.map(|s| (dtype, s))) {
        let layer = Layer { dtype, ..Layer::new(shape, 3) };
        let qkv = layer.sequence(rows, 4);
        let results: Vec<_> =
            devices().iter().map(|device| bits(&layer.alone(device, &qkv))).collect();
        assert!(results.iter().all(|result| *result == results[0]), "{shape:?}, {dtype}");
    }
}

#[test]
fn few_heads_spread_over_many_threads_with_the_same_bits() {
    let layer = Layer::new(TRAINED, 5);
    let qkv = layer.sequence(1, 6);
    let one = layer.alone(&device(1, Simd::detect()), &qkv);
    for threads in [2, 3, 4, 7] {
        assert_eq!(bits(&layer.alone(&device(threads, Simd::detect()), &qkv)), bits(&one));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Sequences advance by any number of rows a step, in company, through blocks dealt at random from
    /// a cache full of what is not a number.
    #[test]
    fn neither_cuts_nor_company_nor_blocks_change_a_bit(
        lengths in prop::collection::vec(1usize..200, 1..4),
        seed: u64,
        threads in 1usize..4,
        dtype in prop::sample::select(vec![KvDtype::Float32, KvDtype::Bf16]),
    ) {
        let layer = Layer { dtype, ..Layer::new(SMALL, seed) };
        let (device, cols) = (device(threads, Simd::detect()), SMALL.projection());
        let mut numbers = Numbers(seed);
        let sequences: Vec<Vec<f32>> =
            lengths.iter().enumerate().map(|(i, &rows)| layer.sequence(rows, seed ^ i as u64)).collect();
        let total = 4 * lengths.len() + 2;
        let mut ids: Vec<usize> = (0..total).collect();
        for i in (1..total).rev() {
            ids.swap(i, numbers.below(i + 1));
        }
        let own: Vec<Vec<BlockId>> =
            (0..lengths.len()).map(|i| blocks(ids[4 * i..4 * i + 4].iter().copied())).collect();
        let mut cache = layer.cache(total);
        cache.fill(None, f32::NAN);
        let mut done = vec![0; lengths.len()];
        let mut found = vec![Vec::new(); lengths.len()];
        while done != lengths {
            let (mut segments, mut qkv, mut taken) = (Vec::new(), Vec::new(), Vec::new());
            for i in 0..lengths.len() {
                let most = [1, 3, 70, 200][numbers.below(4)];
                let rows = numbers.below(most + 1).min(lengths[i] - done[i]);
                let first_row = qkv.len() / cols;
                segments.push(segment(i as u32, first_row, rows, done[i], &own[i]));
                qkv.extend(&sequences[i][done[i] * cols..(done[i] + rows) * cols]);
                taken.push(first_row..first_row + rows);
                done[i] += rows;
            }
            let qkv = CpuTensor::from_slice(&qkv, cols).unwrap();
            let out = layer.step(&device, &qkv, &segments, &mut cache);
            for (found, rows) in found.iter_mut().zip(taken) {
                rows.for_each(|row| found.extend_from_slice(out.row(row)));
            }
        }
        for (sequence, found) in sequences.iter().zip(&found) {
            prop_assert!(bits(found) == bits(&layer.alone(&device, sequence)));
        }
    }
}

#[test]
fn neighbouring_pieces_of_a_sequence_in_one_step_see_each_other() {
    let layer = Layer::new(SMALL, 7);
    let device = device(2, Simd::detect());
    let qkv = layer.sequence(100, 8);
    let own = blocks([1, 0]);
    let mut cache = layer.cache(2);
    let segments = [segment(0, 0, 70, 0, &own), segment(0, 70, 30, 70, &own)];
    let tensor = CpuTensor::from_slice(&qkv, SMALL.projection()).unwrap();
    let out = layer.step(&device, &tensor, &segments, &mut cache);
    assert!(bits(out.as_slice()) == bits(&layer.alone(&device, &qkv)));
}

#[test]
fn large_scores_neither_overflow_nor_lose_the_small_ones() {
    let mut layer = Layer::new(SMALL, 9);
    layer.q_norm = Numbers(10).tensor(1, SMALL.head_dim, 20.0, 30.0);
    layer.k_norm = Numbers(11).tensor(1, SMALL.head_dim, 20.0, 30.0);
    let qkv = layer.sequence(130, 12);
    let expected = layer.expected(&qkv);
    let found = layer.alone(&device(1, Simd::detect()), &qkv);
    assert!(found.iter().all(|x| x.is_finite()));
    // Scores in the thousands are exact to a few ten-thousandths, and so are the weights.
    assert!(relative_error(&found, &expected) < 2e-3);
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let layer = Layer::new(SMALL, 13);
    let device = device(1, Simd::detect());
    let tensor = |rows, cols| CpuTensor::zeroed(rows, cols).unwrap();
    let (qkv, table) = (tensor(2, SMALL.projection()), tensor(2, SMALL.rotary_dim));
    let mut cache = layer.cache(1);
    let mut out = tensor(2, layer.width());
    let own = blocks([0]);
    let op = |shape, layer_index| FullAttention {
        shape,
        layer: layer_index,
        q_norm: &layer.q_norm,
        k_norm: &layer.k_norm,
        rotary: &table,
    };
    let mut refused =
        |op: &FullAttention<'_, CpuDevice>, qkv: &CpuTensor, out: &mut CpuTensor, what: &str| {
            let segments = [segment(0, 0, 2, 0, &own)];
            let error = full_attention(&device, op, qkv, &segments, &mut cache, out).err().unwrap();
            assert!(matches!(error, DeviceError::Shape { op: "full_attention", .. }), "{error}");
            assert!(error.to_string().contains(what), "{error}");
        };
    refused(&op(AttentionShape { kv_heads: 4, ..SMALL }, 0), &qkv, &mut out, "do not divide");
    refused(&op(AttentionShape { kv_heads: 0, ..SMALL }, 0), &qkv, &mut out, "do not divide");
    refused(&op(AttentionShape { rotary_dim: 9, ..SMALL }, 0), &qkv, &mut out, "do not pair up");
    refused(&op(AttentionShape { rotary_dim: 22, ..SMALL }, 0), &qkv, &mut out, "do not pair up");
    refused(&op(AttentionShape { kv_heads: 3, ..SMALL }, 0), &qkv, &mut out, "another shape");
    refused(&op(SMALL, LAYERS), &qkv, &mut out, "another shape");
    refused(&op(SMALL, 0), &tensor(2, 9), &mut out, "another width");
    refused(&op(SMALL, 0), &qkv, &mut tensor(3, layer.width()), "another width");
    let short = tensor(1, 3);
    refused(&FullAttention { q_norm: &short, ..op(SMALL, 0) }, &qkv, &mut out, "norm weights");
    refused(&FullAttention { rotary: &short, ..op(SMALL, 0) }, &qkv, &mut out, "rotary table");
    // Nothing to do is fine, and a refusal leaves the cache usable.
    let segments = [segment(0, 0, 2, 0, &own)];
    full_attention(&device, &op(SMALL, 0), &qkv, &segments, &mut cache, &mut out).unwrap();
    let none = tensor(0, SMALL.rotary_dim);
    let nothing = FullAttention { rotary: &none, ..op(SMALL, 0) };
    let (empty, mut none) = (tensor(0, SMALL.projection()), tensor(0, layer.width()));
    full_attention(&device, &nothing, &empty, &[], &mut cache, &mut none).unwrap();
}
