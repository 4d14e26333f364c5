//! Requests that wait: how many may, in which order they get in, what happens when others leave,
//! and when their time is up.

use std::net::TcpStream;

use pocket_tests::daemon::{Daemon, DaemonOptions};
use pocket_tests::generate::{End, Script};
use pocket_tests::http::{Client, EventStream};
use pocket_tests::wait::{PATIENCE, until};
use serde_json::{Value, json};

use crate::http_support::{
    COMPLETIONS, Scripted, metric, post_text, rest, sent, wait_health, wait_idle, wait_running,
    whole,
};

/// A model that never ends its answer, on a device that takes 5 ms a call.
fn endless() -> (Scripted, DaemonOptions) {
    let script = Script::pieces(["one ", "two "]).unwrap().then(End::LoopTo(0)).unwrap();
    let model = Scripted::new(&script);
    let daemon = model.daemon().env("POCKET_CALL_DELAY_US", "5000");
    (model, daemon)
}

fn request(prompt_tokens: usize, max_tokens: usize) -> Value {
    json!({
        "prompt": vec![65; prompt_tokens], "max_tokens": max_tokens, "temperature": 0,
        "ignore_eos": true,
    })
}

fn begun(client: &Client, mut request: Value) -> EventStream {
    request["stream"] = json!(true);
    client.stream(COMPLETIONS, &request).unwrap()
}

/// Sends a request and leaves its answer unread.
fn asked(daemon: &Daemon, request: &Value) -> TcpStream {
    sent(daemon, &post_text(COMPLETIONS, "", request))
}

/// M5: the queue is full, then those before it leave, and it moves on.
#[test]
fn who_waits_gets_in_when_others_leave() {
    let (_model, options) = endless();
    let daemon = options.args(["--max-num-seqs", "1", "--max-queue", "1"]).start().unwrap();
    let client = daemon.client();
    let first = begun(&client, request(3, 8000));
    wait_health(&client, &[("running", 1), ("waiting", 0)]);
    let second = asked(&daemon, &request(3, 4));
    wait_health(&client, &[("running", 1), ("waiting", 1)]);
    let reply = client.post(COMPLETIONS, &request(3, 4)).unwrap();
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("1")), "{}", reply.body);
    assert!(reply.body.contains("--max-queue 1"), "{}", reply.body);
    assert_eq!(metric(&client, "pocket_requests_total{outcome=\"queue_full\"}"), 1.0);
    drop(first);
    assert!(rest(second).starts_with("HTTP/1.1 200 "));
    wait_idle(&client);

    // One that waits and hangs up leaves its place as well.
    let first = begun(&client, request(3, 8000));
    wait_running(&client, 1);
    drop(asked(&daemon, &request(3, 4)));
    wait_health(&client, &[("running", 1), ("waiting", 0)]);
    let third = asked(&daemon, &request(3, 4));
    wait_health(&client, &[("running", 1), ("waiting", 1)]);
    drop(first);
    assert!(rest(third).starts_with("HTTP/1.1 200 "));
    wait_idle(&client);
}

/// M5: the memory is full, half of the clients leave, others come: nothing waits for ever.
#[test]
fn a_full_memory_is_used_by_those_who_stay() {
    let (_model, options) = endless();
    let daemon =
        options.args(["--kv-cache-bytes", "1MiB", "--max-model-len", "512"]).start().unwrap();
    let client = daemon.client();
    let blocks = metric(&client, "pocket_kv_blocks");
    // Each takes 8 blocks in the end; there are as many as fit, and twice as many come.
    let fit = (blocks / 8.0) as usize;
    let mut streams: Vec<EventStream> =
        (0..2 * fit).map(|_| begun(&client, request(200, 300))).collect();
    until("a full memory", PATIENCE, || {
        (metric(&client, "pocket_kv_usage_ratio") > 0.8).then_some(())
    })
    .unwrap();
    streams.truncate(fit);
    streams.extend((0..fit).map(|_| begun(&client, request(20, 20))));
    for stream in streams {
        let events: Vec<String> = stream.map(|event| event.unwrap().data).collect();
        assert_eq!(events.last().unwrap(), "[DONE]");
    }
    wait_idle(&client);
    assert_eq!(metric(&client, "pocket_kv_usage_ratio"), 0.0);
}

