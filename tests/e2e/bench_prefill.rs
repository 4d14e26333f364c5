//! `bench prefill` against a simulated device whose costs are known: what it finds, and what it refuses.

use std::time::Duration;

use nix::sys::signal::Signal;
use pocket_tests::process::{self, Finished, Running};
use pocket_tests::wait::until;
use serde_json::Value;

use crate::common::{POCKETD, pocketd_with};

/// Delays that a planted device sleeps: large beside what the demo model computes, on a busy machine too.
const CALL_MS: f64 = 500.0;
const ROW_US: f64 = 400.0;

/// Some hundred calls of that length beside other tests.
const LIMIT: Duration = Duration::from_secs(600);

fn start(environment: &[(&str, &str)], args: &[&str]) -> Running {
    let mut command = process::command(POCKETD);
    command.args(["bench", "prefill", "--quick", "--threads-per-rank=1"]).args(args);
    command.envs(environment.iter().copied());
    Running::spawn(command).unwrap()
}

fn run(environment: &[(&str, &str)], args: &[&str]) -> Finished {
    start(environment, args).finish(LIMIT).unwrap()
}

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
    let few = ["--wave=4", "--repeats=2", "--tensor-parallel-size=2", "--json", "--seed=5"];
    let args = [&few[..], &["--result-dir", &directory]].concat();
    let finished = run(&delays, &args);
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

#[test]
fn at_one_rank_the_control_has_nothing_to_act_on() {
    let args = ["--tensor-parallel-size=1", "--repeats=1", "--json"];
    let finished = run(&[], &args);
    assert_eq!(finished.status.code(), Some(3), "{}", finished.stderr);
    assert!(finished.stderr.contains("INVALID") && finished.stderr.contains("one rank"));
    let record = finished.json().unwrap();
    assert_eq!(record["valid"], false);
    assert_eq!(record["invalid"][0]["reason"], "nothing_to_act_on", "{}", record["invalid"]);
    let without = run(&[], &[&args[..], &["--no-control"]].concat());
    assert_eq!(without.status.code(), Some(0), "{}", without.stderr);
    assert_eq!(without.json().unwrap()["result"]["control"], Value::Null);
}

#[test]
fn an_interrupted_run_leaves_no_server_behind() {
    let slow = [("POCKET_CALL_DELAY_US", "200000")];
    let running = start(&slow, &["--tensor-parallel-size=2"]);
    // Servers and their ranks; which of the two phases it is in does not matter.
    until("servers", LIMIT, || (running.children().len() >= 6).then_some(())).unwrap();
    running.signal(Signal::SIGINT).unwrap();
    // That nothing is left is seen to by the end.
    let finished = running.finish(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(130), "{}", finished.stderr);
}

#[test]
fn servers_end_with_a_benchmark_that_is_killed() {
    // Who is killed cannot clear up: the servers' folders are the test's to remove.
    let folder = tempfile::tempdir().unwrap();
    let (slow, temporary) = ("POCKET_CALL_DELAY_US", folder.path().display().to_string());
    let environment = [(slow, "200000"), ("TMPDIR", &temporary)];
    let running = start(&environment, &["--tensor-parallel-size=1"]);
    until("servers", LIMIT, || (running.children().len() >= 4).then_some(())).unwrap();
    running.signal(Signal::SIGKILL).unwrap();
    let finished = running.finish(LIMIT).unwrap();
    assert_eq!(finished.status.code(), None);
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_starts() {
    for (environment, args, part) in [
        (&[][..], &["--lengths=64,128"][..], "--lengths has 2 different ones"),
        (&[], &["--lengths=1,2,3,4,5,6,7,8,9"], "the longest of --lengths is 9"),
        (&[], &["--wave=1"], "--wave needs at least 2"),
        (&[], &["--wave=100"], "--wave 100"),
        (&[("POCKET_PREFILL_MERGE", "0")], &[], "POCKET_PREFILL_MERGE"),
        (&[("POCKET_ASCEND_IPC_ALLREDUCE_SKIP", "1")], &[], "POCKET_ASCEND_IPC_ALLREDUCE_SKIP"),
    ] {
        let finished = pocketd_with(environment, &[&["bench", "prefill"], args].concat());
        assert_eq!(finished.status.code(), Some(2), "{finished:?}");
        assert!(finished.stderr.contains(part), "{finished:?}");
    }
}
