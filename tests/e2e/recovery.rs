//! Ranks that fail and are started again, as clients, probes and operators see it.

use std::thread::{self, JoinHandle};

use nix::sys::signal::Signal;
use pocket_tests::daemon::{Daemon, DaemonOptions};
use pocket_tests::http::{Client, EventStream};
use pocket_tests::process;
use pocket_tests::wait::{PATIENCE, until};
use serde_json::{Value, json};

use crate::common::POCKETD;
use crate::control::{Place, two_ranks};
use crate::http_support::{CHAT, COMPLETIONS, asks, wait_health, wait_idle};

/// Four ranks on a device that takes 10 ms a call.
fn four_ranks() -> DaemonOptions {
    let options = Daemon::options(POCKETD).args(["--tensor-parallel-size", "4"]);
    options.env("POCKET_CALL_DELAY_US", "10000")
}

fn continues(max_tokens: u32) -> Value {
    json!({"prompt": "Go:", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true})
}

/// A stream that has begun.
fn begun(client: &Client, max_tokens: u32) -> (EventStream, String) {
    let mut request = continues(max_tokens);
    request["stream"] = json!(true);
    let mut stream = client.stream(COMPLETIONS, &request).unwrap();
    let first = piece(&stream.next().unwrap().unwrap().data);
    (stream, first)
}

fn piece(event: &str) -> String {
    let event: Value = serde_json::from_str(event).unwrap();
    event["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{event}")).to_owned()
}

/// The whole text of a stream whose first piece has been read.
fn whole((stream, mut text): (EventStream, String)) -> String {
    let events: Vec<String> = stream.map(|event| event.unwrap().data).collect();
    let (done, events) = events.split_last().unwrap();
    assert_eq!(done, "[DONE]");
    events.iter().for_each(|event| text += &piece(event));
    text
}

fn answer(client: &Client, max_tokens: u32) -> String {
    let reply = client.post(COMPLETIONS, &continues(max_tokens)).unwrap();
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json().unwrap()["choices"][0]["text"].as_str().unwrap().to_owned()
}

fn health(client: &Client) -> Value {
    client.get("/health").unwrap().json().unwrap()
}

fn signal_rank(client: &Client, rank: usize, signal: Signal) -> u32 {
    let pid = u32::try_from(health(client)["ranks"][rank]["pid"].as_u64().unwrap()).unwrap();
    assert!(process::signal(pid, signal).unwrap());
    pid
}

/// The reason that `/health` gives while the ranks are started again.
fn reason_of_recovery(client: &Client) -> String {
    until("503", PATIENCE, || {
        let reply = client.get("/health").unwrap();
        let body = reply.json().unwrap();
        (body["state"] == "recovering").then(|| {
            assert_eq!(reply.status, 503);
            body["reason"].as_str().unwrap().to_owned()
        })
    })
    .unwrap()
}

fn wait_ready(client: &Client) {
    until("200", PATIENCE, || (client.get("/health").unwrap().status == 200).then_some(()))
        .unwrap();
}

/// H24: a rank of four is killed under a stream with others in the queue. The port stays open, the queue
/// is kept, the group comes back and the log says how long it took.
#[test]
fn the_port_and_the_queue_outlive_a_rank() {
    let mut daemon = four_ranks().args(["--max-num-seqs", "1"]).start().unwrap();
    let client = daemon.client();
    let expected = answer(&client, 80);
    let before = daemon.ranks();
    let running = begun(&client, 80);
    let ask = |client: &Client| {
        let client = client.clone();
        thread::spawn(move || answer(&client, 80))
    };
    let mut waiting: Vec<JoinHandle<String>> = (0..3).map(|_| ask(&client)).collect();
    wait_health(&client, &[("running", 1), ("waiting", 3)]);
    signal_rank(&client, 2, Signal::SIGKILL);
    let reason = reason_of_recovery(&client);
    assert!(reason.contains("rank 2 died in") && reason.contains("SIGKILL"), "{reason}");
    // Who comes now waits as well.
    waiting.push(ask(&client));
    assert_eq!(whole(running), expected);
    for waiting in waiting {
        assert_eq!(waiting.join().unwrap(), expected);
    }
    assert_eq!(health(&client)["restarts"], 1);
    assert!(daemon.ranks().iter().all(|pid| !before.contains(pid)), "the whole group is new");
    let address = daemon.address().to_string();
    assert!(daemon.process().ended().unwrap().is_none());
    let log = daemon.stop(PATIENCE).unwrap().stderr;
    assert_eq!(log.matches(&format!("listening address={address}")).count(), 1, "{log}");
    let back = log.lines().find(|line| line.contains("ranks are ready again"));
    assert!(back.is_some_and(|line| line.contains("took_ms=")), "{log}");
}

