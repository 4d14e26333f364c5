//! Every route as it goes over the wire, without a client's help: what `curl` sends, old and odd
//! forms of HTTP, and several requests on one connection.

use std::io::{Read, Write};
use std::net::Shutdown;

use pocket_tests::daemon::Daemon;
use pocket_tests::generate::Script;
use serde_json::{Value, json};

use crate::http_support::{CHAT, COMPLETIONS, Scripted, asks, post_text, raw, rest, sent};

fn served() -> (Scripted, Daemon) {
    let model = Scripted::new(&Script::pieces(["one ", "two "]).unwrap());
    let daemon = model.daemon().start().unwrap();
    (model, daemon)
}

/// Status, head in small letters, and body of an answer that is not in chunks.
fn parts(answer: &str) -> (u16, String, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {answer}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no status: {answer}")), head.to_lowercase(), body.to_owned())
}

fn json_of(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

#[test]
fn every_route_answers() {
    let (_model, daemon) = served();
    let get = |path: &str| {
        parts(&raw(
            &daemon,
            &format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
        ))
    };
    for (path, member) in [
        ("/health", "/state"),
        ("/version", "/version"),
        ("/openapi.json", "/paths"),
        ("/v1/models", "/data/0/id"),
        ("/v1/models/scripted", "/id"),
    ] {
        let (status, head, body) = get(path);
        assert_eq!(status, 200, "{path}: {body}");
        assert!(head.contains("content-type: application/json"), "{head}");
        assert!(json_of(&body).pointer(member).is_some(), "{path} has no {member}: {body}");
    }
    let (status, head, body) = get("/metrics");
    assert_eq!(status, 200, "{body}");
    assert!(head.contains("content-type: text/plain"), "{head}");
    let tokens = json!({"tokens": [72, 105]});
    for (path, body, member, expected) in [
        (CHAT, asks("Hi"), "/choices/0/message/content", json!("one two ")),
        (COMPLETIONS, json!({"prompt": "Hi"}), "/choices/0/finish_reason", json!("stop")),
        ("/tokenize", json!({"prompt": "Hi"}), "/tokens", tokens["tokens"].clone()),
        ("/detokenize", tokens, "/prompt", json!("Hi")),
    ] {
        let (status, head, answer) = parts(&raw(&daemon, &post_text(path, "", &body)));
        assert_eq!(status, 200, "{path}: {answer}");
        assert!(head.contains("content-type: application/json"), "{head}");
        assert_eq!(json_of(&answer).pointer(member), Some(&expected), "{path}: {answer}");
    }
    for (request, expected) in [
        ("DELETE /v1/requests/none HTTP/1.1", 404),
        ("GET /v1/models/none HTTP/1.1", 404),
        ("GET /nowhere HTTP/1.1", 404),
        ("PATCH /v1/models HTTP/1.1", 405),
        ("DELETE /v1/completions HTTP/1.1", 405),
        ("POST /v1/completions HTTP/1.1", 415),
    ] {
        let answer = raw(&daemon, &format!("{request}\r\nhost: x\r\nconnection: close\r\n\r\n"));
        let (status, _, body) = parts(&answer);
        assert_eq!(status, expected, "{request}: {answer}");
        assert!(json_of(&body)["error"]["message"].is_string(), "{answer}");
    }
}

#[test]
fn bodies_come_in_chunks_and_after_a_question() {
    let (_model, daemon) = served();
    let head = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         content-type: application/json\r\n"
    );
    let chunked =
        "transfer-encoding: chunked\r\n\r\n9\r\n{\"prompt\"\r\n7\r\n: \"Hi\"}\r\n0\r\n\r\n";
    let (status, _, body) = parts(&raw(&daemon, &format!("{head}{chunked}")));
    assert_eq!((status, &json_of(&body)["choices"][0]["text"]), (200, &json!("one two ")));

    // curl asks before it sends a large body, and waits for the answer.
    let body = json!({"prompt": "x".repeat(2000), "max_tokens": 1}).to_string();
    let length = body.len();
    let asking = format!("{head}content-length: {length}\r\nexpect: 100-continue\r\n\r\n");
    let mut connection = sent(&daemon, &asking);
    let mut go = [0; 25];
    connection.read_exact(&mut go).unwrap();
    assert_eq!(&go, b"HTTP/1.1 100 Continue\r\n\r\n");
    connection.write_all(body.as_bytes()).unwrap();
    let answer = rest(connection);
    assert_eq!(parts(&answer).0, 200, "{answer}");
}

#[test]
fn an_old_client_gets_a_whole_stream() {
    let (_model, daemon) = served();
    let mut request = asks("Hi");
    request["stream"] = json!(true);
    let request = post_text(CHAT, "", &request).replace("HTTP/1.1", "HTTP/1.0");
    let (status, head, body) = parts(&raw(&daemon, &request));
    assert_eq!(status, 200, "{body}");
    assert!(!head.contains("chunked"), "HTTP/1.0 knows no chunks: {head}");
    assert!(body.starts_with("data: {") && body.ends_with("data: [DONE]\n\n"), "{body}");
}

/// Two requests are sent before the first is answered; both are, in their order.
#[test]
fn a_connection_takes_several_requests() {
    let (_model, daemon) = served();
    let first = post_text(COMPLETIONS, "x-request-id: first\r\n", &json!({"prompt": "Hi"}));
    let second = post_text(COMPLETIONS, "x-request-id: second\r\n", &json!({"prompt": "Ho"}));
    let answers = raw(&daemon, &(first.replace("connection: close\r\n", "") + &second));
    let (one, two) = answers.split_once("x-request-id: second").expect("a second answer");
    assert!(one.contains("x-request-id: first"), "{answers}");
    assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), 2, "{answers}");
    assert!(two.contains("one two "), "{answers}");
}

/// What is no request at all ends the connection and nothing else.
#[test]
fn nonsense_is_refused_and_forgotten() {
    let (_model, daemon) = served();
    for nonsense in
        ["\r\n\r\n\r\n", "hello\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET /\u{1} HTTP/1.1\r\n\r\n"]
    {
        let mut connection = sent(&daemon, nonsense);
        connection.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        // The server may close while there is something unread.
        let _ = connection.read_to_string(&mut answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{nonsense:?}: {answer}");
    }
    let health = daemon.client().get("/health").unwrap();
    assert_eq!((health.status, &health.json().unwrap()["running"]), (200, &json!(0)));
}
