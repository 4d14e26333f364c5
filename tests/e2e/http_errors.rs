//! Bad requests: each gets OpenAI's error object with the name of what is wrong, and leaves nothing
//! behind.

use pocket_tests::daemon::Daemon;
use pocket_tests::generate::{End, Script};
use pocket_tests::http::Client;
use serde_json::{Value, json};

use crate::common::POCKETD;
use crate::http_support::{CHAT, COMPLETIONS, Scripted, asks, raw, wait_running, whole};

/// Checks the error object and gives its message.
fn error(body: &str, param: &Value) -> String {
    let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("not JSON: {body}"));
    let error = body["error"].as_object().unwrap_or_else(|| panic!("no error object: {body}"));
    let mut members: Vec<&str> = error.keys().map(String::as_str).collect();
    members.sort_unstable();
    assert_eq!(members, ["code", "message", "param", "type"]);
    assert_eq!(error["param"], *param, "{body}");
    error["message"].as_str().expect("a message").to_owned()
}

fn refused(client: &Client, path: &str, request: &Value, status: u16, param: &Value) -> String {
    let reply = client.post(path, request).unwrap();
    assert_eq!(reply.status, status, "{request}: {}", reply.body);
    error(&reply.body, param)
}

#[test]
fn values_that_cannot_be_are_refused_by_name() {
    let daemon = Daemon::options(POCKETD).args(["--tensor-parallel-size", "1"]).start().unwrap();
    let client = daemon.client();
    let long = "word ".repeat(4000);
    for (path, field, value, parts) in [
        (CHAT, "temperature", json!(-1), vec!["-1", "from 0 to 2"]),
        (CHAT, "temperature", json!("warm"), vec!["warm", "from 0 to 2"]),
        (CHAT, "top_p", json!(0), vec!["above 0"]),
        (CHAT, "top_k", json!(-5), vec!["-5", "from -1"]),
        (CHAT, "max_tokens", json!(0), vec!["from 1"]),
        (CHAT, "max_tokens", json!(1_000_000), vec!["1000000", "2048"]),
        (CHAT, "max_completion_tokens", json!(-1), vec!["from 1"]),
        (CHAT, "seed", json!("x"), vec!["whole number"]),
        (CHAT, "stop", json!([""]), vec!["none empty"]),
        (CHAT, "stream", json!(1), vec!["true or false"]),
        (CHAT, "stream_options", json!({"include_usage": true}), vec!["stream"]),
        (CHAT, "n", json!(0), vec!["n is 0", "from 1 to 16"]),
        (CHAT, "n", json!(17), vec!["n is 17", "from 1 to 16"]),
        (CHAT, "top_logprobs", json!(5), vec!["5", "\"logprobs\": true"]),
        (CHAT, "logit_bias", json!({"1024": 1}), vec!["1024", "0 to 1023"]),
        (CHAT, "echo", json!(true), vec!["not supported"]),
        (CHAT, "tools", json!([{"type": "function"}]), vec!["not supported"]),
        (CHAT, "messages", json!([]), vec!["at least one message"]),
        (CHAT, "max_token", json!(5), vec!["unknown", "did you mean 'max_tokens'"]),
        (COMPLETIONS, "prompt", json!(""), vec!["empty"]),
        (COMPLETIONS, "prompt", json!([]), vec!["empty"]),
        (COMPLETIONS, "prompt", json!([1024]), vec!["prompt[0] is 1024", "0 to 1023"]),
        (COMPLETIONS, "prompt", json!(["a", ""]), vec!["prompt[1] is empty"]),
        (COMPLETIONS, "prompt", json!([[1], [1024]]), vec!["prompt[1][0] is 1024"]),
        (COMPLETIONS, "prompt_logprobs", json!(1), vec!["not supported", "echo and logprobs"]),
        (COMPLETIONS, "max_tokens", json!(0), vec!["at least 1", "\"echo\": true"]),
        (COMPLETIONS, "best_of", json!(2), vec!["best_of is 2 and n is 1"]),
    ] {
        let mut request = if path == CHAT { asks("Hi") } else { json!({"prompt": "Hi"}) };
        request[field] = value;
        let message = refused(&client, path, &request, 400, &json!(field));
        for part in parts {
            assert!(message.contains(part), "no {part:?} in {message:?}");
        }
    }
    // S33: a prompt that is too long is not cut; both numbers are told.
    for (path, request) in [(CHAT, asks(&long)), (COMPLETIONS, json!({"prompt": long}))] {
        let message = refused(&client, path, &request, 400, &json!(null));
        assert!(message.contains("2048") && message.contains("the prompt has "), "{message}");
    }
    let mut request = asks("Hi");
    request["messages"][0]["role"] = json!("bot");
    refused(&client, CHAT, &request, 400, &json!("messages[0].role"));
    request["messages"][0] = json!({"role": "user", "content": [{"type": "image_url"}]});
    refused(&client, CHAT, &request, 400, &json!("messages[0].content[0]"));

    // S1: no stream that never closes.
    let mut request = asks("Hi");
    request["stream"] = json!(true);
    request["n"] = json!(0);
    refused(&client, CHAT, &request, 400, &json!("n"));

    let mut request = asks("Hi");
    request["model"] = json!("gpt-9");
    let message = refused(&client, CHAT, &request, 404, &json!("model"));
    assert!(message.contains("gpt-9") && message.contains("demo"), "{message}");

    // H19: none of them took a place or left anything running.
    wait_running(&client, 0);
    let health = client.get("/health").unwrap().json().unwrap();
    assert_eq!((&health["running"], &health["waiting"]), (&json!(0), &json!(0)), "{health}");
    assert_eq!(health["forward_passes"], 0, "{health}");
    assert!(whole(&client, CHAT, &asks("What is the capital of France?")).text.contains("Paris"));
}

