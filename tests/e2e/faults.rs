//! A rank that dies or stalls: who is told, how soon everything ends, what is left.

use std::time::Duration;

use nix::sys::signal::Signal;
use pocket_tests::daemon::{Daemon, DaemonOptions};
use pocket_tests::process::{self, Running};
use pocket_tests::shared_segments;
use pocket_tests::wait::{PATIENCE, until};
use serde_json::{Value, json};

use crate::common::POCKETD;

/// Ends at the first failure.
fn four_ranks() -> DaemonOptions {
    Daemon::options(POCKETD).args(["--tensor-parallel-size", "4", "--max-restarts", "0"])
}

/// A limit for stalls that a test waits out, and one that no test reaches.
const SOON: [&str; 2] = ["--stall-timeout", "3"];
const NEVER: [&str; 2] = ["--stall-timeout", "300"];

fn with_fault(fault: &str) -> DaemonOptions {
    four_ranks().args(["--allow-faults"]).env("POCKET_FAULT", fault)
}

fn story() -> Value {
    json!({
        "messages": [{"role": "user", "content": "Tell me a short story about a dragon named Luna."}],
        "max_tokens": 200,
        "temperature": 0,
        "ignore_eos": true,
    })
}

/// Process id of a rank, as health tells it.
fn pid(daemon: &Daemon, rank: usize) -> u32 {
    let health = daemon.client().get("/health").unwrap().json().unwrap();
    let pid = health["ranks"][rank]["pid"].as_u64();
    u32::try_from(pid.unwrap_or_else(|| panic!("no pid: {health}"))).unwrap()
}

/// Waits for the end of a daemon whose rank has failed, and checks how it ended.
fn ends_naming(daemon: Daemon, rank: usize) -> String {
    let finished = daemon.finish(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(1), "{finished:?}");
    let log = finished.stderr;
    assert!(log.contains(&format!("rank {rank}")), "{log}");
    log
}

#[test]
fn a_rank_that_dies_while_loading_fails_the_start() {
    for (rank, kind) in [(3, "exit"), (1, "abort"), (0, "exit")] {
        let running = with_fault(&format!("{rank}:load:1:{kind}")).spawn().unwrap();
        let finished = running.finish(PATIENCE).unwrap();
        assert_eq!(finished.status.code(), Some(1), "{finished:?}");
        let log = finished.stderr;
        assert!(log.contains(&format!("rank {rank}")) && log.contains("load"), "{log}");
    }
}

/// H10: the kernel kills a rank other than the first while weights are read.
#[test]
fn a_rank_that_is_killed_while_loading_fails_the_start() {
    // The stall keeps it in its load until the kill; ranks are started in order, so the last process
    // is rank 3.
    let daemon = with_fault("3:load:1:stall").args(NEVER).start_loading().unwrap();
    let victim = until("four ranks", PATIENCE, || {
        let ranks = daemon.ranks();
        (ranks.len() == 4).then(|| ranks.into_iter().max()).flatten()
    })
    .unwrap();
    assert_eq!(daemon.client().get("/health").unwrap().status, 503);
    process::signal(victim, Signal::SIGKILL).unwrap();
    let log = ends_naming(daemon, 3);
    assert!(log.contains("SIGKILL"), "{log}");
}

#[test]
fn a_rank_that_dies_in_a_step_ends_the_request_and_the_daemon() {
    for fault in ["2:prefill:1:exit", "1:decode:3:abort", "3:allreduce:40:exit"] {
        let rank: usize = fault[..1].parse().unwrap();
        let daemon = with_fault(fault).start().unwrap();
        let reply = daemon.client().post("/v1/chat/completions", &story()).unwrap();
        assert_eq!(reply.status, 500, "{fault}: {}", reply.body);
        let message = reply.json().unwrap()["error"]["message"].to_string();
        assert!(message.contains(&format!("rank {rank}")), "{fault}: {message}");
        ends_naming(daemon, rank);
    }
}

/// S2, S33: the headers of a stream are out already; the failure is an event, and the stream ends.
#[test]
fn a_stream_hears_of_the_rank_that_died() {
    let daemon = with_fault("1:decode:5:exit").start().unwrap();
    let mut body = story();
    body["stream"] = json!(true);
    let events: Vec<_> = daemon
        .client()
        .stream("/v1/chat/completions", &body)
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let last = events.last().expect("an event").json().unwrap();
    let message = last["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {last}"));
    assert!(message.contains("rank 1"), "{message}");
    ends_naming(daemon, 1);
}

#[test]
fn a_stalled_rank_is_told_from_a_dead_one() {
    for (fault, rank) in [("2:decode:2:stall", 2), ("1:allreduce:30:stall", 1)] {
        let daemon = with_fault(fault).args(SOON).start().unwrap();
        let reply = daemon.client().post("/v1/chat/completions", &story()).unwrap();
        assert_eq!(reply.status, 500, "{fault}: {}", reply.body);
        let message = reply.json().unwrap()["error"]["message"].to_string();
        assert!(message.contains(&format!("rank {rank}")), "{fault}: {message}");
        assert!(message.contains("stall"), "{fault}: {message}");
        ends_naming(daemon, rank);
    }
}

