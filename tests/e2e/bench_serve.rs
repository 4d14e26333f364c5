//! `pocketd bench serve` against the real daemon, and against servers that stream in odd ways.

use std::collections::HashSet;

use nix::sys::signal::Signal;
use pocket_tests::generate::{End, Script};
use pocket_tests::process::{self, Finished, Running};
use pocket_tests::wait::{PATIENCE, until};
use serde_json::{Value, json};

use crate::common::{POCKETD, answer, pocketd};
use crate::control::Place;
use crate::http_support::{Scripted, wait_running};
use crate::stub_server::{Connection, StubServer, delta, text};
use pocket_tests::daemon::Daemon;

/// The exit code of a measurement that cannot be believed.
const INVALID: i32 = 3;

/// All members of a saved result of `vllm bench serve` with `--save-detailed`, for one percentile of each
/// metric (`vllm/benchmarks/serve.py`; `rtfx` is of speech recognition, and metrics of speculative
/// decoding are of servers that have it).
const VLLM: &[&str] = &[
    "date",
    "endpoint_type",
    "backend",
    "label",
    "model_id",
    "tokenizer_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "input_lens",
    "output_lens",
    "ttfts",
    "itls",
    "start_times",
    "generated_texts",
    "errors",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
    "mean_ttft_ms",
    "median_ttft_ms",
    "std_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "median_tpot_ms",
    "std_tpot_ms",
    "p99_tpot_ms",
    "mean_itl_ms",
    "median_itl_ms",
    "std_itl_ms",
    "p99_itl_ms",
    "mean_e2el_ms",
    "median_e2el_ms",
    "std_e2el_ms",
    "p99_e2el_ms",
];

/// Chats that begin half a second apart.
const ONE_AFTER_THE_OTHER: [&str; 5] = [
    "--backend=openai-chat",
    "--num-prompts=3",
    "--random-input-len=4",
    "--request-rate=2",
    "--burstiness=inf",
];

fn command_line<'a>(url: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    [&["bench", "serve", "--json", "--save-detailed", "--base-url", url], args].concat()
}

pub fn bench(url: &str, args: &[&str]) -> Finished {
    pocketd(&command_line(url, args))
}

/// The result of a run that can be believed.
pub fn measured(url: &str, args: &[&str]) -> Value {
    answer(&bench(url, args))
}

/// The result of a run that cannot, and why.
pub fn invalid(finished: &Finished) -> (Value, String) {
    assert_eq!(finished.status.code(), Some(INVALID), "{finished:?}");
    let result = finished.json().unwrap();
    assert_eq!(result["record"]["valid"], false);
    (result, finished.stderr.lines().last().unwrap_or_default().to_owned())
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

#[test]
fn a_load_on_the_daemon_is_measured_and_recorded() {
    let daemon = Daemon::options(POCKETD).args(["--tensor-parallel-size", "2"]).start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().to_str().unwrap();
    let result = measured(
        &daemon.url(),
        &[
            "--num-prompts=8",
            "--num-warmups=3",
            "--random-input-len=20",
            "--random-output-len=6",
            "--max-concurrency=3",
            "--goodput",
            "ttft:100000",
            "e2el:100000",
            "--metadata",
            "site=here",
            "--save-result",
            "--result-filename=result.json",
            "--result-dir",
            directory,
        ],
    );
    for name in VLLM {
        assert!(result.get(*name).is_some(), "no {name} in {result}");
    }
    assert_eq!((&result["completed"], &result["failed"]), (&json!(8), &json!(0)), "{result}");
    assert_eq!(
        (&result["total_input_tokens"], &result["prompts_as_planned"]),
        (&json!(160), &json!(true))
    );
    assert_eq!(result["total_output_tokens"], 48);
    assert_eq!((&result["request_rate"], &result["site"]), (&json!("inf"), &json!("here")));
    assert_eq!(result["request_goodput"], result["request_throughput"]);
    assert_eq!(result["model_id"], "demo");
    assert!(result["tokenizer_id"].as_str().unwrap().ends_with("/tokenize"));
    let peak = result["max_concurrent_requests"].as_u64().unwrap();
    assert!((1..=3).contains(&peak), "{peak}");
    for (ttft, e2el) in floats(&result["ttfts"]).iter().zip(floats(&result["e2els"])) {
        assert!(0.0 < *ttft && *ttft <= e2el, "{ttft} {e2el}");
    }
    // The warm-up is in nothing that is measured.
    let record = &result["record"];
    assert_eq!((&record["valid"], &record["warmed_up"]), (&json!(true), &json!(true)));
    let server = &record["servers"][0];
    let rise = |name: &str| {
        let at = |when: &str| server[when][name].as_f64().unwrap();
        at("counters_after") - at("counters_before")
    };
    assert_eq!(rise("pocket_prompt_tokens_total"), 160.0);
    assert_eq!(rise("pocket_generation_tokens_total"), 48.0);
    assert_eq!(server["tensor_parallel_size"], 2);
    assert!(server["device"].as_str().unwrap().starts_with("cpu"), "{server}");
    assert!(server["version"].as_str().unwrap().starts_with("pocketd "), "{server}");
    assert!(record["machine"]["cores"].as_u64().unwrap() > 0);
    let command = record["reproduce"][0].as_str().unwrap();
    assert!(command.contains(&format!("--seed {}", result["seed"])), "{command}");
    // The files have the same.
    let read = |name: &str| -> Value {
        serde_json::from_str(&std::fs::read_to_string(folder.path().join(name)).unwrap()).unwrap()
    };
    assert_eq!(read("result.json"), result);
    assert_eq!(read("record.json")["result"]["duration"], result["duration"]);
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("Time to first token") && page.contains("<svg"));
    daemon.stop(PATIENCE).unwrap();
}

