use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Reads a stream of events and their times.
fn read(events: &[(f64, Value)]) -> Result<Answer, Failure> {
    let mut reading = Reading::default();
    for (at, event) in events {
        let data = event.as_str().map_or_else(|| event.to_string(), str::to_owned);
        reading.take(*at, &data)?;
    }
    reading.finish()
}

fn delta(delta: Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
}

fn text(text: &str) -> Value {
    delta(json!({"content": text}))
}

fn end(reason: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

fn usage(completion: usize) -> Value {
    json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": completion}})
}

fn done() -> Value {
    json!("[DONE]")
}

/// Times are sums and differences of numbers with few digits.
fn near(got: &[f64], expected: &[f64]) {
    let close = got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9);
    assert!(got.len() == expected.len() && close, "{got:?} instead of {expected:?}");
}

/// B1: the role comes at once, the token a second later.
#[test]
fn the_first_token_is_not_the_role() {
    let role = delta(json!({"role": "assistant", "content": ""}));
    let answer = read(&[
        (0.01, role),
        (1.0, text("a")),
        (1.25, text("b")),
        (1.25, end("stop")),
        (1.3, done()),
    ]);
    let answer = answer.unwrap();
    assert_eq!((answer.ttft, answer.ttft_first_chunk), (1.0, 0.01));
    assert_eq!((answer.latency, answer.tpot()), (1.25, Some(0.25)));
    assert_eq!(answer.text, "ab");
}

/// B4: a model that thinks has begun to answer.
#[test]
fn reasoning_is_made_of_tokens() {
    let thought = |text: &str| delta(json!({"reasoning_content": text}));
    let events = [
        (0.1, delta(json!({"role": "assistant"}))),
        (0.5, thought("hm")),
        (0.75, thought("m")),
        (9.0, text("yes")),
        (9.0, end("stop")),
        (9.0, usage(3)),
        (9.0, done()),
    ];
    let answer = read(&events).unwrap();
    assert_eq!((answer.ttft, answer.output_tokens), (0.5, 3));
    near(&answer.itls, &[0.25, 8.25]);
    assert_eq!((answer.reasoning.as_str(), answer.text.as_str()), ("hmm", "yes"));
}

/// B6: two tokens have one time between them, and the time to the first is none.
#[test]
fn two_tokens_have_one_time_between_them() {
    let events =
        [(2.0, text("a")), (2.5, text("b")), (2.5, end("length")), (2.6, usage(2)), (2.6, done())];
    let answer = read(&events).unwrap();
    near(&answer.itls, &[0.5]);
    assert_eq!((answer.tpot(), answer.counted_by), (Some(0.5), CountedBy::Usage));
    let one = read(&[(2.0, text("a")), (2.0, end("length")), (2.1, done())]).unwrap();
    assert_eq!((one.itls.len(), one.tpot(), one.output_tokens), (0, None, 1));
    assert_eq!(one.counted_by, CountedBy::Chunks);
}

#[test]
fn the_end_of_sequence_token_comes_with_the_end() {
    let events =
        [(1.0, text("a")), (2.0, text("b")), (2.5, end("stop")), (2.5, usage(3)), (2.5, done())];
    let answer = read(&events).unwrap();
    near(&answer.itls, &[1.0, 0.5]);
    // An answer of nothing else begins with it.
    let events = [
        (0.1, delta(json!({"role": "assistant"}))),
        (2.5, end("stop")),
        (2.5, usage(1)),
        (2.5, done()),
    ];
    let answer = read(&events).unwrap();
    assert_eq!((answer.ttft, answer.ttft_first_chunk, answer.output_tokens), (2.5, 0.1, 1));
}

#[test]
fn several_tokens_of_a_chunk_share_its_time() {
    // By ids.
    let ids = |text: &str, ids: Vec<u32>| json!({"choices": [{"text": text, "token_ids": ids}]});
    let events = [
        (1.0, ids("a", vec![1])),
        (4.0, ids("bcd", vec![2, 3, 4])),
        (4.5, ids("e", vec![5])),
        (4.5, end("length")),
        (4.5, done()),
    ];
    let answer = read(&events).unwrap();
    near(&answer.itls, &[1.0, 1.0, 1.0, 0.5]);
    assert_eq!((answer.output_tokens, answer.counted_by), (5, CountedBy::Ids));
    // By a running count.
    let so_far = |text: &str, count: usize| json!({"choices": [{"text": text}], "usage": {"completion_tokens": count}});
    let events = [
        (1.0, so_far("a", 1)),
        (3.0, so_far("b", 3)),
        (4.0, so_far("c", 4)),
        (4.0, end("stop")),
        (4.0, usage(4)),
        (4.0, done()),
    ];
    near(&read(&events).unwrap().itls, &[1.0, 1.0, 1.0]);
    // By the final count, in proportion to the text.
    let events = [
        (1.0, text("a")),
        (4.0, text("bcdefg")),
        (5.0, text("h")),
        (5.0, end("stop")),
        (5.0, usage(5)),
        (5.0, done()),
    ];
    let answer = read(&events).unwrap();
    // One is the end's, one is the long piece's.
    near(&answer.itls, &[1.5, 1.5, 0.5, 0.5]);
}

