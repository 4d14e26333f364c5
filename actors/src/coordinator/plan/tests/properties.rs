//! Whatever comes and goes.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::merging::Costs;
use super::*;

/// What a client of the simulation does.
#[derive(Clone, Debug)]
struct Client {
    arrives: usize,
    prompt: usize,
    answers: usize,
    generates: usize,
    leaves: Option<usize>,
    rates: bool,
}

fn clients() -> impl Strategy<Value = Vec<Client>> {
    let client = (
        0..12_usize,
        1..300_usize,
        1..5_usize,
        1..90_usize,
        proptest::option::of(0..40_usize),
        any::<bool>(),
    );
    let client = client.prop_map(|(arrives, prompt, answers, generates, leaves, rates)| Client {
        arrives,
        prompt,
        answers,
        generates,
        leaves,
        rates,
    });
    vec(client, 1..9)
}

fn merging() -> impl Strategy<Value = Merging> {
    let cost =
        |(fixed_us, row_us)| Merging::Auto(Costs::Known(crate::api::CallCost { fixed_us, row_us }));
    prop_oneof![
        Just(Merging::Serial),
        Just(Merging::Auto(Costs::Unknown)),
        (1..400_usize).prop_map(|rows| Merging::Auto(Costs::OneSize(rows))),
        (0.0..1e5_f64, 0.0..1e3_f64).prop_map(cost),
        (1..400_usize).prop_map(Merging::Rows),
    ]
}

/// The token an answer has at a position: a sequence computed again must be given the same ones.
fn generated(key: SequenceKey, position: usize) -> u32 {
    (key.request.0 * 31 + key.choice as u64 * 7 + position as u64) as u32
}

proptest! {
    /// Every token of every sequence is computed in order, from zero after its memory was taken; steps
    /// keep to their limits; nothing waits while nothing runs (M5); no slot or block is lent twice but
    /// full blocks of one prompt; everybody ends and all memory comes back (M10).
    #[test]
    fn every_sequence_is_computed_in_order_and_nothing_leaks(
        clients in clients(),
        slots in 1..5_usize,
        budget in 1..4_usize,
        // The largest request takes seven.
        kv_blocks in 7..30_usize,
        merging in merging(),
    ) {
        let budget = budget * 64;
        let mut scheduler = scheduler(slots, budget, kv_blocks);
        let mut computed: HashMap<SequenceKey, usize> = HashMap::new();
        let mut tokens: HashMap<SequenceKey, Vec<u32>> = HashMap::new();
        let mut rated: HashMap<u64, usize> = HashMap::new();
        let mut left: Vec<usize> = clients.iter().map(|client| client.answers).collect();
        for round in 0..20_000 {
            for (request, client) in clients.iter().enumerate() {
                if client.arrives == round {
                    let of_prompt = if client.rates { OfPrompt::Targets } else { OfPrompt::Nothing };
                    let outputs = Outputs { prompt: of_prompt, next: Next::Greedy };
                    let sequence = Sequence::new(
                        RequestKey(request as u64), prompt(client.prompt), outputs, budget,
                    );
                    scheduler.enqueue(sequence.answers(client.answers));
                }
            }
            let planned = scheduler.schedule(merging);
            for key in scheduler.take_preempted() {
                computed.insert(key, 0);
            }
            for (request, client) in clients.iter().enumerate() {
                // In the middle of the step.
                if client.leaves.is_some_and(|after| client.arrives + after == round) {
                    scheduler.release_request(RequestKey(request as u64));
                    left[request] = 0;
                }
            }
            let Some(planned) = planned else {
                prop_assert_eq!((scheduler.running(), scheduler.waiting()), (0, 0));
                if round > 12 { break }
                continue;
            };
            prop_assert!(planned.prefill_rows <= budget);
            prop_assert!(planned.step.rows() <= budget + slots);
            prop_assert_eq!(planned.purposes.len(), planned.step.outputs.len());
            let mut slots_used: Vec<u32> =
                planned.step.forks.iter().map(|fork| fork.to_slot).collect();
            let mut written: Vec<u32> =
                planned.step.forks.iter().filter_map(|fork| Some(fork.block?.1)).collect();
            let mut read = vec![];
            let mut first_row = 0;
            for (segment, part) in planned.step.segments.iter().zip(&planned.parts) {
                let client = &clients[part.key.request.0 as usize];
                let at = computed.entry(part.key).or_default();
                prop_assert_eq!(segment.position, *at);
                let known: Vec<u32> = prompt(client.prompt)
                    .into_iter()
                    .chain(tokens.get(&part.key).into_iter().flatten().copied())
                    .collect();
                let start = *at;
                *at += segment.tokens.len();
                let end = *at;
                prop_assert_eq!(&segment.tokens[..], &known[start..end]);
                if !segment.generated {
                    prop_assert_eq!(start % RECURRENCE_CHUNK, 0);
                    prop_assert!(end == client.prompt || end.is_multiple_of(RECURRENCE_CHUNK));
                }
                prop_assert_eq!(part.completes, end == known.len());
                prop_assert_eq!(segment.blocks.len(), end.div_ceil(KV_BLOCK_TOKENS));
                for output in part.outputs.clone() {
                    let row = planned.step.outputs[output].row;
                    prop_assert!((first_row..first_row + segment.tokens.len()).contains(&row));
                    if matches!(planned.purposes[output], Purpose::Rate(_)) {
                        *rated.entry(part.key.request.0).or_default() += 1;
                    }
                }
                first_row += segment.tokens.len();
                slots_used.push(segment.slot);
                let first_written = start / KV_BLOCK_TOKENS;
                read.extend(&segment.blocks[..first_written]);
                written.extend(&segment.blocks[first_written..]);
            }
            prop_assert!(written.iter().chain(&read).all(|b| (*b as usize) < kv_blocks));
            prop_assert!(!read.iter().any(|block| written.contains(block)), "read while written");
            for used in [&mut slots_used, &mut written] {
                let count = used.len();
                used.sort_unstable();
                used.dedup();
                prop_assert_eq!(used.len(), count, "lent twice");
            }
            scheduler.commit(&planned);
            for part in planned.parts.iter().filter(|part| part.completes) {
                for choice in part.choices() {
                    let (request, key) = (part.key.request.0 as usize, SequenceKey { choice, ..part.key });
                    if left[request] == 0 {
                        continue;
                    }
                    computed.insert(key, part.positions.end);
                    let answer = tokens.entry(key).or_default();
                    let token = generated(key, answer.len());
                    answer.push(token);
                    if answer.len() == clients[request].generates {
                        scheduler.release(key);
                        left[request] -= 1;
                    } else {
                        scheduler.push(key, token, Next::Greedy);
                    }
                }
            }
        }
        prop_assert_eq!(&left, &vec![0; clients.len()]);
        for (request, client) in clients.iter().enumerate() {
            if client.leaves.is_none() {
                let expected = if client.rates { client.prompt - 1 } else { 0 };
                let found = rated.get(&(request as u64)).copied().unwrap_or_default();
                prop_assert_eq!(found, expected, "each token of a prompt is rated once");
            }
        }
        prop_assert_eq!(scheduler.free_slots(), slots);
        prop_assert_eq!(scheduler.blocks(), (0, kv_blocks));
    }
}