/// H4: a frozen rank under load is found within the stall limit, named with what it was doing, and
/// replaced; waking it later changes nothing.
#[test]
fn a_frozen_busy_rank_is_replaced() {
    let daemon = four_ranks().args(["--stall-timeout", "2"]).start().unwrap();
    let client = daemon.client();
    let expected = answer(&client, 150);
    let stream = begun(&client, 150);
    let frozen = signal_rank(&client, 2, Signal::SIGSTOP);
    let reason = reason_of_recovery(&client);
    assert!(reason.starts_with("rank 2 stalled in decode, step "), "{reason}");
    assert!(reason.contains("no progress for") || reason.contains("no answer for"), "{reason}");
    // It may have been killed by now.
    process::signal(frozen, Signal::SIGCONT).unwrap();
    assert_eq!(whole(stream), expected);
    wait_ready(&client);
    assert_eq!(health(&client)["restarts"], 1);
    daemon.stop(PATIENCE).unwrap();
}

/// H4: an idle one, too, and one that is woken before the limit goes on as if nothing had been.
#[test]
fn a_frozen_idle_rank_is_replaced_unless_it_wakes_in_time() {
    let daemon = four_ranks().args(["--stall-timeout", "2"]).start().unwrap();
    let client = daemon.client();
    let expected = answer(&client, 20);
    signal_rank(&client, 1, Signal::SIGSTOP);
    let reason = reason_of_recovery(&client);
    // A self-test may have come before the ping.
    assert!(reason.starts_with("rank 1 stalled "), "{reason}");
    assert!(reason.contains("no answer for") || reason.contains("no progress for"), "{reason}");
    wait_ready(&client);
    assert_eq!(answer(&client, 20), expected);
    daemon.stop(PATIENCE).unwrap();

    let daemon = four_ranks().args(["--stall-timeout", "300"]).start().unwrap();
    let client = daemon.client();
    let stream = begun(&client, 60);
    signal_rank(&client, 1, Signal::SIGSTOP);
    until("a rank that is waited for", PATIENCE, || {
        (health(&client)["missing"][0]["rank"] == 1).then_some(())
    })
    .unwrap();
    assert_eq!(client.get("/health").unwrap().status, 200, "it is not stalled yet");
    signal_rank(&client, 1, Signal::SIGCONT);
    let text = whole(stream);
    assert_eq!(answer(&client, 60), text);
    assert_eq!(health(&client)["restarts"], 0);
    daemon.stop(PATIENCE).unwrap();
}

/// The keeper of the segment is asked who has not arrived: `ctl status` names rank, call and layer long
/// before the rank counts as stalled.
#[test]
fn status_names_who_is_waited_for_and_where() {
    let place = Place::new();
    let options = four_ranks().args(["--stall-timeout", "300", "--allow-faults"]);
    let daemon = place.steers(options).start().unwrap();
    let client = daemon.client();
    let stream = begun(&client, 60);
    // A pass has 17 all-reduces: one after the embedding, two in each of 8 layers. The 22nd of the
    // passes to come is the second one of layer 1 in the next pass but one.
    place.asked(&["set-flag", "POCKET_FAULT", "2:allreduce:22:stop"]);
    let status = until("a rank that is waited for", PATIENCE, || {
        let status = place.asked(&["status"]);
        let (first, again) = (&status["missing"], &place.asked(&["status"])["missing"]);
        let stays = first.as_array().is_some_and(|ranks| ranks.len() == 1) && first == again;
        stays.then_some(status)
    })
    .unwrap();
    let missing = &status["missing"][0];
    assert_eq!((&missing["rank"], &missing["layer"]), (&json!(2), &json!(1)), "{status}");
    assert_eq!(missing["phase"], "decode", "{status}");
    let call = missing["call"].as_u64().unwrap();
    assert_eq!((call - 1) % 17, 4, "{status}");
    assert_eq!(status["ranks"][0]["all_reduce"], call, "the others are there: {status}");
    assert_eq!(status["state"], "ready", "{status}");
    let table = place.ctl(&["status"]).stdout;
    let line = format!("waited for     rank 2 in all-reduce {call}; it is in decode, step ");
    assert!(table.contains(&line) && table.contains(", layer 1\n"), "{table}");
    let shown = health(&client);
    assert_eq!(shown["missing"], status["missing"], "{shown}");
    signal_rank(&client, 2, Signal::SIGCONT);
    let text = whole(stream);
    assert_eq!(answer(&client, 60), text);
    wait_idle(&client);
    assert_eq!(place.asked(&["status"])["missing"], json!([]));
    daemon.stop(PATIENCE).unwrap();
}

