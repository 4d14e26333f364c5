//! The embedded model answers: the question of the README, and the held-out questions.

use pocket_tests::daemon::Daemon;
use pocket_tests::http::Client;
use pocket_tests::wait::PATIENCE;
use serde_json::{Value, json};

use crate::common::{POCKETD, fixture_json, pocketd};

/// Questions that must be answered well at any number of ranks.
const RIGHT: usize = 374;

#[test]
fn knows_the_capital_of_france() {
    let finished = pocketd(&["generate", "What is the capital of France?"]);
    assert!(finished.status.success(), "{finished:?}");
    assert!(finished.stdout.contains("Paris"), "{finished:?}");
}

/// Whether a reply answers a case, as the model's own evaluation has it: the whole reply, or every
/// accepted string as whole words (capitals matter in element symbols only), and long enough.
fn is_right(case: &Value, reply: &str) -> bool {
    let mut accepted = case["accept"].as_array().unwrap().iter().map(|a| a.as_str().unwrap());
    let right = if case["match"] == "exact" {
        accepted.any(|text| reply.trim() == text)
    } else if case["category"] == "element symbols" {
        accepted.all(|text| has_words(reply, text))
    } else {
        accepted.all(|text| has_words(&reply.to_lowercase(), &text.to_lowercase()))
    };
    let words = case["min_words"].as_u64().unwrap_or(0);
    right && reply.split_whitespace().count() as u64 >= words
}

/// Whether `words` stand in `text` with no letter or digit on either side.
fn has_words(text: &str, words: &str) -> bool {
    let letter = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.match_indices(words).any(|(at, found)| {
        !letter(text[..at].chars().next_back()) && !letter(text[at + found.len()..].chars().next())
    })
}

/// The greedy reply, cut where the evaluation cuts it.
fn reply(client: &Client, case: &Value) -> String {
    let (path, body) = match case.get("prompt") {
        Some(prompt) => {
            ("/v1/completions", json!({"prompt": prompt, "max_tokens": 8, "temperature": 0}))
        }
        None => {
            let max_tokens = if case["category"] == "stories" { 260 } else { 64 };
            let messages = &case["messages"];
            let body = json!({"messages": messages, "max_tokens": max_tokens, "temperature": 0});
            ("/v1/chat/completions", body)
        }
    };
    let answer = client.post(path, &body).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    let json = answer.json().unwrap();
    let choice = &json["choices"][0];
    let text = choice.get("text").unwrap_or(&choice["message"]["content"]);
    text.as_str().unwrap_or_else(|| panic!("no text: {}", answer.body)).to_owned()
}

fn answers_the_questions(ranks: &str) {
    let daemon = Daemon::options(POCKETD).args(["--tensor-parallel-size", ranks]).start().unwrap();
    let client = daemon.client();
    let questions = fixture_json("demo/eval.json");
    let cases = questions["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 383);
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            let reply = reply(&client, case);
            (!is_right(case, &reply)).then(|| format!("{}: {reply}", case["accept"]))
        })
        .collect();
    let right = cases.len() - wrong.len();
    println!("{right} of {} right at {ranks} ranks", cases.len());
    assert!(right >= RIGHT, "{right} right at {ranks} ranks; wrong:\n{}", wrong.join("\n"));
    let finished = daemon.stop(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(0), "{finished:?}");
}

#[test]
fn answers_the_questions_at_1_rank() {
    answers_the_questions("1");
}

#[test]
fn answers_the_questions_at_2_ranks() {
    answers_the_questions("2");
}

#[test]
fn answers_the_questions_at_4_ranks() {
    answers_the_questions("4");
}
