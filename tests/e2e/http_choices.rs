//! Several answers to several prompts, and the fields that steer them, whole and streamed.

use std::thread;

use pocket_tests::daemon::Daemon;
use pocket_tests::generate::{End, Script};
use pocket_tests::http::Client;
use serde_json::{Value, json};

use crate::common::POCKETD;
use crate::http_reading::{Answers, both_choices, whole_choices};
use crate::http_support::{CHAT, COMPLETIONS, Scripted, asks, both, wait_idle};

/// The demo model on so many ranks.
fn demo(ranks: &str) -> Daemon {
    Daemon::options(POCKETD).args(["--tensor-parallel-size", ranks]).start().unwrap()
}

/// A request with more members.
fn with(mut request: Value, more: &Value) -> Value {
    let members = more.as_object().unwrap().clone();
    request.as_object_mut().unwrap().extend(members);
    request
}

/// S15: the usage is the sum of all choices and the prompt is counted once.
#[test]
fn three_answers_to_a_chat() {
    let daemon = demo("2");
    let client = daemon.client();
    let sampled = json!({"n": 3, "seed": 11, "temperature": 1.5, "max_tokens": 24});
    let request = with(asks("Tell me a short story about a dragon named Luna."), &sampled);
    let three = both_choices(&client, CHAT, &request);
    assert_eq!(three.choices.len(), 3);
    let mut sum = 0;
    for (number, choice) in (0..).zip(&three.choices) {
        // Answer i is what the seed plus i gives alone.
        let alone = with(request.clone(), &json!({"n": 1, "seed": 11 + number}));
        let alone = both_choices(&client, CHAT, &alone);
        assert_eq!(alone.choices[0], *choice, "answer {number}");
        assert_eq!(alone.usage["prompt_tokens"], three.usage["prompt_tokens"]);
        sum += alone.tokens();
    }
    assert_eq!(three.tokens(), sum);
    assert!(three.texts().iter().any(|text| *text != three.texts()[0]), "{three:?}");
    wait_idle(&client);
}

#[test]
fn prompts_as_texts_and_as_tokens() {
    let daemon = demo("1");
    let client = daemon.client();
    let texts = ["The capital of Spain is", "The capital of France is"];
    let ids: Vec<Value> = texts
        .iter()
        .map(|text| client.post("/tokenize", &json!({"prompt": text})).unwrap().json().unwrap())
        .map(|reply| reply["tokens"].clone())
        .collect();
    let request =
        |prompt: Value| json!({"prompt": prompt, "n": 2, "temperature": 0, "max_tokens": 6});
    let by_text = both_choices(&client, COMPLETIONS, &request(json!(texts)));
    assert_eq!(both_choices(&client, COMPLETIONS, &request(json!(ids))), by_text);
    // Choices are numbered prompt times n plus answer.
    let alone: Vec<_> = texts
        .iter()
        .map(|text| whole_choices(&client, COMPLETIONS, &request(json!(text))))
        .collect();
    let choices: Vec<_> = alone.iter().flat_map(|answers| answers.choices.clone()).collect();
    assert_eq!(by_text.choices, choices);
    assert!(by_text.texts()[0].contains("Madrid") && by_text.texts()[2].contains("Paris"));
    let counts = alone.iter().map(|answers| answers.usage["prompt_tokens"].as_u64().unwrap());
    assert_eq!(by_text.usage["prompt_tokens"], counts.sum::<u64>());
    // A list of one is one.
    assert_eq!(both_choices(&client, COMPLETIONS, &request(json!([texts[1]]))), alone[1]);
}

#[test]
fn a_prompt_is_shown_before_each_answer() {
    let model = Scripted::new(&Script::pieces(["Grü", "ße ", "🎉"]).unwrap());
    let daemon = model.daemon().start().unwrap();
    let client = daemon.client();
    let request = json!({"prompt": ["Só:", "Z:"], "echo": true, "n": 2, "temperature": 0});
    let answers = both_choices(&client, COMPLETIONS, &request);
    assert_eq!(answers.texts(), ["Só:Grüße 🎉", "Só:Grüße 🎉", "Z:Grüße 🎉", "Z:Grüße 🎉"]);
    assert_eq!(answers.usage["prompt_tokens"], "Só:".len() + "Z:".len());
    assert_eq!(answers.tokens(), 4 * 4);
    // Token ids are shown as their text.
    let ids: Vec<u8> = "Só:".bytes().collect();
    let answers =
        both_choices(&client, COMPLETIONS, &with(request.clone(), &json!({"prompt": ids})));
    assert_eq!(answers.texts(), ["Só:Grüße 🎉"; 2]);
    // The prompt alone.
    let none = both_choices(&client, COMPLETIONS, &with(request, &json!({"max_tokens": 0})));
    assert_eq!(none.texts(), ["Só:", "Só:", "Z:", "Z:"]);
    assert_eq!(none.tokens(), 0);
    assert!(none.choices.iter().all(|choice| choice.finish_reason == "length"), "{none:?}");
}

