//! Health that means it: what probes hear of ranks that are dead, frozen, stuck or merely busy, and of a
//! coordinator that is stuck.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use pocket_tests::daemon::{Daemon, DaemonOptions};
use pocket_tests::http::Client;
use pocket_tests::process;
use pocket_tests::wait::{PATIENCE, until};
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::common::POCKETD;
use crate::control::Place;
use crate::http_support::{CHAT, COMPLETIONS, asks, metric, wait_idle, whole};

fn four_ranks() -> DaemonOptions {
    Daemon::options(POCKETD).args(["--tensor-parallel-size", "4"])
}

/// Status and body of a health route.
fn probed(client: &Client, path: &str) -> (u16, Value) {
    let reply = client.get(path).unwrap();
    (reply.status, reply.json().unwrap())
}

/// Waits for a status of `/health/ready`; answers the body.
fn wait_ready(client: &Client, status: u16) -> Value {
    until("readiness", PATIENCE, || {
        let (found, body) = probed(client, "/health/ready");
        (found == status).then_some(body)
    })
    .unwrap()
}

fn pid(client: &Client, rank: usize) -> u32 {
    let (_, health) = probed(client, "/health");
    u32::try_from(health["ranks"][rank]["pid"].as_u64().unwrap()).unwrap()
}

fn is_right(client: &Client) {
    let answer = whole(client, CHAT, &asks("What is the capital of France?"));
    assert_eq!(answer.text, "The capital of France is Paris.");
}

/// A start is ready when a token has gone through all ranks, and an idle server shows it again.
#[test]
fn a_server_shows_that_it_computes_before_it_is_asked_and_while_it_is_not() {
    let daemon = four_ranks().args(["--self-test-interval", "0.2"]).start().unwrap();
    let client = daemon.client();
    let tests = || probed(&client, "/health").1["last_self_test"]["passed"].as_u64().unwrap();
    assert!(tests() >= 1);
    until("more self-tests", PATIENCE, || (tests() >= 4).then_some(())).unwrap();
    let (status, health) = probed(&client, "/health");
    assert_eq!(status, 200);
    // Nothing of it is work.
    for member in ["forward_passes", "running", "waiting", "kv_blocks_used", "restarts"] {
        assert_eq!(health[member], 0, "{member}: {health}");
    }
    assert!(health["last_step_age_s"].as_f64().unwrap() < 60.0, "{health}");
    assert!(health["last_self_test"]["took_ms"].as_f64().unwrap() > 0.0, "{health}");
    for series in [
        "pocket_requests_total{outcome=\"finished\"}",
        "pocket_prompt_tokens_total",
        "pocket_generation_tokens_total",
        "pocket_forward_calls_total{kind=\"prefill\"}",
        "pocket_rows_per_call_count",
        "pocket_time_to_first_token_seconds_count",
        "pocket_all_reduce_calls_total{rank=\"0\"}",
    ] {
        assert_eq!(metric(&client, series), 0.0, "{series}");
    }
    assert!(metric(&client, "pocket_self_tests_total") >= 4.0);
    // What is asked between two tests is answered as ever.
    for _ in 0..3 {
        is_right(&client);
    }
    assert_eq!(probed(&client, "/health/ready"), (200, json!({"state": "ready", "ready": true})));
    let (status, live) = probed(&client, "/health/live");
    assert_eq!((status, &live["live"]), (200, &json!(true)));

    let untested = four_ranks().args(["--self-test-interval", "0"]).start().unwrap();
    let (status, health) = probed(&untested.client(), "/health");
    assert_eq!((status, &health["last_self_test"]), (200, &Value::Null), "tests are off");
}

/// H4: its processes answer pings and nobody asks anything, but one of them computes no longer. The test
/// finds out, and the ranks are replaced.
#[test]
fn a_rank_that_does_not_compute_is_found_out_while_idle() {
    let options = four_ranks().args(["--self-test-interval", "0.2", "--stall-timeout", "2"]);
    // The first is that of the start.
    let options = options.args(["--allow-faults"]).env("POCKET_FAULT", "2:selftest:2:stall");
    let daemon = options.start().unwrap();
    let client = daemon.client();
    let before = pid(&client, 2);
    let body = wait_ready(&client, 503);
    assert_eq!((&body["state"], &body["ready"]), (&json!("recovering"), &json!(false)));
    let reason = body["reason"].as_str().unwrap();
    assert!(reason.starts_with("rank 2 stalled in self-test, step "), "{reason}");
    assert_eq!(probed(&client, "/health/live").0, 200, "nothing to be killed for");
    wait_ready(&client, 200);
    assert_ne!(pid(&client, 2), before);
    assert_eq!(probed(&client, "/health").1["restarts"], 1);
    is_right(&client);
    let stopped = daemon.stop(PATIENCE).unwrap();
    assert_eq!(stopped.status.code(), Some(0), "{stopped:?}");
}

/// A test that fails before the server serves fails the start, with the rank's number.
#[test]
fn a_start_whose_ranks_do_not_compute_fails() {
    let options = four_ranks().args(["--allow-faults"]).env("POCKET_FAULT", "3:selftest:1:exit");
    let finished = options.spawn().unwrap().finish(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(1), "{finished:?}");
    let last = finished.stderr.lines().last().unwrap();
    assert!(last.contains("rank 3 died in self-test") && last.contains("code 1"), "{last}");
}

