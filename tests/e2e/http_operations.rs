//! What operators and clients do about requests that run: end them, hang up, read the counters; and
//! what the server tells about itself.

use std::net::{Shutdown, TcpStream};

use pocket_tests::daemon::{Daemon, DaemonOptions};
use pocket_tests::generate::{End, Script};
use pocket_tests::process::{self, Running};
use pocket_tests::wait::PATIENCE;
use serde_json::{Value, json};

use crate::common::{POCKETD, pocketd};
use crate::http_support::{
    CHAT, COMPLETIONS, Scripted, asks, post_text, raw, rest, sent, wait_idle, wait_running, whole,
};

/// A model that never ends its answer, on a device that takes 10 ms a call.
fn endless() -> (Scripted, DaemonOptions) {
    let script = Script::pieces(["one ", "two "]).unwrap().then(End::LoopTo(0)).unwrap();
    let model = Scripted::new(&script);
    let daemon = model.daemon().env("POCKET_CALL_DELAY_US", "10000");
    (model, daemon)
}

/// Sends a request for an answer that takes minutes, under this name, and leaves it open.
fn asked(daemon: &Daemon, name: &str, stream: bool) -> TcpStream {
    let body = json!({
        "prompt": "Go:", "max_tokens": 8000, "temperature": 0, "ignore_eos": true, "stream": stream,
    });
    sent(daemon, &post_text(COMPLETIONS, &format!("x-request-id: {name}\r\n"), &body))
}

fn delete(daemon: &Daemon, name: &str) -> (String, Value) {
    let request =
        format!("DELETE /v1/requests/{name} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let answer = raw(daemon, &request);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.lines().next().unwrap().to_owned();
    (status, serde_json::from_str(body).unwrap_or_else(|_| panic!("not JSON: {answer}")))
}

/// S18: in both modes, whether the client closes or only half-closes.
#[test]
fn hanging_up_ends_a_request_however_it_is_answered() {
    let (_model, options) = endless();
    let daemon = options.start().unwrap();
    let client = daemon.client();
    for stream in [false, true] {
        let connection = asked(&daemon, "closes", stream);
        wait_running(&client, 1);
        drop(connection);
        wait_idle(&client);

        let connection = asked(&daemon, "half-closes", stream);
        wait_running(&client, 1);
        connection.shutdown(Shutdown::Write).unwrap();
        wait_idle(&client);
        let answer = rest(connection);
        assert!(!answer.contains("[DONE]"), "{answer}");
        if !stream {
            assert!(answer.starts_with("HTTP/1.1 499 "), "{answer}");
            assert!(answer.contains("client_closed_request"), "{answer}");
        }
    }
}

#[test]
fn a_request_is_ended_by_either_of_its_names() {
    let (_model, options) = endless();
    let daemon = options.start().unwrap();
    let client = daemon.client();

    // By the name their client gave them, which several may have.
    let both = [asked(&daemon, "batch/7", false), asked(&daemon, "batch/7", false)];
    wait_running(&client, 2);
    let (status, body) = delete(&daemon, "batch/7");
    assert_eq!((status.as_str(), &body["cancelled"]), ("HTTP/1.1 200 OK", &json!(2)), "{body}");
    assert_eq!(body["id"], "batch/7");
    for connection in both {
        let answer = rest(connection);
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.contains("\"code\":\"cancelled\""), "{answer}");
    }

    // By the answer's own.
    let request = json!({"prompt": "Go:", "stream": true, "max_tokens": 8000, "ignore_eos": true});
    let mut events = client.stream(COMPLETIONS, &request).unwrap();
    let first: Value = events.next().unwrap().unwrap().json().unwrap();
    let (status, body) = delete(&daemon, first["id"].as_str().unwrap());
    assert_eq!((status.as_str(), &body["cancelled"]), ("HTTP/1.1 200 OK", &json!(1)), "{body}");
    let last = events.last().unwrap().unwrap().data;
    assert!(last.contains("\"code\":\"cancelled\""), "{last}");

    wait_idle(&client);
    let (status, body) = delete(&daemon, "batch/7");
    assert_eq!(status, "HTTP/1.1 404 Not Found");
    assert_eq!(body["error"]["code"], "request_not_found");
}

