//! `bench prefill`: what it calls invalid, what it refuses, and what it leaves behind. What it finds is in
//! `planted_cost.rs`.

use std::time::Duration;

use nix::sys::signal::Signal;
use pocket_tests::process::{self, Finished, Running};
use pocket_tests::wait::until;
use serde_json::Value;

use crate::common::{POCKETD, pocketd_with};

/// Far beyond what these take beside other tests.
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
    let plain = without.json().unwrap();
    assert_eq!(plain["result"]["control"], Value::Null);

    // What fit finds in a record is what the record says.
    let folder = tempfile::tempdir().unwrap();
    let fit = |name: &str, record: &Value, more: &[&str]| {
        let path = folder.path().join(name);
        std::fs::write(&path, record.to_string()).unwrap();
        pocketd_with(&[], &[&["fit", path.to_str().unwrap(), "--json"], more].concat())
    };
    let again = fit("plain.json", &plain, &[]).json().unwrap();
    let of = |fit: &Value| -> Vec<f64> {
        let coefficients = fit["fit"]["coefficients"].as_array().unwrap();
        coefficients.iter().map(|found| found["value"].as_f64().unwrap()).collect()
    };
    let found = of(&again["fits"]["joint"]["relative"]);
    let said = of(&plain["result"]["joint"]["weighted"]);
    assert_eq!((found.len(), said.len()), (3, 3));
    // But for what is rounded in another order.
    let near = |(found, said): (&f64, &f64)| (found - said).abs() < 1e-6 * said.abs().max(1.0);
    assert!(found.iter().zip(&said).all(near), "{found:?} {said:?}");
    let refused = fit("invalid.json", &record, &[]);
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    assert!(refused.stderr.contains("--allow-invalid"), "{refused:?}");
    assert_eq!(fit("invalid.json", &record, &["--allow-invalid"]).status.code(), Some(0));
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
fn an_interrupted_run_gives_its_whole_rounds() {
    let running =
        start(&[], &["--tensor-parallel-size=1", "--no-control", "--repeats=1000", "--json"]);
    until("two rounds", LIMIT, || running.stderr().contains("rounds=2 of=1000").then_some(()))
        .unwrap();
    running.signal(Signal::SIGTERM).unwrap();
    let finished = running.finish(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(143), "{}", finished.stderr);
    let record = finished.json().unwrap();
    let reason = &record["invalid"][0];
    assert_eq!(reason["reason"], "interrupted", "{reason}");
    let rounds = reason["done"].as_u64().unwrap();
    assert!(rounds >= 2, "{reason}");
    assert_eq!(record["result"]["points"][0]["rounds"], rounds);
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
        (&[], &["--result-dir=/proc/nope"], "--result-dir /proc/nope"),
        (&[], &["--wave=1"], "--wave needs at least 2"),
        (&[], &["--wave=100"], "--wave 100"),
        (&[], &["--max-model-len=64"], "--max-model-len cannot be given here"),
        (
            &[],
            &["--lengths=32,64,96,128,192,256,384,512,5000"],
            "need 5001 positions; the model has 2048",
        ),
        (&[("POCKET_PREFILL_MERGE", "0")], &[], "POCKET_PREFILL_MERGE"),
        (&[("POCKET_ASCEND_IPC_ALLREDUCE_SKIP", "1")], &[], "POCKET_ASCEND_IPC_ALLREDUCE_SKIP"),
    ] {
        let finished = pocketd_with(environment, &[&["bench", "prefill"], args].concat());
        assert_eq!(finished.status.code(), Some(2), "{finished:?}");
        assert!(finished.stderr.contains(part), "{finished:?}");
    }
}
