//! S18: a client hangs up, at each stage of its request and in both modes; soon nothing of it is
//! computed or held any more.

use pocket_tests::daemon::Daemon;
use pocket_tests::generate::{End, Script};
use pocket_tests::http::Client;
use pocket_tests::wait::{PATIENCE, until};
use serde_json::json;

use crate::http_support::{
    COMPLETIONS, Scripted, metric, post_text, sent, wait_health, wait_idle, wait_running, whole,
};

/// A model that never ends its answer, with one place, on a device that takes 50 ms a call.
fn endless() -> (Scripted, Daemon) {
    let script = Script::pieces(["one ", "two "]).unwrap().then(End::LoopTo(0)).unwrap();
    let model = Scripted::new(&script);
    let daemon = model.daemon().args(["--max-num-seqs", "1", "--max-num-batched-tokens", "64"]);
    let daemon = daemon.env("POCKET_CALL_DELAY_US", "50000").start().unwrap();
    (model, daemon)
}

/// An answer that takes minutes after a prompt that takes a call for each 64 tokens.
fn request(prompt_tokens: usize, stream: bool) -> String {
    let body = json!({
        "prompt": vec![65; prompt_tokens], "max_tokens": 4000, "temperature": 0, "stream": stream,
    });
    post_text(COMPLETIONS, "", &body)
}

fn generated(client: &Client) -> f64 {
    metric(client, "pocket_generation_tokens_total")
}

/// All levels are zero, by both accounts.
fn is_free(client: &Client) {
    wait_idle(client);
    for level in ["requests_running", "requests_waiting", "kv_blocks_used", "kv_usage_ratio"] {
        assert_eq!(metric(client, &format!("pocket_{level}")), 0.0, "{level}");
    }
}

#[test]
fn while_the_prompt_is_computed() {
    let (_model, daemon) = endless();
    let client = daemon.client();
    // A prompt of 64 calls, more than three seconds.
    for stream in [false, true] {
        let before = generated(&client);
        let connection = sent(&daemon, &request(4096, stream));
        wait_running(&client, 1);
        drop(connection);
        is_free(&client);
        assert_eq!(generated(&client), before, "it came to its answer; stream: {stream}");
    }
    let other = json!({"prompt": "And me?", "max_tokens": 2, "temperature": 0});
    assert_eq!(whole(&client, COMPLETIONS, &other).finish_reason, "length");
}

#[test]
fn while_tokens_are_generated() {
    let (_model, daemon) = endless();
    let client = daemon.client();
    for stream in [false, true] {
        let before = generated(&client);
        let connection = sent(&daemon, &request(3, stream));
        until("a few tokens", PATIENCE, || (generated(&client) > before + 3.0).then_some(()))
            .unwrap();
        drop(connection);
        is_free(&client);
        assert!(generated(&client) < before + 4000.0, "stream: {stream}");
    }
    assert_eq!(metric(&client, "pocket_requests_total{outcome=\"cancelled\"}"), 2.0);
}

#[test]
fn while_it_waits() {
    let (_model, daemon) = endless();
    let client = daemon.client();
    let first = sent(&daemon, &request(3, true));
    wait_running(&client, 1);
    for stream in [false, true] {
        let connection = sent(&daemon, &request(3, stream));
        wait_health(&client, &[("running", 1), ("waiting", 1)]);
        drop(connection);
        wait_health(&client, &[("running", 1), ("waiting", 0)]);
    }
    drop(first);
    is_free(&client);
}
