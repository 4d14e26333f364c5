//! Operators record where the time of forward calls goes.

use std::collections::BTreeMap;
use std::fs;

use nix::sys::signal::Signal;
use pocket_tests::http::Client;
use pocket_tests::process::{self, Running};
use pocket_tests::wait::{PATIENCE, until};
use serde_json::{Value, json};

use crate::common::POCKETD;
use crate::control::{Place, refusal, two_ranks};
use crate::http_support::COMPLETIONS;

/// Layers of the demo model.
const LAYERS: usize = 8;

/// A greedy and a sampled answer.
fn answers(client: &Client) -> Vec<Value> {
    let mut request = json!({"prompt": "Go:", "max_tokens": 12, "ignore_eos": true, "seed": 5});
    let mut ask = |temperature: f64| {
        request["temperature"] = json!(temperature);
        let reply = client.post(COMPLETIONS, &request).unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json().unwrap()["choices"][0]["text"].clone()
    };
    vec![ask(0.0), ask(1.0)]
}

/// Slices of a process of the trace.
fn slices(events: &[Value], process: u64) -> Vec<&Value> {
    events.iter().filter(|event| event["ph"] == "X" && event["pid"] == process).collect()
}

fn time(event: &Value) -> (u64, u64) {
    let (at, took) = (event["ts"].as_u64().unwrap(), event["dur"].as_u64().unwrap());
    (at, at + took)
}

/// Calls of a process by their number.
fn calls<'a>(slices: &[&'a Value]) -> BTreeMap<u64, &'a Value> {
    let is_call = |slice: &&&Value| slice["name"] == slice["cat"];
    slices.iter().filter(is_call).map(|c| (c["args"]["step"].as_u64().unwrap(), *c)).collect()
}

#[test]
fn a_profile_shows_every_rank_and_changes_no_answer() {
    let place = Place::new();
    let daemon = place.steers(two_ranks()).start().unwrap();
    let client = daemon.client();
    let undisturbed = answers(&client);
    let started = place.asked(&["profile", "start", "--seconds", "300"]);
    assert_eq!(started, json!({"limit_s": 300.0}));
    let (code, why) = place.refused(&["profile", "start"]);
    assert!(code == 1 && why.contains("recorded already"), "{why}");
    assert_eq!(answers(&client), undisturbed, "with a recording");
    let file = place.folder().join("trace.json");
    let file = file.to_str().unwrap();
    let summary = place.asked(&["profile", "stop", "--trace", file]);
    assert_eq!(answers(&client), undisturbed, "after the recording");
    // Where there is no recording to end, no file is touched.
    let kept = fs::read(file).unwrap();
    let other = place.folder().join("other.json");
    for file in [file, other.to_str().unwrap()] {
        assert_eq!(place.refused(&["profile", "stop", "--trace", file]).0, 1);
    }
    assert!(fs::read(file).unwrap() == kept && !other.exists());

    for kind in ["prefill", "decode"] {
        let all = &summary[kind];
        let number = |times: &Value, member: &str| times[member].as_u64().unwrap();
        let (count, rows) = (number(all, "calls"), number(all, "rows"));
        assert!(count >= 2 && rows >= count, "{summary}");
        let ranks = summary["ranks"].as_array().unwrap();
        assert_eq!(ranks.len(), 2, "{summary}");
        for member in ["elapsed_us", "linear_attention_us", "mlp_us", "all_reduce_us", "head_us"] {
            let sum: u64 = ranks.iter().map(|rank| number(&rank[kind], member)).sum();
            assert!(sum > 0, "{member} of {kind}: {summary}");
            assert_eq!(number(all, member), sum, "{member} of {kind}");
        }
        for rank in ranks {
            assert_eq!((number(&rank[kind], "calls"), number(&rank[kind], "rows")), (count, rows));
        }
    }
    // Two answers of 12 tokens each: the first of each comes with its prompt.
    assert_eq!(summary["decode"]["calls"], 2 * 11, "{summary}");
    assert_eq!((&summary["timed_out"], &summary["trace_left_out"]), (&json!(false), &json!(0)));
    for member in ["plan_us", "call_us", "serve_us", "logits_us", "sample_us"] {
        assert!(summary["coordinator"][member].as_u64().unwrap() > 0, "{member}: {summary}");
    }

    let trace: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let coordinator = slices(events, 0);
    let ranks = [slices(events, 1), slices(events, 2)];
    let all = ranks[0].len() + ranks[1].len() + coordinator.len();
    assert_eq!(summary["trace_slices"], all, "the table counts what the file has");
    let [first, second] = [calls(&ranks[0]), calls(&ranks[1])];
    assert_eq!(first.keys().collect::<Vec<_>>(), second.keys().collect::<Vec<_>>());
    assert!(first.len() >= 24, "{first:?}");
    for (step, call) in &first {
        // One clock: a call is planned before it begins anywhere, and neither rank ends before the other
        // has begun, because they meet.
        let of_step = |slice: &&&Value| slice["args"]["step"] == *step;
        let plan = coordinator.iter().filter(of_step).find(|slice| slice["name"] == "plan");
        let (planned, _) = time(plan.unwrap());
        let ((begin, end), (other_begin, other_end)) = (time(call), time(second[step]));
        assert!(planned <= begin && planned <= other_begin, "step {step}");
        assert!(begin < other_end && other_begin < end, "step {step}");
        for slices in &ranks {
            let phases: Vec<_> =
                slices.iter().filter(of_step).filter(|s| s["name"] != s["cat"]).collect();
            let (begin, end) = time(calls(slices)[step]);
            for phase in &phases {
                let (from, until) = time(phase);
                assert!(begin <= from && until <= end, "{phase} is not inside step {step}");
            }
            let count = |name: &str| phases.iter().filter(|phase| phase["name"] == name).count();
            assert_eq!(count("mlp"), LAYERS);
            assert_eq!(count("linear attention") + count("full attention"), LAYERS);
            assert_eq!(count("all-reduce"), 2 * LAYERS + 1);
            assert_eq!((count("embed"), count("head")), (1, 1));
        }
    }
    let (code, why) = place.refused(&["profile", "stop"]);
    assert!(code == 1 && why.contains("no profile is being recorded"), "{why}");
    daemon.stop(PATIENCE).unwrap();
}

