//! Streams as they come over the wire: read slowly, a byte at a time, from several choices at once.

use std::io::{Read, Write};
use std::net::TcpStream;

use nix::sys::socket::{setsockopt, sockopt};
use pocket_tests::daemon::Daemon;
use pocket_tests::generate::{End, Script};
use pocket_tests::wait::PATIENCE;
use serde_json::{Value, json};

use crate::http_reading::{both_choices, of_events, whole_choices, with_stream};
use crate::http_support::{
    CHAT, COMPLETIONS, Scripted, asks, post_text, wait_health, wait_idle, whole,
};

const TEXT: &str = "Grüße 🎉👩‍👩‍👧 中文字 — naïve end";

/// Sends a request and leaves the answer unread. The socket's buffer has a known size.
fn send(daemon: &Daemon, path: &str, request: &Value) -> TcpStream {
    let mut connection = TcpStream::connect(daemon.address()).unwrap();
    setsockopt(&connection, sockopt::RcvBuf, &65_536).unwrap();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    connection.write_all(post_text(path, "", request).as_bytes()).unwrap();
    connection
}

/// Reads an answer to its end, a byte at a time.
fn bytes(mut connection: TcpStream) -> Vec<u8> {
    let (mut all, mut one) = (Vec::new(), [0]);
    while connection.read(&mut one).unwrap() == 1 {
        all.push(one[0]);
    }
    all
}

/// Head and body of an answer that was sent in chunks.
fn parts(answer: &[u8]) -> (String, String) {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(answer[..end].to_vec()).unwrap().to_lowercase();
    assert!(head.contains("transfer-encoding: chunked"), "{head}");
    let (mut rest, mut body) = (&answer[end + 4..], Vec::new());
    loop {
        let line = rest.windows(2).position(|two| two == b"\r\n").expect("a chunk's length");
        let length = std::str::from_utf8(&rest[..line]).unwrap();
        let length = usize::from_str_radix(length, 16).unwrap();
        let chunk = &rest[line + 2..];
        body.extend_from_slice(&chunk[..length]);
        assert_eq!(&chunk[length..length + 2], b"\r\n");
        rest = &chunk[length + 2..];
        if length == 0 {
            assert!(rest.is_empty(), "{rest:?}");
            return (head, String::from_utf8(body).unwrap());
        }
    }
}

/// The data of events that are a line and an empty line each.
fn events(body: &str) -> Vec<String> {
    let body = body.strip_suffix("\n\n").unwrap_or_else(|| panic!("no end: {body}"));
    let data = body.split("\n\n").filter(|event| !event.starts_with(':'));
    data.map(|event| event.strip_prefix("data: ").expect("data").to_owned()).collect()
}

#[test]
fn a_client_that_reads_a_byte_at_a_time_reads_the_same() {
    let model = Scripted::new(&Script::text(TEXT).unwrap());
    let daemon = model.daemon().start().unwrap();
    let client = daemon.client();
    let mut chat = asks("Say it");
    chat["logprobs"] = json!(true);
    chat["top_logprobs"] = json!(20);
    for (path, request) in [
        (CHAT, chat),
        (COMPLETIONS, json!({"prompt": "Say it:", "temperature": 0, "max_tokens": 500})),
        (COMPLETIONS, json!({"prompt": "Say it:", "temperature": 0, "max_tokens": 1})),
        (COMPLETIONS, json!({"prompt": "Say it:", "temperature": 0, "n": 3, "stop": "文"})),
    ] {
        let (head, body) = parts(&bytes(send(&daemon, path, &with_stream(&request))));
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        assert!(head.contains("content-type: text/event-stream"), "{head}");
        assert!(head.contains("cache-control: no-cache"), "{head}");
        let expected = whole_choices(&client, path, &request);
        assert_eq!(of_events(path, &events(&body)), expected, "{request}");
    }
}

/// Who does not read holds up nobody else, and finds the whole answer later.
#[test]
fn a_client_that_does_not_read_holds_up_nobody() {
    let script = Script::pieces(["one ", "two "]).unwrap().then(End::LoopTo(0)).unwrap();
    let model = Scripted::new(&script);
    let daemon = model.daemon().start().unwrap();
    let client = daemon.client();
    // More than the buffers of both sides hold.
    let mut long = asks("Go");
    long["max_tokens"] = json!(6000);
    long["logprobs"] = json!(true);
    long["top_logprobs"] = json!(20);
    let mut sleeper = send(&daemon, CHAT, &with_stream(&long));
    wait_health(&client, &[("running", 1)]);
    let other = json!({"prompt": "Go:", "temperature": 0, "max_tokens": 3000});
    assert_eq!(whole(&client, COMPLETIONS, &other).usage["completion_tokens"], 3000);
    // Its memory is free although it has read nothing.
    wait_idle(&client);
    let mut all = Vec::new();
    sleeper.read_to_end(&mut all).unwrap();
    let answers = of_events(CHAT, &events(&parts(&all).1));
    assert_eq!(answers.tokens(), 6000);
    assert_eq!(answers.choices[0].text, "one two ".repeat(3000));
    assert_eq!(answers.choices[0].logprobs["content"].as_array().unwrap().len(), 6000);
}

/// S15: one chunk with the usage, the sum of the choices, wherever each of them ends.
#[test]
fn choices_that_end_apart_are_streamed_side_by_side() {
    let model = Scripted::new(&Script::text(TEXT).unwrap());
    let daemon = model.daemon().start().unwrap();
    let client = daemon.client();
    // After the chain's second to last token there is little left to say, after any other byte all.
    let near_the_end = model.checkpoint.chain[model.checkpoint.chain.len() - 2];
    let request = json!({
        "prompt": [[near_the_end], [65], [model.checkpoint.chain[2]]],
        "n": 2, "temperature": 0, "max_tokens": 12, "logprobs": 3,
    });
    let answers = both_choices(&client, COMPLETIONS, &request);
    let reasons: Vec<&str> =
        answers.choices.iter().map(|choice| choice.finish_reason.as_str()).collect();
    assert_eq!(reasons, ["stop", "stop", "length", "length", "length", "length"]);
    assert_eq!(answers.tokens(), 2 * (2 + 12 + 12));
    assert_eq!(answers.texts()[2], model.checkpoint.text(12));
}

/// S14: what `stream_options` may say, and that it goes with a stream only.
#[test]
fn the_end_of_a_stream_is_one_event() {
    let model = Scripted::new(&Script::pieces(["one ", "🎉"]).unwrap());
    let daemon = model.daemon().start().unwrap();
    let end = *model.checkpoint.chain.last().unwrap();
    // The end token at once: for a chat never, for tokens yes. No text, and still a proper stream.
    let request = json!({"prompt": [end], "temperature": 0, "logprobs": 1});
    let answers = both_choices(&daemon.client(), COMPLETIONS, &request);
    assert_eq!((answers.texts(), answers.tokens()), (vec![""], 1));
    let (_, body) = parts(&bytes(send(&daemon, COMPLETIONS, &with_stream(&request))));
    let events = events(&body);
    assert_eq!(events.len(), 3, "the end, the usage, [DONE]: {body}");
    // Without usage the last chunk is the end of the choice.
    let mut request = asks("Go");
    request["stream"] = json!(true);
    let (_, body) = parts(&bytes(send(&daemon, CHAT, &request)));
    assert_eq!(body.matches("data: [DONE]\n\n").count(), 1);
    assert_eq!(body.matches("\"finish_reason\":\"stop\"").count(), 1);
    assert!(!body.contains("\"usage\""), "{body}");
}
