//! The mixer against its formulas in float64, and against itself under every way to cut and merge.

mod forks;

use proptest::prelude::*;

use super::linear_attention;
use crate::cpu::testing::{Numbers, bits, device, devices, relative_error};
use crate::cpu::{CpuDevice, CpuRecurrentState, CpuTensor, Simd};
use crate::{
    DeviceError, DeviceTensor, LinearAttention, LinearShape, RECURRENCE_CHUNK, Recurrence, Segment,
    SlotId,
};

/// Odd sizes, several value heads a key head.
const SMALL: LinearShape =
    LinearShape { key_heads: 2, value_heads: 6, key_dim: 12, value_dim: 20, kernel: 4 };
/// The sizes of trained models.
const TRAINED: LinearShape =
    LinearShape { key_heads: 1, value_heads: 1, key_dim: 128, value_dim: 128, kernel: 4 };
const LAYERS: usize = 2;

struct Layer {
    shape: LinearShape,
    conv: CpuTensor,
    decay: CpuTensor,
    dt_bias: CpuTensor,
    norm: CpuTensor,
}

impl Layer {
    fn new(shape: LinearShape, seed: u64) -> Layer {
        let mut numbers = Numbers(seed);
        Layer {
            shape,
            conv: numbers.tensor(shape.channels(), shape.kernel, -0.6, 0.6),
            decay: numbers.tensor(1, shape.value_heads, -1.5, -0.01),
            dt_bias: numbers.tensor(1, shape.value_heads, -4.0, 1.0),
            norm: numbers.tensor(1, shape.value_dim, 0.5, 1.5),
        }
    }

    fn op(&self, layer: usize) -> LinearAttention<'_, CpuDevice> {
        let Layer { shape, conv, decay, dt_bias, norm } = self;
        LinearAttention { shape: *shape, layer, conv, decay, dt_bias, norm, eps: 1e-6 }
    }

    fn width(&self) -> usize {
        self.shape.value_heads * self.shape.value_dim
    }

    /// What the mixer computes, token by token, in float64.
    fn expected(&self, projection: &[f32]) -> Expected {
        let LinearShape { key_heads, value_heads, key_dim, value_dim, kernel } = self.shape;
        let channels = self.shape.channels();
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let rows: Vec<Vec<f64>> = projection
            .chunks(self.shape.projection())
            .map(|row| row.iter().map(|&x| f64::from(x)).collect())
            .collect();
        let (mut out, mut sizes) = (Vec::new(), Vec::new());
        let mut states = vec![vec![0.0f64; key_dim * value_dim]; value_heads];
        for (t, row) in rows.iter().enumerate() {
            let mixed: Vec<f64> = (0..channels)
                .map(|c| {
                    let taps = self.conv.row(c).iter().enumerate();
                    let sum: f64 = taps
                        .filter(|(tap, _)| t + tap + 1 >= kernel)
                        .map(|(tap, &w)| f64::from(w) * rows[t + tap + 1 - kernel][c])
                        .sum();
                    sum * sigmoid(sum)
                })
                .collect();
            for (head, state) in states.iter_mut().enumerate() {
                let key_head = head / (value_heads / key_heads);
                let unit = |x: &[f64]| -> Vec<f64> {
                    let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                    x.iter().map(|x| x / norm).collect()
                };
                let q = unit(&mixed[key_head * key_dim..][..key_dim]);
                let q: Vec<f64> = q.iter().map(|x| x / (key_dim as f64).sqrt()).collect();
                let k = unit(&mixed[(key_heads + key_head) * key_dim..][..key_dim]);
                let v = &mixed[2 * key_heads * key_dim + head * value_dim..][..value_dim];
                let z = &row[channels + head * value_dim..][..value_dim];
                let b = row[channels + value_heads * value_dim + head];
                let a = row[channels + value_heads * value_dim + value_heads + head];
                let softplus = (a + f64::from(self.dt_bias.row(0)[head])).exp().ln_1p();
                let keep = (f64::from(self.decay.row(0)[head]) * softplus).exp();
                state.iter_mut().for_each(|s| *s *= keep);
                let read = |state: &[f64], x: &[f64]| -> Vec<f64> {
                    (0..value_dim)
                        .map(|j| (0..key_dim).map(|i| state[i * value_dim + j] * x[i]).sum())
                        .collect()
                };
                let held = read(state, &k);
                let d: Vec<f64> = v.iter().zip(held).map(|(v, h)| (v - h) * sigmoid(b)).collect();
                for (s, (k, d)) in
                    state.iter_mut().zip(k.iter().flat_map(|k| d.iter().map(move |d| (k, d))))
                {
                    *s += k * d;
                }
                let o = read(state, &q);
                let mean = o.iter().map(|x| x * x).sum::<f64>() / value_dim as f64;
                sizes.push(mean.sqrt());
                let weight = self.norm.row(0);
                out.extend((0..value_dim).map(|j| {
                    f64::from(weight[j]) * o[j] / (mean + 1e-6).sqrt() * z[j] * sigmoid(z[j])
                }));
            }
        }
        Expected { out, sizes, states }
    }
}

