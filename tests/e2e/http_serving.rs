//! The daemon's life as its clients and its supervisor see it: starting, healthy, draining, gone.

use nix::sys::signal::Signal;
use pocket_tests::daemon::{Daemon, DaemonOptions};
use pocket_tests::generate::{End, RandomOptions, Script, Shape, write_random};
use pocket_tests::http::{Client, EventStream};
use pocket_tests::wait::{PATIENCE, until};
use serde_json::{Value, json};

use crate::common::{POCKETD, pocketd};
use crate::http_support::{COMPLETIONS, Scripted};

/// A model that never ends its answer, on a device that takes 10 ms a call.
fn endless() -> (Scripted, DaemonOptions) {
    let script = Script::pieces(["one ", "two "]).unwrap().then(End::LoopTo(0)).unwrap();
    let model = Scripted::new(&script);
    let daemon = model.daemon().env("POCKET_CALL_DELAY_US", "10000");
    (model, daemon)
}

/// A stream of so many tokens that has begun.
fn begun(client: &Client, max_tokens: u32) -> EventStream {
    let request = json!({
        "prompt": "Go:", "stream": true, "max_tokens": max_tokens, "temperature": 0,
        "ignore_eos": true,
    });
    let mut stream = client.stream(COMPLETIONS, &request).unwrap();
    stream.next().unwrap().unwrap();
    stream
}

fn rest(stream: EventStream) -> Vec<String> {
    stream.map(|event| event.unwrap().data).collect()
}

/// Waits until `/health` answers 503 with this state.
fn wait_state(client: &Client, state: &str) -> Value {
    until("state", PATIENCE, || {
        let reply = client.get("/health").ok()?;
        let body = reply.json().ok()?;
        (reply.status == 503 && body["state"] == state).then_some(body)
    })
    .unwrap()
}

#[test]
fn health_models_and_version() {
    let options = Daemon::options(POCKETD);
    let daemon = options.args(["--tensor-parallel-size", "2", "--max-model-len", "512"]);
    let daemon = daemon.start().unwrap();
    let client = daemon.client();
    let health = client.get("/health").unwrap();
    assert_eq!(health.status, 200);
    let health = health.json().unwrap();
    assert_eq!(health["state"], "ready");
    assert_eq!(health["ranks"].as_array().unwrap().len(), 2);
    assert_eq!(health["outputs_wrong"], Value::Null);
    let models = client.get("/v1/models").unwrap().json().unwrap();
    assert_eq!(models["object"], "list");
    assert_eq!(models["data"][0]["id"], "demo");
    assert_eq!(models["data"][0]["max_model_len"], 512);
    assert_eq!(client.get("/v1/models/demo").unwrap().json().unwrap(), models["data"][0]);
    let missing = client.get("/v1/models/owner/other").unwrap();
    assert_eq!(missing.status, 404);
    assert_eq!(missing.json().unwrap()["error"]["code"], "model_not_found");
    let version = client.get("/version").unwrap().json().unwrap();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
}

