//! The forward pass of one rank against logits and tokens of the reference implementation
//! (`tests/fixtures/*/expected.*`), and against itself cut differently. Several ranks are compared in
//! the end-to-end tests, over real processes.

// A failed expectation of a helper is a failed test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};

use pocket_collectives::SingleRank;
use pocket_device::KvDtype;
use pocket_device::cpu::{CpuDevice, CpuOptions};
use pocket_model::checkpoint::Checkpoint;
use pocket_model::forward::{
    ForwardError, ModelLimits, OutputRow, RankModel, RowResult, Step, StepSegment, Want,
};
use pocket_model::shard::Shard;
use safetensors::SafeTensors;

const CONTEXT: usize = 512;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

fn load(dir: &Path, threads: usize) -> RankModel<CpuDevice> {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let shard = Shard::new(checkpoint.config(), 0, 1).unwrap();
    let device = CpuDevice::new(CpuOptions { threads, ..CpuOptions::default() }).unwrap();
    let limits = ModelLimits {
        max_model_len: CONTEXT,
        max_rows: CONTEXT,
        slots: 3,
        kv_blocks: 3 * CONTEXT / 64,
        kv_dtype: KvDtype::Float32,
    };
    let mut seen = (0, 0);
    let model = RankModel::load(device, &checkpoint, &shard, limits, &mut |at, of| seen = (at, of))
        .unwrap();
    assert!(seen.0 == seen.1 && seen.1 > 0, "loading ended at {} of {} bytes", seen.0, seen.1);
    model
}

/// Blocks of a slot, scattered so that a wrong block table shows.
fn blocks(slot: u32) -> Vec<u32> {
    (0..(CONTEXT / 64) as u32).map(|block| block * 3 + slot).collect()
}

fn segment(slot: u32, tokens: &[u32], position: usize, generated: bool) -> StepSegment {
    StepSegment { slot, tokens: tokens.to_vec(), position, generated, blocks: blocks(slot) }
}

/// Logits of the wanted rows of one step.
fn run(
    model: &mut RankModel<CpuDevice>,
    segments: Vec<StepSegment>,
    rows: &[usize],
) -> Vec<Vec<f32>> {
    let outputs = rows.iter().map(|row| OutputRow { row: *row, want: Want::Logits }).collect();
    let step = Step { number: 1, segments, outputs, ..Step::default() };
    let mut found = Vec::new();
    model
        .forward(&step, &mut SingleRank, &(), &mut |index, result| {
            assert_eq!(index, found.len());
            match result {
                RowResult::Logits(logits) => found.push(logits.to_vec()),
                RowResult::Stats { .. } => unreachable!("only logits were wanted"),
            }
            Ok::<(), ForwardError>(())
        })
        .unwrap();
    found
}

/// Logits of every row of a prompt, cut into calls of `chunk` tokens.
fn prompt_logits(model: &mut RankModel<CpuDevice>, ids: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let mut logits = Vec::new();
    for (index, tokens) in ids.chunks(chunk).enumerate() {
        let rows: Vec<usize> = (0..tokens.len()).collect();
        logits.extend(run(model, vec![segment(0, tokens, index * chunk, false)], &rows));
    }
    logits
}

fn log_probability(logits: &[f32], id: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - max).exp()).sum();
    f64::from(logits[id as usize] - max) - sum.ln()
}

fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

fn first_bit_difference(left: &[Vec<f32>], right: &[Vec<f32>]) -> Option<String> {
    assert_eq!(left.len(), right.len());
    for (row, (a, b)) in left.iter().zip(right).enumerate() {
        for (id, (x, y)) in a.iter().zip(b).enumerate() {
            if x.to_bits() != y.to_bits() {
                return Some(format!("row {row}, id {id}: {x} and {y}"));
            }
        }
    }
    None
}

struct Case {
    ids: Vec<u32>,
    greedy: Vec<u32>,
    last_logits: Vec<f32>,
    logprobs: Vec<f32>,
}

