//! The fold, step by step.

use super::*;
use crate::http::testing::{ended, events_of, finished, score, token, tokenizer};

fn plain(prompts: usize, n: usize) -> Answers {
    Answers::new(vec![Asked::default(); prompts], n, None)
}

fn take_all(answers: &mut Answers, events: Vec<Event>) -> Vec<Step> {
    events.into_iter().flat_map(|event| answers.take(0, event)).collect()
}

fn says(index: usize, content: &str) -> Step {
    Step::Text { index, delta: Delta { content: content.into(), ..Delta::default() } }
}

fn ends(index: usize, reason: FinishReason) -> Step {
    Step::End { index, reason, entries: vec![] }
}

#[test]
fn choices_are_numbered_by_prompt_and_answer_and_open_once() {
    let mut answers = plain(2, 3);
    assert_eq!(answers.len(), 6);
    assert_eq!(answers.take(1, token(2, "")), [Step::Open { index: 5 }]);
    assert_eq!(answers.take(1, token(2, "a")), [says(5, "a")]);
    assert_eq!(answers.take(0, token(1, "b")), [Step::Open { index: 1 }, says(1, "b")]);
    let stop = FinishReason::Stop;
    assert_eq!(answers.take(1, ended(0, "", stop)), [Step::Open { index: 3 }, ends(3, stop)]);
}

/// S15: completion tokens of all answers, prompt tokens once a prompt, when the last is complete.
#[test]
fn the_request_is_done_when_every_prompt_is() {
    let mut answers = plain(2, 1);
    for prompt in [1, 0] {
        answers.take(prompt, ended(0, "", FinishReason::Stop));
    }
    let timed = |queue_ms, prefill_calls| {
        let counts = Timings { prompt_tokens: 4, completion_tokens: 3, ..Timings::default() };
        let calls_before_first_token = 3 + prefill_calls;
        let timings =
            Timings { queue_ms, prefill_calls, calls_before_first_token, preemptions: 1, ..counts };
        Event::Finished { timings, counters: Default::default() }
    };
    assert_eq!(answers.take(1, timed(2.0, 1)), []);
    let steps = answers.take(0, timed(1.0, 2));
    let [Step::Done(Totals { timings, prompts, reasoning_tokens: 0 })] = steps.as_slice() else {
        panic!("{steps:?}")
    };
    assert_eq!((timings.prompt_tokens, timings.completion_tokens), (8, 6));
    assert_eq!((timings.prefill_calls, timings.preemptions), (3, 2));
    assert_eq!((timings.queue_ms, timings.calls_before_first_token), (2.0, 5), "the slowest");
    let each: Vec<_> = prompts.iter().map(|of| (of.queue_ms, of.prefill_calls)).collect();
    assert_eq!(each, [(1.0, 2), (2.0, 1)], "in the order of the prompts");
}

/// H2: half an answer never looks whole.
#[test]
fn what_ends_early_is_a_failure() {
    let mut answers = plain(1, 2);
    let steps = answers.take(0, ended(1, " an", FinishReason::Cancelled));
    let [Step::Open { index: 1 }, text, Step::Failed(error)] = steps.as_slice() else {
        panic!("{steps:?}")
    };
    assert_eq!(*text, says(1, " an"));
    assert_eq!(error.to_json()["error"]["code"], "cancelled");
    let failed = answers.take(0, Event::Failed(RequestError::RankFailed("rank 2".into())));
    assert!(matches!(failed.as_slice(), [Step::Failed(error)] if error.to_string() == "rank 2"));
    // One of two answers is missing.
    let steps = answers.take(0, finished());
    assert!(
        matches!(steps.as_slice(), [Step::Failed(error)]
            if error.to_string() == "the engine completed 1 of 2 answers"),
        "{steps:?}"
    );
}

fn thinks(starts_inside: bool) -> Answers {
    let splitter = Some(ReasoningSplitter::new(starts_inside));
    Answers::new(vec![Asked { splitter, ..Asked::default() }], 1, None)
}

/// Reasoning, content, and the tokens counted as reasoning.
fn split(mut answers: Answers, pieces: &[&str]) -> (String, String, u64) {
    let events = pieces.iter().map(|piece| token(0, piece));
    let end = [ended(0, "", FinishReason::Stop), finished()];
    let (mut reasoning, mut content) = (String::new(), String::new());
    for step in take_all(&mut answers, events.chain(end).collect()) {
        match step {
            Step::Text { delta, .. } => {
                reasoning += &delta.reasoning;
                content += &delta.content;
            }
            Step::Done(totals) => return (reasoning, content, totals.reasoning_tokens),
            _ => {}
        }
    }
    panic!("no end")
}