/// See [`Layer::expected`].
struct Expected {
    out: Vec<f64>,
    /// Root mean square of each token's and value head's output before the gated norm.
    sizes: Vec<f64>,
    /// Last state of each value head, `[key_dim, value_dim]`.
    states: Vec<Vec<f64>>,
}

/// A sequence: a prompt, then tokens that were generated.
#[derive(Clone, Debug)]
struct Sequence {
    prompt: usize,
    generated: usize,
    projection: Vec<f32>,
}

impl Sequence {
    fn new(shape: &LinearShape, prompt: usize, generated: usize, seed: u64) -> Sequence {
        let count = (prompt + generated) * shape.projection();
        Sequence { prompt, generated, projection: Numbers(seed).take(count, -2.0, 2.0) }
    }

    fn rows(&self) -> usize {
        self.prompt + self.generated
    }
}

/// Runs sequences through steps, each a list of (sequence, rows it advances by); sequence `i` lives in
/// slot `slots[i]`. Returns all outputs of each sequence.
fn run(
    device: &CpuDevice,
    layer: &Layer,
    state: &mut CpuRecurrentState,
    sequences: &[Sequence],
    slots: &[u32],
    steps: &[Vec<(usize, usize)>],
) -> Vec<Vec<f32>> {
    let cols = layer.shape.projection();
    let mut done = vec![0; sequences.len()];
    let mut outputs = vec![Vec::new(); sequences.len()];
    for step in steps {
        let (mut segments, mut projection, mut first_row) = (Vec::new(), Vec::new(), 0);
        for &(index, rows) in step {
            let (sequence, start) = (&sequences[index], done[index]);
            done[index] += rows;
            projection.extend(&sequence.projection[start * cols..done[index] * cols]);
            let cut = sequence.prompt.clamp(start, done[index]);
            for (from, to, recurrence) in
                [(start, cut, Recurrence::Chunked), (cut, done[index], Recurrence::Stepwise)]
            {
                if from < to {
                    let slot = SlotId(slots[index]);
                    let rows = to - from;
                    segments.push(Segment {
                        slot,
                        first_row,
                        rows,
                        position: from,
                        recurrence,
                        blocks: &[],
                    });
                    first_row += rows;
                }
            }
        }
        let projection = CpuTensor::from_slice(&projection, cols).unwrap();
        let mut out = CpuTensor::zeroed(first_row, layer.width()).unwrap();
        linear_attention(device, &layer.op(1), &projection, &segments, state, &mut out).unwrap();
        let mut rest = out.as_slice();
        for &(index, rows) in step {
            let (rows, after) = rest.split_at(rows * layer.width());
            outputs[index].extend_from_slice(rows);
            rest = after;
        }
    }
    outputs
}

/// A sequence alone, in one call.
fn alone(device: &CpuDevice, layer: &Layer, sequence: &Sequence) -> (Vec<f32>, CpuRecurrentState) {
    let mut state = CpuRecurrentState::new(layer.shape, LAYERS, 1).unwrap();
    let steps = [vec![(0, sequence.rows())]];
    let outputs = run(device, layer, &mut state, std::slice::from_ref(sequence), &[0], &steps);
    (outputs.into_iter().next().unwrap(), state)
}

fn state_of(state: &CpuRecurrentState, head: usize) -> Vec<f32> {
    let shape = state.shape();
    let matrix = &state.matrices.as_slice()[state.layout().matrix(SlotId(0), 1, head)];
    let strip = state.layout().strip_len();
    (0..shape.key_dim * shape.value_dim)
        .map(|i| (i / shape.value_dim, i % shape.value_dim))
        .map(|(row, col)| matrix[col / 16 * strip + row * 16 + col % 16])
        .collect()
}

