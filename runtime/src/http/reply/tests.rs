//! Answers as JSON.

use serde_json::{Value, json};

use super::*;

fn identity(endpoint: Endpoint, reasons: bool) -> Identity {
    let model = "demo".into();
    Identity { id: "x-1".into(), endpoint, model, created: 5, reasons }
}

fn totals() -> Totals {
    let timings = Timings {
        prompt_tokens: 3,
        completion_tokens: 2,
        decode_ms: 1.5,
        preemptions: 1,
        ..Timings::default()
    };
    Totals { timings, prompts: Vec::new(), reasoning_tokens: 1 }
}

fn says(content: &str) -> Shown<'_> {
    Shown { content, ..Shown::default() }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_whole_chat_answer() {
    let choices = [(says("Hi"), FinishReason::Stop)];
    let text = identity(Endpoint::Chat, false).whole(&choices, &totals());
    assert_eq!(
        parsed(&text),
        json!({
            "id": "x-1", "object": "chat.completion", "created": 5, "model": "demo",
            "system_fingerprint": FINGERPRINT,
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": "Hi", "refusal": null},
                "logprobs": null, "finish_reason": "stop",
            }],
            "usage": {
                "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 1},
            },
            "timings": {
                "queue_ms": 0.0, "prefill_ms": 0.0, "decode_ms": 1.5, "prefill_calls": 0,
                "calls_before_first_token": 0, "rows_before_first_token": 0, "prompt_tokens": 3,
                "cached_tokens": 0, "completion_tokens": 2, "preemptions": 1,
            },
        })
    );
}

#[test]
fn a_whole_completion_with_two_choices() {
    let none = Logprobs::Text {
        tokens: vec![],
        token_logprobs: vec![],
        top_logprobs: vec![],
        text_offset: vec![],
    };
    let with_logprobs = Shown { logprobs: Some(&none), ..says("Hi") };
    let choices = [(with_logprobs, FinishReason::Length), (says("Ho"), FinishReason::Stop)];
    let object = parsed(&identity(Endpoint::Completions, false).whole(&choices, &totals()));
    assert_eq!(object["object"], "text_completion");
    assert_eq!(
        object["choices"],
        json!([
            {
                "index": 0, "text": "Hi",
                "logprobs": {
                    "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": [],
                },
                "finish_reason": "length",
            },
            {"index": 1, "text": "Ho", "logprobs": null, "finish_reason": "stop"},
        ])
    );
}

#[test]
fn a_model_that_reasons_has_a_member_for_it() {
    let message = |reasoning: &str| {
        let shown = Shown { reasoning, ..says("4") };
        let whole = identity(Endpoint::Chat, true);
        parsed(&whole.whole(&[(shown, FinishReason::Stop)], &totals()))["choices"][0]["message"]
            .take()
    };
    assert_eq!(
        message("2+2"),
        json!({
            "role": "assistant", "reasoning_content": "2+2", "content": "4", "refusal": null,
        })
    );
    assert_eq!(message("")["reasoning_content"], Value::Null);
    let delta = |shown| {
        let piece = identity(Endpoint::Chat, true).piece(0, shown, ChunkUsage::Absent);
        parsed(&piece)["choices"][0]["delta"].take()
    };
    let thinks = Shown { reasoning: "2+2", ..Shown::default() };
    assert_eq!(delta(thinks), json!({"reasoning_content": "2+2"}));
    assert_eq!(delta(says("4")), json!({"content": "4"}));
}

#[test]
fn the_chunks_of_a_chat_answer() {
    let identity = identity(Endpoint::Chat, false);
    let choice = |text: &str| parsed(text)["choices"][0].clone();
    let opening = identity.opening(2, ChunkUsage::Absent).unwrap();
    assert_eq!(choice(&opening)["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(choice(&opening)["index"], 2);
    assert_eq!(choice(&opening)["finish_reason"], Value::Null);
    assert_eq!(parsed(&opening)["object"], "chat.completion.chunk");
    assert!(parsed(&opening).get("usage").is_none());
    let piece = identity.piece(2, says("Hi"), ChunkUsage::Absent);
    assert_eq!(choice(&piece)["delta"], json!({"content": "Hi"}));
    let totals = totals();
    let reason = FinishReason::Stop;
    let last = identity.closing(2, reason, None, ChunkUsage::Absent, Some(&totals));
    assert_eq!(choice(&last)["delta"], json!({}));
    assert_eq!(choice(&last)["finish_reason"], "stop");
    assert_eq!(parsed(&last)["timings"]["completion_tokens"], 2);
    assert!(parsed(&last).get("usage").is_none());
}

/// S14: a chunk of its own carries the usage, and all others say null.
#[test]
fn usage_has_its_own_last_chunk() {
    for endpoint in [Endpoint::Chat, Endpoint::Completions] {
        let identity = identity(endpoint, false);
        let usage = ChunkUsage::AtTheEnd;
        let piece = parsed(&identity.piece(0, says("Hi"), usage));
        assert!(piece.as_object().unwrap().contains_key("usage"));
        assert_eq!(piece["usage"], Value::Null);
        let reason = parsed(&identity.closing(0, FinishReason::Stop, None, usage, None));
        assert_eq!(reason["choices"][0]["finish_reason"], "stop");
        assert_eq!(reason["usage"], Value::Null);
        assert!(reason.get("timings").is_none());
        let last = parsed(&identity.usage(&totals()));
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["total_tokens"], 5);
        assert_eq!(last["timings"]["prompt_tokens"], 3);
    }
}

#[test]
fn answers_have_names_of_their_own() {
    let (a, b) = (new_id(Endpoint::Chat), new_id(Endpoint::Chat));
    assert!(a.starts_with("chatcmpl-") && a != b);
    assert!(new_id(Endpoint::Completions).starts_with("cmpl-"));
}