/// K10: what is counted is what is computed, template and its variables included.
#[test]
fn tokens_are_counted_as_a_chat_uses_them() {
    let daemon = Daemon::options(POCKETD).args(["--tensor-parallel-size", "1"]).start().unwrap();
    let client = daemon.client();
    let chats = [
        asks("What is the capital of France?"),
        json!({"messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "na\u{ef}ve \u{1f980}"},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": [{"type": "text", "text": "And?"}]},
        ]}),
    ];
    for mut chat in chats {
        let asked = json!({"messages": chat["messages"]});
        let tokens = client.post("/tokenize", &asked).unwrap().json().unwrap();
        chat["max_tokens"] = json!(1);
        assert_eq!(whole(&client, CHAT, &chat).usage["prompt_tokens"], tokens["count"], "{chat}");
        let text = client.post("/detokenize", &json!({"tokens": tokens["tokens"]})).unwrap();
        let again = json!({"prompt": text.json().unwrap()["prompt"], "add_special_tokens": false});
        let again = client.post("/tokenize", &again).unwrap().json().unwrap();
        assert_eq!(again["tokens"], tokens["tokens"]);
    }
}

#[test]
fn the_server_describes_itself() {
    let daemon = Daemon::options(POCKETD).args(["--tensor-parallel-size", "1"]).start().unwrap();
    let client = daemon.client();
    let document = client.get("/openapi.json").unwrap();
    assert_eq!(document.header("content-type"), Some("application/json"));
    assert_eq!(document.json().unwrap()["openapi"], "3.1.0");
    let metrics = client.get("/metrics").unwrap();
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let sample = |line: &str| {
        line.starts_with('#')
            || line.rsplit_once(' ').is_some_and(|(_, n)| n.parse::<f64>().is_ok())
    };
    let odd = metrics.body.lines().find(|line| !sample(line));
    assert_eq!(odd, None);
    let head = "HEAD /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answer = raw(&daemon, head);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"), "{answer}");
}

/// M1: what was asked for is refused before anything is loaded, a default is lowered.
#[test]
fn sizes_that_memory_does_not_have_are_refused_or_lowered() {
    let refused = pocketd(&["serve", "--port", "0", "--kv-cache-bytes", "1000TiB"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(refused.stderr.contains("lower the KV budget"), "{}", refused.stderr);
    assert!(!refused.stderr.contains("loading weights"), "{}", refused.stderr);

    let small = ["serve", "--dry-run", "--json", "--kv-cache-bytes", "1MiB"];
    let lowered = pocketd(&small);
    assert_eq!(lowered.status.code(), Some(0), "{lowered:?}");
    assert!(lowered.stderr.contains("max-model-len is lowered"), "{}", lowered.stderr);
    let plan = lowered.json().unwrap();
    let longest = plan["limits"]["max_model_len"].as_u64().unwrap();
    assert_eq!(plan["kv_tokens"], longest);

    let too_long = (longest + 1).to_string();
    let refused = pocketd(&[&small[..], &["--max-model-len", &too_long]].concat());
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let advice = format!("the largest max-model-len that fits is {longest}");
    assert!(refused.stderr.contains(&advice), "{}", refused.stderr);
}

#[test]
fn a_limit_of_open_files_that_is_too_low_is_one_clear_error() {
    let mut command = process::command("sh");
    command.args(["-c", "ulimit -n 128 && exec \"$0\" serve --port 0", POCKETD]);
    let finished = Running::spawn(command).unwrap().finish(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(2), "{finished:?}");
    let lines: Vec<&str> = finished.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{}", finished.stderr);
    assert!(lines[0].contains("at most 128 files") && lines[0].contains("256"), "{}", lines[0]);
}
