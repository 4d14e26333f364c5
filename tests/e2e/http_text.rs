//! Text over HTTP, whole and streamed: characters split over tokens, stop texts, lengths.
//!
//! The checkpoints answer by a script, so what must come out is known to the byte.

use pocket_tests::generate::{End, Script};
use serde_json::{Value, json};

use crate::http_support::{Answer, CHAT, COMPLETIONS, Scripted, asks, both};

const TEXT: &str = "Grüße 🎉👩‍👩‍👧 中文字 — naïve e\u{301} \n\n \"quotes\" \\ end";

fn completion(max_tokens: usize) -> Value {
    json!({"prompt": "Say it:", "temperature": 0, "max_tokens": max_tokens})
}

fn tokens(answer: &Answer) -> usize {
    usize::try_from(answer.usage["completion_tokens"].as_u64().unwrap()).unwrap()
}

/// S5: an emoji is spread over several tokens, and nobody sees half of one.
#[test]
fn characters_split_over_tokens_arrive_whole() {
    let model = Scripted::new(&Script::text(TEXT).unwrap());
    let daemon = model.daemon().start().unwrap();
    let client = daemon.client();
    for (path, request) in [(CHAT, asks("Say it")), (COMPLETIONS, completion(500))] {
        let answer = both(&client, path, &request);
        assert_eq!(answer.text, TEXT);
        assert_eq!(answer.finish_reason, "stop");
        assert_eq!(tokens(&answer), model.checkpoint.chain.len() + 1, "the end token counts");
    }
}

/// S6: `max_tokens` cuts inside characters, at every place.
#[test]
fn every_length_gives_the_same_text_in_both_modes() {
    let model = Scripted::new(&Script::text(TEXT).unwrap());
    let daemon = model.daemon().start().unwrap();
    let length = model.checkpoint.chain.len();
    for max_tokens in 1..=length {
        let answer = both(&daemon.client(), COMPLETIONS, &completion(max_tokens));
        assert_eq!(answer.text, model.checkpoint.text(max_tokens), "{max_tokens}");
        assert!(!answer.text.contains('\u{fffd}'), "{answer:?}");
        assert_eq!(answer.finish_reason, "length", "{max_tokens}");
        assert_eq!(tokens(&answer), max_tokens);
    }
    // What `/v1/completions` generates when nothing is said.
    let mut request = completion(0);
    request.as_object_mut().unwrap().remove("max_tokens");
    assert_eq!(tokens(&both(&daemon.client(), COMPLETIONS, &request)), 16);
}

/// S7, S8: a stop text over three tokens ends the answer before its first character, no part of it
/// leaks, and the generation ends too although the script never does.
#[test]
fn stop_texts_span_tokens_and_end_the_generation() {
    let pieces = ["one ", "tw", "o th", "ree ", "four "];
    let model = Scripted::new(&Script::pieces(pieces).unwrap().then(End::LoopTo(0)).unwrap());
    let daemon = model.daemon().start().unwrap();
    for (stop, text, count) in [
        (json!("two three"), "one ", 4),
        (json!(["nothing", "wo t"]), "one t", 3),
        (json!("o"), "", 1),
        (json!(["four one", "three"]), "one two ", 4),
        (json!(" tw"), "one", 2),
    ] {
        for (path, mut request) in [(CHAT, asks("Count")), (COMPLETIONS, completion(500))] {
            request["stop"] = stop.clone();
            let answer = both(&daemon.client(), path, &request);
            assert_eq!(answer.text, text, "{stop}");
            assert_eq!(answer.finish_reason, "stop", "{stop}");
            assert_eq!(tokens(&answer), count, "{stop}");
        }
    }
    // The beginning of a stop text that does not come to its end is text.
    let mut request = completion(3);
    request["stop"] = json!(["two thrust", "th!"]);
    let answer = both(&daemon.client(), COMPLETIONS, &request);
    assert_eq!((answer.text.as_str(), answer.finish_reason.as_str()), ("one two th", "length"));
}

#[test]
fn an_answer_may_end_at_once_or_never() {
    let model = Scripted::new(&Script::pieces(["one ", "two "]).unwrap());
    let daemon = model.daemon().start().unwrap();
    let last = *model.checkpoint.chain.last().unwrap();
    let mut request = json!({"prompt": [last], "temperature": 0});
    let answer = both(&daemon.client(), COMPLETIONS, &request);
    assert_eq!((answer.text.as_str(), answer.finish_reason.as_str()), ("", "stop"));
    assert_eq!(tokens(&answer), 1);
    assert_eq!(answer.usage["prompt_tokens"], 1);
    // After the end token the script begins anew.
    request["ignore_eos"] = json!(true);
    request["max_tokens"] = json!(4);
    let answer = both(&daemon.client(), COMPLETIONS, &request);
    assert_eq!((answer.text.as_str(), answer.finish_reason.as_str()), ("one two ", "length"));
}

/// S14: usage comes only when asked for, and then in a chunk of its own.
#[test]
fn usage_is_streamed_only_when_asked_for() {
    let model = Scripted::new(&Script::pieces(["one ", "two "]).unwrap());
    let daemon = model.daemon().start().unwrap();
    for (options, asked) in [
        (json!(null), false),
        (json!({}), false),
        (json!({"include_usage": false}), false),
        (json!({"include_usage": true}), true),
    ] {
        let mut request = asks("Count");
        request["stream"] = json!(true);
        request["stream_options"] = options.clone();
        let stream = daemon.client().stream(CHAT, &request).unwrap();
        let events: Vec<String> = stream.map(|event| event.unwrap().data).collect();
        let (_, chunks) = events.split_last().unwrap();
        let chunks: Vec<Value> = chunks.iter().map(|d| serde_json::from_str(d).unwrap()).collect();
        let usages: Vec<&Value> = chunks.iter().filter_map(|chunk| chunk.get("usage")).collect();
        let (last, before) = chunks.split_last().unwrap();
        assert!(before.iter().all(|chunk| chunk["choices"].as_array().unwrap().len() == 1));
        if asked {
            assert_eq!(usages.len(), chunks.len(), "{options}");
            assert!(before.iter().all(|chunk| chunk["usage"].is_null()), "{options}");
            assert_eq!(last["usage"]["completion_tokens"], 3);
        } else {
            assert!(usages.is_empty(), "{options}: {usages:?}");
            assert_eq!(last["choices"][0]["finish_reason"], "stop");
        }
        assert_eq!(last["timings"]["completion_tokens"], 3, "{last}");
    }
}
