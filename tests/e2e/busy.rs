//! Busy is not stalled: a daemon that works for long without a token to show, and is probed all the
//! while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pocket_tests::daemon::{Daemon, DaemonOptions};
use pocket_tests::generate::{RandomOptions, Shape, write_random};
use pocket_tests::http::Client;
use pocket_tests::wait::{PATIENCE, until};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::POCKETD;
use crate::http_support::COMPLETIONS;

/// What a probe waits for an answer.
const PROBE: Duration = Duration::from_secs(2);

/// A small model of 4096 positions on two ranks, with a stall limit of a second.
fn small() -> (TempDir, DaemonOptions) {
    let folder = tempfile::tempdir().unwrap();
    write_random(&Shape::tiny(), RandomOptions::default(), folder.path()).unwrap();
    let model = folder.path().to_str().unwrap();
    let options = Daemon::options(POCKETD).args(["--model", model, "--max-model-len", "4096"]);
    let options = options.args(["--tensor-parallel-size", "2", "--stall-timeout", "1"]);
    (folder, options)
}

fn prompt(tokens: usize) -> Value {
    let ids: Vec<usize> = (0..tokens).map(|at| 65 + at % 26).collect();
    json!({"prompt": ids, "max_tokens": 1, "temperature": 0, "ignore_eos": true})
}

/// Asks `/health` again and again while `work` is done; every answer is a 200 that comes in time.
/// Answers how often, and what the work brought.
fn probed<T>(daemon: &Daemon, work: impl FnOnce() -> T) -> (usize, T) {
    let over = Arc::new(AtomicBool::new(false));
    let probe = Client::new(daemon.url(), PROBE);
    let probing = {
        let over = Arc::clone(&over);
        thread::spawn(move || {
            let mut probes = 0;
            while !over.load(Ordering::Relaxed) {
                let reply = probe.get("/health").unwrap();
                assert_eq!(reply.status, 200, "after {probes} probes: {}", reply.body);
                probes += 1;
                thread::sleep(Duration::from_millis(20));
            }
            probes
        })
    };
    let done = work();
    over.store(true, Ordering::Relaxed);
    (probing.join().unwrap(), done)
}

/// H7, H12: every slot has a very long prompt, which goes in small pieces. No token comes for much longer
/// than the stall limit; the steps advance, so all is well.
#[test]
fn a_flood_of_long_prompts_is_no_stall() {
    let (_model, options) = small();
    let options = options.args(["--max-num-seqs", "16", "--max-num-batched-tokens", "64"]);
    // 16 x 2000 tokens, 64 a call of at least 5 ms: no less than 2.5 s of nothing but prompts.
    let daemon = options.env("POCKET_CALL_DELAY_US", "5000").start().unwrap();
    let client = daemon.client();
    let health = || daemon.client().get("/health").unwrap().json().unwrap();
    let (probes, ()) = probed(&daemon, || {
        let asked: Vec<_> = (0..16)
            .map(|_| {
                let client = client.clone();
                thread::spawn(move || client.post(COMPLETIONS, &prompt(2000)).unwrap().status)
            })
            .collect();
        until("all slots full", PATIENCE, || (health()["running"] == 16).then_some(())).unwrap();
        for asked in asked {
            assert_eq!(asked.join().unwrap(), 200);
        }
    });
    let after = health();
    let calls = after["forward_passes"].as_u64().unwrap();
    assert!(calls >= 16 * 2000 / 64, "small pieces: {after}");
    assert_eq!((&after["restarts"], &after["epoch"]), (&json!(0), &json!(1)));
    assert!(probes > 20, "{probes} probes");
    daemon.stop(PATIENCE).unwrap();
}

/// A single call that takes longer than the stall limit, on a device that says that it is at work.
#[test]
fn a_call_longer_than_the_stall_limit_is_no_stall() {
    let (_model, options) = small();
    // 250 rows of 20 ms: five seconds, five limits.
    let daemon = options.env("POCKET_ROW_DELAY_US", "20000").start().unwrap();
    let (probes, reply) =
        probed(&daemon, || daemon.client().post(COMPLETIONS, &prompt(250)).unwrap());
    assert_eq!(reply.status, 200, "{}", reply.body);
    let after = daemon.client().get("/health").unwrap().json().unwrap();
    assert_eq!((&after["forward_passes"], &after["restarts"]), (&json!(1), &json!(0)), "{after}");
    assert!(probes > 20, "{probes} probes");
    daemon.stop(PATIENCE).unwrap();
}
