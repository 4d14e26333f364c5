//! Log-probabilities over HTTP: of known logits, of halves of characters, of prompts; whole and
//! streamed.

use pocket_tests::generate::{End, Script};
use serde_json::{Value, json};

use crate::http_reading::both_choices;
use crate::http_support::{CHAT, COMPLETIONS, Scripted, asks};

const EMOJI: &str = "🎉👩‍👩‍👧 ok";

/// Bytes of a list of tokens, one after the other.
fn joined(tokens: &Value) -> Vec<u8> {
    let tokens = tokens.as_array().unwrap().iter();
    let bytes = tokens.flat_map(|token| token["bytes"].as_array().unwrap());
    bytes.map(|byte| u8::try_from(byte.as_u64().unwrap()).unwrap()).collect()
}

/// S9: the likeliest tokens beside each are halves of characters too, and every answer is JSON.
#[test]
fn bytes_of_an_emojis_tokens_are_the_answer() {
    let model = Scripted::new(&Script::text(EMOJI).unwrap());
    let daemon = model.daemon().start().unwrap();
    let client = daemon.client();
    let mut request = asks("Say it");
    request["logprobs"] = json!(true);
    request["top_logprobs"] = json!(20);
    let answers = both_choices(&client, CHAT, &request);
    let choice = &answers.choices[0];
    assert_eq!(choice.text, EMOJI);
    let content = &choice.logprobs["content"];
    assert_eq!(joined(content), EMOJI.as_bytes());
    assert_eq!(content.as_array().unwrap().len(), model.checkpoint.chain.len());
    for token in content.as_array().unwrap() {
        let likeliest = token["top_logprobs"].as_array().unwrap();
        assert_eq!(likeliest.len(), 20, "{token}");
        assert_eq!(likeliest[0]["bytes"], token["bytes"], "{token}");
        assert_eq!(likeliest[0]["logprob"], token["logprob"], "{token}");
        // One token has a logit of 32 and all others 0.
        assert!(token["logprob"].as_f64().unwrap().abs() < 1e-6, "{token}");
        for other in &likeliest[1..] {
            assert!((other["logprob"].as_f64().unwrap() + 32.0).abs() < 0.01, "{token}");
        }
    }
    // S6: a cut within a character leaves its part among the bytes and out of the text.
    for max_tokens in 1..=20.min(model.checkpoint.chain.len()) {
        request["max_tokens"] = json!(max_tokens);
        let answers = both_choices(&client, CHAT, &request);
        let choice = &answers.choices[0];
        assert_eq!(choice.text, model.checkpoint.text(max_tokens));
        let bytes = joined(&choice.logprobs["content"]);
        assert!(bytes.starts_with(choice.text.as_bytes()), "{max_tokens}: {choice:?}");
        assert_eq!(bytes, &EMOJI.as_bytes()[..bytes.len()]);
        assert_eq!(choice.logprobs["content"].as_array().unwrap().len(), max_tokens);
    }
}

/// S10: no number of alternatives is none of them.
#[test]
fn alternatives_are_shown_only_when_asked_for() {
    let model = Scripted::new(&Script::text("Hello").unwrap());
    let daemon = model.daemon().start().unwrap();
    let client = daemon.client();
    let mut request = asks("Say it");
    assert_eq!(both_choices(&client, CHAT, &request).choices[0].logprobs, Value::Null);
    request["logprobs"] = json!(true);
    for none in [json!(null), json!(0)] {
        request["top_logprobs"] = none;
        let answers = both_choices(&client, CHAT, &request);
        let content = answers.choices[0].logprobs["content"].as_array().unwrap();
        assert_eq!(content.len(), model.checkpoint.chain.len());
        assert!(content.iter().all(|token| token["top_logprobs"] == json!([])), "{content:?}");
    }
    request["logprobs"] = json!(false);
    request["top_logprobs"] = json!(null);
    assert_eq!(both_choices(&client, CHAT, &request).choices[0].logprobs, Value::Null);
}

