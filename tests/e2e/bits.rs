//! Results do not change by a bit: between runs, with the size of the pieces, with threads.

use crate::common::{answer, fixture, fixture_json, ids, listed, pocketd};

/// Everything `score` says of the longest prompt of a fixture: log-probabilities as printed, and the
/// bytes of the last logits.
fn score(name: &str, ranks: &str, more: &[&str]) -> (String, Vec<u8>) {
    let expected = fixture_json(&format!("{name}/expected.json"));
    let prompts = expected["cases"].as_array().unwrap().iter().map(|case| ids(&case["ids"]));
    let prompt = prompts.max_by_key(Vec::len).unwrap();
    assert!(prompt.len() > 192, "the prompt has to span several pieces");
    let scratch = tempfile::tempdir().unwrap();
    let logits = scratch.path().join("logits.safetensors");
    let (model, file) = (fixture(name).display().to_string(), logits.display().to_string());
    let ids = listed(&prompt);
    let mut args = vec!["score", "--ids", &ids, "--logits", &file, "--model", &model];
    args.extend(["--tensor-parallel-size", ranks, "--json"]);
    args.extend(more);
    let found = answer(&pocketd(&args));
    (found["logprobs"].to_string(), std::fs::read(logits).unwrap())
}

#[test]
fn two_runs_agree() {
    assert_eq!(score("tiny-tied", "4", &[]), score("tiny-tied", "4", &[]));
}

#[test]
fn pieces_agree_with_the_whole() {
    for (name, ranks) in [("tiny-untied", "1"), ("tiny-tied", "2"), ("tiny-sharded", "4")] {
        let whole = score(name, ranks, &[]);
        for chunk in ["64", "128"] {
            assert_eq!(score(name, ranks, &["--chunk", chunk]), whole, "{name}, pieces of {chunk}");
        }
        let budget = score(name, ranks, &["--max-num-batched-tokens", "64"]);
        assert_eq!(budget, whole, "{name}, a budget of 64");
    }
}

#[test]
fn threads_agree() {
    let one = score("tiny-untied", "2", &["--threads-per-rank", "1"]);
    assert_eq!(score("tiny-untied", "2", &["--threads-per-rank", "3"]), one);
}

#[test]
fn a_seed_fixes_the_text_and_another_changes_it() {
    let story = |seed: &str, budget: &str| {
        let mut args = vec!["generate", "Tell me a short story about a dragon named Luna."];
        args.extend(["--temperature", "1.5", "--seed", seed, "--max-tokens", "60", "--json"]);
        args.extend(["--max-num-batched-tokens", budget]);
        answer(&pocketd(&args))["ids"].to_string()
    };
    let first = story("7", "512");
    assert_eq!(story("7", "64"), first);
    assert_ne!(story("8", "512"), first);
}