#[test]
fn chats_are_measured_and_prompts_are_exact_in_them_too() {
    let daemon = Daemon::options(POCKETD).args(["--tensor-parallel-size", "1"]).start().unwrap();
    let args = [
        "--backend=openai-chat",
        "--num-prompts=3",
        "--random-input-len=30",
        "--random-output-len=4",
    ];
    let result = measured(&daemon.url(), &args);
    assert_eq!((&result["completed"], &result["total_output_tokens"]), (&json!(3), &json!(12)));
    // The template adds the same to each.
    let lengths: HashSet<u64> =
        result["input_lens"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    assert!(lengths.len() == 1 && lengths.iter().all(|length| *length > 30), "{lengths:?}");
}

/// B6, with a real server: an answer of two tokens has one time between them.
#[test]
fn two_tokens_have_one_time_between_them() {
    let script = Script::pieces(["one ", "two "]).unwrap().then(End::LoopTo(0)).unwrap();
    let daemon = Scripted::new(&script).daemon().start().unwrap();
    let args = ["--num-prompts=4", "--random-input-len=5", "--random-output-len=2"];
    let result = measured(&daemon.url(), &args);
    for (index, itls) in result["itls"].as_array().unwrap().iter().enumerate() {
        let [itl] = floats(itls)[..] else { panic!("not one: {itls}") };
        let at = |name: &str| result[name][index].as_f64().unwrap();
        assert!(itl <= at("e2els") - at("ttfts") + 1e-9, "{result}");
    }
    assert_eq!(result["generated_texts"], json!(["one two ", "one two ", "one two ", "one two "]));
}

/// B1: the role is there at once, and the token only when another request has come, which the client
/// sends half a second later.
#[test]
fn a_role_is_not_the_first_token() {
    let server = StubServer::start(|number, _, connection| {
        connection.stream();
        connection.events(&[delta(json!({"role": "assistant", "content": ""}))]);
        connection.wait_for_requests((number + 2).min(3));
        connection.events(&[delta(json!({"content": "a"}))]);
        connection.end(1);
    });
    let result = measured(&server.url(), &ONE_AFTER_THE_OTHER);
    let (ttfts, first) = (floats(&result["ttfts"]), floats(&result["ttfts_first_chunk"]));
    let started = floats(&result["start_times"]);
    for index in 0..2 {
        assert!(ttfts[index] >= started[index + 1] - started[index], "{result}");
        assert!(first[index] < ttfts[index], "{result}");
    }
    assert!(result["mean_ttft_first_chunk_ms"].as_f64() < result["mean_ttft_ms"].as_f64());
}

/// B4: a model that thinks answers from its first thought on.
#[test]
fn thoughts_are_tokens() {
    let server = StubServer::start(|number, _, connection| {
        connection.stream();
        let name = ["reasoning_content", "reasoning"][number % 2];
        connection.events(&[delta(json!({name: "hm"}))]);
        connection.wait_for_requests((number + 2).min(3));
        connection.events(&[delta(json!({"content": "yes"}))]);
        connection.end(2);
    });
    let result = measured(&server.url(), &ONE_AFTER_THE_OTHER);
    let (ttfts, e2els) = (floats(&result["ttfts"]), floats(&result["e2els"]));
    for index in 0..2 {
        assert!(ttfts[index] < e2els[index], "{result}");
        assert_eq!(result["itls"][index].as_array().unwrap().len(), 1);
    }
    assert_eq!(result["generated_reasoning"][0], "hm");
    assert_eq!(
        (&result["generated_texts"][0], &result["total_output_tokens"]),
        (&json!("yes"), &json!(6))
    );
}

#[test]
fn several_tokens_of_a_chunk_share_its_time() {
    let server = StubServer::start(|_, _, connection| {
        connection.stream();
        connection.events(&[json!({"choices": [{"text": "a", "token_ids": [1]}]})]);
        connection.wait_for_requests(2);
        // Four tokens in one chunk, then two chunks in one write: one piece of six tokens or two.
        let many = json!({"choices": [{"text": "bcde", "token_ids": [2, 3, 4, 5]}]});
        let one = json!({"choices": [{"text": "f", "token_ids": [6]}]});
        connection.last(&[many, one.clone(), one], 7);
    });
    let args = ["--num-prompts=2", "--random-input-len=4", "--request-rate=2", "--burstiness=inf"];
    let result = measured(&server.url(), &args);
    let itls = floats(&result["itls"][0]);
    let waited = floats(&result["e2els"])[0] - floats(&result["ttfts"])[0];
    assert_eq!((itls.len(), &result["total_output_tokens"]), (6, &json!(14)));
    // No token has all of the waiting, and none of the first four has none of it.
    assert!(itls.iter().all(|itl| *itl < waited / 2.0), "{itls:?} of {waited}");
    assert!(itls[..4].iter().all(|itl| *itl > waited / 10.0), "{itls:?} of {waited}");
    assert!((itls.iter().sum::<f64>() - waited).abs() < 0.1 * waited, "{itls:?} of {waited}");
}

fn good(connection: &mut Connection) {
    connection.stream();
    connection.events(&[text("a")]);
    connection.events(&[text("b")]);
    connection.end(2);
}

/// B8: whatever happens to one request, the others are measured, and what happened is kept.
#[test]
fn what_fails_is_counted_with_its_reason() {
    let server = StubServer::start(|number, _, connection| match number {
        1 => {
            connection.stream();
            connection.events(&[json!({"error": {"message": "rank 1 was killed", "code": 500}})]);
        }
        2 => connection.whole(429, &json!({"error": {"message": "the queue is full"}}).to_string()),
        3 => {
            connection.stream_to_be_cut();
            connection.events(&[text("a")]);
        }
        4 => {
            connection.stream();
            connection.events(&[text("a"), text("b")]);
        }
        5 => {
            connection.stream();
            connection.events(&[json!({"choices": [], "usage": {"completion_tokens": 0}})]);
            connection.end(0);
        }
        6 => connection.whole(200, "{\"choices\": []}"),
        // A request that meets a closed connection is sent again.
        7 | 8 => {}
        9 => {
            connection.stream();
            connection.wait_for_hangup();
        }
        _ => good(connection),
    });
    let args =
        ["--num-prompts=10", "--random-input-len=4", "--max-concurrency=1", "--request-timeout=3"];
    let result = measured(&server.url(), &args);
    assert_eq!((&result["completed"], &result["failed"]), (&json!(2), &json!(8)), "{result}");
    let errors = result["errors"].as_array().unwrap();
    for (index, part) in [
        (0, ""),
        (1, "rank 1 was killed"),
        (2, "HTTP 429: the queue is full"),
        (3, "cut after 1 chunks"),
        (4, "cut after 2 chunks"),
        (5, "without a token"),
        (6, "not a stream"),
        (7, "no connection"),
        (8, "within 3 s"),
        (9, ""),
    ] {
        let error = errors[index].as_str().unwrap();
        assert!(error.contains(part) && error.is_empty() == part.is_empty(), "{index}: {error:?}");
    }
    let kinds = json!({
        "connection": 1, "cut": 2, "error_event": 1, "no_token": 1, "not_a_stream": 1, "status": 1,
        "timeout": 1,
    });
    assert_eq!(result["failures"], kinds);
    // Nothing of them is in the numbers.
    assert_eq!(result["total_output_tokens"], 4);
}

#[test]
fn a_run_without_one_answer_is_no_measurement() {
    let server =
        StubServer::start(|_, _, connection| connection.whole(503, "the model is loading"));
    let finished = bench(&server.url(), &["--num-prompts=3", "--random-input-len=4"]);
    let (result, why) = invalid(&finished);
    assert!(why.contains("all 3 requests failed") && why.contains("the model is loading"), "{why}");
    assert_eq!((&result["mean_ttft_ms"], &result["failed"]), (&Value::Null, &json!(3)));
}

/// Starts a run in the background whose requests come one by one, and waits until the daemon computes one.
fn running_bench(daemon: &Daemon) -> Running {
    let url = daemon.url();
    let mut command = process::command(POCKETD);
    command.args(command_line(
        &url,
        &["--num-prompts=1", "--random-input-len=8", "--random-output-len=600"],
    ));
    let bench = Running::spawn(command).unwrap();
    wait_running(&daemon.client(), 1);
    bench
}

#[test]
fn a_server_that_recovered_during_the_run_makes_it_invalid() {
    let args = ["--tensor-parallel-size", "2", "--max-model-len", "2048"];
    let daemon =
        Daemon::options(POCKETD).args(args).env("POCKET_CALL_DELAY_US", "2000").start().unwrap();
    let bench = running_bench(&daemon);
    let rank = daemon.ranks()[0];
    assert!(process::signal(rank, Signal::SIGKILL).unwrap());
    let (result, why) = invalid(&bench.finish(PATIENCE * 2).unwrap());
    assert!(why.contains("restarted during the run") && why.contains("epoch"), "{why}");
    // The request itself went on.
    assert_eq!(result["completed"], 1);
}

#[test]
fn a_flag_that_changed_during_the_run_makes_it_invalid() {
    let place = Place::new();
    let args = ["--tensor-parallel-size", "1", "--max-model-len", "2048"];
    let daemon = Daemon::options(POCKETD).args(args).env("POCKET_CALL_DELAY_US", "2000");
    let daemon = place.steers(daemon).start().unwrap();
    let bench = running_bench(&daemon);
    let set = place.ctl(&["set-flag", "POCKET_PREFILL_MERGE", "0"]);
    assert!(set.status.success(), "{set:?}");
    let (_, why) = invalid(&bench.finish(PATIENCE * 2).unwrap());
    assert!(why.contains("POCKET_PREFILL_MERGE") && why.contains("changed"), "{why}");
}

#[test]
fn an_interrupted_run_gives_what_it_has() {
    let server = StubServer::start(|number, _, connection| {
        if number < 2 {
            return good(connection);
        }
        connection.stream();
        connection.events(&[text("a")]);
        connection.wait_for_hangup();
    });
    let url = server.url();
    let mut command = process::command(POCKETD);
    command.args(command_line(
        &url,
        &["--num-prompts=5", "--random-input-len=4", "--max-concurrency=1"],
    ));
    let bench = Running::spawn(command).unwrap();
    until("third request", PATIENCE, || (server.asked() == 3).then_some(())).unwrap();
    bench.signal(Signal::SIGINT).unwrap();
    let finished = bench.finish(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(130), "{finished:?}");
    let result = finished.json().unwrap();
    assert_eq!((&result["completed"], &result["unfinished"]), (&json!(2), &json!(3)), "{result}");
    assert_eq!((&result["interrupted"], &result["record"]["valid"]), (&json!(true), &json!(false)));
    assert_eq!(result["record"]["invalid"][0]["reason"], "interrupted");
}

#[test]
fn keys_and_headers_go_with_every_request() {
    let daemon = Daemon::options(POCKETD)
        .args(["--tensor-parallel-size", "1", "--api-key", "open-sesame"])
        .start()
        .unwrap();
    let args = ["--num-prompts=2", "--random-input-len=4", "--random-output-len=2"];
    let refused = bench(&daemon.url(), &args);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(refused.stderr.contains("/v1/models") && refused.stderr.contains("401"), "{refused:?}");
    let result = measured(&daemon.url(), &[&args[..], &["--api-key=open-sesame"]].concat());
    assert_eq!(result["completed"], 2);
    let header = ["--header", "authorization=Bearer open-sesame"];
    let result = measured(&daemon.url(), &[&args[..], &header].concat());
    let command = result["record"]["reproduce"][0].as_str().unwrap();
    assert!(!command.contains("open-sesame"), "{command}");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    for (args, part) in [
        (&["--request-rate=0"][..], "request rate"),
        (&["--goodput", "itl:5"], "ttft:200"),
        (&["--dataset-name=sharegpt"], "--dataset-path"),
        (&["--dataset-path=x"], "random needs no file"),
        (&["--random-range-ratio=1"], "range ratio"),
        (&["--extra-body={\"n\": 2}"], "one answer"),
        (&["--tokenizer=/no/such"], "/no/such"),
        (&["--header", "a b=c"], "--header a b"),
        (&["--request-rate=-1"], "request rate is -1"),
        (&["--burstiness", "0"], "inf: evenly spaced"),
        (&["--json-out=/proc/nope/x.json"], "--json-out /proc/nope/x.json"),
        (&["--json-out=/proc"], "--json-out /proc"),
        (&["--save-result", "--result-dir=/proc/nope"], "--result-dir /proc/nope"),
    ] {
        let finished = bench("http://127.0.0.1:1", args);
        assert_eq!(finished.status.code(), Some(2), "{args:?}: {finished:?}");
        assert!(finished.stderr.contains(part), "{args:?}: {}", finished.stderr);
    }
    let nobody = bench("http://127.0.0.1:1", &[]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(nobody.stderr.contains("http://127.0.0.1:1/v1/models"), "{}", nobody.stderr);
}
