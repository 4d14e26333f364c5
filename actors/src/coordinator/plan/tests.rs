//! The scheduler by example; by property in `properties`.

mod crowd;
mod properties;

use pocket_device::{KvDtype, RECURRENCE_CHUNK};
use pocket_model::forward::{OutputRow, Want};

use super::*;

const ALL: Merging = Merging::Rows(usize::MAX);
const GREEDY: Outputs = Outputs { prompt: OfPrompt::Nothing, next: Next::Greedy };

/// A scheduler of so many slots, prompt rows a step, and blocks.
fn scheduler(slots: usize, budget: usize, kv_blocks: usize) -> Scheduler {
    let limits = ModelLimits {
        max_model_len: kv_blocks * KV_BLOCK_TOKENS,
        max_rows: budget + slots,
        slots,
        kv_blocks,
        kv_dtype: KvDtype::Float32,
    };
    Scheduler::new(&limits, budget)
}

fn prompt(length: usize) -> Vec<u32> {
    (0..length as u32).map(|id| id % 97).collect()
}

fn sequence(key: u64, length: usize) -> Sequence {
    Sequence::new(RequestKey(key), prompt(length), GREEDY, 1 << 20)
}

fn key(request: u64, choice: usize) -> SequenceKey {
    SequenceKey { request: RequestKey(request), choice }
}

/// Position, length and whether they are generated, of each segment.
fn segments(planned: &Planned) -> Vec<(usize, usize, bool)> {
    let of = |segment: &StepSegment| (segment.position, segment.tokens.len(), segment.generated);
    planned.step.segments.iter().map(of).collect()
}

/// Commits a step and gives every answer it completes the token 7.
fn done(scheduler: &mut Scheduler, planned: &Planned) {
    scheduler.commit(planned);
    for part in planned.parts.iter().filter(|part| part.completes) {
        for choice in part.choices() {
            scheduler.push(SequenceKey { choice, ..part.key }, 7, Next::Greedy);
        }
    }
}

fn step(scheduler: &mut Scheduler) -> Planned {
    let planned = scheduler.schedule(ALL).unwrap();
    done(scheduler, &planned);
    planned
}

#[test]
fn a_prompt_is_cut_at_multiples_of_64_and_then_decoded_token_by_token() {
    let mut scheduler = scheduler(1, 128, 8);
    scheduler.enqueue(sequence(1, 300));
    let seen: Vec<_> = (0..6)
        .map(|_| {
            let planned = step(&mut scheduler);
            (segments(&planned)[0], planned.step.outputs.clone(), planned.purposes)
        })
        .collect();
    let last = |row| (vec![OutputRow { row, want: Want::Greedy }], vec![Purpose::Next]);
    let expected = [
        ((0, 128, false), (vec![], vec![])),
        ((128, 128, false), (vec![], vec![])),
        ((256, 44, false), last(43)),
        ((300, 1, true), last(0)),
        ((301, 1, true), last(0)),
        ((302, 1, true), last(0)),
    ];
    let expected = expected.map(|(segment, (outputs, purposes))| (segment, outputs, purposes));
    assert_eq!(seen, expected);
}

#[test]
fn steps_are_numbered_and_a_segment_names_the_blocks_up_to_its_end() {
    let mut scheduler = scheduler(1, 64, 8);
    scheduler.enqueue(sequence(1, 65));
    let first = step(&mut scheduler);
    let second = step(&mut scheduler);
    assert_eq!((first.step.number, first.step.segments[0].blocks.len()), (1, 1));
    assert_eq!((second.step.number, second.step.segments[0].blocks.len()), (2, 2));
    assert!(second.step.segments[0].blocks.starts_with(&first.step.segments[0].blocks));
}

#[test]
fn rating_a_prompt_asks_for_every_next_token_whatever_the_chunk() {
    for chunk in [64, 128, 256] {
        let mut scheduler = scheduler(1, 256, 8);
        let outputs = Outputs { prompt: OfPrompt::Targets, next: Next::Logits };
        scheduler.enqueue(Sequence::new(RequestKey(1), prompt(200), outputs, chunk));
        let (mut wants, mut rated) = (vec![], vec![]);
        while let Some(planned) = scheduler.schedule(ALL) {
            assert!(planned.step.rows() <= chunk);
            for (index, output) in planned.step.outputs.iter().enumerate() {
                assert_eq!(output.row, index, "every row has an output");
                wants.push(output.want);
            }
            rated.extend(planned.purposes.clone());
            scheduler.commit(&planned);
        }
        let targets = prompt(200)[1..].to_vec();
        let mut expected: Vec<Want> = targets.iter().copied().map(Want::Target).collect();
        expected.push(Want::Logits);
        assert_eq!(wants, expected);
        let mut expected: Vec<Purpose> = targets.into_iter().map(Purpose::Rate).collect();
        expected.push(Purpose::Next);
        assert_eq!(rated, expected);
    }
}

#[test]
fn one_token_is_rated_without_an_output() {
    let mut scheduler = scheduler(1, 64, 1);
    let outputs = Outputs { prompt: OfPrompt::Targets, next: Next::Nothing };
    scheduler.enqueue(Sequence::new(RequestKey(1), prompt(1), outputs, 64));
    let planned = scheduler.schedule(ALL).unwrap();
    assert_eq!((planned.step.rows(), planned.step.outputs.len()), (1, 0));
    assert!(planned.parts[0].completes);
}