#[test]
fn both_forms_compute_the_formulas() {
    let one_key = LinearShape { key_heads: 1, value_heads: 1, key_dim: 1, value_dim: 1, kernel: 1 };
    let shapes =
        [(SMALL, 150), (TRAINED, 300), (one_key, 70), (LinearShape { kernel: 2, ..SMALL }, 3)];
    for (shape, rows) in shapes {
        let layer = Layer::new(shape, 1);
        for (prompt, form) in [(rows, "chunked"), (0, "stepwise"), (rows / 2, "both")] {
            let sequence = Sequence::new(&shape, prompt, rows - prompt, 2);
            let Expected { out: expected, states, .. } = layer.expected(&sequence.projection);
            let (found, state) = alone(&device(1, Simd::detect()), &layer, &sequence);
            for (t, (found, expected)) in
                found.chunks(layer.width()).zip(expected.chunks(layer.width())).enumerate()
            {
                let error = relative_error(found, expected);
                assert!(error < 1e-5, "{shape:?} {form}, token {t}: {error:e}");
            }
            for (head, expected) in states.iter().enumerate() {
                let error = relative_error(&state_of(&state, head), expected);
                assert!(error < 1e-5, "{shape:?} {form}, state of head {head}: {error:e}");
            }
        }
    }
}

/// Decays from none to a state wiped out at each token, mixed, over many chunks.
#[test]
fn no_decay_and_no_length_breaks_the_chunked_form() {
    let shape = LinearShape { value_heads: 4, key_heads: 2, ..TRAINED };
    for (strongest, weakest) in [(-1e-4, -1e-7), (-0.5, -0.01), (-60.0, -0.001), (-200.0, -20.0)] {
        let mut layer = Layer::new(shape, 3);
        layer.decay = Numbers(4).tensor(1, shape.value_heads, strongest, weakest);
        let sequence = Sequence::new(&shape, 1500, 0, 5);
        let Expected { out: expected, sizes, states } = layer.expected(&sequence.projection);
        let largest = sizes.iter().copied().fold(0.0, f64::max);
        for (prompt, form) in [(1500, "chunked"), (0, "stepwise")] {
            let sequence = Sequence { prompt, generated: 1500 - prompt, ..sequence.clone() };
            let (found, state) = alone(&device(2, Simd::detect()), &layer, &sequence);
            // The gated norm blows up outputs that are next to nothing, rounding errors with them:
            // what counts is the error before it.
            let worst = (found.chunks(shape.value_dim).zip(expected.chunks(shape.value_dim)))
                .zip(&sizes)
                .map(|((found, expected), size)| relative_error(found, expected) * size / largest)
                .fold(0.0, f64::max);
            assert!(worst < 1e-5, "{form} with decays {strongest}..{weakest}: {worst:e}");
            for (head, expected) in states.iter().enumerate() {
                let error = relative_error(&state_of(&state, head), expected);
                assert!(
                    error < 1e-5,
                    "{form} with decays {strongest}..{weakest}, state: {error:e}"
                );
            }
        }
    }
}

#[test]
fn the_two_forms_differ_in_bits() {
    let layer = Layer::new(TRAINED, 6);
    let device = device(1, Simd::detect());
    let chunked = Sequence::new(&TRAINED, 512, 0, 7);
    let stepwise = Sequence { prompt: 0, generated: 512, ..chunked.clone() };
    let (chunked, _) = alone(&device, &layer, &chunked);
    let (stepwise, _) = alone(&device, &layer, &stepwise);
    let differing = chunked.iter().zip(&stepwise).filter(|(a, b)| a.to_bits() != b.to_bits());
    let share = differing.count() as f64 / chunked.len() as f64;
    assert!(share > 0.5, "only {share} of the outputs differ: are both forms real?");
    let stepwise: Vec<f64> = stepwise.into_iter().map(f64::from).collect();
    assert!(relative_error(&chunked, &stepwise) < 1e-5);
}

#[test]
fn threads_and_instructions_do_not_change_a_bit() {
    for (shape, prompt, generated) in [(SMALL, 200, 9), (TRAINED, 100, 3)] {
        let layer = Layer::new(shape, 8);
        let sequence = Sequence::new(&shape, prompt, generated, 9);
        let results: Vec<_> = devices()
            .iter()
            .map(|device| {
                let (out, state) = alone(device, &layer, &sequence);
                (bits(&out), bits(state.matrices.as_slice()), bits(state.history.as_slice()))
            })
            .collect();
        for other in &results[1..] {
            assert!(*other == results[0], "{shape:?}");
        }
    }
}

