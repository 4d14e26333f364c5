use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn limits(slots: usize, max_rows: usize, max_model_len: usize) -> ModelLimits {
    let kv_blocks = slots * max_model_len.div_ceil(KV_BLOCK_TOKENS);
    ModelLimits { max_model_len, max_rows, slots, kv_blocks }
}

fn prompt(length: usize) -> Vec<u32> {
    (0..length as u32).map(|id| id % 97).collect()
}

fn sequence(key: u64, length: usize, outputs: Outputs, chunk: usize) -> Sequence {
    Sequence::new(RequestKey(key), prompt(length), outputs, chunk)
}

/// Position and length of each segment.
fn segments(planned: &Planned) -> Vec<(usize, usize, bool)> {
    let of = |segment: &StepSegment| (segment.position, segment.tokens.len(), segment.generated);
    planned.step.segments.iter().map(of).collect()
}

#[test]
fn a_prompt_is_cut_at_multiples_of_64_and_then_decoded_token_by_token() {
    let mut scheduler = Scheduler::new(&limits(1, 128, 512));
    scheduler.enqueue(sequence(1, 300, Outputs::Greedy, 128));
    let mut seen = vec![];
    for token in 0..6 {
        let planned = scheduler.schedule().unwrap();
        seen.push((segments(&planned)[0], planned.step.outputs.clone()));
        scheduler.commit(&planned);
        if planned.parts[0].completes {
            scheduler.push(RequestKey(1), 500 + token);
        }
    }
    let last = |row| vec![OutputRow { row, want: Want::Greedy }];
    assert_eq!(
        seen,
        [
            ((0, 128, false), vec![]),
            ((128, 128, false), vec![]),
            ((256, 44, false), last(43)),
            ((300, 1, true), last(0)),
            ((301, 1, true), last(0)),
            ((302, 1, true), last(0)),
        ]
    );
}

#[test]
fn steps_are_numbered_and_blocks_grow_with_the_tokens() {
    let mut scheduler = Scheduler::new(&limits(1, 64, 512));
    scheduler.enqueue(sequence(1, 65, Outputs::Greedy, 64));
    let first = scheduler.schedule().unwrap();
    assert_eq!((first.step.number, first.step.segments[0].blocks.len()), (1, 1));
    scheduler.commit(&first);
    let second = scheduler.schedule().unwrap();
    assert_eq!((second.step.number, second.step.segments[0].blocks.len()), (2, 2));
    assert!(second.step.segments[0].blocks.starts_with(&first.step.segments[0].blocks));
}

#[test]
fn scoring_asks_for_every_next_token_whatever_the_chunk() {
    for chunk in [64, 128, 256] {
        let mut scheduler = Scheduler::new(&limits(1, 256, 512));
        scheduler.enqueue(sequence(1, 200, Outputs::Score { last_logits: true }, chunk));
        let mut wants = vec![];
        while let Some(planned) = scheduler.schedule() {
            assert!(planned.step.rows() <= chunk);
            for (index, output) in planned.step.outputs.iter().enumerate() {
                assert_eq!(output.row, index, "every row has an output");
                wants.push(output.want);
            }
            scheduler.commit(&planned);
        }
        let mut expected: Vec<Want> = prompt(200)[1..].iter().copied().map(Want::Target).collect();
        expected.push(Want::Logits);
        assert_eq!(wants, expected);
    }
}

#[test]
fn one_token_is_scored_without_an_output() {
    let mut scheduler = Scheduler::new(&limits(1, 64, 64));
    scheduler.enqueue(sequence(1, 1, Outputs::Score { last_logits: false }, 64));
    let planned = scheduler.schedule().unwrap();
    assert_eq!((planned.step.rows(), planned.step.outputs.len()), (1, 0));
    assert!(planned.parts[0].completes);
}

#[test]
fn decoding_shares_a_step_with_the_next_prompts() {
    let mut scheduler = Scheduler::new(&limits(3, 128, 512));
    scheduler.enqueue(sequence(1, 10, Outputs::Greedy, 128));
    let planned = scheduler.schedule().unwrap();
    scheduler.commit(&planned);
    scheduler.push(RequestKey(1), 7);
    scheduler.enqueue(sequence(2, 90, Outputs::Logits, 128));
    scheduler.enqueue(sequence(3, 300, Outputs::Greedy, 128));
    let planned = scheduler.schedule().unwrap();
    // 1 + 90 rows; the 37 left hold no whole chunk of the third.
    assert_eq!(segments(&planned), [(10, 1, true), (0, 90, false)]);
    let wants: Vec<_> = planned.step.outputs.iter().map(|o| (o.row, o.want)).collect();
    assert_eq!(wants, [(0, Want::Greedy), (90, Want::Logits)]);
    scheduler.commit(&planned);
    assert_eq!((scheduler.running(), scheduler.waiting()), (3, 0));
}

