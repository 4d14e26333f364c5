//! Merging counted: calls, matrix products, bytes of weights, query-key pairs, rows of the head.

use libtest_mimic::Trial;
use pocket_actors::EngineHandle;
use pocket_actors::api::{EngineOptions, GenerateRequest};

use crate::heard::{ask_all, metric};
use crate::rig::{crowded, flags, greedy, shutdown, start, test};

pub fn tests() -> Vec<Trial> {
    vec![
        test("a merged wave is one call and the same pairs t2", a_wave_is_one_call),
        test("calls follow the tokens and not the requests t3 t5 t8", calls_follow_the_tokens),
        test("the head computes the rows a token is chosen from", the_head_computes_few_rows),
    ]
}

/// Layers of tiny-tied with keys and values.
const FULL: f64 = 2.0;
/// Rows that go through the head at a time.
const HEAD_ROWS: usize = 32;

/// What the engine has done.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Done {
    prefill_calls: f64,
    decode_calls: f64,
    rows: f64,
    gemm_calls: f64,
    weight_bytes: f64,
    query_key_pairs: f64,
}

impl Done {
    fn so_far(handle: &EngineHandle) -> Self {
        let of = |series: &str| metric(handle, series);
        Self {
            prefill_calls: of("pocket_forward_calls_total{kind=\"prefill\"}"),
            decode_calls: of("pocket_forward_calls_total{kind=\"decode\"}"),
            rows: of("pocket_rows_per_call_sum"),
            gemm_calls: of("pocket_gemm_calls_total"),
            weight_bytes: of("pocket_weight_bytes_read_total"),
            query_key_pairs: of("pocket_query_key_pairs_total"),
        }
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            prefill_calls: self.prefill_calls - earlier.prefill_calls,
            decode_calls: self.decode_calls - earlier.decode_calls,
            rows: self.rows - earlier.rows,
            gemm_calls: self.gemm_calls - earlier.gemm_calls,
            weight_bytes: self.weight_bytes - earlier.weight_bytes,
            query_key_pairs: self.query_key_pairs - earlier.query_key_pairs,
        }
    }
}

/// One token each for prompts of these lengths.
fn wave(lengths: &[usize]) -> Vec<GenerateRequest> {
    let request = |(index, tokens): (usize, &usize)| {
        let prompt: Vec<u32> = (0..*tokens).map(|at| (at * 31 + index * 17) as u32 % 640).collect();
        greedy(&format!("r{index}"), &prompt, 1)
    };
    lengths.iter().enumerate().map(request).collect()
}

/// What it takes to answer requests that arrive together.
async fn work(handle: &EngineHandle, requests: Vec<GenerateRequest>) -> Done {
    let before = Done::so_far(handle);
    ask_all(handle, requests).await;
    Done::so_far(handle).since(before)
}

async fn a_wave_is_one_call() {
    let mut waves = vec![];
    for merge in ["1", "0"] {
        let flags = flags(&[("POCKET_PREFILL_MERGE", merge)]);
        let engine = start(EngineOptions { flags, ..crowded("tiny-tied", 2) }).await;
        let handle = engine.handle();
        let one = work(&handle, wave(&[64])).await;
        assert_eq!(one.query_key_pairs, FULL * 64.0 * 65.0 / 2.0);
        waves.push((one, work(&handle, wave(&[64; 8])).await));
        shutdown(engine).await;
    }
    let [(one, merged), (one_serial, serial)] = waves[..] else { panic!() };
    assert_eq!(one_serial, one);
    // The weights are read once for all.
    let rows = one.rows * 8.0;
    assert_eq!(merged, Done { rows, query_key_pairs: one.query_key_pairs * 8.0, ..one });
    let times = |what: f64| what * 8.0;
    let eightfold = Done {
        prefill_calls: times(one.prefill_calls),
        decode_calls: 0.0,
        rows,
        gemm_calls: times(one.gemm_calls),
        weight_bytes: times(one.weight_bytes),
        query_key_pairs: times(one.query_key_pairs),
    };
    assert_eq!(serial, eightfold);
}

async fn calls_follow_the_tokens() {
    let options =
        |budget| EngineOptions { max_num_batched_tokens: budget, ..crowded("tiny-tied", 2) };
    let engine = start(options(512)).await;
    let handle = engine.handle();
    let done = work(&handle, wave(&[64; 32])).await;
    assert_eq!((done.prefill_calls, done.rows), (4.0, 32.0 * 64.0), "as many as 2048 tokens make");
    // Short tails share a call, whatever their number.
    let tails: Vec<usize> = (1..=30).collect();
    let done = work(&handle, wave(&tails)).await;
    assert_eq!((done.prefill_calls, done.rows), (1.0, 465.0));
    shutdown(engine).await;

    // A block and a token each, and what is left: the call is full to the last row.
    let engine = start(options(320)).await;
    let done = work(&engine.handle(), wave(&[65, 65, 65, 65, 60])).await;
    assert_eq!((done.prefill_calls, done.rows), (1.0, 320.0));
    shutdown(engine).await;

    // Those who have their prompts computed share every later call too.
    let engine = start(options(512)).await;
    let mut requests = wave(&[9; 20]);
    for request in &mut requests {
        request.max_tokens = Some(6);
    }
    let done = work(&engine.handle(), requests).await;
    assert_eq!((done.prefill_calls, done.decode_calls), (1.0, 5.0));
    assert_eq!(done.rows, 20.0 * (9.0 + 5.0));
    shutdown(engine).await;
}

async fn the_head_computes_few_rows() {
    let options = EngineOptions { max_num_batched_tokens: 64, ..crowded("tiny-tied", 2) };
    let engine = start(options).await;
    let handle = engine.handle();
    let one = work(&handle, wave(&[64])).await;
    let two = work(&handle, wave(&[128])).await;
    let three = work(&handle, wave(&[192])).await;
    // A piece after which no token is chosen does without the head: one product less, and its bytes.
    assert_eq!(two.gemm_calls, 2.0 * one.gemm_calls - 1.0);
    assert_eq!(three.gemm_calls, 3.0 * one.gemm_calls - 2.0);
    let head = 2.0 * one.weight_bytes - two.weight_bytes;
    assert_eq!(three.weight_bytes, 3.0 * one.weight_bytes - 2.0 * head);
    // A rank's half of the vocabulary, of 96 inputs of two bytes.
    assert_eq!(head, 640.0 / 2.0 * 96.0 * 2.0);
    // Every row of a prompt whose log-probabilities are wanted goes through it.
    let mut rated = wave(&[64]);
    rated[0].prompt_logprobs = Some(0);
    assert_eq!(work(&handle, rated).await.gemm_calls, one.gemm_calls + 1.0);
    shutdown(engine).await;

    // Many prompts in a call: their last rows, so many at a time.
    let engine = start(crowded("tiny-tied", 2)).await;
    let handle = engine.handle();
    for (prompts, products) in [(HEAD_ROWS, 0.0), (HEAD_ROWS + 1, 1.0)] {
        let done = work(&handle, wave(&vec![3; prompts])).await;
        assert_eq!(done.prefill_calls, 1.0);
        assert_eq!(done.gemm_calls, one.gemm_calls + products, "{prompts} prompts");
    }
    shutdown(engine).await;
}