/// A schedule: each step takes from each sequence nothing, some whole chunks, what is left of the
/// prompt with some of the generated tokens, or some of the generated tokens.
fn schedule(sequences: &[Sequence], numbers: &mut Numbers) -> Vec<Vec<(usize, usize)>> {
    let mut done = vec![0; sequences.len()];
    let mut steps = Vec::new();
    while done.iter().zip(sequences).any(|(done, sequence)| *done < sequence.rows()) {
        let mut step = Vec::new();
        for (index, sequence) in sequences.iter().enumerate() {
            let left_of_prompt = sequence.prompt.saturating_sub(done[index]);
            let chunks = left_of_prompt / RECURRENCE_CHUNK;
            let some = 1 + numbers.below(3);
            let rows = match numbers.below(4) {
                0 => 0,
                1 if chunks > 0 => (1 + numbers.below(chunks)) * RECURRENCE_CHUNK,
                _ => (left_of_prompt + some - 1).min(sequence.rows() - done[index]),
            };
            if rows > 0 {
                step.push((index, rows));
                done[index] += rows;
            }
        }
        if !step.is_empty() {
            // Company in any order.
            let turn = numbers.below(step.len());
            step.rotate_left(turn);
            steps.push(step);
        }
    }
    steps
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn neither_cuts_nor_company_change_a_bit(
        sizes in prop::collection::vec((0usize..300, 0usize..6), 1..5),
        seed: u64,
        threads in 1usize..4,
    ) {
        let layer = Layer::new(SMALL, seed);
        let mut numbers = Numbers(seed);
        let sequences: Vec<Sequence> = sizes
            .iter()
            .enumerate()
            .filter(|(_, (prompt, generated))| prompt + generated > 0)
            .map(|(i, &(prompt, generated))| Sequence::new(&SMALL, prompt, generated, seed ^ i as u64))
            .collect();
        let steps = schedule(&sequences, &mut numbers);
        let count = sequences.len() as u32;
        let slots: Vec<u32> = (0..count).map(|i| (i + 1) % count.max(1)).collect();
        let device = device(threads, Simd::detect());
        let mut state = CpuRecurrentState::new(SMALL, LAYERS, sequences.len()).unwrap();
        // What the slots held before must not matter.
        state.matrices.as_mut_slice().fill(f32::NAN);
        state.history.as_mut_slice().fill(f32::NAN);
        let together = run(&device, &layer, &mut state, &sequences, &slots, &steps);
        for (i, sequence) in sequences.iter().enumerate() {
            let (expected, _) = alone(&device, &layer, sequence);
            prop_assert!(bits(&together[i]) == bits(&expected), "sequence {} in {:?}", i, steps);
        }
    }
}

#[test]
fn a_prompt_cut_at_64_and_128_has_the_bits_of_the_whole() {
    let layer = Layer::new(TRAINED, 10);
    let device = device(2, Simd::detect());
    let sequence = Sequence::new(&TRAINED, 300, 0, 11);
    let (whole, whole_state) = alone(&device, &layer, &sequence);
    for cut in [64, 128] {
        let mut steps = vec![vec![(0, cut)]; 300 / cut];
        steps.push(vec![(0, 300 % cut)]);
        let mut state = CpuRecurrentState::new(TRAINED, LAYERS, 1).unwrap();
        let pieces =
            run(&device, &layer, &mut state, std::slice::from_ref(&sequence), &[0], &steps);
        assert!(bits(&pieces[0]) == bits(&whole), "cut at {cut}");
        assert!(bits(state.matrices.as_slice()) == bits(whole_state.matrices.as_slice()));
        assert!(bits(state.history.as_slice()) == bits(whole_state.history.as_slice()));
    }
}

#[test]
fn nothing_that_is_no_number_travels_back_in_time_or_to_a_neighbour() {
    let layer = Layer::new(SMALL, 12);
    let device = device(1, Simd::detect());
    for prompt in [100, 0] {
        let clean = Sequence::new(&SMALL, prompt, 100 - prompt, 13);
        let (expected, _) = alone(&device, &layer, &clean);
        let mut broken = clean.clone();
        broken.projection[70 * SMALL.projection()..].fill(f32::NAN);
        let mut state = CpuRecurrentState::new(SMALL, LAYERS, 2).unwrap();
        let steps = [vec![(0, 100), (1, 100)]];
        let found = run(&device, &layer, &mut state, &[broken, clean], &[1, 0], &steps);
        let before = 70 * layer.width();
        assert!(bits(&found[0][..before]) == bits(&expected[..before]));
        assert!(found[0][before..].iter().all(|x| x.is_nan()));
        assert!(bits(&found[1]) == bits(&expected));
        // And the slot is clean again for whoever starts in it.
        let clean = Sequence::new(&SMALL, prompt, 100 - prompt, 13);
        let again = run(&device, &layer, &mut state, &[clean], &[1], &[vec![(0, 100)]]);
        assert!(bits(&again[0]) == bits(&expected));
    }
}

