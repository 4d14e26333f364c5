//! Keys: which doors they open, how they are exchanged, and that nobody tells them.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::sys::signal::Signal;
use pocket_tests::daemon::{Daemon, DaemonOptions};
use pocket_tests::generate::{End, Script};
use pocket_tests::process::{self, Running};
use pocket_tests::wait::{PATIENCE, until};
use serde_json::{Value, json};

use crate::common::POCKETD;
use crate::http_support::{CHAT, COMPLETIONS, Scripted, asks, post_text, raw, reload, rest, sent};

const OLD: &str = "old-key-0123456789";
const NEW: &str = "new-key-9876543210";

/// A model that never ends its answer, on a device that takes 10 ms a call.
fn endless() -> (Scripted, DaemonOptions) {
    let script = Script::pieces(["one ", "two "]).unwrap().then(End::LoopTo(0)).unwrap();
    let model = Scripted::new(&script);
    let daemon = model.daemon().env("POCKET_CALL_DELAY_US", "10000");
    (model, daemon)
}

fn write_keys(path: &Path, keys: &[&str]) {
    fs::write(path, keys.join("\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn bearer(key: &str) -> String {
    format!("authorization: Bearer {key}\r\n")
}

fn status(answer: &str) -> u16 {
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.unwrap_or_else(|| panic!("no status: {answer:?}"))
}

fn request(method: &str, path: &str, headers: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: 0\r\n\r\n"
    )
}

/// O8: every route there is, by the server's own description, and every method. Without a key only probes
/// are answered; with one, nobody is asked for it again.
#[test]
fn without_a_key_only_probes_are_answered() {
    let (_model, options) = endless();
    let daemon = options.env("POCKETD_API_KEY", OLD).start().unwrap();
    let document = raw(&daemon, &request("GET", "/openapi.json", &bearer(OLD)));
    let (head, body) = document.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let document: Value = serde_json::from_str(body).unwrap();
    let routes: Vec<String> = document["paths"].as_object().unwrap().keys().cloned().collect();
    assert!(routes.len() > 12, "{routes:?}");
    let mut answered = Vec::new();
    let unknown = ["/", "/nowhere", "/v1", "/docs", "/metrics/", "//health", "/health/live/"];
    for route in routes.iter().map(String::as_str).chain(unknown) {
        let path = route.replace("{id}", "x").replace("{name}", "x");
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE"] {
            let without = status(&raw(&daemon, &request(method, &path, "")));
            let with = status(&raw(&daemon, &request(method, &path, &bearer(OLD))));
            assert_ne!(with, 401, "{method} {path}");
            if without != 401 {
                assert_eq!(without, with, "{method} {path}");
                answered.push(path.clone());
            }
        }
    }
    answered.dedup();
    assert_eq!(answered, ["/health", "/health/live", "/health/ready"]);
}