/// Each of the fields changes a known answer in a known way.
#[test]
fn fields_that_steer_visibly_act() {
    let script = Script::pieces(["one ", "two "]).unwrap().then(End::LoopTo(0)).unwrap();
    // Wherever "one " is likeliest, " <tie 0>" is exactly as likely.
    let model = Scripted::new(&script.tie_at(0).unwrap());
    let daemon = model.daemon().start().unwrap();
    let client = daemon.client();
    let (one, two, rival) =
        (model.checkpoint.chain[0], model.checkpoint.chain[1], model.checkpoint.rivals[0]);
    let plain = json!({"prompt": "Go:", "temperature": 0, "max_tokens": 4});
    let says = |more: Value| both(&client, COMPLETIONS, &with(plain.clone(), &more));
    assert_eq!(says(json!({})).text, "one two one two ");
    for (what, more, text) in [
        (
            "a token is forbidden",
            json!({"logit_bias": {one.to_string(): -100}}),
            " <tie 0> <tie 0> <tie 0> <tie 0>",
        ),
        ("a token is forced", json!({"logit_bias": {two.to_string(): 100}}), "two two two two "),
        ("presence", json!({"presence_penalty": 0.5}), "one two  <tie 0>one "),
        ("frequency", json!({"frequency_penalty": 0.5}), "one two  <tie 0>one "),
        ("repetition", json!({"repetition_penalty": 1.1}), "one two  <tie 0>one "),
        // The prompt counts for repetition and for nothing else.
        (
            "repetition",
            json!({"prompt": [one, 65], "repetition_penalty": 1.1}),
            " <tie 0>one two one ",
        ),
        ("presence", json!({"prompt": [one, 65], "presence_penalty": 0.5}), "one two  <tie 0>one "),
    ] {
        assert_eq!(says(more.clone()).text, text, "{what}: {more}");
    }
    // The likeliest is 32 above the others, twice as rare after 16 times.
    let often = says(json!({"frequency_penalty": 2, "max_tokens": 80})).text;
    assert!(says(json!({"max_tokens": 80})).text.starts_with(&often[..8]));
    assert!(!often.replace("one ", "").replace("two ", "").replace(" <tie 0>", "").is_empty());

    let stopped = says(json!({"stop_token_ids": [rival, two]}));
    assert_eq!((stopped.text.as_str(), stopped.finish_reason.as_str()), ("one ", "stop"));
    assert_eq!(stopped.usage["completion_tokens"], 2);
    // With the least number of tokens neither an end token nor a stop text ends it before.
    let least = says(json!({"stop": ["two"], "min_tokens": 3}));
    assert_eq!((least.text.as_str(), least.finish_reason.as_str()), ("one two one ", "stop"));
    let least = says(json!({"stop_token_ids": [two], "min_tokens": 2, "max_tokens": 64}));
    assert_eq!(least.finish_reason, "stop");
    assert!(least.usage["completion_tokens"].as_u64().unwrap() > 2, "{least:?}");
}

#[test]
fn an_answer_has_at_least_so_many_tokens() {
    let model = Scripted::new(&Script::pieces(["one ", "two "]).unwrap());
    let daemon = model.daemon().start().unwrap();
    let client = daemon.client();
    let mut request = json!({"prompt": "Go:", "temperature": 0, "max_tokens": 50});
    assert_eq!(both(&client, COMPLETIONS, &request).usage["completion_tokens"], 3);
    request["min_tokens"] = json!(8);
    let answer = both(&client, COMPLETIONS, &request);
    assert!(answer.usage["completion_tokens"].as_u64().unwrap() > 8, "{answer:?}");
    assert_eq!(answer.finish_reason, "stop");
    assert!(answer.text.starts_with("one two ") && answer.text.ends_with("one two "), "{answer:?}");
}

/// Requests whose every field differs.
fn mixed(number: i64) -> Value {
    let top_k = [0, 1, 5, 40][usize::try_from(number % 4).unwrap()];
    let more = json!({
        "seed": number,
        "temperature": 0.7 + 0.3 * (number % 5) as f64,
        "top_k": top_k,
        "top_p": 1.0 - 0.1 * (number % 3) as f64,
        "min_p": 0.01 * (number % 4) as f64,
        "presence_penalty": 0.5 * (number % 3) as f64,
        "repetition_penalty": 1.0 + 0.1 * (number % 2) as f64,
        "n": 1 + number % 2,
        "logprobs": number % 2 == 0,
        "max_tokens": 20 + number,
    });
    with(asks("Tell me a short story about a dragon named Luna."), &more)
}

/// What each of the requests says when all are sent at once.
fn together(client: &Client, requests: &[Value]) -> Vec<Vec<String>> {
    thread::scope(|scope| {
        let answers: Vec<_> = requests
            .iter()
            .map(|request| scope.spawn(|| whole_choices(client, CHAT, request)))
            .collect();
        let texts = |answers: Answers| answers.texts().into_iter().map(str::to_owned).collect();
        answers.into_iter().map(|answers| texts(answers.join().unwrap())).collect()
    })
}

/// D24: a seed gives the same text alone and in company. H21: requests whose sampling fields differ do
/// not disturb each other on several ranks.
#[test]
fn seeds_hold_in_company() {
    let daemon = demo("2");
    let client = daemon.client();
    let requests: Vec<Value> = (0..10).map(mixed).collect();
    let alone: Vec<Vec<String>> = requests
        .iter()
        .map(|request| together(&client, std::slice::from_ref(request)).remove(0))
        .collect();
    assert_eq!(together(&client, &requests), alone);
    let mut different: Vec<&Vec<String>> = alone.iter().collect();
    different.sort();
    different.dedup();
    assert!(different.len() > 5, "seeds make no difference: {alone:?}");
    wait_idle(&client);
}
