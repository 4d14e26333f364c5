//! Everything at once: a load of all kinds of requests on a quarter of the memory it would like.

use std::collections::BTreeMap;

use futures_util::stream::{self, StreamExt};
use libtest_mimic::Trial;
use pocket_actors::EngineHandle;
use pocket_actors::api::{EngineOptions, Event, FinishReason, GenerateRequest};

use crate::heard::{Heard, Said, ask, metric};
use crate::memory::{assert_idle, small};
use crate::random::Random;
use crate::rig::{greedy, shutdown, start, test, until_queued};

pub fn tests() -> Vec<Trial> {
    vec![test("a mixed load on little memory is answered as each alone", mixed_load)]
}

const REQUESTS: usize = 500;
/// Of them this many are asked again, alone.
const ASKED_AGAIN: usize = 60;
const CLIENTS: usize = 48;
const SLOTS: usize = 24;
const MAX_QUEUE: usize = 16;
/// A sequence has at most 110 + 130 tokens, four blocks; two and a half are usual.
const KV_BLOCKS: usize = SLOTS * 5 / 2 / 4;
/// Ends an answer of tiny-tied.
const END: u32 = 634;

/// When a client has had enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    Endless,
    /// Drops the stream after so many tokens.
    Drops(usize),
    /// Cancels after so many tokens, and listens to the end.
    Cancels(usize),
}

fn request(number: usize) -> (GenerateRequest, Patience) {
    let mut random = Random::new(7000 + number as u64);
    let tokens = random.within(1..=110);
    let prompt = random.ids(tokens, 640);
    let most = random.within(1..=130);
    let mut request = greedy(&format!("r{number}"), &prompt, most);
    request.ignore_eos = random.percent(50);
    request.n = random.one_of(&[1, 1, 1, 1, 2, 4]);
    request.logprobs = random.one_of(&[None, None, Some(0), Some(5)]);
    request.prompt_logprobs = random.one_of(&[None, None, None, Some(0), Some(2)]);
    if random.percent(30) {
        // One that comes now and then.
        request.stop = vec![random.one_of(&["e", "th", "a b"]).to_string()];
    }
    if random.percent(20) {
        request.stop_token_ids = random.ids(40, 640);
    }
    let sampling = &mut request.sampling;
    sampling.seed = Some(random.below(1000) as u64);
    sampling.temperature = random.one_of(&[0.0, 0.7, 1.0, 1.3]);
    sampling.top_k = random.one_of(&[0, 0, 20]);
    sampling.top_p = random.one_of(&[1.0, 1.0, 0.8]);
    sampling.min_p = random.one_of(&[0.0, 0.0, 0.05]);
    sampling.repetition_penalty = random.one_of(&[1.0, 1.0, 1.2]);
    sampling.presence_penalty = random.one_of(&[0.0, 0.0, 0.4]);
    sampling.frequency_penalty = random.one_of(&[0.0, 0.0, 0.2]);
    if random.percent(20) {
        sampling.min_tokens = random.within(1..=most);
    }
    if random.percent(20) {
        sampling.logit_bias = [(END, 4.0), (random.below(640) as u32, -100.0)].into();
    }
    let heard = random.within(0..=20);
    let patience = match random.below(100) {
        0..15 => Patience::Drops(heard),
        15..30 => Patience::Cancels(heard),
        _ => Patience::Endless,
    };
    (request, patience)
}

/// What a client has heard, and how often the queue had no room for it.
struct Outcome {
    said: Said,
    /// None for who went away.
    preemptions: Option<u64>,
    refused: usize,
}