/// M7: the policy is that of the book: who is first and does not fit keeps its place, and those
/// behind it wait although they would fit.
#[test]
fn the_first_of_the_queue_is_not_passed() {
    let (_model, options) = endless();
    // 64 KiB hold 64 positions in float32: one layer of full attention with 4 heads of 32 numbers.
    let daemon = options.args(["--kv-cache-bytes", "512KiB"]).start().unwrap();
    let client = daemon.client();
    assert_eq!(metric(&client, "pocket_kv_blocks"), 8.0);
    let first = begun(&client, request(300, 200));
    wait_running(&client, 1);
    let large = asked(&daemon, &request(400, 4));
    wait_health(&client, &[("running", 1), ("waiting", 1)]);
    let small = asked(&daemon, &request(3, 4));
    wait_health(&client, &[("running", 1), ("waiting", 2)]);
    let calls = || metric(&client, "pocket_forward_calls_total{kind=\"decode\"}");
    let before = calls();
    until("ten calls", PATIENCE, || (calls() > before + 10.0).then_some(())).unwrap();
    wait_health(&client, &[("running", 1), ("waiting", 2)]);
    drop(first);
    for waited in [large, small] {
        assert!(rest(waited).starts_with("HTTP/1.1 200 "));
    }
    wait_idle(&client);
}

/// M4: what can never fit is refused at once, with the numbers, and nobody waits behind it.
#[test]
fn what_never_fits_is_refused_at_once() {
    let (_model, options) = endless();
    let daemon = options.args(["--kv-cache-bytes", "256KiB"]).start().unwrap();
    let client = daemon.client();
    let other = begun(&client, request(3, 200));
    wait_running(&client, 1);
    // M18: the last number that fits, and the first that does not.
    for (prompt, max_tokens, parts) in
        [(300, 4, ["300", "256"]), (256, 1, ["256", "256"]), (200, 57, ["57", "at most 56"])]
    {
        for stream in [false, true] {
            let mut request = request(prompt, max_tokens);
            request["stream"] = json!(stream);
            let reply = client.post(COMPLETIONS, &request).unwrap();
            assert_eq!(reply.status, 400, "{}", reply.body);
            assert!(parts.iter().all(|part| reply.body.contains(part)), "{}", reply.body);
        }
    }
    assert_eq!(whole(&client, COMPLETIONS, &request(3, 4)).finish_reason, "length");
    assert_eq!(whole(&client, COMPLETIONS, &request(200, 56)).finish_reason, "length");
    assert_eq!(other.last().unwrap().unwrap().data, "[DONE]");
    wait_idle(&client);
}

/// A request's time counts from its arrival; when it is up, the client is told, in either mode.
#[test]
fn a_request_has_its_time_and_no_more() {
    let (_model, options) = endless();
    let daemon = options.args(["--max-num-seqs", "1"]).start().unwrap();
    let client = daemon.client();
    let mut short = request(3, 8000);
    short["timeout"] = json!(0.2);
    let reply = client.post(COMPLETIONS, &short).unwrap();
    assert_eq!(reply.status, 504, "{}", reply.body);
    assert_eq!(reply.json().unwrap()["error"]["code"], "deadline_exceeded", "{}", reply.body);
    let last = begun(&client, short.clone()).last().unwrap().unwrap().json().unwrap();
    assert_eq!(last["error"]["code"], "deadline_exceeded", "{last}");
    wait_idle(&client);

    // It is up while it waits.
    let other = begun(&client, request(3, 8000));
    wait_running(&client, 1);
    assert_eq!(client.post(COMPLETIONS, &short).unwrap().status, 504);
    wait_health(&client, &[("running", 1), ("waiting", 0)]);
    drop(other);
    wait_idle(&client);
    assert_eq!(metric(&client, "pocket_requests_total{outcome=\"deadline_exceeded\"}"), 3.0);
}

#[test]
fn the_servers_limit_holds_for_all() {
    let (_model, options) = endless();
    let daemon = options.args(["--request-timeout", "0.3"]).start().unwrap();
    let client = daemon.client();
    assert_eq!(client.post(COMPLETIONS, &request(3, 8000)).unwrap().status, 504);
    // Nobody may ask for more time than that.
    let mut patient = request(3, 8000);
    patient["timeout"] = json!(3600);
    assert_eq!(client.post(COMPLETIONS, &patient).unwrap().status, 504);
    wait_idle(&client);
}
