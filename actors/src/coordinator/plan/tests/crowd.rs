//! Many sequences and little memory.

use super::*;

/// M14: the youngest gives way; it is computed again and goes on where it was.
#[test]
fn the_youngest_gives_way_and_comes_back() {
    let mut scheduler = scheduler(3, 256, 7);
    for request in 1..=3 {
        scheduler.enqueue(sequence(request, 60));
    }
    // Three grow into a second block each; the seventh goes to the oldest's third.
    let mut preempted = vec![];
    for _ in 0..80 {
        step(&mut scheduler);
        preempted.extend(scheduler.take_preempted());
        if !preempted.is_empty() {
            break;
        }
    }
    assert_eq!(preempted, [key(3, 0)]);
    assert_eq!((scheduler.running(), scheduler.waiting()), (2, 1));
    scheduler.release(key(1, 0));
    let planned = step(&mut scheduler);
    let again = planned.step.segments.last().unwrap();
    assert_eq!((again.position, again.tokens.len(), again.generated), (0, 60, false));
    assert!(!planned.parts.last().unwrap().completes, "its answer is computed again too");
    let planned = step(&mut scheduler);
    let again = planned.step.segments.last().unwrap();
    assert!(again.generated && again.position == 60 && again.tokens.len() > 60, "{again:?}");
    assert!(again.tokens.iter().all(|token| *token == 7));
    assert!(planned.parts.last().unwrap().completes);
}

/// What was rated before a prompt lost its memory is not rated again.
#[test]
fn a_prompt_that_gives_way_is_rated_once() {
    let mut scheduler = scheduler(2, 64, 6);
    scheduler.enqueue(sequence(1, 64));
    step(&mut scheduler);
    let outputs = Outputs { prompt: OfPrompt::Targets, next: Next::Greedy };
    scheduler.enqueue(Sequence::new(RequestKey(2), prompt(130), outputs, 64));
    let mut rated = 0;
    let mut count = |planned: &Planned| {
        let rates = |purpose: &&Purpose| matches!(purpose, Purpose::Rate(_));
        rated += planned.purposes.iter().filter(rates).count();
    };
    count(&step(&mut scheduler));
    scheduler.rewind();
    for _ in 0..5 {
        count(&step(&mut scheduler));
    }
    assert_eq!(rated, 129);
}

/// M7, as documented: who is first in the queue stays first, also when it is large.
#[test]
fn a_large_request_is_not_overtaken_for_ever() {
    let mut scheduler = scheduler(4, 1024, 10);
    scheduler.enqueue(sequence(1, 64 * 5));
    step(&mut scheduler);
    scheduler.enqueue(sequence(2, 64 * 9));
    scheduler.enqueue(sequence(3, 1));
    assert_eq!(step(&mut scheduler).parts.len(), 1, "the third waits behind the second");
    scheduler.release_request(RequestKey(1));
    let planned = step(&mut scheduler);
    assert_eq!(planned.parts[0].key, key(2, 0));
    // Nine blocks of ten are held; the tiny one would leave none for the large one to grow.
    assert_eq!(planned.parts.len(), 1);
    scheduler.release_request(RequestKey(2));
    assert_eq!(step(&mut scheduler).parts[0].key, key(3, 0));
}

/// T3, T5: a wave is as many calls as its tokens make, not as it has requests; tails share a call.
#[test]
fn calls_follow_the_tokens_and_not_the_requests() {
    let mut tall = scheduler(32, 2048, 2048);
    for request in 0..32 {
        tall.enqueue(sequence(request, 1024));
    }
    let mut calls = 0;
    while tall.running.values().chain(tall.waiting.values()).any(|s| !s.decodes()) {
        step(&mut tall);
        calls += 1;
    }
    assert_eq!(calls, 32 * 1024 / 2048);

    let mut tails = scheduler(32, 2048, 2048);
    for request in 0..32 {
        tails.enqueue(sequence(request, 30 + request as usize));
    }
    let planned = step(&mut tails);
    assert_eq!((planned.parts.len(), planned.prefill_rows), (32, (30..62).sum()));
}

/// T8: what counts is rows, not blocks: prompts of a block and a token fill the budget.
#[test]
fn the_budget_is_filled_to_the_last_row_that_can_be_cut() {
    let mut scheduler = scheduler(16, 256, 64);
    for request in 0..4 {
        scheduler.enqueue(sequence(request, 65));
    }
    scheduler.enqueue(sequence(4, 61));
    let planned = step(&mut scheduler);
    assert_eq!(planned.prefill_rows, 256, "three whole ones, and a tail of 61 that fits exactly");
    let whole = |request: u64| scheduler.running[&key(request, 0)].computed;
    assert_eq!([0, 1, 2, 3, 4].map(whole), [65, 65, 65, 0, 61]);
}

#[test]
fn prompts_and_answers_do_not_keep_each_other_waiting() {
    let mut scheduler = scheduler(8, 64, 128);
    for request in 0..4 {
        scheduler.enqueue(sequence(request, 1));
    }
    step(&mut scheduler);
    for request in 4..8 {
        scheduler.enqueue(sequence(request, 640));
    }
    for _ in 0..40 {
        let planned = step(&mut scheduler);
        let decoding = planned.step.segments.iter().filter(|s| s.generated).count();
        assert!(decoding >= 4, "who decodes has a row in every call");
        assert_eq!(planned.prefill_rows, 64, "and so have prompts");
    }
    assert!(scheduler.running.values().all(Sequence::decodes));
}

#[test]
fn a_rewound_scheduler_computes_everybody_again() {
    let mut scheduler = scheduler(4, 256, 16);
    scheduler.enqueue(sequence(1, 70).answers(2));
    scheduler.enqueue(sequence(2, 5));
    step(&mut scheduler);
    let _lost = scheduler.schedule(ALL).unwrap();
    scheduler.release_request(RequestKey(2));
    scheduler.rewind();
    assert_eq!((scheduler.running(), scheduler.waiting()), (0, 2));
    assert_eq!((scheduler.blocks().0, scheduler.free_slots()), (0, 4));
    let planned = step(&mut scheduler);
    assert_eq!(segments(&planned), [(0, 70, false); 2]);
    let planned = step(&mut scheduler);
    assert_eq!(segments(&planned), [(70, 1, true); 2]);
}
