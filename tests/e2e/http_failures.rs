//! A rank fails: what clients and probes of the HTTP API hear of it.

use nix::sys::signal::Signal;
use pocket_tests::daemon::{Daemon, DaemonOptions};
use pocket_tests::http::{Client, EventStream};
use pocket_tests::process;
use pocket_tests::wait::{PATIENCE, until};
use serde_json::{Value, json};

use crate::common::POCKETD;
use crate::http_support::{CHAT, asks};

/// Ends at the first failure.
fn four_ranks() -> DaemonOptions {
    Daemon::options(POCKETD).args(["--tensor-parallel-size", "4", "--max-restarts", "0"])
}

/// A chat that goes on for very long, streamed.
fn endless() -> Value {
    let mut request = asks("Tell me a short story about a dragon named Luna.");
    request["stream"] = json!(true);
    request["ignore_eos"] = json!(true);
    request
}

fn kill_rank(client: &Client, rank: usize) {
    let health = client.get("/health").unwrap().json().unwrap();
    let pid = health["ranks"][rank]["pid"].as_u64().unwrap();
    assert!(process::signal(u32::try_from(pid).unwrap(), Signal::SIGKILL).unwrap());
}

/// The events of a stream to its end.
fn rest(stream: EventStream) -> Vec<String> {
    stream.map(|event| event.unwrap().data).collect()
}

/// H1: nobody asks anything; a probe sees why before the daemon ends.
#[test]
fn health_names_the_dead_rank() {
    let daemon = four_ranks().start().unwrap();
    let client = daemon.client();
    kill_rank(&client, 2);
    let body = until("503", PATIENCE, || {
        let reply = client.get("/health").unwrap();
        (reply.status == 503).then(|| reply.json().unwrap())
    })
    .unwrap();
    assert_eq!(body["state"], "failed");
    assert!(body["reason"].as_str().unwrap().contains("rank 2"), "{body}");
    assert_eq!(body["ranks"][2]["state"], "dead", "{body}");
    let finished = daemon.finish(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(1), "{finished:?}");
    let last = finished.stderr.lines().last().unwrap();
    assert!(last.starts_with("pocketd: ") && last.contains("rank 2"), "{last}");
}

/// H2: under load every open request ends with an error, a new one gets 503, and nothing hangs.
#[test]
fn every_open_request_hears_of_the_end() {
    let daemon = four_ranks().env("POCKET_CALL_DELAY_US", "20000").start().unwrap();
    let client = daemon.client();
    let mut running = client.stream(CHAT, &endless()).unwrap();
    running.next().unwrap().unwrap();
    // These wait for the first.
    let waiting: Vec<EventStream> =
        (0..3).map(|_| client.stream(CHAT, &endless()).unwrap()).collect();
    kill_rank(&client, 1);
    for (index, stream) in waiting.into_iter().chain([running]).enumerate() {
        let events = rest(stream);
        let error: Value = serde_json::from_str(events.last().expect("an event")).unwrap();
        let message = error["error"]["message"].as_str().unwrap_or_else(|| panic!("{error}"));
        assert!(message.contains("rank 1"), "{index}: {message}");
    }
    let reply = client.post(CHAT, &asks("Hi")).unwrap();
    assert_eq!(reply.status, 503, "{}", reply.body);
    let body = reply.json().unwrap();
    assert!(body["error"]["message"].as_str().unwrap().contains("rank 1"), "{body}");
    let finished = daemon.finish(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(1), "{finished:?}");
}

/// S2: before the first token, too, the error is an event, and no `[DONE]` pretends to an answer.
#[test]
fn a_stream_that_fails_before_its_first_token_says_so() {
    let options = four_ranks().args(["--allow-faults"]);
    let daemon = options.env("POCKET_FAULT", "3:prefill:1:exit").start().unwrap();
    let events = rest(daemon.client().stream(CHAT, &endless()).unwrap());
    let [only] = events.as_slice() else { panic!("{events:?}") };
    let error: Value = serde_json::from_str(only).unwrap();
    assert_eq!(error["error"]["type"], "server_error");
    assert!(error["error"]["message"].as_str().unwrap().contains("rank 3"), "{error}");
    assert_eq!(daemon.finish(PATIENCE).unwrap().status.code(), Some(1));
}