/// A key that was given away is exchanged while streams run.
#[test]
fn keys_are_exchanged_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    write_keys(&file, &[OLD]);
    let (_model, options) = endless();
    let mut daemon = options.args(["--api-key-file", file.to_str().unwrap()]).start().unwrap();
    let models = |daemon: &Daemon, key: &str| {
        status(&raw(daemon, &request("GET", "/v1/models", &bearer(key))))
    };
    assert_eq!((models(&daemon, OLD), models(&daemon, NEW)), (200, 401));
    let body = json!({
        "prompt": "Go:", "max_tokens": 1000, "temperature": 0, "ignore_eos": true, "stream": true,
    });
    let stream = sent(&daemon, &post_text(COMPLETIONS, &bearer(OLD), &body));
    let runs = |daemon: &Daemon, key: &str| {
        let metrics = raw(daemon, &request("GET", "/metrics", &bearer(key)));
        metrics.contains("\npocket_requests_running 1")
    };
    until("the stream", PATIENCE, || runs(&daemon, OLD).then_some(())).unwrap();
    // Both hold for a while, then the old one goes.
    write_keys(&file, &[OLD, NEW]);
    reload(&mut daemon, "API keys reloaded");
    write_keys(&file, &["no key at all"]);
    reload(&mut daemon, "the API keys stay as they were");
    assert_eq!((models(&daemon, OLD), models(&daemon, NEW)), (200, 200));
    write_keys(&file, &[NEW]);
    reload(&mut daemon, "API keys reloaded");
    assert_eq!((models(&daemon, OLD), models(&daemon, NEW)), (401, 200));
    // Who was let in is served to the end.
    assert!(runs(&daemon, NEW), "the stream was over before its key was");
    let answer = rest(stream);
    assert!(answer.contains("data: [DONE]") && !answer.contains("error"), "{answer}");
    let metrics = raw(&daemon, &request("GET", "/metrics", &bearer(NEW)));
    let stopped = daemon.stop(PATIENCE).unwrap();
    assert_eq!(stopped.status.code(), Some(0), "{stopped:?}");
    for text in [&metrics, &stopped.stderr, &stopped.stdout] {
        for secret in [OLD, NEW, "no key at all"] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}

/// A start that lets others than this machine's users in says how dangerous that is.
#[test]
fn a_wide_bind_without_a_key_is_warned_of() {
    let listens = |host: &str, key: Option<&str>| {
        let mut command = process::command(POCKETD);
        command.args(["serve", "--port", "0", "--tensor-parallel-size", "1", "--host", host]);
        command.envs(key.map(|key| ("POCKETD_API_KEY", key)));
        let running = Running::spawn(command).unwrap();
        let listening = || running.stderr().contains("listening").then_some(());
        until("listening", PATIENCE, listening).unwrap();
        running.signal(Signal::SIGTERM).unwrap();
        running.finish(PATIENCE).unwrap().stderr
    };
    let open = "everybody who reaches this address may ask";
    let readable = "keys go over the network as they are";
    let log = listens("0.0.0.0", None);
    assert!(log.contains(open) && log.contains("WARN"), "{log}");
    let log = listens("0.0.0.0", Some(OLD));
    assert!(!log.contains(open) && log.contains(readable), "{log}");
    let log = listens("127.0.0.1", None);
    assert!(!log.contains(open) && !log.contains(readable), "{log}");
}

/// A small body must not become a large one in here: what is compressed is refused by name.
#[test]
fn a_compressed_body_is_refused_by_name() {
    let (_model, options) = endless();
    let daemon = options.start().unwrap();
    for path in [CHAT, COMPLETIONS, "/tokenize", "/detokenize"] {
        for encoding in ["gzip", "br", "deflate, gzip", "x"] {
            let header = format!("content-encoding: {encoding}\r\n");
            let answer = raw(&daemon, &post_text(path, &header, &asks("Hi")));
            assert_eq!(status(&answer), 415, "{path} {encoding}: {answer}");
            assert!(answer.contains("unsupported_content_encoding"), "{answer}");
            assert!(answer.contains(&format!("Content-Encoding is '{encoding}'")), "{answer}");
        }
    }
    let mut right = asks("Hi");
    right["max_tokens"] = json!(2);
    let answer = raw(&daemon, &post_text(CHAT, "content-encoding: identity\r\n", &right));
    assert_eq!(status(&answer), 200, "{answer}");
}

/// What a proxy logs of a client that hung up has a name.
#[test]
fn a_client_that_half_closes_reads_a_reason() {
    let (_model, options) = endless();
    let daemon = options.start().unwrap();
    let body = json!({"prompt": "Go:", "max_tokens": 4000, "ignore_eos": true});
    let connection: TcpStream = sent(&daemon, &post_text(COMPLETIONS, "", &body));
    connection.shutdown(std::net::Shutdown::Write).unwrap();
    let answer = rest(connection);
    assert!(answer.starts_with("HTTP/1.1 499 Client Closed Request\r\n"), "{answer}");
}