fn cases(dir: &Path) -> Vec<Case> {
    let text = std::fs::read_to_string(dir.join("expected.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let bytes = std::fs::read(dir.join("expected.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let numbers = |name: String| -> Vec<f32> {
        let view = tensors.tensor(&name).unwrap();
        view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let ids = |value: &serde_json::Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    json["cases"]
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
        .map(|(index, case)| Case {
            ids: ids(&case["ids"]),
            greedy: ids(&case["greedy"]),
            last_logits: numbers(format!("logits_last.{index}")),
            logprobs: numbers(format!("prompt_logprobs.{index}")),
        })
        .collect()
}

fn agrees_with_reference(name: &str) {
    let dir = fixture(name);
    let mut model = load(&dir, 1);
    for (index, case) in cases(&dir).iter().enumerate() {
        let logits = prompt_logits(&mut model, &case.ids, 128);
        for (row, expected) in case.logprobs.iter().enumerate() {
            let found = log_probability(&logits[row], case.ids[row + 1]);
            let error = (found - f64::from(*expected)).abs();
            assert!(error < 2e-3, "{name} case {index} token {}: {found}, not {expected}", row + 1);
        }
        let last = logits.last().unwrap();
        for (id, (found, expected)) in last.iter().zip(&case.last_logits).enumerate() {
            let error = (found - expected).abs();
            assert!(error < 5e-3, "{name} case {index} logit {id}: {found}, not {expected}");
        }
        let mut found = vec![argmax(last)];
        while found.len() < case.greedy.len() {
            let position = case.ids.len() + found.len() - 1;
            let token = *found.last().unwrap();
            let logits = run(&mut model, vec![segment(0, &[token], position, true)], &[0]);
            found.push(argmax(&logits[0]));
        }
        assert_eq!(found, case.greedy, "{name} case {index}");
    }
}

#[test]
fn tied_checkpoint_agrees_with_reference() {
    agrees_with_reference("tiny-tied");
}

#[test]
fn untied_checkpoint_agrees_with_reference() {
    agrees_with_reference("tiny-untied");
}

#[test]
fn sharded_multimodal_checkpoint_agrees_with_reference() {
    agrees_with_reference("tiny-sharded");
}

#[test]
fn bits_do_not_depend_on_how_a_prompt_is_cut() {
    let dir = fixture("tiny-untied");
    let ids = cases(&dir).into_iter().map(|case| case.ids).max_by_key(Vec::len).unwrap();
    assert!(ids.len() > 192, "the prompt must span several chunks");
    let whole = prompt_logits(&mut load(&dir, 1), &ids, CONTEXT);
    for chunk in [64, 128, 192] {
        let mut model = load(&dir, 1);
        // Two passes: the second starts over in a slot and blocks that hold the first one's state.
        for pass in 0..2 {
            let cut = prompt_logits(&mut model, &ids, chunk);
            assert_eq!(first_bit_difference(&whole, &cut), None, "chunk {chunk}, pass {pass}");
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads() {
    let dir = fixture("tiny-tied");
    let ids = cases(&dir).into_iter().map(|case| case.ids).max_by_key(Vec::len).unwrap();
    let one = prompt_logits(&mut load(&dir, 1), &ids, CONTEXT);
    let three = prompt_logits(&mut load(&dir, 3), &ids, CONTEXT);
    assert_eq!(first_bit_difference(&one, &three), None);
}

#[test]
fn bits_do_not_depend_on_company() {
    let dir = fixture("tiny-sharded");
    let all = cases(&dir);
    let prompt = |index: usize| &all[index].ids[..all[index].ids.len().min(90)];
    let alone: Vec<Vec<Vec<f32>>> =
        (0..3).map(|index| prompt_logits(&mut load(&dir, 1), prompt(index), CONTEXT)).collect();

    // One call carries the three prompts as segments of their own slots.
    let mut model = load(&dir, 2);
    let segments: Vec<StepSegment> =
        (0..3).map(|index| segment(index as u32, prompt(index), 0, false)).collect();
    let rows: Vec<usize> = (0..segments.iter().map(|segment| segment.tokens.len()).sum()).collect();
    let merged = run(&mut model, segments, &rows);
    let mut at = 0;
    for (index, alone) in alone.iter().enumerate() {
        let mine = &merged[at..at + alone.len()];
        assert_eq!(first_bit_difference(alone, mine), None, "prompt {index}");
        at += alone.len();
    }
}

#[test]
fn statistics_agree_with_the_logits() {
    let dir = fixture("tiny-tied");
    let case = &cases(&dir)[0];
    let mut model = load(&dir, 1);
    let logits = prompt_logits(&mut model, &case.ids, CONTEXT);
    let outputs = (0..case.ids.len() - 1)
        .map(|row| OutputRow { row, want: Want::Target(case.ids[row + 1]) })
        .collect();
    let segments = vec![segment(0, &case.ids, 0, false)];
    let step = Step { number: 2, segments, outputs, ..Step::default() };
    let mut seen = 0;
    model
        .forward(&step, &mut SingleRank, &(), &mut |row, result| {
            let RowResult::Stats { argmax: best, max, sum_exp, target } = result else {
                unreachable!("no logits were wanted")
            };
            assert_eq!(best, argmax(&logits[row]));
            assert_eq!(max, logits[row][best as usize]);
            let found = f64::from(target.unwrap() - max) - sum_exp.ln();
            let expected = log_probability(&logits[row], case.ids[row + 1]);
            assert!((found - expected).abs() < 1e-5, "row {row}: {found}, not {expected}");
            seen += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(seen, case.ids.len() - 1);
}

#[test]
fn a_step_that_does_not_fit_is_refused() {
    let dir = fixture("tiny-tied");
    let mut model = load(&dir, 1);
    let good = segment(0, &[1, 2], 0, false);
    let faults: [(&str, Vec<StepSegment>); 8] = [
        ("0 rows", vec![]),
        ("there are 3 slots", vec![StepSegment { slot: 3, ..good.clone() }]),
        ("not at a chunk", vec![StepSegment { position: 1, ..good.clone() }]),
        ("the context is 512", vec![StepSegment { position: 512, ..good.clone() }]),
        ("do not reach", vec![StepSegment { blocks: vec![], ..good.clone() }]),
        ("outside the vocabulary", vec![StepSegment { tokens: vec![9999], ..good.clone() }]),
        ("two segments", vec![good.clone(), StepSegment { blocks: blocks(1), ..good.clone() }]),
        ("KV block 0 is written and", vec![good.clone(), StepSegment { slot: 1, ..good }]),
    ];
    for (expected, segments) in faults {
        let step = Step { number: 7, segments, ..Step::default() };
        let error = model
            .forward(&step, &mut SingleRank, &(), &mut |_, _| Ok(()))
            .expect_err(expected)
            .to_string();
        assert!(error.starts_with("step 7: ") && error.contains(expected), "{error}");
    }
}