#[test]
fn decoding_shares_a_step_with_prompts_and_does_not_count_against_their_budget() {
    let mut scheduler = scheduler(3, 128, 24);
    scheduler.enqueue(sequence(1, 10));
    step(&mut scheduler);
    scheduler.enqueue(sequence(2, 64));
    scheduler.enqueue(sequence(3, 300));
    let planned = step(&mut scheduler);
    assert_eq!(segments(&planned), [(10, 1, true), (0, 64, false), (0, 64, false)]);
    assert_eq!((planned.prefill_rows, planned.step.rows()), (128, 129));
    let rows: Vec<_> = planned.step.outputs.iter().map(|output| output.row).collect();
    assert_eq!(rows, [0, 64], "the third prompt is not at its end");
}

#[test]
fn who_leaves_in_the_middle_of_a_step_keeps_its_memory_until_the_end_of_it() {
    let mut scheduler = scheduler(1, 64, 2);
    scheduler.enqueue(sequence(1, 100));
    scheduler.enqueue(sequence(2, 5));
    let planned = scheduler.schedule(ALL).unwrap();
    scheduler.release_request(RequestKey(1));
    assert_eq!((scheduler.running(), scheduler.free_slots()), (1, 0));
    scheduler.commit(&planned);
    assert_eq!((scheduler.running(), scheduler.free_slots()), (0, 1));
    assert_eq!(scheduler.blocks(), (0, 2));
    let planned = scheduler.schedule(ALL).unwrap();
    assert_eq!(planned.parts[0].key, key(2, 0));
}

#[test]
fn answers_share_the_prompt_and_its_full_blocks() {
    let mut scheduler = scheduler(4, 256, 16);
    scheduler.enqueue(sequence(1, 130).answers(3));
    assert_eq!((scheduler.waiting(), scheduler.waiting_requests()), (3, 1));
    let planned = scheduler.schedule(ALL).unwrap();
    assert_eq!(planned.step.rows(), 130, "the prompt is computed once");
    assert_eq!(planned.parts[0].choices().collect::<Vec<_>>(), [0, 1, 2]);
    let from = planned.step.segments[0].slot;
    let last = planned.step.segments[0].blocks[2];
    for fork in &planned.step.forks {
        assert_eq!((fork.from_slot, fork.block.unwrap().0), (from, last));
        assert_ne!(fork.to_slot, from);
    }
    assert_eq!(scheduler.blocks(), (3 + 2, 16), "two blocks are shared, the third is copied");
    done(&mut scheduler, &planned);
    let next = scheduler.schedule(ALL).unwrap();
    assert_eq!(segments(&next), [(130, 1, true); 3]);
    let blocks: Vec<_> = next.step.segments.iter().map(|segment| &segment.blocks).collect();
    assert_eq!(blocks[0][..2], blocks[1][..2]);
    assert!(blocks[0][2] != blocks[1][2] && blocks[1][2] != blocks[2][2]);
    done(&mut scheduler, &next);
    scheduler.release(key(1, 0));
    assert_eq!(scheduler.blocks().0, 4, "what is shared stays");
    scheduler.release_request(RequestKey(1));
    assert_eq!((scheduler.blocks().0, scheduler.free_slots()), (0, 4));
}

#[test]
fn a_prompt_that_ends_with_a_block_is_forked_without_a_copy() {
    let mut scheduler = scheduler(2, 128, 4);
    scheduler.enqueue(sequence(1, 128).answers(2));
    let planned = step(&mut scheduler);
    assert_eq!(planned.step.forks.len(), 1);
    assert_eq!(planned.step.forks[0].block, None);
    assert_eq!(segments(&step(&mut scheduler)), [(128, 1, true); 2]);
}

#[test]
fn answers_without_a_slot_compute_the_prompt_themselves() {
    let mut scheduler = scheduler(2, 128, 8);
    scheduler.enqueue(sequence(1, 10).answers(3));
    assert_eq!(step(&mut scheduler).parts[0].forked, [1]);
    assert_eq!((scheduler.running(), scheduler.waiting()), (2, 1));
    step(&mut scheduler);
    scheduler.release(key(1, 0));
    let planned = step(&mut scheduler);
    assert_eq!(segments(&planned), [(11, 1, true), (0, 10, false)]);
    assert_eq!(planned.parts[1].key, key(1, 2));
}

#[test]
fn one_request_a_call_and_generated_tokens_in_between() {
    let mut scheduler = scheduler(4, 128, 16);
    for request in 1..=3 {
        scheduler.enqueue(sequence(request, 20));
    }
    let mut seen = vec![];
    for _ in 0..6 {
        let planned = scheduler.schedule(Merging::Serial).unwrap();
        seen.push(segments(&planned));
        done(&mut scheduler, &planned);
    }
    let first = (0, 20, false);
    assert_eq!(seen[0], [first]);
    assert_eq!(seen[1], [(20, 1, true)]);
    assert_eq!(seen[2], [first]);
    assert_eq!(seen[3], [(21, 1, true), (20, 1, true)]);
    assert_eq!(seen[4], [first]);
    assert_eq!(seen[5].len(), 3);
}
