//! The stream and the whole answer are the same.

use pocket_model::reasoning::ReasoningSplitter;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Value, json};

use super::*;
use crate::http::answers::Asked;
use crate::http::testing::{ended, events_of, finished, token, tokenizer};

const BOTH: [Endpoint; 2] = [Endpoint::Chat, Endpoint::Completions];

/// What is asked: so many answers to one prompt.
#[derive(Clone, Copy)]
struct Ask {
    endpoint: Endpoint,
    n: usize,
    logprobs: bool,
    /// Split reasoning from answer, starting inside or not.
    reasons: Option<bool>,
}

const PLAIN: Ask = Ask { endpoint: Endpoint::Chat, n: 1, logprobs: false, reasons: None };

impl Ask {
    fn parts(self) -> (Identity, Answers, Option<LogprobsForm>) {
        let Ask { endpoint, n, logprobs, reasons } = self;
        let identity = Identity::new("x-1".into(), endpoint, "demo", reasons.is_some());
        let splitter = reasons.map(ReasoningSplitter::new);
        let form = logprobs.then(|| LogprobsForm { endpoint, tokenizer: tokenizer() });
        let asked = Asked { splitter, ..Asked::default() };
        (identity, Answers::new(vec![asked], n, logprobs.then(tokenizer)), form)
    }

    /// The payloads of a stream, read the way a client does.
    fn streamed(self, include_usage: bool, events: Vec<Event>) -> Vec<String> {
        let (identity, answers, form) = self.parts();
        let mut chunks = Chunks::new(identity, answers, form, include_usage);
        let text: String = events.into_iter().map(|event| chunks.take(0, event)).collect();
        assert!(chunks.ended());
        assert!(text.ends_with("\n\n"), "{text}");
        text.split_terminator("\n\n")
            .map(|event| {
                assert_eq!(event.lines().count(), 1, "{event}");
                event.strip_prefix("data: ").unwrap().to_string()
            })
            .collect()
    }

    fn whole(self, events: Vec<Event>) -> Result<Value, ApiError> {
        let (identity, answers, form) = self.parts();
        let mut whole = Whole::new(identity, answers, form);
        let end = events.into_iter().find_map(|event| whole.take(0, event)).unwrap();
        end.map(|object| json_of(&object))
    }
}

fn json_of(payload: &str) -> Value {
    serde_json::from_str(payload).unwrap()
}

/// What a client makes of a choice's chunks, in the form of a whole choice.
fn collected(payloads: &[String], index: usize) -> (String, String, Vec<Value>, Value) {
    let (mut reasoning, mut content) = (String::new(), String::new());
    let (mut logprobs, mut reason) = (Vec::new(), Value::Null);
    for payload in &payloads[..payloads.len() - 1] {
        let chunk = json_of(payload);
        for choice in chunk["choices"].as_array().unwrap() {
            if choice["index"] != index {
                continue;
            }
            assert_eq!(reason, Value::Null, "nothing follows the end of a choice");
            reasoning += choice["delta"]["reasoning_content"].as_str().unwrap_or_default();
            let text = choice.get("text").unwrap_or(&choice["delta"]["content"]);
            content += text.as_str().unwrap_or_default();
            logprobs.extend(entries(&choice["logprobs"]));
            reason = choice["finish_reason"].clone();
        }
    }
    (reasoning, content, logprobs, reason)
}

/// The same of a whole choice.
fn shown(choice: &Value) -> (String, String, Vec<Value>, Value) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let content = text(choice.get("text").unwrap_or(&choice["message"]["content"]));
    let reasoning = text(&choice["message"]["reasoning_content"]);
    (reasoning, content, entries(&choice["logprobs"]), choice["finish_reason"].clone())
}

/// Log-probabilities of either form, one value a token.
fn entries(logprobs: &Value) -> Vec<Value> {
    if let Some(content) = logprobs["content"].as_array() {
        return content.clone();
    }
    let Some(tokens) = logprobs["tokens"].as_array() else { return Vec::new() };
    let names = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
    (0..tokens.len()).map(|at| json!(names.map(|name| &logprobs[name][at]))).collect()
}