/// The tokens of a stop text are not shown, and so is not the beginning of one.
#[test]
fn what_a_stop_text_takes_has_no_log_probabilities() {
    let pieces = ["one ", "tw", "o th", "ree ", "four "];
    let model = Scripted::new(&Script::pieces(pieces).unwrap().then(End::LoopTo(0)).unwrap());
    let daemon = model.daemon().start().unwrap();
    let client = daemon.client();
    for (stop, text, tokens) in [
        ("two three", "one ", vec!["one "]),
        ("wo th", "one t", vec!["one ", "tw"]),
        ("one", "", vec![]),
        ("ree four", "one two th", vec!["one ", "tw", "o th"]),
    ] {
        let mut chat = asks("Count");
        chat["stop"] = json!(stop);
        chat["logprobs"] = json!(true);
        let answers = both_choices(&client, CHAT, &chat);
        assert_eq!(answers.choices[0].text, text);
        let content = answers.choices[0].logprobs["content"].as_array().cloned();
        let content = content.unwrap_or_default();
        assert_eq!(
            content.iter().map(|t| t["token"].clone()).collect::<Vec<_>>(),
            tokens,
            "{stop}"
        );
        let text = json!({
            "prompt": "Count", "temperature": 0, "stop": stop, "logprobs": 0, "max_tokens": 99,
        });
        let answers = both_choices(&client, COMPLETIONS, &text);
        let shown = answers.choices[0].logprobs["tokens"].as_array().cloned().unwrap_or_default();
        assert_eq!(shown, tokens, "{stop}");
    }
}

/// With `echo` the prompt's tokens have theirs; here all logits are known.
#[test]
fn a_prompts_tokens_have_theirs() {
    let model = Scripted::new(&Script::pieces(["one ", "🎉"]).unwrap());
    let daemon = model.daemon().start().unwrap();
    let client = daemon.client();
    let mut request = json!({
        "prompt": ["Só!", [model.checkpoint.chain[0], model.checkpoint.chain[1]]],
        "echo": true, "logprobs": 2, "temperature": 0, "max_tokens": 3,
    });
    let answers = both_choices(&client, COMPLETIONS, &request);
    let scores = |number: usize| answers.choices[number].logprobs.clone();
    let first = scores(0);
    assert_eq!(first["tokens"], json!(["S", "bytes:\\xc3", "bytes:\\xb3", "!", "one ", "🎉"]));
    assert_eq!(first["text_offset"], json!([0, 1, 1, 2, 3, 7]));
    let logprobs = first["token_logprobs"].as_array().unwrap();
    assert_eq!((&logprobs[0], &first["top_logprobs"][0]), (&Value::Null, &Value::Null));
    for unlikely in &logprobs[1..4] {
        assert!((unlikely.as_f64().unwrap() + 32.0).abs() < 0.01, "{first}");
    }
    for likely in &logprobs[4..] {
        assert!(likely.as_f64().unwrap().abs() < 1e-6, "{first}");
    }
    // After "S" the script begins: its first token is the likeliest, the prompt's own stands last.
    let beside: Vec<&String> = first["top_logprobs"][1].as_object().unwrap().keys().collect();
    assert_eq!((beside[0].as_str(), beside[2].as_str()), ("one ", "bytes:\\xc3"));
    // A prompt that is what the script says: its second token is certain, and then comes the end.
    assert_eq!(answers.choices[1].text, "one 🎉");
    let second = scores(1);
    assert_eq!(second["tokens"], json!(["one ", "🎉"]));
    assert!(second["token_logprobs"][1].as_f64().unwrap().abs() < 1e-6, "{second}");

    // The prompts alone have the same.
    request["max_tokens"] = json!(0);
    let alone = both_choices(&client, COMPLETIONS, &request);
    assert_eq!(alone.texts(), ["Só!", "one 🎉"]);
    for (number, count) in [(0, 4), (1, 2)] {
        let all = scores(number)["token_logprobs"].as_array().unwrap()[..count].to_vec();
        assert_eq!(alone.choices[number].logprobs["token_logprobs"], json!(all));
    }
    // Without log-probabilities the same text.
    request["logprobs"] = json!(null);
    let bare = both_choices(&client, COMPLETIONS, &request);
    assert_eq!(bare.texts(), alone.texts());
    assert!(bare.choices.iter().all(|choice| choice.logprobs == Value::Null));
}