/// S25: what is said goes to `content`, what is thought to `reasoning_content`.
#[test]
fn reasoning_is_told_from_the_answer_and_counted() {
    let strings = |(a, b, c): (&str, &str, u64)| (a.to_string(), b.to_string(), c);
    let pieces = ["So ", "4.", "</thi", "nk>", "\n\n", "It is", " 4."];
    assert_eq!(split(thinks(true), &pieces), strings(("So 4.", "It is 4.", 5)));
    assert_eq!(
        split(thinks(false), &["<think>", "\nSo", "</think>", "4"]),
        strings(("So", "4", 3))
    );
    assert_eq!(split(thinks(false), &["It is", " 4."]), strings(("", "It is 4.", 0)));
    // Cut off while it thinks; and what looks like the beginning of a mark to the end.
    assert_eq!(split(thinks(true), &["So ", "4."]), strings(("So 4.", "", 2)));
    assert_eq!(split(thinks(true), &["So <", "/th"]), strings(("So </th", "", 2)));
}

#[test]
fn an_echo_comes_before_the_answer_with_the_prompts_log_probabilities() {
    let tokenizer = tokenizer();
    let text = "a é b";
    let ids = tokenizer.encode(text, false).unwrap();
    let echo = Some(text.to_string());
    let asked = Asked { echo, ids: ids.clone(), ..Asked::default() };
    let mut answers = Answers::new(vec![asked], 2, Some(Arc::clone(&tokenizer)));
    let logprobs: Vec<_> =
        ids.iter().enumerate().map(|(at, id)| (at > 0).then(|| score(*id))).collect();
    assert_eq!(answers.take(0, Event::Prompt { logprobs: logprobs.clone() }), []);
    for (index, word) in ["x", "y"].iter().enumerate() {
        let id = tokenizer.encode(word, false).unwrap()[0];
        let steps = answers.take(0, events_of(index, &[id], &[], true).remove(0));
        let [Step::Open { .. }, Step::Text { delta: echo, .. }, Step::Text { delta, .. }] =
            steps.as_slice()
        else {
            panic!("{steps:?}")
        };
        assert_eq!(echo.content, text);
        assert_eq!(echo.entries.iter().map(|e| e.logprobs.clone()).collect::<Vec<_>>(), logprobs);
        assert_eq!(echo.entries[0].offset, 0);
        assert_eq!(echo.entries.last().unwrap().offset, 3, "in characters: {:?}", echo.entries);
        assert_eq!((delta.content.as_str(), delta.entries[0].offset), (*word, 5));
    }
}

/// An echo alone: the engine ends the answer without any token.
#[test]
fn an_echo_needs_no_answer() {
    let asked = Asked { echo: Some("Hi".into()), ..Asked::default() };
    let mut answers = Answers::new(vec![asked], 1, None);
    let length = FinishReason::Length;
    let steps = take_all(
        &mut answers,
        vec![Event::Prompt { logprobs: vec![None] }, ended(0, "", length), finished()],
    );
    assert_eq!(steps[..3], [Step::Open { index: 0 }, says(0, "Hi"), ends(0, length)]);
    assert!(matches!(steps[3], Step::Done(_)));
}

/// An entry whose text waits behind a possible mark waits with it.
#[test]
fn entries_go_with_their_text_through_the_splitter() {
    let tokenizer = tokenizer();
    let splitter = Some(ReasoningSplitter::new(true));
    let asked = Asked { splitter, ..Asked::default() };
    let mut answers = Answers::new(vec![asked], 1, Some(Arc::clone(&tokenizer)));
    let ids = tokenizer.encode("so</think>yes", false).unwrap();
    let steps = take_all(&mut answers, events_of(0, &ids, &[], true));
    let mut seen = Vec::new();
    for step in steps {
        match step {
            Step::Text { delta, .. } => {
                assert!(!delta.entries.is_empty(), "{delta:?}");
                seen.extend(delta.entries.iter().map(|entry| entry.id));
            }
            Step::End { entries, .. } => assert_eq!(entries, []),
            _ => {}
        }
    }
    assert_eq!(seen, ids, "the marks have entries too");
}