/// M3: the memory plan without the start, its verdict as the exit code.
#[test]
fn a_dry_run_says_whether_the_model_fits() {
    let fits = pocketd(&["serve", "--dry-run", "--tensor-parallel-size", "2"]);
    assert_eq!(fits.status.code(), Some(0), "{fits:?}");
    assert!(fits.stdout.contains("memory plan: 2 ranks"), "{}", fits.stdout);
    let json = pocketd(&["serve", "--dry-run", "--json"]);
    assert!(json.json().unwrap()["total"].as_u64().unwrap() > 0);

    // A terabyte of keys and values for one sequence, in a model of a few megabytes.
    let shape = Shape {
        num_hidden_layers: 8,
        full_attention_interval: 1,
        num_attention_heads: 16,
        num_key_value_heads: 16,
        head_dim: 256,
        max_position_embeddings: 1 << 22,
        ..Shape::tiny()
    };
    let directory = tempfile::tempdir().unwrap();
    write_random(&shape, RandomOptions::default(), directory.path()).unwrap();
    let model = directory.path().to_str().unwrap();
    let args =
        ["serve", "--port", "0", "--model", model, "--max-model-len", "4194304", "--dry-run"];
    let too_large = pocketd(&args);
    assert_eq!(too_large.status.code(), Some(1), "{too_large:?}");
    assert!(too_large.stdout.contains("KV cache"), "{}", too_large.stdout);
    let line = too_large.stderr.lines().last().unwrap();
    assert!(line.starts_with("pocketd: ") && line.contains("TiB"), "{line}");
    // The start itself refuses before it reads a weight or starts a rank.
    let refused = pocketd(&args[..args.len() - 1]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(!refused.stderr.contains("loading weights"), "{}", refused.stderr);
}

/// The log of a start says what is served, how, and where.
#[test]
fn the_boot_log_tells_what_runs() {
    let daemon = Daemon::options(POCKETD)
        .args(["--tensor-parallel-size", "2", "--max-queue", "7"])
        .env("POCKET_PHASE_PROFILE", "1");
    let daemon = daemon.start().unwrap();
    let address = daemon.address().to_string();
    let finished = daemon.stop(PATIENCE).unwrap();
    for part in [
        env!("CARGO_PKG_VERSION"),
        "demo",
        "ranks=2",
        "memory plan",
        "max_queue=7",
        "shutdown_timeout_s=30",
        "POCKET_PHASE_PROFILE=1",
        &address,
        "ready",
    ] {
        assert!(finished.stderr.contains(part), "no {part:?} in {}", finished.stderr);
    }
}

/// O4, O13: the whole process group gets the signal, as systemd and Ctrl-C send it; the running streams
/// come to their ends, new requests are refused, and nothing is left.
#[test]
fn running_streams_are_drained() {
    let (_model, options) = endless();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut daemon = options.start().unwrap();
        let client = daemon.client();
        let streams: Vec<EventStream> = (0..8).map(|_| begun(&client, 250)).collect();
        daemon.process().signal_group(signal).unwrap();
        wait_state(&client, "draining");
        let reply = client.post(COMPLETIONS, &json!({"prompt": "And me?"})).unwrap();
        assert_eq!(reply.status, 503, "{}", reply.body);
        assert_eq!(reply.header("retry-after"), Some("1"));
        for stream in streams {
            let events = rest(stream);
            assert_eq!(events.last().unwrap(), "[DONE]");
            let last: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
            assert_eq!(last["choices"][0]["finish_reason"], "length");
            assert_eq!(last["timings"]["completion_tokens"], 250);
        }
        let finished = daemon.finish(PATIENCE).unwrap();
        assert_eq!(finished.status.code(), Some(0), "{finished:?}");
    }
}

/// Who does not finish in time is told so, and does not take it for a whole answer.
#[test]
fn a_stream_beyond_the_drain_limit_ends_with_an_error() {
    let (_model, options) = endless();
    let daemon = options.args(["--shutdown-timeout", "0.3"]).start().unwrap();
    let stream = begun(&daemon.client(), 8000);
    let mut daemon = daemon;
    daemon.process().signal(Signal::SIGTERM).unwrap();
    let events = rest(stream);
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "unavailable", "{last}");
    assert!(last["error"]["message"].as_str().unwrap().contains("stopped before"), "{last}");
    let finished = daemon.finish(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(0), "{finished:?}");
}

#[test]
fn a_second_signal_ends_at_once() {
    let (_model, options) = endless();
    let mut daemon = options.start().unwrap();
    let stream = begun(&daemon.client(), 8000);
    daemon.process().signal(Signal::SIGTERM).unwrap();
    wait_state(&daemon.client(), "draining");
    daemon.process().signal(Signal::SIGTERM).unwrap();
    let finished = daemon.finish(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(128 + 15), "{finished:?}");
    drop(stream);
}

/// O15: a signal while weights load is obeyed, and nothing is left.
#[test]
fn a_signal_while_loading_is_obeyed() {
    // A load that never ends.
    let options = Daemon::options(POCKETD)
        .args(["--tensor-parallel-size", "2", "--allow-faults"])
        .env("POCKET_FAULT", "0:load:1:stall");
    let daemon = options.start_loading().unwrap();
    let client = daemon.client();
    wait_state(&client, "starting");
    let reply = client.post(COMPLETIONS, &json!({"prompt": "Hi"})).unwrap();
    assert_eq!(reply.status, 503);
    let message = reply.json().unwrap()["error"]["message"].to_string();
    assert!(message.contains("loading"), "{message}");
    let finished = daemon.stop(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(0), "{finished:?}");
}

/// A client that hangs up in the middle of a stream is not computed for any longer.
#[test]
fn hanging_up_ends_the_generation() {
    let (_model, options) = endless();
    let daemon = options.start().unwrap();
    let client = daemon.client();
    let stream = begun(&client, 8000);
    drop(stream);
    crate::http_support::wait_running(&client, 0);
    let passes = client.get("/health").unwrap().json().unwrap()["forward_passes"].as_u64().unwrap();
    assert!(passes < 8000, "{passes}");
}