async fn client(handle: &EngineHandle, number: usize) -> Outcome {
    let (request, patience) = request(number);
    let (stream, refused) =
        until_queued(handle, MAX_QUEUE, || handle.submit(request.clone())).await;
    let mut stream = stream.unwrap();
    let mut said = Said::default();
    let mut tokens = 0;
    loop {
        match patience {
            Patience::Drops(most) if tokens == most => {
                return Outcome { said, preemptions: None, refused };
            }
            Patience::Cancels(most) if tokens == most => {
                // It may have ended by now.
                assert!(handle.cancel(&request.id).await <= 1);
            }
            _ => {}
        }
        match stream.next().await.unwrap() {
            Event::Finished { timings, .. } => {
                return Outcome { said, preemptions: Some(timings.preemptions), refused };
            }
            Event::Failed(error) => panic!("{}: {error}", request.id),
            event => {
                tokens += usize::from(matches!(event, Event::Token { .. }));
                said.take(event);
            }
        }
    }
}

/// What was heard of a request is what it says alone, as far as it was heard.
fn assert_part_of(found: &Said, alone: &Said, name: &str) {
    if found.prompt.is_some() {
        assert_eq!(found.prompt, alone.prompt, "{name}");
    }
    for (found, alone) in found.answers.iter().zip(&alone.answers) {
        match found.reason {
            Some(FinishReason::Stop | FinishReason::Length) => assert_eq!(found, alone, "{name}"),
            // Text that was held back for a stop text is told at the end of a cancelled one.
            Some(FinishReason::Cancelled) | None => {
                assert!(alone.ids.starts_with(&found.ids), "{name}: {found:?} {alone:?}");
                assert!(alone.logprobs.starts_with(&found.logprobs), "{name}");
            }
        }
    }
}

fn is_complete(outcome: &Outcome) -> bool {
    let ended = |reason| matches!(reason, Some(FinishReason::Stop | FinishReason::Length));
    let said = &outcome.said;
    !said.answers.is_empty() && said.answers.iter().all(|answer| ended(answer.reason))
}

async fn mixed_load() {
    let options = EngineOptions {
        max_num_batched_tokens: 128,
        max_num_seqs: SLOTS,
        max_queue: MAX_QUEUE,
        ..small(KV_BLOCKS)
    };
    let engine = start(options).await;
    let handle = engine.handle();
    let clients =
        stream::iter(0..REQUESTS).map(async |number| (number, client(&handle, number).await));
    let outcomes: BTreeMap<usize, Outcome> = clients.buffer_unordered(CLIENTS).collect().await;
    assert_idle(&handle).await;

    let complete = outcomes.values().filter(|outcome| is_complete(outcome)).count();
    let left = outcomes.values().filter(|outcome| !is_complete(outcome)).count();
    assert!(complete > REQUESTS / 2 && left > REQUESTS / 5, "{complete} of {}", outcomes.len());
    let refused: usize = outcomes.values().map(|outcome| outcome.refused).sum();
    assert!(refused > 0, "the queue was full at times");
    assert!(metric(&handle, "pocket_preemptions_total") > 0.0, "memory ran out at times");
    for (number, outcome) in &outcomes {
        let (GenerateRequest { n, max_tokens, sampling, .. }, patience) = request(*number);
        assert!(patience != Patience::Endless || is_complete(outcome), "request {number}");
        if is_complete(outcome) {
            assert_eq!(outcome.said.answers.len(), n, "request {number}");
            for answer in &outcome.said.answers {
                let lengths = sampling.min_tokens..=max_tokens.unwrap();
                assert!(lengths.contains(&answer.ids.len()), "request {number}: {answer:?}");
            }
        }
    }

    // Those that had to give way first, then the others.
    let mut order: Vec<usize> = outcomes.keys().copied().collect();
    order.sort_by_key(|number| std::cmp::Reverse(outcomes[number].preemptions.unwrap_or(0)));
    let gave_way = order.iter().filter(|number| outcomes[number].preemptions > Some(0)).count();
    assert!(gave_way > 0, "some of those that gave way were heard out");
    let half = (ASKED_AGAIN / 2).min(gave_way);
    let others = order[half..].iter().step_by(REQUESTS / (ASKED_AGAIN - half));
    for number in order[..half].iter().chain(others) {
        let Heard { said, .. } = ask(&handle, request(*number).0).await;
        assert_part_of(&outcomes[number].said, &said, &format!("request {number}"));
    }
    assert_idle(&handle).await;
    shutdown(engine).await;
}