#[test]
fn bodies_routes_and_methods() {
    let model = Scripted::new(&Script::pieces(["one "]).unwrap().then(End::LoopTo(0)).unwrap());
    let daemon = model.daemon().args(["--max-request-bytes", "2048"]).start().unwrap();
    let client = daemon.client();
    for (text, part) in [
        ("{\"prompt\": \"Hi\"", "not valid JSON"),
        ("", "not valid JSON"),
        ("[1]", "must be a JSON object"),
        ("\"Hi\"", "must be a JSON object"),
        (&"[".repeat(2000), "nested too deep"),
    ] {
        let reply = client.post_text(COMPLETIONS, text).unwrap();
        assert_eq!(reply.status, 400, "{text}: {}", reply.body);
        let message = error(&reply.body, &json!(null));
        assert!(message.contains(part), "{message}");
    }
    let request = json!({"prompt": "x".repeat(3000)});
    let message = refused(&client, COMPLETIONS, &request, 413, &json!(null));
    assert!(message.contains("2048"), "{message}");

    let reply = client.get("/v1/nothing").unwrap();
    assert_eq!(reply.status, 404);
    assert!(error(&reply.body, &json!(null)).contains("/v1/nothing"));
    let reply = client.get(COMPLETIONS).unwrap();
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
    error(&reply.body, &json!(null));
    let reply = client.post("/health", &json!({})).unwrap();
    assert_eq!((reply.status, reply.header("allow")), (405, Some("GET, HEAD")));

    let head = format!("POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
    for content_type in ["", "content-type: text/plain\r\n"] {
        let body = r#"{"prompt": "Hi"}"#;
        let length = body.len();
        let answer =
            raw(&daemon, &format!("{head}{content_type}content-length: {length}\r\n\r\n{body}"));
        assert!(answer.starts_with("HTTP/1.1 415 "), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(error(body, &json!(null)).contains("application/json"), "{answer}");
    }
    let body = r#"{"prompt": "Hi", "max_tokens": 1}"#;
    let length = body.len();
    let typed = "content-type: Application/JSON; charset=utf-8\r\n";
    let answer = raw(&daemon, &format!("{head}{typed}content-length: {length}\r\n\r\n{body}"));
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

/// Requests beyond the live one and those that may wait are refused at once.
#[test]
fn a_full_queue_answers_429() {
    let model = Scripted::new(&Script::pieces(["one "]).unwrap().then(End::LoopTo(0)).unwrap());
    let daemon = model
        .daemon()
        .args(["--max-num-seqs", "1", "--max-queue", "0"])
        .env("POCKET_CALL_DELAY_US", "20000")
        .start()
        .unwrap();
    let client = daemon.client();
    let request = json!({"prompt": "Go:", "stream": true, "max_tokens": 4000, "temperature": 0});
    let mut stream = client.stream(COMPLETIONS, &request).unwrap();
    stream.next().unwrap().unwrap();
    let reply = client.post(COMPLETIONS, &json!({"prompt": "And me?"})).unwrap();
    assert_eq!(reply.status, 429, "{}", reply.body);
    assert_eq!(reply.header("retry-after"), Some("1"));
    assert!(error(&reply.body, &json!(null)).contains("--max-queue 0"), "{}", reply.body);
    // Whoever hangs up frees the place.
    drop(stream);
    wait_running(&client, 0);
    assert_eq!(whole(&client, COMPLETIONS, &json!({"prompt": "And me?"})).finish_reason, "length");
}
