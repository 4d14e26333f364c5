//! `pocketd bench serve` against servers with a prefix cache, and against one that does not keep its
//! connections.

use std::collections::HashSet;
use std::sync::Mutex;

use serde_json::json;

use crate::bench_serve::{bench, invalid, measured};
use crate::stub_server::{Connection, StubServer, text};

/// An answer of one token to a prompt of so many, so many of them cached.
fn one_token(connection: &mut Connection, prompt_tokens: usize, cached: usize) {
    connection.stream();
    connection.events(&[text("a")]);
    connection.events(&[json!({"choices": [], "usage": {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": cached},
    }})]);
    connection.end(1);
}

/// B3: the second run of the same prompts, out of a prefix cache, is no measurement; a run with prompts of
/// its own is one, and so is a prefix that prompts share on purpose.
#[test]
fn prompts_that_a_cache_had_are_no_measurement() {
    let cache = Mutex::new(HashSet::new());
    let server = StubServer::start(move |_, body, connection| {
        let prompt = body["prompt"].to_string();
        let fresh = cache.lock().unwrap().insert(prompt);
        one_token(connection, 8, if fresh { 0 } else { 8 });
    });
    let args = |seed: &'static str| ["--num-prompts=4", "--random-input-len=8", seed];
    let first = measured(&server.url(), &args("--seed=7"));
    assert_eq!((&first["cached_tokens"], &first["prefix_cache_hits"]), (&json!(0), &json!(0)));
    let (second, why) = invalid(&bench(&server.url(), &args("--seed=7")));
    assert!(why.contains("a prefix cache served 32 prompt tokens"), "{why}");
    assert_eq!(second["record"]["cached_tokens"], 32);
    assert_eq!(second["record"]["invalid"][0]["reason"], "prefix_cache_served");
    // Without a seed, each run has its own.
    let seeds: HashSet<u64> = (0..2)
        .map(|_| {
            let result = measured(&server.url(), &["--num-prompts=4", "--random-input-len=8"]);
            assert_eq!(result["cached_tokens"], 0);
            result["seed"].as_u64().unwrap()
        })
        .collect();
    assert_eq!(seeds.len(), 2);
    let shared = ["--num-prompts=4", "--random-input-len=1", "--random-prefix-len=8", "--seed=7"];
    measured(&server.url(), &shared);
    measured(&server.url(), &shared);
}

/// Servers that cache token by token find the first token of a random prompt now and then.
#[test]
fn what_a_cache_finds_by_chance_is_told_and_no_reason_against_a_run() {
    let server = StubServer::start(|number, _, connection| {
        one_token(connection, 8, usize::from(number == 0));
    });
    let result = measured(&server.url(), &["--num-prompts=4", "--random-input-len=8"]);
    assert_eq!(result["cached_tokens"], 1);
    let notes = result["notes"].to_string();
    assert!(notes.contains("1 of 32 prompt tokens"), "{notes}");
}

/// `llama-server` closes a connection after each stream and says that it keeps it.
#[test]
fn a_request_that_met_a_closed_connection_is_sent_again_and_counted() {
    let server = StubServer::start(|number, _, connection| {
        if number != 1 {
            one_token(connection, 4, 0);
        }
    });
    let result = measured(
        &server.url(),
        &["--num-prompts=3", "--random-input-len=4", "--max-concurrency=1"],
    );
    assert_eq!(
        (&result["completed"], &result["failed"], &result["resent"]),
        (&json!(3), &json!(0), &json!(1))
    );
    assert!(result["notes"].to_string().contains("1 request sent again"), "{}", result["notes"]);
    assert_eq!(server.asked(), 4);
    assert_eq!(result["record"]["servers"][0]["version"], "unknown b1");
}

/// A server that never answers is not asked for ever.
#[test]
fn a_request_is_sent_again_once() {
    let server = StubServer::start(|_, _, _| {});
    let (result, why) =
        invalid(&bench(&server.url(), &["--num-prompts=2", "--random-input-len=4"]));
    assert!(why.contains("all 2 requests failed") && why.contains("no connection"), "{why}");
    assert_eq!((server.asked(), &result["failures"]), (4, &json!({"connection": 2})));
}
