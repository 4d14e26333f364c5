//! Every fixture at every number of ranks, over real rank processes, against the reference
//! implementation's tokens, log-probabilities and logits.

use safetensors::SafeTensors;
use serde_json::Value;

use crate::common::{answer, fixture, fixture_json, ids, listed, pocketd};

fn floats(bytes: &[u8], name: &str) -> Vec<f32> {
    let tensors = SafeTensors::deserialize(bytes).unwrap();
    let view = tensors.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// The largest difference, and where.
fn worst(found: &[f64], expected: &[f32]) -> (f64, usize) {
    assert_eq!(found.len(), expected.len());
    let differences = found.iter().zip(expected).map(|(a, b)| (a - f64::from(*b)).abs());
    let differences = differences.enumerate().map(|(at, difference)| (difference, at));
    differences.fold((0.0, 0), |worst, next| if next.0 > worst.0 { next } else { worst })
}

fn agrees(name: &str, ranks: usize) {
    let (model, ranks_text) = (fixture(name).display().to_string(), ranks.to_string());
    let place = ["--model", &model, "--tensor-parallel-size", &ranks_text, "--json"];
    let bytes = std::fs::read(fixture(name).join("expected.safetensors")).unwrap();
    let expected = fixture_json(&format!("{name}/expected.json"));
    let scratch = tempfile::tempdir().unwrap();
    for (index, case) in expected["cases"].as_array().unwrap().iter().enumerate() {
        let what = format!("{name} at {ranks} ranks, case {index}");
        let (prompt, greedy) = (listed(&ids(&case["ids"])), ids(&case["greedy"]));

        let count = greedy.len().to_string();
        let generate = ["generate", "--ids", &prompt, "--max-tokens", &count, "--ignore-eos"];
        let found = answer(&pocketd(&[&generate[..], &["--temperature", "0"], &place].concat()));
        assert_eq!(ids(&found["ids"]), greedy, "{what}");
        assert_eq!(ids(&found["prompt_ids"]), ids(&case["ids"]), "{what}");

        let logits = scratch.path().join(format!("{index}.safetensors"));
        let file = logits.display().to_string();
        let score = ["score", "--ids", &prompt, "--logits", &file];
        let found = answer(&pocketd(&[&score[..], &place].concat()));
        let logprobs = found["logprobs"].as_array().unwrap();
        assert_eq!(logprobs[0], Value::Null, "{what}");
        let logprobs: Vec<f64> = logprobs[1..].iter().map(|p| p.as_f64().unwrap()).collect();
        let (error, at) = worst(&logprobs, &floats(&bytes, &format!("prompt_logprobs.{index}")));
        assert!(error < 2e-3, "{what}: log-probability of token {} is off by {error}", at + 1);
        let last = floats(&std::fs::read(&logits).unwrap(), "logits");
        let last: Vec<f64> = last.into_iter().map(f64::from).collect();
        let (error, at) = worst(&last, &floats(&bytes, &format!("logits_last.{index}")));
        assert!(error < 5e-3, "{what}: logit {at} is off by {error}");
    }
}

#[test]
fn tied_at_1_rank() {
    agrees("tiny-tied", 1);
}

#[test]
fn tied_at_2_ranks() {
    agrees("tiny-tied", 2);
}

#[test]
fn tied_at_4_ranks() {
    agrees("tiny-tied", 4);
}

#[test]
fn untied_at_1_rank() {
    agrees("tiny-untied", 1);
}

#[test]
fn untied_at_2_ranks() {
    agrees("tiny-untied", 2);
}

/// Two key/value heads over four ranks: each is held twice.
#[test]
fn untied_at_4_ranks() {
    agrees("tiny-untied", 4);
}

#[test]
fn sharded_at_1_rank() {
    agrees("tiny-sharded", 1);
}

#[test]
fn sharded_at_2_ranks() {
    agrees("tiny-sharded", 2);
}

/// One key/value head over four ranks.
#[test]
fn sharded_at_4_ranks() {
    agrees("tiny-sharded", 4);
}

/// The demo checkpoint's continuations, token for token.
#[test]
fn demo_continuations() {
    let expected = fixture_json("demo/expected.json");
    for ranks in ["1", "2", "4"] {
        for case in expected["cases"].as_array().unwrap() {
            let (prompt, greedy) = (listed(&ids(&case["ids"])), ids(&case["greedy"]));
            let count = case["max_tokens"].to_string();
            let mut args = vec!["generate", "--ids", &prompt, "--max-tokens", &count];
            args.extend(["--temperature", "0", "--tensor-parallel-size", ranks, "--json"]);
            let found = answer(&pocketd(&args));
            assert_eq!(ids(&found["ids"]), greedy, "{} at {ranks} ranks", case["name"]);
            let reason = if case["stopped"] == true { "stop" } else { "length" };
            assert_eq!(found["finish_reason"], reason, "{} at {ranks} ranks", case["name"]);
            assert_eq!(found["text"], case["text"], "{} at {ranks} ranks", case["name"]);
        }
    }
}
