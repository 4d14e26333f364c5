//! A rank that runs out of memory: the allocation that fails is a real one, because the rank has limited
//! its own memory to what it had.

use pocket_tests::process::{self, Running};
use pocket_tests::wait::{PATIENCE, until};
use serde_json::json;

use crate::common::POCKETD;
use crate::control::{Place, two_ranks};
use crate::http_support::{CHAT, asks};

/// The whole start fails, with one message that names the rank and memory.
#[test]
fn a_rank_without_memory_fails_the_start_at_once() {
    for command in [&["serve", "--port", "0"][..], &["generate", "Hello"]] {
        let mut pocketd = process::command(POCKETD);
        pocketd.args(command).args(["--tensor-parallel-size", "4", "--allow-faults"]);
        pocketd.env("POCKET_FAULT", "1:load:1:memory");
        let finished = Running::spawn(pocketd).unwrap().finish(PATIENCE).unwrap();
        assert_eq!(finished.status.code(), Some(1), "{finished:?}");
        assert_eq!(finished.stdout, "", "{command:?}");
        let log = &finished.stderr;
        let last = log.lines().last().unwrap();
        assert!(last.starts_with("pocketd: rank 1 failed while loading weights"), "{log}");
        assert!(last.contains("cannot allocate") && last.contains("out of memory"), "{log}");
        // What the other ranks make of it is not told.
        let errors = log.lines().filter(|line| line.contains("ERROR")).count();
        assert_eq!(errors, 1, "{log}");
        assert!(!["rank 0 ", "rank 2 ", "rank 3 "].iter().any(|rank| log.contains(rank)), "{log}");
    }
}

/// In a restart it is a restart that failed: the next one is tried, and requests go on.
#[test]
fn a_rank_without_memory_in_a_restart_costs_a_restart() {
    let place = Place::new();
    let daemon = place.steers(two_ranks().args(["--allow-faults"])).start().unwrap();
    let client = daemon.client();
    let ask = || client.post(CHAT, &asks("What is the capital of France?")).unwrap();
    let text = |body: &str| {
        let object: serde_json::Value = serde_json::from_str(body).unwrap();
        object["choices"][0]["message"]["content"].clone()
    };
    let expected = text(&ask().body);
    place.asked(&["set-flag", "POCKET_FAULT", "1:load:1:memory"]);
    place.asked(&["restart-rank", "0"]);
    let reply = ask();
    assert_eq!((reply.status, text(&reply.body)), (200, expected), "{}", reply.body);
    let status = place.asked(&["status"]);
    assert_eq!((&status["restarts"], &status["flags"]), (&json!(2), &json!([])), "{status}");
    let log = daemon.stop(PATIENCE).unwrap().stderr;
    assert!(log.contains("rank 1 failed while loading weights"), "{log}");
    assert!(log.contains("cannot allocate"), "{log}");
}

/// And when it was the last one, the daemon says so and ends.
#[test]
fn a_rank_without_memory_in_the_last_restart_ends_the_daemon() {
    let place = Place::new();
    let options = two_ranks().args(["--allow-faults", "--max-restarts", "1"]);
    let daemon = place.steers(options).start().unwrap();
    place.asked(&["set-flag", "POCKET_FAULT", "0:load:1:memory"]);
    place.asked(&["restart-rank", "1"]);
    let finished = daemon.finish(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(1), "{finished:?}");
    let last = finished.stderr.lines().last().unwrap();
    assert!(last.contains("rank 0 failed while loading weights"), "{finished:?}");
    assert!(last.contains("cannot allocate"), "{finished:?}");
}

/// Resident memory of processes in bytes, pages that several have counted once over all of them.
fn proportional_bytes(pids: &[u32]) -> u64 {
    let of = |pid: &u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
        1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    pids.iter().map(of).sum()
}

/// The packed weights outlive a rank in memory that the coordinator keeps. Ranks that are started again
/// use those, and do not pack them a second time beside them.
#[test]
fn restarts_hold_the_packed_weights_once() {
    let place = Place::new();
    let mut daemon = place.steers(two_ranks()).start().unwrap();
    let client = daemon.client();
    let plan =
        crate::common::pocketd(&["serve", "--dry-run", "--json", "--tensor-parallel-size", "2"]);
    let plan = plan.json().unwrap();
    let weights: u64 =
        plan["ranks"].as_array().unwrap().iter().map(|r| r["weights"].as_u64().unwrap()).sum();
    let mut memory = || {
        // What a step touches is touched.
        assert_eq!(client.post(CHAT, &asks("What is the capital of France?")).unwrap().status, 200);
        let mut pids = daemon.ranks();
        pids.push(daemon.process().id());
        proportional_bytes(&pids)
    };
    let before = memory();
    for restart in 1..=3 {
        place.asked(&["restart-rank", "1"]);
        until("ready", PATIENCE, || {
            let status = place.asked(&["status"]);
            (status["state"] == "ready" && status["restarts"] == restart).then_some(())
        })
        .unwrap();
    }
    let after = memory();
    let grown = after.saturating_sub(before);
    assert!(grown < weights / 2, "{grown} bytes more, of {before}; the weights take {weights}");
    daemon.stop(PATIENCE).unwrap();
}