/// H9: a rank aborts under load when no restart is left. Everybody hears of it, and who asks in the next
/// second is answered at once.
#[test]
fn after_the_last_restart_everything_fails_fast() {
    let daemon = four_ranks().args(["--max-restarts", "1"]).start().unwrap();
    let client = daemon.client();
    let expected = answer(&client, 60);
    let first = begun(&client, 60);
    signal_rank(&client, 3, Signal::SIGABRT);
    assert_eq!(whole(first), expected, "the first failure is recovered from");
    wait_ready(&client);
    let (stream, _) = begun(&client, 1500);
    signal_rank(&client, 1, Signal::SIGABRT);
    let late: Vec<JoinHandle<(u16, String)>> = (0..10)
        .map(|_| {
            let client = client.clone();
            thread::spawn(move || {
                // The process ends soon after, and then nobody listens.
                let reply = client.post(CHAT, &asks("Hi"));
                reply.map_or((0, String::new()), |reply| (reply.status, reply.body))
            })
        })
        .collect();
    for late in late {
        let (status, body) = late.join().unwrap();
        match status {
            0 => {}
            500 | 503 => assert!(body.contains("rank 1"), "{body}"),
            other => panic!("{other}: {body}"),
        }
    }
    let last = stream.last().unwrap().unwrap().json().unwrap();
    assert!(last["error"]["message"].as_str().unwrap().contains("rank 1 died in"), "{last}");
    let finished = daemon.finish(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(1), "{finished:?}");
    assert!(finished.stderr.contains("SIGABRT"), "{finished:?}");
}

/// H13: requests run out of time while they wait and while they run, with several ranks. The coordinator
/// alone decides who has: the ranks go on in step.
#[test]
fn time_outs_under_overload_hang_nobody() {
    let options = two_ranks().args(["--max-num-seqs", "2", "--max-queue", "100"]);
    let daemon = options.env("POCKET_CALL_DELAY_US", "5000").start().unwrap();
    let client = daemon.client();
    let expected = answer(&client, 40);
    let asked: Vec<JoinHandle<Option<String>>> = (0..48_u32)
        .map(|index| {
            let client = client.clone();
            thread::spawn(move || {
                let mut request = continues(40);
                // A quarter of them have all the time they need.
                if index % 4 != 0 {
                    request["timeout"] = json!(0.05 + 0.05 * f64::from(index));
                }
                let reply = client.post(COMPLETIONS, &request).unwrap();
                match reply.status {
                    200 => Some(reply.json().unwrap()["choices"][0]["text"].as_str()?.to_owned()),
                    504 => None,
                    other => panic!("{other}: {}", reply.body),
                }
            })
        })
        .collect();
    let answers: Vec<Option<String>> =
        asked.into_iter().map(|thread| thread.join().unwrap()).collect();
    let (answered, expired): (Vec<_>, Vec<_>) = answers.iter().partition(|text| text.is_some());
    assert!(answered.iter().all(|text| text.as_ref() == Some(&expected)));
    assert!(answered.len() >= 12 && !expired.is_empty(), "{} expired", expired.len());
    wait_idle(&client);
    let health = health(&client);
    assert_eq!((&health["state"], &health["restarts"]), (&json!("ready"), &json!(0)));
    let run = |rank: usize| health["ranks"][rank]["counters"]["run"].as_u64().unwrap();
    assert_eq!(run(0), run(1), "the ranks did the same calls");
    assert_eq!(answer(&client, 40), expected);
    daemon.stop(PATIENCE).unwrap();
}

#[test]
fn a_fault_set_while_serving_needs_leave_and_a_rank() {
    let place = Place::new();
    let daemon = place.steers(two_ranks()).start().unwrap();
    let (code, why) = place.refused(&["set-flag", "POCKET_FAULT", "0:decode:1:exit"]);
    assert!(code == 2 && why.contains("refused without --allow-faults"), "{why}");
    daemon.stop(PATIENCE).unwrap();

    let place = Place::new();
    let daemon = place.steers(two_ranks().args(["--allow-faults"])).start().unwrap();
    let (code, why) = place.refused(&["set-flag", "POCKET_FAULT", "2:decode:1:exit"]);
    assert!(code == 2 && why.contains("there is no rank 2; ranks go from 0 to 1"), "{why}");
    let (code, why) = place.refused(&["set-flag", "POCKET_FAULT", "1:decode:1:explode"]);
    assert!(code == 2 && why.contains("none or rank:phase:n:kind"), "{why}");
    // One that is taken back does not strike.
    place.asked(&["set-flag", "POCKET_FAULT", "1:decode:1:exit"]);
    assert_eq!(place.asked(&["status"])["flags"], json!(["POCKET_FAULT=1:decode:1:exit"]));
    place.asked(&["set-flag", "POCKET_FAULT", "none"]);
    let client = daemon.client();
    let expected = answer(&client, 20);
    assert_eq!(place.asked(&["status"])["restarts"], 0);
    // One that is not strikes once.
    place.asked(&["set-flag", "POCKET_FAULT", "1:decode:3:exit"]);
    assert_eq!(answer(&client, 20), expected);
    let status = place.asked(&["status"]);
    assert_eq!((&status["restarts"], &status["flags"]), (&json!(1), &json!([])), "{status}");
    daemon.stop(PATIENCE).unwrap();
}
