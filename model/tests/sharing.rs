//! Sequences that share a step or a prompt: what each of them computes, and what it costs.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use pocket_collectives::SingleRank;
use pocket_device::cpu::{CpuDevice, CpuOptions};
use pocket_device::{KvDtype, WorkDone};
use pocket_model::checkpoint::Checkpoint;
use pocket_model::forward::{
    Fork, ModelLimits, OutputRow, RankModel, RowResult, Step, StepSegment, Want,
};
use pocket_model::shard::Shard;

fn load(kv_dtype: KvDtype) -> RankModel<CpuDevice> {
    let checkpoint = Checkpoint::demo().unwrap();
    let shard = Shard::new(checkpoint.config(), 0, 1).unwrap();
    let device = CpuDevice::new(CpuOptions { threads: 2, ..CpuOptions::default() }).unwrap();
    let limits =
        ModelLimits { max_model_len: 256, max_rows: 256, slots: 4, kv_blocks: 16, kv_dtype };
    RankModel::load(device, &checkpoint, &shard, limits, &mut |_, _| ()).unwrap()
}

fn tokens(count: usize, seed: u32) -> Vec<u32> {
    (0..count as u32).map(|at| (at * 131 + seed * 57 + 3) % 1000).collect()
}

fn segment(slot: u32, tokens: &[u32], position: usize, blocks: &[u32]) -> StepSegment {
    let generated = !position.is_multiple_of(64) || tokens.len() == 1;
    StepSegment { slot, tokens: tokens.to_vec(), position, generated, blocks: blocks.to_vec() }
}

/// The bits of the logits of each segment's last row.
fn run(
    model: &mut RankModel<CpuDevice>,
    segments: Vec<StepSegment>,
    forks: Vec<Fork>,
) -> Vec<Vec<u32>> {
    let mut end = 0;
    let outputs = segments
        .iter()
        .map(|segment| {
            end += segment.tokens.len();
            OutputRow { row: end - 1, want: Want::Logits }
        })
        .collect();
    let step = Step { number: 1, segments, outputs, forks };
    let mut found = Vec::new();
    model
        .forward(&step, &mut SingleRank, &(), &mut |_, result| {
            let RowResult::Logits(logits) = result else { unreachable!("only logits were wanted") };
            found.push(logits.iter().map(|x| x.to_bits()).collect());
            Ok(())
        })
        .unwrap();
    found
}

/// D21: answers that start from one prompt's state, in slots and blocks that others have used, have
/// the bits of answers that compute the prompt themselves.
#[test]
fn forked_answers_have_the_bits_of_separate_ones() {
    for dtype in [KvDtype::Float32, KvDtype::Bf16] {
        for prompt in [tokens(100, 1), tokens(128, 1), tokens(5, 1)] {
            let mut model = load(dtype);
            // Whoever was here before.
            let blocks: Vec<Vec<u32>> =
                (0..4).map(|slot| (0..4).map(|i| 4 * i + slot).collect()).collect();
            for slot in 0..4 {
                let blocks = &blocks[slot as usize];
                run(&mut model, vec![segment(slot, &tokens(150, 9 + slot), 0, blocks)], vec![]);
            }
            let (full, partly) = (prompt.len() / 64, !prompt.len().is_multiple_of(64));
            let shared = |slot: usize| [&blocks[0][..full], &blocks[slot][full..]].concat();
            let forks = [1, 2].map(|slot| Fork {
                from_slot: 0,
                to_slot: slot,
                block: partly.then(|| (blocks[0][full], blocks[slot as usize][full])),
            });
            let first = run(&mut model, vec![segment(0, &prompt, 0, &blocks[0])], forks.to_vec());
            let mut found = vec![first; 3];
            let answers = [20, 21, 22].map(|seed| tokens(40, seed));
            for at in 0..40 {
                let segments = (0..3)
                    .map(|i| segment(i as u32, &answers[i][at..=at], prompt.len() + at, &shared(i)))
                    .collect();
                for (found, logits) in found.iter_mut().zip(run(&mut model, segments, vec![])) {
                    found.push(logits);
                }
            }
            for (answer, found) in answers.iter().zip(&found) {
                let mut alone = load(dtype);
                let own = [9, 2, 11, 5];
                let mut expected = run(&mut alone, vec![segment(0, &prompt, 0, &own)], vec![]);
                for (at, token) in answer.iter().enumerate() {
                    let segment = segment(0, &[*token], prompt.len() + at, &own);
                    expected.extend(run(&mut alone, vec![segment], vec![]));
                }
                assert!(*found == expected, "{dtype}, a prompt of {}", prompt.len());
            }
        }
    }
}

fn cost(model: &mut RankModel<CpuDevice>, segments: Vec<StepSegment>) -> WorkDone {
    let before = model.work();
    run(model, segments, vec![]);
    model.work() - before
}

#[test]
fn weights_are_read_once_a_step_however_many_sequences_share_it() {
    let mut model = load(KvDtype::Float32);
    // Two rows of output each time.
    let two = |first: usize, model: &mut RankModel<CpuDevice>| {
        let (a, b) = (tokens(first, 1), tokens(192 - first, 2));
        cost(model, vec![segment(0, &a, 0, &[0, 1, 2]), segment(1, &b, 0, &[3, 4, 5])])
    };
    let even = two(96, &mut model);
    let odd = two(1, &mut model);
    assert_eq!((even.gemm_calls, even.weight_bytes), (odd.gemm_calls, odd.weight_bytes));
    // Four products in each of eight layers, and the head.
    assert_eq!(even.gemm_calls, 8 * 4 + 1);
    // Tied, and so small that all rows go through together: every matrix once.
    let config = Checkpoint::demo().unwrap().config().clone();
    let shard = Shard::new(&config, 0, 1).unwrap();
    let packed =
        |(outputs, inputs): (usize, usize)| pocket_device::cpu::packed_bytes(outputs, inputs);
    let all = pocket_model::forward::matrices(&config, &shard).into_iter().map(packed).sum::<u64>();
    assert_eq!(even.weight_bytes, all);
}

#[test]
fn a_merged_step_has_the_pairs_of_its_segments_alone_and_a_part_of_their_weights() {
    let segments = || {
        vec![
            segment(0, &tokens(100, 1), 0, &[0, 1]),
            segment(1, &tokens(7, 2), 0, &[2]),
            segment(2, &tokens(1, 3), 0, &[3]),
        ]
    };
    let merged = cost(&mut load(KvDtype::Float32), segments());
    let mut model = load(KvDtype::Float32);
    let alone = segments()
        .into_iter()
        .map(|segment| cost(&mut model, vec![segment]))
        .fold(WorkDone::default(), |sum, work| sum + work);
    assert_eq!(merged.query_key_pairs, alone.query_key_pairs);
    // Two layers of full attention.
    assert_eq!(merged.query_key_pairs, 2 * (100 * 101 / 2 + 7 * 8 / 2 + 1));
    assert_eq!(alone.gemm_calls, 3 * merged.gemm_calls);
    assert_eq!(alone.weight_bytes, 3 * merged.weight_bytes);
    // A later token sees all keys before it.
    let later = cost(&mut model, vec![segment(0, &tokens(1, 4), 100, &[0, 1])]);
    assert_eq!(later.query_key_pairs, 2 * 101);
}