#[test]
fn one_command_records_for_a_while_and_prints_a_table() {
    let place = Place::new();
    let daemon = place.steers(two_ranks()).start().unwrap();
    let idle = place.ctl(&["profile", "--seconds", "0.1"]);
    assert_eq!(idle.status.code(), Some(0), "{idle:?}");
    assert!(idle.stdout.contains("decode: 0 calls, 0 rows"), "{idle:?}");
    place.asked(&["profile", "start"]);
    answers(&daemon.client());
    let shown = place.ctl(&["profile", "stop"]).stdout;
    for part in ["decode: 22 calls, 22 rows", "rank 1 ms", "all-reduce ", "whole calls", "100.0 %"]
    {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    for (args, part) in [
        (&["start", "--trace", "x"][..], "give it with stop"),
        (&["stop", "--seconds", "1"], "beginning of a recording"),
        (&["--seconds", "601"], "0.1 to 600"),
        (&["stop", "--trace", "/nowhere/trace.json"], "/nowhere/trace.json"),
    ] {
        let finished = place.ctl(&[&["profile"], args].concat());
        assert_eq!(finished.status.code(), Some(2), "{finished:?}");
        assert!(finished.stderr.contains(part), "{finished:?}");
    }
    daemon.stop(PATIENCE).unwrap();
}

#[test]
fn a_daemon_that_dies_under_a_recording_is_said_to_be_gone() {
    let place = Place::new();
    let mut daemon = place.steers(two_ranks()).start().unwrap();
    let socket = place.socket().display().to_string();
    let mut command = process::command(POCKETD);
    command.args(["ctl", "--socket", &socket, "profile", "--seconds", "4"]);
    let recording = Running::spawn(command).unwrap();
    let begun = || daemon.log().contains("recording a profile").then_some(());
    until("a recording", PATIENCE, begun).unwrap();
    daemon.process().signal(Signal::SIGKILL).unwrap();
    daemon.finish(PATIENCE).unwrap();
    let (code, why) = refusal(&recording.finish(PATIENCE).unwrap());
    assert!(code == 1 && why.contains("the daemon"), "{why}");
    assert!(why.contains("gone") || why.contains("went away"), "{why}");
}
