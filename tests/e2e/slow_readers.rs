//! Clients that keep their connection open and do not read.

use std::io::{Read, Write};
use std::net::TcpStream;

use nix::sys::socket::{setsockopt, sockopt};
use pocket_tests::generate::{End, Script};
use pocket_tests::wait::{PATIENCE, until};
use serde_json::json;

use crate::http_support::{COMPLETIONS, Scripted, metric, post_text, wait_idle, wait_running};

/// Every buffer on the way is full, and nothing has been read for as long as a client may take: the
/// connection is cut and its request ends, long before its last token.
#[test]
fn a_stream_that_nobody_reads_is_cut() {
    let script = Script::pieces(["one ", "two "]).unwrap().then(End::LoopTo(0)).unwrap();
    let model = Scripted::new(&script);
    let options = model.daemon().args(["--client-timeout", "2", "--max-model-len", "8192"]);
    let daemon = options.start().unwrap();
    let client = daemon.client();
    let tokens = 8_000;
    // Large events, so that the buffers fill soon.
    let body = json!({
        "prompt": "Go:", "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "stream": true,
        "n": 8, "logprobs": 5,
    });
    let mut unread = TcpStream::connect(daemon.address()).unwrap();
    setsockopt(&unread, sockopt::RcvBuf, &4096).unwrap();
    unread.set_read_timeout(Some(PATIENCE)).unwrap();
    unread.write_all(post_text(COMPLETIONS, "", &body).as_bytes()).unwrap();
    wait_running(&client, 8);
    let mut beginning = [0; 16];
    unread.read_exact(&mut beginning).unwrap();
    assert!(beginning.starts_with(b"HTTP/1.1 200 OK"));

    until("the end of the request", PATIENCE * 2, || {
        (metric(&client, "pocket_requests_running") == 0.0).then_some(())
    })
    .unwrap();
    wait_idle(&client);
    assert_eq!(metric(&client, "pocket_requests_total{outcome=\"cancelled\"}"), 1.0);
    let generated = metric(&client, "pocket_generation_tokens_total");
    assert!(generated < f64::from(8 * tokens), "it was computed to its end: {generated}");
    // What had left before can still be read, fast with a wide window; then the connection is at its end.
    setsockopt(&unread, sockopt::RcvBuf, &(1 << 20)).unwrap();
    let mut answer = Vec::new();
    let _ = unread.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("[DONE]"));
    assert_eq!(daemon.stop(PATIENCE).unwrap().status.code(), Some(0));
}