/// H1, H4, H7: one rank is killed, one is frozen. Probes hear which, over HTTP and over gRPC, and hear of
/// the recovery.
#[test]
fn probes_of_both_kinds_hear_of_a_dead_and_of_a_frozen_rank() {
    let place = Place::new();
    let options = four_ranks().args(["--stall-timeout", "2"]);
    let daemon = place.steers(options).start().unwrap();
    let client = daemon.client();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let socket = format!("unix:{}", place.socket().display());
    let channel = runtime.block_on(Endpoint::from_shared(socket).unwrap().connect()).unwrap();
    let watch = HealthCheckRequest { service: String::new() };
    let mut health = HealthClient::new(channel);
    let mut watch = runtime.block_on(health.watch(watch)).unwrap().into_inner();
    let mut hears = |expected: ServingStatus| {
        let message = async { tokio::time::timeout(PATIENCE, watch.message()).await };
        let told = runtime.block_on(message).expect("news of the watch").unwrap().unwrap();
        assert_eq!(told.status(), expected);
    };
    hears(ServingStatus::Serving);
    for (signal, part) in [(Signal::SIGKILL, "died"), (Signal::SIGSTOP, "stalled")] {
        process::signal(pid(&client, 2), signal).unwrap();
        let reason = until("a 503 with the reason", PATIENCE, || {
            let (status, body) = probed(&client, "/health/ready");
            (status == 503).then(|| body["reason"].as_str().unwrap().to_owned())
        });
        let reason = reason.unwrap();
        assert!(reason.starts_with("rank 2") && reason.contains(part), "{reason}");
        hears(ServingStatus::NotServing);
        hears(ServingStatus::Serving);
        assert_eq!(wait_ready(&client, 200)["state"], "ready");
        is_right(&client);
    }
    assert_eq!(probed(&client, "/health").1["restarts"], 2);
    assert_eq!(daemon.stop(PATIENCE).unwrap().status.code(), Some(0));
}

/// H7, H12: a flood of long prompts, each call of which takes longer than a stall may. Busy is not stalled:
/// probes with little patience hear 200 as long as calls go on.
#[test]
fn a_flood_of_long_prompts_is_no_illness() {
    let options = Daemon::options(POCKETD).args(["--tensor-parallel-size", "2"]);
    let options = options
        .args(["--stall-timeout", "1", "--self-test-interval", "0.5"])
        .args([
            "--max-num-seqs",
            "16",
            "--max-model-len",
            "2048",
            "--max-num-batched-tokens",
            "512",
        ])
        .env("POCKET_CALL_DELAY_US", "1500000");
    let daemon = options.start().unwrap();
    let client = daemon.client();
    let flood: Vec<_> = (0..16)
        .map(|number| {
            let client = daemon.client();
            let prompt = vec![100 + number; 200];
            let request = json!({"prompt": prompt, "max_tokens": 1, "temperature": 0});
            thread::spawn(move || client.post(COMPLETIONS, &request).unwrap())
        })
        .collect();
    let impatient = Client::new(daemon.url(), Duration::from_secs(2));
    let mut probes = 0;
    while !flood.iter().all(thread::JoinHandle::is_finished) {
        for path in ["/health", "/health/ready", "/health/live"] {
            let reply = impatient.get(path).unwrap();
            assert_eq!(reply.status, 200, "{path}: {}", reply.body);
            probes += 1;
        }
        thread::sleep(Duration::from_millis(50));
    }
    for answer in flood {
        let reply = answer.join().unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
    }
    assert!(probes > 30, "the flood was over after {probes} probes");
    wait_idle(&client);
    let health = probed(&client, "/health").1;
    assert_eq!(health["restarts"], 0, "{health}");
}

/// Freezes threads of a daemon until it is dropped.
struct Frozen(Child);

impl Frozen {
    /// None where tracing is not allowed.
    fn threads(pid: u32, name: &str) -> Option<Self> {
        let python = std::env::var("TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let script = format!("{}/../tests/e2e/freeze.py", env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new(python);
        command.args([&script, &pid.to_string(), name]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        let out = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut said).unwrap();
        let frozen = Self(child);
        (said == "frozen\n").then_some(frozen)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

/// H2: the process answers, and the one who decides everything is stuck.
#[test]
fn a_coordinator_that_is_stuck_is_neither_ready_nor_alive() {
    let mut daemon = four_ranks().start().unwrap();
    let client = daemon.client();
    let live = || probed(&client, "/health/live").0;
    assert_eq!(live(), 200);
    let Some(frozen) = Frozen::threads(daemon.process().id(), "coordinator") else {
        assert!(std::env::var_os("CI").is_none(), "processes must be traceable where this counts");
        eprintln!("this user may not trace processes: not shown");
        return;
    };
    let body = wait_ready(&client, 503);
    let reason = body["reason"].as_str().unwrap();
    assert!(reason.contains("the coordinator did not answer"), "{reason}");
    until("no life", PATIENCE, || (live() == 503).then_some(())).unwrap();
    drop(frozen);
    wait_ready(&client, 200);
    until("life", PATIENCE, || (live() == 200).then_some(())).unwrap();
    is_right(&client);
    assert_eq!(daemon.stop(PATIENCE).unwrap().status.code(), Some(0));
}
