//! From a body to the engine's requests.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::http::prompt::TextSide;
use crate::http::testing::{DEFAULTS, tokenizer};

fn model() -> ServedModel {
    ServedModel {
        name: "demo".into(),
        created: 0,
        context: 64,
        vocab_size: 640,
        defaults: DEFAULTS,
        text: TextSide { tokenizer: tokenizer(), template: None },
    }
}

fn prepared(given: Option<&str>, body: Value) -> Result<Prepared, ApiError> {
    let names = Names { id: "cmpl-1".into(), given: given.map(str::to_string), trace: None };
    prepare(Endpoint::Completions, names, body.to_string().as_bytes(), &model(), 16)
}

fn refusal(body: Value) -> String {
    match prepared(None, body) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    }
}

/// H21: what a request says about sampling reaches the engine.
#[test]
fn every_parameter_reaches_the_engine() {
    let request = prepared(
        Some("mine"),
        json!({
            "prompt": [1, 2], "n": 3, "max_tokens": 20, "min_tokens": 2, "seed": 9, "min_p": 0.1,
            "logit_bias": {"5": 1}, "stop": "x", "stop_token_ids": [7], "ignore_eos": true,
            "logprobs": 4, "timeout": 2,
        }),
    )
    .unwrap()
    .requests
    .remove(0);
    assert_eq!((request.id.as_str(), request.label.as_deref()), ("cmpl-1", Some("mine")));
    assert_eq!((request.prompt, request.n, request.max_tokens), (vec![1, 2], 3, Some(20)));
    assert_eq!((request.sampling.seed, request.sampling.min_p), (Some(9), 0.1));
    assert_eq!((request.sampling.min_tokens, request.sampling.logit_bias[&5]), (2, 1.0));
    assert_eq!((request.stop, request.stop_token_ids), (vec!["x".to_string()], vec![7]));
    assert!(request.ignore_eos);
    assert_eq!((request.logprobs, request.prompt_logprobs), (Some(4), None));
    assert_eq!(request.timeout, Some(Duration::from_secs(2)));
}

#[test]
fn several_prompts_have_names_of_their_own_and_one_label() {
    let names = |given| {
        let requests = prepared(given, json!({"prompt": [[1], [2]]})).unwrap().requests;
        requests.into_iter().map(|request| (request.id, request.label)).collect::<Vec<_>>()
    };
    let named = |number: usize, label: &str| (format!("cmpl-1-{number}"), Some(label.to_string()));
    assert_eq!(names(Some("mine")), [named(0, "mine"), named(1, "mine")]);
    assert_eq!(names(None), [named(0, "cmpl-1"), named(1, "cmpl-1")]);
    assert_eq!(prepared(None, json!({"prompt": [[1]]})).unwrap().requests[0].id, "cmpl-1");
}

#[test]
fn an_echo_asks_about_the_prompt_only_for_its_log_probabilities_or_alone() {
    let asked = |body: Value| {
        let request = prepared(None, body).unwrap().requests.remove(0);
        (request.max_tokens, request.logprobs, request.prompt_logprobs)
    };
    assert_eq!(asked(json!({"prompt": "a", "echo": true})), (Some(16), None, None));
    assert_eq!(
        asked(json!({"prompt": "a", "echo": true, "logprobs": 2, "max_tokens": 0})),
        (Some(0), Some(2), Some(2))
    );
    assert_eq!(
        asked(json!({"prompt": "a", "echo": true, "max_tokens": 0})),
        (Some(0), None, Some(0))
    );
    assert_eq!(asked(json!({"prompt": "a", "logprobs": 2})), (Some(16), Some(2), None));
}

/// M18, S33: the numbers, and which of several prompts it is.
#[test]
fn what_cannot_be_is_refused_with_the_numbers() {
    let long = vec![1; 64];
    assert_eq!(
        refusal(json!({"prompt": long})),
        "the prompt has 64 tokens; the context of this model is 64 tokens, prompt and answer together"
    );
    assert!(refusal(json!({"prompt": [[1], long]})).starts_with("prompt[1] has 64 tokens; "));
    assert_eq!(
        refusal(json!({"prompt": [1, 2], "max_tokens": 63})),
        "max_tokens is 63; after a prompt of 2 tokens at most 62 fit the context of 64"
    );
    assert_eq!(
        refusal(json!({"prompt": [1], "min_tokens": 17})),
        "min_tokens is 17; the answer has at most 16 tokens"
    );
    assert_eq!(
        refusal(json!({"prompt": [1], "model": "other"})),
        "the model 'other' does not exist; this server has 'demo'"
    );
}