#[test]
fn who_leaves_in_the_middle_of_a_step_keeps_its_memory_until_the_end_of_it() {
    let mut scheduler = Scheduler::new(&limits(1, 64, 128));
    scheduler.enqueue(sequence(1, 100, Outputs::Greedy, 64));
    scheduler.enqueue(sequence(2, 5, Outputs::Greedy, 64));
    let planned = scheduler.schedule().unwrap();
    scheduler.release(RequestKey(1));
    assert_eq!((scheduler.running(), scheduler.slots.available()), (1, 0));
    scheduler.commit(&planned);
    assert_eq!((scheduler.running(), scheduler.slots.available()), (0, 1));
    let planned = scheduler.schedule().unwrap();
    assert_eq!(planned.parts[0].key, RequestKey(2));
}

/// What a client of the simulation does.
#[derive(Clone, Debug)]
struct Client {
    arrives: usize,
    prompt: usize,
    generates: usize,
    leaves: Option<usize>,
    score: bool,
}

fn clients() -> impl Strategy<Value = Vec<Client>> {
    let client = (0..12_usize, 1..300_usize, 1..5_usize, proptest::option::of(0..20_usize));
    let client =
        (client, any::<bool>()).prop_map(|((arrives, prompt, generates, leaves), score)| Client {
            arrives,
            prompt,
            generates,
            leaves,
            score,
        });
    vec(client, 1..9)
}

proptest! {
    /// Whatever comes and goes: every token of every sequence is computed once and in order, steps keep
    /// to their limits, nothing waits while nothing runs (M5), and all memory comes back (M10).
    #[test]
    fn every_sequence_is_computed_in_order_and_nothing_leaks(
        clients in clients(),
        slots in 1..4_usize,
        budget in 1..4_usize,
    ) {
        let limits = limits(slots, budget * 64, 320);
        let mut scheduler = Scheduler::new(&limits);
        let mut computed: HashMap<u64, usize> = HashMap::new();
        let mut generated: HashMap<u64, usize> = HashMap::new();
        let mut done = vec![false; clients.len()];
        for round in 0..2000 {
            for (key, client) in clients.iter().enumerate() {
                if client.arrives == round {
                    let outputs = match client.score {
                        true => Outputs::Score { last_logits: false },
                        false => Outputs::Greedy,
                    };
                    let chunk = limits.max_rows;
                    scheduler.enqueue(sequence(key as u64, client.prompt, outputs, chunk));
                }
            }
            let planned = scheduler.schedule();
            for (key, client) in clients.iter().enumerate() {
                // In the middle of the step.
                if client.leaves.is_some_and(|after| client.arrives + after == round) {
                    scheduler.release(RequestKey(key as u64));
                    done[key] = true;
                }
            }
            let Some(planned) = planned else {
                prop_assert_eq!((scheduler.running(), scheduler.waiting()), (0, 0));
                if round > 12 { break }
                continue;
            };
            prop_assert!(planned.step.rows() <= limits.max_rows);
            let mut slots_used = vec![];
            let mut blocks_used = vec![];
            let mut first_row = 0;
            for (segment, part) in planned.step.segments.iter().zip(&planned.parts) {
                let client = &clients[part.key.0 as usize];
                let at = computed.entry(part.key.0).or_default();
                prop_assert_eq!(segment.position, *at);
                *at += segment.tokens.len();
                if !segment.generated {
                    prop_assert_eq!(segment.position % RECURRENCE_CHUNK, 0);
                    prop_assert!(*at == client.prompt || at.is_multiple_of(RECURRENCE_CHUNK));
                    prop_assert_eq!(&segment.tokens[..], &prompt(client.prompt)[part.positions.clone()]);
                }
                prop_assert!(segment.blocks.len() * KV_BLOCK_TOKENS >= *at);
                prop_assert!(segment.blocks.iter().all(|block| (*block as usize) < limits.kv_blocks));
                for output in &planned.step.outputs[part.outputs.clone()] {
                    prop_assert!((first_row..first_row + segment.tokens.len()).contains(&output.row));
                }
                first_row += segment.tokens.len();
                slots_used.push(segment.slot);
                blocks_used.extend(segment.blocks.clone());
            }
            for used in [&mut slots_used, &mut blocks_used] {
                let count = used.len();
                used.sort_unstable();
                used.dedup();
                prop_assert_eq!(used.len(), count, "lent twice");
            }
            scheduler.commit(&planned);
            for part in planned.parts.iter().filter(|part| part.completes) {
                let (key, client) = (part.key.0, &clients[part.key.0 as usize]);
                let so_far = generated.entry(key).or_default();
                *so_far += 1;
                if client.score || *so_far == client.generates {
                    scheduler.release(part.key);
                    done[key as usize] = true;
                } else {
                    scheduler.push(part.key, 3);
                }
            }
        }
        prop_assert!(done.iter().all(|done| *done), "{:?}", done);
        prop_assert_eq!(scheduler.slots.available(), limits.slots);
        prop_assert_eq!(scheduler.blocks.available(), limits.kv_blocks);
    }
}