/// H1, H14: nobody asks anything, and a rank is killed or aborts.
#[test]
fn the_death_of_an_idle_rank_is_noticed() {
    for signal in [Signal::SIGKILL, Signal::SIGABRT] {
        let daemon = four_ranks().start().unwrap();
        process::signal(pid(&daemon, 2), signal).unwrap();
        let log = ends_naming(daemon, 2);
        assert!(log.contains(signal.as_str()), "{log}");
    }
}

/// H4: alive and frozen. It is reported after the stall limit.
#[test]
fn a_frozen_idle_rank_is_noticed() {
    let daemon = four_ranks().args(SOON).start().unwrap();
    process::signal(pid(&daemon, 2), Signal::SIGSTOP).unwrap();
    let log = ends_naming(daemon, 2);
    assert!(log.contains("stall"), "{log}");
}

/// A rank that does not leave is killed, and the stop that was asked for is no failure: a supervisor that
/// starts failed daemons again leaves this one alone.
#[test]
fn a_stop_with_a_frozen_rank_is_a_stop() {
    let mut daemon = four_ranks().start().unwrap();
    process::signal(pid(&daemon, 2), Signal::SIGSTOP).unwrap();
    daemon.process().signal(Signal::SIGTERM).unwrap();
    let finished = daemon.finish(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(0), "{finished:?}");
    assert!(finished.stderr.contains("ranks [2] did not stop"), "{}", finished.stderr);
}

/// What a killed coordinator leaves: nothing, soon.
#[test]
fn a_killed_coordinator_leaves_nothing() {
    let mut daemon = four_ranks().start().unwrap();
    assert_eq!(daemon.ranks().len(), 4);
    let id = daemon.process().id();
    process::signal(id, Signal::SIGKILL).unwrap();
    let running = daemon.process();
    until("end of the ranks", Duration::from_secs(20), || {
        running.processes().is_empty().then_some(())
    })
    .unwrap();
    let finished = daemon.finish(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), None, "{finished:?}");
}

/// X2: twenty crashes in a row while the ranks start do not fill the shared memory. A segment has a
/// name for microseconds; one that a kill hits just then is swept by the next start.
#[test]
fn crashes_do_not_pile_up_segments() {
    let before = shared_segments();
    for _ in 0..20 {
        let mut running = four_ranks().spawn().unwrap();
        until("listening", PATIENCE, || running.stderr().contains("listening").then_some(()))
            .unwrap();
        assert!(running.ended().unwrap().is_none());
        process::signal(running.id(), Signal::SIGKILL).unwrap();
        running.finish(PATIENCE).unwrap();
    }
    let finished = four_ranks().start().unwrap().stop(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(0), "{finished:?}");
    // Daemons of other tests have segments too, for a moment: what is left stays.
    let mut left = &shared_segments() - &before;
    until("end of the segments", PATIENCE, || {
        left = &left & &shared_segments();
        left.is_empty().then_some(())
    })
    .unwrap();
}

/// X1: a shared memory too small for the segment is refused with both numbers, by a start and by a dry
/// run, before a rank is started.
#[test]
fn a_small_shared_memory_is_refused() {
    for command in [&["generate", "hello"][..], &["serve", "--dry-run"], &["serve", "--port", "0"]]
    {
        let mut unshare = process::command("unshare");
        let script = "mount -t tmpfs -o size=1m none /dev/shm && exec \"$@\"";
        unshare.args(["--mount", "sh", "-c", script, "sh", POCKETD]).args(command);
        unshare.args(["--tensor-parallel-size", "4"]);
        let finished = Running::spawn(unshare).unwrap().finish(PATIENCE).unwrap();
        if finished.stderr.contains("unshare") || finished.stderr.contains("mount:") {
            eprintln!("no right to mount: {command:?} is not shown");
            continue;
        }
        assert_eq!(finished.status.code(), Some(1), "{finished:?}");
        let line = finished.stderr.lines().last().unwrap_or_default();
        assert!(line.contains("needed in /dev/shm, 1048576 available"), "{finished:?}");
    }
}

/// X12: two daemons on one host do not get in each other's way.
#[test]
fn two_daemons_live_side_by_side() {
    let (first, second) = (four_ranks().start().unwrap(), four_ranks().start().unwrap());
    for daemon in [&first, &second] {
        let mut body = story();
        body["max_tokens"] = json!(5);
        assert_eq!(daemon.client().post("/v1/chat/completions", &body).unwrap().status, 200);
    }
    first.stop(PATIENCE).unwrap();
    assert_eq!(second.client().get("/health").unwrap().status, 200);
    second.stop(PATIENCE).unwrap();
}