#[test]
fn the_layer_is_the_one_asked_for() {
    let layer = Layer::new(SMALL, 14);
    let sequence = Sequence::new(&SMALL, 65, 1, 15);
    let (_, state) = alone(&device(1, Simd::detect()), &layer, &sequence);
    let (layout, slot) = (state.layout(), SlotId(0));
    assert!(state.history.as_slice()[layout.history(slot, 0)].iter().all(|&x| x == 0.0));
    for head in 0..SMALL.value_heads {
        assert!(state.matrices.as_slice()[layout.matrix(slot, 0, head)].iter().all(|&x| x == 0.0));
    }
    // The history is what the last rows were before the convolution.
    let cols = SMALL.projection();
    let kept: Vec<f32> = (63..66)
        .flat_map(|row| &sequence.projection[row * cols..][..SMALL.channels()])
        .copied()
        .collect();
    assert_eq!(state.history.as_slice()[layout.history(slot, 1)], kept);
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let layer = Layer::new(SMALL, 16);
    let device = device(1, Simd::detect());
    let mut state = CpuRecurrentState::new(SMALL, LAYERS, 1).unwrap();
    let projection = CpuTensor::zeroed(2, SMALL.projection()).unwrap();
    let mut out = CpuTensor::zeroed(2, layer.width()).unwrap();
    let segments = [Segment {
        slot: SlotId(0),
        first_row: 0,
        rows: 2,
        position: 0,
        recurrence: Recurrence::Chunked,
        blocks: &[],
    }];
    let tensor = |rows, cols| CpuTensor::zeroed(rows, cols).unwrap();
    let mut refused = |op: &LinearAttention<'_, CpuDevice>,
                       projection: &CpuTensor,
                       out: &mut CpuTensor| {
        let error =
            linear_attention(&device, op, projection, &segments, &mut state, out).err().unwrap();
        assert!(matches!(error, DeviceError::Shape { op: "linear_attention", .. }), "{error}");
        error.to_string()
    };
    let op = layer.op(1);
    assert!(
        refused(&layer.op(2), &projection, &mut out).contains("the state is for another shape")
    );
    let other = LinearShape { kernel: 3, ..SMALL };
    let wrong = LinearAttention { shape: other, ..layer.op(0) };
    assert!(refused(&wrong, &projection, &mut out).contains("the state is for another shape"));
    let wrong = LinearAttention { shape: LinearShape { key_heads: 4, ..SMALL }, ..layer.op(0) };
    assert!(refused(&wrong, &projection, &mut out).contains("do not divide"));
    let wrong = LinearAttention { shape: LinearShape { kernel: 0, ..SMALL }, ..layer.op(0) };
    assert!(refused(&wrong, &projection, &mut out).contains("a dimension is zero"));
    assert!(refused(&op, &tensor(2, 7), &mut out).contains("the projection has another width"));
    assert!(refused(&op, &projection, &mut tensor(1, layer.width())).contains("the output"));
    let bad = tensor(1, 3);
    assert!(
        refused(&LinearAttention { conv: &bad, ..layer.op(0) }, &projection, &mut out)
            .contains("taps")
    );
    for wrong in [
        LinearAttention { decay: &bad, ..layer.op(0) },
        LinearAttention { dt_bias: &bad, ..layer.op(0) },
    ] {
        assert!(refused(&wrong, &projection, &mut out).contains("decay parameters"));
    }
    assert!(
        refused(&LinearAttention { norm: &bad, ..layer.op(0) }, &projection, &mut out)
            .contains("norm")
    );
    // Nothing to do is fine, and a refusal leaves the device usable.
    let (mut none, empty) = (tensor(0, layer.width()), tensor(0, SMALL.projection()));
    linear_attention(&device, &op, &empty, &[], &mut state, &mut none).unwrap();
    linear_attention(&device, &op, &projection, &segments, &mut state, &mut out).unwrap();
    assert_eq!(out.rows(), 2);
}