/// Interleaves the events of several answers in an order that the numbers give.
fn interleave(mut answers: Vec<Vec<Event>>, order: &[usize]) -> Vec<Event> {
    answers.iter_mut().for_each(|events| events.reverse());
    let mut events = Vec::new();
    let mut picks = order.iter().cycle();
    while answers.iter().any(|events| !events.is_empty()) {
        let live: Vec<usize> = (0..answers.len()).filter(|at| !answers[*at].is_empty()).collect();
        let pick = picks.next().unwrap() % live.len();
        events.extend(answers[live[pick]].pop());
    }
    events.push(finished());
    events
}

proptest! {
    #![proptest_config(ProptestConfig {
        rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default()
    })]

    /// S5, S6, S7, S9, S25: whatever the tokens, in whatever order the answers come, the stream is the
    /// whole: texts, reasoning, log-probabilities, reasons; and the entries' bytes begin with the text.
    #[test]
    fn the_stream_is_the_whole_answer_in_pieces(
        answers in prop::collection::vec(
            // Any tokens, control tokens and parts of characters among them, and real text.
            (prop::collection::vec(0_u32..640, 0..12), "(a|b|ab|</think>|🎉|é|\n| ){0,12}"),
            1..4,
        ),
        stops in prop::collection::vec("(a|b|ab|🎉|k>){1,2}", 0..3),
        order in prop::collection::vec(0_usize..4, 1..16),
        chat in any::<bool>(),
        reasons in prop::option::of(any::<bool>()),
        include_usage in any::<bool>(),
    ) {
        let endpoint = if chat { Endpoint::Chat } else { Endpoint::Completions };
        let reasons = reasons.filter(|_| chat);
        let ask = Ask { endpoint, n: answers.len(), logprobs: true, reasons };
        let events = answers.iter().enumerate().map(|(choice, (any, text))| {
            let mut ids = tokenizer().encode(text, false).unwrap();
            ids.extend(any);
            events_of(choice, &ids, &stops, true)
        });
        let events = interleave(events.collect(), &order);
        let raw = |index: usize| -> String {
            events.iter().filter_map(|event| match event {
                Event::Token { choice, text, .. } | Event::Ended { choice, text, .. }
                    if *choice == index => Some(text.as_str()),
                _ => None,
            }).collect()
        };
        let whole = ask.whole(events.clone()).unwrap();
        let payloads = ask.streamed(include_usage, events.clone());
        prop_assert_eq!(payloads.last().unwrap(), "[DONE]");
        for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
            prop_assert_eq!(&choice["index"], &json!(index));
            let (reasoning, content, entries, reason) = shown(choice);
            let streamed = collected(&payloads, index);
            prop_assert_eq!(&streamed, &(reasoning, content.clone(), entries.clone(), reason));
            if reasons.is_none() {
                prop_assert_eq!(&content, &raw(index));
            }
            if chat {
                let bytes: Vec<u8> = entries.iter().flat_map(|entry| {
                    entry["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8)
                }).collect();
                let text = String::from_utf8_lossy(&bytes).into_owned();
                prop_assert!(text.starts_with(&raw(index)), "{:?} {:?}", text, raw(index));
            }
        }
        let last = json_of(&payloads[payloads.len() - 2]);
        prop_assert_eq!(&last["timings"], &whole["timings"]);
        if include_usage {
            prop_assert_eq!(&last["usage"], &whole["usage"]);
        }
    }
}

#[test]
fn a_chat_stream_opens_with_the_role_at_the_first_token_and_sends_no_empty_text() {
    let events = vec![token(0, ""), token(0, "a"), ended(0, "", FinishReason::Length), finished()];
    let payloads = PLAIN.streamed(false, events);
    let deltas: Vec<_> = payloads[..payloads.len() - 1]
        .iter()
        .map(|payload| json_of(payload)["choices"][0]["delta"].clone())
        .collect();
    assert_eq!(
        deltas,
        [json!({"role": "assistant", "content": ""}), json!({"content": "a"}), json!({})]
    );
}

