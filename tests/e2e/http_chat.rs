//! Chats and seeds with the demo model.

use pocket_tests::daemon::Daemon;
use serde_json::{Value, json};

use crate::common::{POCKETD, fixture_json};
use crate::http_support::{CHAT, COMPLETIONS, asks, both, whole};

/// The demo model on two ranks.
fn demo() -> Daemon {
    Daemon::options(POCKETD).args(["--tensor-parallel-size", "2"]).start().unwrap()
}

#[test]
fn both_modes_say_the_same() {
    let daemon = demo();
    let answer = both(&daemon.client(), CHAT, &asks("What is the capital of France?"));
    assert_eq!(answer.text, "The capital of France is Paris.");
    assert_eq!(answer.finish_reason, "stop");
    let total = answer.usage["prompt_tokens"].as_u64().unwrap()
        + answer.usage["completion_tokens"].as_u64().unwrap();
    assert_eq!(answer.usage["total_tokens"], total);
    // The checkpoint's generation_config.json says not to sample.
    let mut request = asks("What is the capital of France?");
    request.as_object_mut().unwrap().remove("temperature");
    assert_eq!(both(&daemon.client(), CHAT, &request), answer);
}

/// K7: history with the assistant's own messages, and an answer that ends at the end-of-message token.
#[test]
fn a_conversation_of_three_turns() {
    let daemon = demo();
    let client = daemon.client();
    let mut messages: Vec<Value> = Vec::new();
    for question in [
        "What is the capital of France?",
        "What is the capital of Spain?",
        "What is the capital of Italy?",
    ] {
        messages.push(json!({"role": "user", "content": question}));
        let answer = both(&client, CHAT, &json!({"messages": messages, "temperature": 0}));
        assert_eq!(answer.finish_reason, "stop", "{question}: {answer:?}");
        assert!(!answer.text.contains("<|im_end|>"), "{answer:?}");
        messages.push(json!({"role": "assistant", "content": answer.text}));
    }
}

/// K2: a developer's message is a system's, and text may come in parts.
#[test]
fn roles_and_contents_have_two_spellings() {
    let daemon = demo();
    let client = daemon.client();
    let ask = |role: &str, content: Value| {
        let request = json!({
            "messages": [
                {"role": role, "content": "Be brief."}, {"role": "user", "content": content},
            ],
            "temperature": 0,
        });
        both(&client, CHAT, &request)
    };
    let expected = ask("system", json!("What is the capital of France?"));
    assert_eq!(ask("developer", json!("What is the capital of France?")), expected);
    let parts = json!([{"type": "text", "text": "What is the capital of France?"}]);
    assert_eq!(ask("developer", parts), expected);
}

#[test]
fn a_prompt_is_a_text_or_its_tokens() {
    let daemon = demo();
    let client = daemon.client();
    let expected = fixture_json("demo/expected.json");
    let case = expected["cases"]
        .as_array()
        .unwrap()
        .iter()
        .find(|case| case["name"] == "capital")
        .expect("the case");
    let chat = whole(&client, CHAT, &json!({"messages": case["messages"]}));
    let request = json!({"prompt": case["ids"], "max_tokens": 64});
    let by_ids = both(&client, COMPLETIONS, &request);
    assert_eq!(by_ids, chat);
    assert_eq!(by_ids.text, case["text"].as_str().unwrap());
}

#[test]
fn a_seed_makes_an_answer_repeatable() {
    let daemon = demo();
    let client = daemon.client();
    let story = |seed: i64| {
        let mut request = asks("Tell me a short story about a dragon named Luna.");
        request["temperature"] = json!(1.5);
        request["top_p"] = json!(0.95);
        request["max_tokens"] = json!(40);
        request["seed"] = json!(seed);
        both(&client, CHAT, &request).text
    };
    let stories: Vec<String> = [1, -1, i64::MAX, i64::MIN].map(story).to_vec();
    assert_eq!(story(1), stories[0]);
    assert!(stories.iter().any(|other| *other != stories[0]), "{stories:?}");
    // One candidate leaves no choice, whatever the temperature.
    let mut request = asks("What is the capital of France?");
    request["temperature"] = json!(2);
    request["top_k"] = json!(1);
    assert_eq!(both(&client, CHAT, &request).text, "The capital of France is Paris.");
}
