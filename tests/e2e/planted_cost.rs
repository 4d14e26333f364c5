//! `bench prefill` against a simulated device whose costs are known finds these costs. A program of its own,
//! so that no other test computes while it measures.

use std::time::Duration;

use pocket_tests::process::{self, Running};
use serde_json::Value;

/// Delays that a planted device sleeps: large beside what the demo model computes, on a busy machine too.
const CALL_MS: f64 = 500.0;
const ROW_US: f64 = 400.0;

/// Some hundred calls of that length.
const LIMIT: Duration = Duration::from_secs(600);

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("not a number: {value}"))
}

/// How far a number is from another, as a share.
fn off(found: f64, expected: f64) -> f64 {
    (found / expected - 1.0).abs()
}

#[test]
fn the_planted_cost_of_a_call_is_recovered_and_the_merged_wave_predicted() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().display().to_string();
    let delays = [("POCKET_CALL_DELAY_US", "500000"), ("POCKET_ROW_DELAY_US", "400")];
    let mut command = process::command(env!("CARGO_BIN_EXE_pocketd"));
    command.args(["bench", "prefill", "--quick", "--threads-per-rank=1", "--json", "--seed=5"]);
    command.args(["--wave=4", "--repeats=2", "--tensor-parallel-size=2"]);
    command.args(["--result-dir", &directory]).envs(delays);
    let finished = Running::spawn(command).unwrap().finish(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    let record = finished.json().unwrap();
    assert_eq!((&record["valid"], &record["kind"]), (&Value::Bool(true), &"prefill".into()));
    let result = &record["result"];

    let law = &result["joint"]["weighted"]["law"];
    assert!(off(number(&law["per_call_ms"]), CALL_MS) < 0.05, "{law}");
    assert!(off(number(&law["per_token_us"]), ROW_US) < 0.5, "{law}");
    let wave = &result["wave_check"]["weighted"]["law"];
    assert!(off(number(&wave["per_call_ms"]), CALL_MS) < 0.1, "{wave}");

    // One prompt of the same length in 1, 2, 4 and 8 calls, by the engine's count; nine lengths.
    let points = result["points"].as_array().unwrap();
    let calls = |tokens: u64| -> Vec<u64> {
        let of = points.iter().filter(|point| point["tokens"] == tokens);
        of.map(|point| point["calls"].as_u64().unwrap()).collect()
    };
    assert_eq!(calls(512), [1, 2, 4, 8]);
    assert_eq!(points.iter().filter(|point| point["calls"] == 1).count(), 9);

    let merge = &result["merge"];
    assert_eq!((number(&merge["merged"]["calls"]), number(&merge["serial"]["calls"])), (1.0, 4.0));
    assert!(number(&merge["by_joint"]["wave_gain_off"]).abs() < 0.15, "{merge}");
    assert!(number(&merge["wave_gain"]["ratio"]) > 2.0, "four calls against one: {merge}");

    // The control acted on every call of every rank, and shows it.
    let counts = result["measured"]["counts"].as_array().unwrap();
    let skipped = counts.iter().find(|arm| arm["arm"] == "all-reduces skipped").unwrap();
    let due = skipped["calls"].as_u64().unwrap() * 17;
    assert!(due > 0);
    assert_eq!(skipped["skipped"], serde_json::json!([due, due]));
    assert_eq!(skipped["run"], serde_json::json!([0, 0]));

    // Flags go to the servers they are for.
    for server in record["servers"].as_array().unwrap() {
        let flags = server["flags"].to_string();
        assert!(flags.contains("POCKET_CALL_DELAY_US=500000"), "{server}");
        let skips = server["name"] == "all-reduces skipped";
        assert_eq!(flags.contains("ALLREDUCE_SKIP"), skips, "{server}");
        let serial = server["name"].as_str().unwrap().starts_with("serial");
        assert_eq!(flags.contains("PREFILL_MERGE=0"), serial, "{server}");
    }
    for name in ["record.json", "report.html", "report.md"] {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(text.contains("--seed=5"), "{name} says how to repeat it");
    }
}