#[test]
fn an_answer_without_any_token_is_still_a_stream() {
    let payloads = PLAIN.streamed(true, vec![ended(0, "", FinishReason::Stop), finished()]);
    assert_eq!(payloads.len(), 4, "{payloads:?}");
    assert_eq!(json_of(&payloads[0])["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(json_of(&payloads[1])["choices"][0]["finish_reason"], "stop");
    assert_eq!(json_of(&payloads[2])["usage"]["completion_tokens"], 3);
    assert_eq!(payloads[3], "[DONE]");
}

/// S14, S15: with several choices there is one usage, after all of them; without it the timings are on
/// the end of the last.
#[test]
fn several_choices_end_one_by_one_and_usage_comes_once() {
    let events = || {
        vec![
            token(1, "b"),
            ended(1, "", FinishReason::Stop),
            token(0, "a"),
            ended(0, "!", FinishReason::Length),
            finished(),
        ]
    };
    for endpoint in BOTH {
        let ask = Ask { endpoint, n: 2, ..PLAIN };
        let payloads = ask.streamed(true, events());
        let chunks: Vec<Value> =
            payloads[..payloads.len() - 1].iter().map(|payload| json_of(payload)).collect();
        let (last, before) = chunks.split_last().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["completion_tokens"], 3);
        assert!(before.iter().all(|chunk| chunk["usage"].is_null()));
        assert!(before.iter().all(|chunk| chunk.get("timings").is_none()));
        let payloads = ask.streamed(false, events());
        let chunks: Vec<Value> =
            payloads[..payloads.len() - 1].iter().map(|payload| json_of(payload)).collect();
        let ends: Vec<_> =
            chunks.iter().filter(|chunk| !chunk["choices"][0]["finish_reason"].is_null()).collect();
        assert_eq!(ends.len(), 2);
        assert_eq!(ends[0]["choices"][0]["index"], 1);
        assert!(ends[0].get("timings").is_none());
        assert_eq!(ends[1], chunks.last().unwrap());
        assert_eq!(ends[1]["timings"]["completion_tokens"], 3);
    }
}

/// S2, S33: the error is an event, before or after the first token, and nothing follows it.
#[test]
fn a_failure_is_the_last_event_of_a_stream() {
    let failed = || Event::Failed(RequestError::RankFailed("rank 2 was killed".into()));
    let last = || ended(0, "", FinishReason::Stop);
    for events in
        [vec![failed()], vec![token(0, "a"), failed()], vec![token(0, "a"), last(), failed()]]
    {
        let payloads = PLAIN.streamed(true, events.clone());
        let error = &json_of(payloads.last().unwrap())["error"];
        assert_eq!(error["message"], "rank 2 was killed");
        assert_eq!(error["type"], "server_error");
        assert_eq!(PLAIN.whole(events).unwrap_err().to_json()["error"], *error);
    }
}

#[test]
fn a_cancelled_answer_is_an_error_after_the_text_there_is() {
    let ask = Ask { endpoint: Endpoint::Completions, ..PLAIN };
    let events = vec![token(0, "half"), ended(0, " an", FinishReason::Cancelled)];
    let payloads = ask.streamed(true, events.clone());
    let [first, second, error] = payloads.as_slice() else { panic!("{payloads:?}") };
    assert_eq!(json_of(first)["choices"][0]["text"], "half");
    assert_eq!(json_of(second)["choices"][0]["text"], " an");
    assert_eq!(json_of(error)["error"]["code"], "cancelled");
    assert_eq!(ask.whole(events).unwrap_err().to_json()["error"]["code"], "cancelled");
}

#[test]
fn a_request_that_is_lost_is_an_error() {
    let error = PLAIN.whole(vec![token(0, "half"), lost()]).unwrap_err();
    assert_eq!(error.to_json()["error"]["code"], "rank_failed");
}

/// S10: asked for, log-probabilities are there even where there is no token.
#[test]
fn logprobs_are_an_object_when_asked_for_and_null_when_not() {
    for endpoint in BOTH {
        let events = || vec![ended(0, "", FinishReason::Stop), finished()];
        let ask = Ask { endpoint, ..PLAIN };
        assert_eq!(ask.whole(events()).unwrap()["choices"][0]["logprobs"], Value::Null);
        let asked = Ask { logprobs: true, ..ask }.whole(events()).unwrap();
        let expected = match endpoint {
            Endpoint::Chat => json!({"content": [], "refusal": null}),
            Endpoint::Completions => json!({
                "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": [],
            }),
        };
        assert_eq!(asked["choices"][0]["logprobs"], expected);
    }
}
