//! Sizes that memory limits: how they are said, what is refused with the largest that would do, and
//! what keys and values of half the size do to answers.

use pocket_tests::daemon::Daemon;
use pocket_tests::generate::{RandomOptions, Shape, write_random};
use pocket_tests::process::Finished;
use serde_json::Value;

use crate::common::{POCKETD, pocketd};
use crate::http_support::{CHAT, asks, both};

/// The plan of the demo model with these arguments.
fn plan(args: &[&str]) -> Value {
    let finished = dry_run(args);
    assert_eq!(finished.status.code(), Some(0), "{args:?}: {finished:?}");
    finished.json().unwrap()
}

fn dry_run(args: &[&str]) -> Finished {
    pocketd(&[&["serve", "--dry-run", "--json"], args].concat())
}

/// The exit code and the last line of standard error of a start that is refused, before a weight is
/// read.
fn refused(args: &[&str]) -> (Option<i32>, String) {
    let finished = pocketd(&[&["serve", "--port", "0"], args].concat());
    assert!(!finished.stderr.contains("loading weights"), "{}", finished.stderr);
    let line = finished.stderr.lines().last().unwrap_or_default().to_owned();
    assert!(line.starts_with("pocketd: "), "{finished:?}");
    (finished.status.code(), line)
}

#[test]
fn a_budget_has_many_spellings() {
    let tokens = |value: &str| plan(&["--kv-cache-bytes", value])["kv_tokens"].as_u64().unwrap();
    let eight = tokens("8388608");
    for same in ["8MiB", "8192KiB"] {
        assert_eq!(tokens(same), eight, "{same}");
    }
    // Rounded down to whole blocks.
    assert!(tokens("8MB") < eight && tokens("8MB").is_multiple_of(64));
    assert_eq!(tokens("16MiB"), 2 * eight);
    for odd in ["0", "-1", "8XB", "MiB", "8MiB8", "1e6", ""] {
        let option = format!("--kv-cache-bytes={odd}");
        let (code, line) = refused(&[&option]);
        assert_eq!(code, Some(2), "{odd}: {line}");
        assert!(line.contains("kv-cache-bytes") && line.contains("such as 512MiB"), "{line}");
    }
    let (code, line) = refused(&["--kv-cache-bytes", "8MiB", "--kv-cache-fraction", "0.5"]);
    assert_eq!(code, Some(2), "{line}");
    assert!(line.contains("kv_cache_fraction") && line.contains("kv_cache_bytes"), "{line}");
}

#[test]
fn settings_that_cannot_be_are_refused() {
    for (option, parts) in [
        ("--max-num-batched-tokens=100", ["100", "multiple of 64"]),
        ("--max-num-seqs=0", ["max-num-seqs", "from 1 to 1024"]),
        ("--max-num-seqs=1025", ["1025", "from 1 to 1024"]),
        ("--kv-cache-dtype=fp8", ["fp8", "bf16"]),
        ("--kv-cache-fraction=1.5", ["1.5", "at most 1"]),
        ("--max-merged-rows=some", ["some", "auto"]),
        ("--max-model-len=4096", ["4096", "2048"]),
    ] {
        let (code, line) = refused(&[option]);
        assert_eq!(code, Some(2), "{option}: {line}");
        assert!(parts.iter().all(|part| line.contains(part)), "{option}: {line}");
    }
}

/// M1: more sequences than memory has states for. Refused with the largest number that is legal, by
/// the dry run and by the start, and that number is taken.
#[test]
fn more_sequences_than_memory_has_states_for() {
    // 768 MiB of state a sequence, in a model of 80 MB.
    let shape = Shape {
        linear_num_key_heads: 4,
        linear_num_value_heads: 64,
        linear_key_head_dim: 1024,
        linear_value_head_dim: 1024,
        ..Shape::tiny()
    };
    let directory = tempfile::tempdir().unwrap();
    write_random(&shape, RandomOptions::default(), directory.path()).unwrap();
    let model = ["--model", directory.path().to_str().unwrap(), "--max-model-len", "64"];
    let asked = [&model[..], &["--max-num-seqs", "1024"]].concat();
    let (code, line) = refused(&asked);
    assert_eq!(code, Some(1), "{line}");
    let (_, largest) = line
        .split_once("the largest max-num-seqs that fits is ")
        .unwrap_or_else(|| panic!("no largest number: {line}"));
    let digits = largest.find(|c: char| !c.is_ascii_digit()).unwrap_or(largest.len());
    let largest: usize = largest[..digits].parse().unwrap();
    assert!((1..1024).contains(&largest), "{line}");
    assert_eq!(dry_run(&asked).status.code(), Some(1));

    // Other programs take and give memory meanwhile: half of it is there for sure.
    let fits = (largest / 2).max(1).to_string();
    let taken = plan(&[&model[..], &["--max-num-seqs", &fits]].concat());
    assert_eq!(taken["limits"]["slots"].to_string(), fits);
    // Nobody asked for a number: as many as fit, at most the default.
    let slots = plan(&model)["limits"]["slots"].as_u64().unwrap();
    assert!((1..=16).contains(&slots), "{slots}");
}

/// Half the memory for the same tokens; answers are good, and alike in both modes.
#[test]
fn keys_and_values_as_bf16() {
    let budget = ["--kv-cache-bytes", "4MiB"];
    let tokens = |dtype: &str| {
        let plan = plan(&[&budget[..], &["--kv-cache-dtype", dtype]].concat());
        plan["kv_tokens"].as_u64().unwrap()
    };
    assert_eq!(tokens("bf16"), 2 * tokens("float32"));
    for ranks in ["1", "2"] {
        let args = ["--kv-cache-dtype", "bf16", "--tensor-parallel-size", ranks];
        let daemon = Daemon::options(POCKETD).args(args).start().unwrap();
        assert!(daemon.log().contains("kv_dtype=bf16"), "{}", daemon.log());
        let client = daemon.client();
        for (question, part) in [
            ("What is the capital of France?", "Paris"),
            ("What is the capital of Spain?", "Madrid"),
        ] {
            let answer = both(&client, CHAT, &asks(question));
            assert!(answer.text.contains(part), "{ranks} ranks: {answer:?}");
        }
    }
}