#[test]
fn chunks_of_one_read_came_together() {
    // Four tokens in one read are not three tokens in no time.
    let events = [
        (1.0, text("a")),
        (3.0, text("b")),
        (3.0, text("c")),
        (3.0, text("d")),
        (3.0, text("e")),
        (3.0, end("length")),
        (3.0, usage(5)),
        (3.0, done()),
    ];
    near(&read(&events).unwrap().itls, &[0.5; 4]);
}

#[test]
fn a_late_reader_sees_the_first_tokens_together() {
    let all = |events: Vec<Value>| read(&events.into_iter().map(|e| (3.0, e)).collect::<Vec<_>>());
    let two = all(vec![text("a"), text("b"), end("length"), usage(2), done()]).unwrap();
    near(&two.itls, &[0.0]);
    // One chunk of two tokens has no time between them that anybody saw.
    let both = json!({"choices": [{"text": "ab", "token_ids": [1, 2]}]});
    let one = all(vec![both, end("length"), usage(2), done()]).unwrap();
    assert_eq!((one.itls, one.output_tokens), (vec![], 2));
}

#[test]
fn tokens_in_several_chunks_are_still_so_many() {
    let events = [
        (1.0, text("a")),
        (1.5, text("b")),
        (2.0, text("c")),
        (2.0, end("stop")),
        (2.0, usage(2)),
        (2.0, done()),
    ];
    near(&read(&events).unwrap().itls, &[1.0]);
}

/// B8: what fails says why.
#[test]
fn an_answer_that_is_none_says_why() {
    let error = json!({"error": {"message": "rank 1 was killed by signal 9"}});
    let failure = read(&[(0.1, text("a")), (0.2, error)]).unwrap_err();
    assert!(failure.to_string().contains("rank 1 was killed by signal 9"), "{failure}");
    let failure = read(&[(0.1, text("a")), (0.2, text("b"))]).unwrap_err();
    assert_eq!(failure.kind(), "cut");
    assert!(failure.to_string().contains("after 2 chunks"), "{failure}");
    for events in [vec![], vec![(0.1, delta(json!({"role": "assistant"})))]] {
        assert_eq!(read(&events).unwrap_err().kind(), "cut");
    }
    let usage_only = [(0.1, usage(0)), (0.1, done())];
    assert_eq!(read(&usage_only).unwrap_err(), Failure::NoToken { events: 2 });
    assert_eq!(read(&[(0.1, done())]).unwrap_err(), Failure::NoToken { events: 1 });
}

#[test]
fn usage_comes_after_the_end_or_not_at_all() {
    let answer = read(&[(1.0, text("a")), (2.0, end("stop"))]).unwrap();
    assert_eq!((answer.output_tokens, answer.prompt_tokens), (1, None));
    let late = [(1.0, text("a")), (2.0, end("stop")), (7.0, usage(1)), (7.5, done())];
    let answer = read(&late).unwrap();
    assert_eq!((answer.latency, answer.prompt_tokens), (2.0, Some(9)));
}

#[test]
fn servers_say_what_they_cached_in_their_own_ways() {
    let openai = json!({"choices": [], "usage": {"completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 5}}});
    let llama =
        json!({"choices": [{"delta": {}, "finish_reason": "stop"}], "timings": {"cache_n": 6}});
    for (event, cached) in [(openai, 5), (llama, 6)] {
        let answer = read(&[(1.0, text("a")), (1.0, event), (1.0, done())]).unwrap();
        assert_eq!(answer.cached_tokens, Some(cached));
    }
}

proptest! {
    /// Whatever comes in whatever pieces: the times between tokens add up to the time between the
    /// pieces, and there are as many as tokens, but for those of the first piece.
    #[test]
    fn times_between_tokens_add_up(
        pieces in prop::collection::vec((0.001..2.0_f64, 1..20_usize, prop::option::of(1..9_usize)), 1..30),
        more in 0..50_usize,
    ) {
        let mut at = 0.0;
        let pieces: Vec<Piece> = pieces
            .into_iter()
            .map(|(gap, characters, tokens)| {
                at += gap;
                Piece::new(at, tokens, characters)
            })
            .collect();
        let known: usize = pieces.iter().map(|piece| piece.tokens.unwrap_or(1)).sum();
        let all_known = pieces.iter().all(|piece| piece.tokens.is_some());
        let total = if all_known { known } else { known + more };
        let counts = shared_out(&pieces, total).unwrap();
        prop_assert_eq!(counts.iter().sum::<usize>(), total);
        prop_assert!(counts.iter().all(|count| *count > 0));
        let itls = itls(&pieces, total);
        prop_assert_eq!(itls.len(), total - counts[0]);
        let took = pieces[pieces.len() - 1].at - pieces[0].at;
        prop_assert!((itls.iter().sum::<f64>() - took).abs() < 1e-9 * took.max(1.0));
    }

    #[test]
    fn fewer_tokens_than_chunks_add_up_too(gaps in prop::collection::vec(0.001..2.0_f64, 2..30), part in 0.0..1.0_f64) {
        let mut at = 0.0;
        let pieces: Vec<Piece> = gaps
            .iter()
            .map(|gap| {
                at += gap;
                Piece::new(at, None, 1)
            })
            .collect();
        let total = 2 + (part * (pieces.len() - 2) as f64) as usize;
        let itls = itls(&pieces, total);
        prop_assert_eq!(itls.len(), total - 1);
        prop_assert!((itls.iter().sum::<f64>() - (at - gaps[0])).abs() < 1e-9);
    }
}
