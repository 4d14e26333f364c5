//! Who is let in, and what clients may take up.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use pocket_tests::daemon::Daemon;
use pocket_tests::generate::Script;
use pocket_tests::wait::{PATIENCE, until};
use serde_json::{Value, json};

use crate::common::{POCKETD, pocketd};
use crate::http_support::{
    CHAT, COMPLETIONS, Scripted, asks, post_text, raw, rest, sent, wait_idle, whole,
};

const KEY: &str = "key-of-the-environment";
const OF_FILE: [&str; 2] = ["first-key-of-the-file", "second-key-of-the-file"];

fn scripted() -> Scripted {
    Scripted::new(&Script::pieces(["one ", "two "]).unwrap())
}

/// A file that only its owner can read.
fn secret_file(folder: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn status(answer: &str) -> u16 {
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.unwrap_or_else(|| panic!("no status: {answer:?}"))
}

fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n")
}

fn bearer(key: &str) -> String {
    format!("authorization: Bearer {key}\r\n")
}

fn is_right(daemon: &Daemon) {
    assert_eq!(whole(&daemon.client(), CHAT, &asks("Hi")).text, "one two ");
}

/// One daemon with keys from both sources.
#[test]
fn only_keys_open_the_doors_that_have_locks() {
    let model = scripted();
    let folder = tempfile::tempdir().unwrap();
    let file = secret_file(&folder, "keys", &format!("# ours\n{}\n\n{}\n", OF_FILE[0], OF_FILE[1]));
    let socket = folder.path().join("control.sock");
    let socket = socket.to_str().unwrap();
    let daemon = model
        .daemon()
        .args(["--api-key-file", file.to_str().unwrap(), "--control-socket", socket])
        .env("POCKETD_API_KEY", &format!("{KEY},another-of-these"))
        .start()
        .unwrap();
    for key in [KEY, "another-of-these", OF_FILE[0], OF_FILE[1]] {
        let answer = raw(&daemon, &post_text(CHAT, &bearer(key), &asks("Hi")));
        assert!(status(&answer) == 200 && answer.contains("one two "), "{key}: {answer}");
    }
    let locked = [
        get("/v1/models", ""),
        get("/metrics", ""),
        get("/nowhere", ""),
        get("/health/", ""),
        get("/v1/../health", ""),
        post_text(CHAT, "", &asks("Hi")),
        post_text(COMPLETIONS, "", &json!({"prompt": "Hi"})),
        post_text("/tokenize", "", &json!({"prompt": "Hi"})),
        post_text("/detokenize", "", &json!({"tokens": [1]})),
    ];
    for request in &locked {
        let answer = raw(&daemon, request);
        assert_eq!(status(&answer), 401, "{request}: {answer}");
        assert!(answer.to_lowercase().contains("www-authenticate: bearer\r\n"), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let error = &serde_json::from_str::<Value>(body).unwrap()["error"];
        assert_eq!(error["code"], "missing_api_key", "{answer}");
        assert_eq!(error["type"], "invalid_request_error", "{answer}");
    }
    for header in [bearer("wrong-key-1"), bearer(&KEY[1..]), bearer(&format!("{KEY}x"))] {
        let answer = raw(&daemon, &get("/v1/models", &header));
        assert!(status(&answer) == 401 && answer.contains("invalid_api_key"), "{answer}");
        assert!(!answer.contains("wrong-key-1"), "{answer}");
    }
    for path in ["/health", "/health/live", "/health/ready"] {
        assert_eq!(status(&raw(&daemon, &get(path, ""))), 200, "{path}");
    }
    assert_eq!(status(&raw(&daemon, &get("/metrics", &bearer(KEY)))), 200);

    let shown = pocketd(&["ctl", "--socket", socket, "config", "--json"]);
    assert!(shown.status.success(), "{shown:?}");
    assert!(shown.stdout.contains("(hidden)"), "{}", shown.stdout);
    let metrics = raw(&daemon, &get("/metrics", &bearer(KEY)));
    let stopped = daemon.stop(PATIENCE).unwrap();
    for text in [&shown.stdout, &metrics, &stopped.stderr, &stopped.stdout] {
        for secret in [KEY, "another-of-these", OF_FILE[0], OF_FILE[1], "wrong-key-1"] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}

#[test]
fn locks_that_would_not_hold_are_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let open = secret_file(&folder, "open", "a-good-key\n");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    let empty = secret_file(&folder, "empty", "# nobody\n");
    let cert = secret_file(&folder, "cert", "nothing\n");
    let path = |path: &PathBuf| path.to_str().unwrap().to_owned();
    for (args, part) in [
        (["--api-key-file".to_owned(), path(&open)], "mode 644"),
        (["--api-key-file".to_owned(), path(&empty)], "it has no key"),
        (["--api-key".to_owned(), "s3cret".to_owned()], "8 to 512 visible ASCII characters"),
        (["--tls-cert".to_owned(), path(&cert)], "tls_cert needs tls_key"),
    ] {
        let running = Daemon::options(POCKETD).args(args).spawn().unwrap();
        let ended = running.finish(PATIENCE).unwrap();
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        assert!(ended.stderr.contains(part), "{ended:?}");
        assert!(!ended.stderr.contains("s3cret"), "{ended:?}");
    }
}

#[test]
fn pages_of_listed_origins_may_ask() {
    let model = scripted();
    let ours = "https://chat.example";
    let daemon =
        model.daemon().args(["--cors-origins", ours]).env("POCKETD_API_KEY", KEY).start().unwrap();
    let preflight = |origin: &str| {
        raw(
            &daemon,
            &format!(
                "OPTIONS {CHAT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\norigin: {origin}\r\n\
                 access-control-request-method: POST\r\n\
                 access-control-request-headers: authorization,content-type\r\n\r\n"
            ),
        )
        .to_lowercase()
    };
    let answer = preflight(ours);
    assert_eq!(status(&answer), 200, "{answer}");
    assert!(answer.contains("access-control-allow-origin: https://chat.example\r\n"), "{answer}");
    assert!(answer.contains("access-control-allow-methods:"), "{answer}");
    let allowed = answer.lines().find(|line| line.starts_with("access-control-allow-headers:"));
    assert!(allowed.unwrap().contains("authorization"), "{answer}");
    let others = preflight("https://evil.example");
    assert!(!others.contains("access-control-allow-origin"), "{others}");
    // Errors are for the page to read too.
    for (headers, expected) in [(bearer(KEY), 200), (String::new(), 401)] {
        let headers = format!("{headers}origin: {ours}\r\n");
        let answer = raw(&daemon, &post_text(CHAT, &headers, &asks("Hi"))).to_lowercase();
        assert_eq!(status(&answer), expected, "{answer}");
        assert!(answer.contains("access-control-allow-origin: https://chat.example\r\n"));
    }
}

#[test]
fn without_origins_no_page_may_ask() {
    let model = scripted();
    let daemon = model.daemon().start().unwrap();
    let origin = "origin: https://chat.example\r\n";
    let answer = raw(&daemon, &post_text(CHAT, origin, &asks("Hi"))).to_lowercase();
    assert!(status(&answer) == 200 && !answer.contains("access-control"), "{answer}");
    let asked = format!("{origin}access-control-request-method: POST\r\n");
    let preflight = raw(&daemon, &get(CHAT, &asked).replace("GET", "OPTIONS")).to_lowercase();
    assert!(status(&preflight) == 405 && !preflight.contains("access-control"), "{preflight}");
}

/// A head and a body that never end, and one that ends a little at a time.
#[test]
fn a_client_that_dawdles_is_cut_off() {
    let model = scripted();
    let daemon = model.daemon().args(["--client-timeout", "1"]).start().unwrap();
    let head = rest(sent(&daemon, "GET /health HTTP/1.1\r\nhost: x\r\nx-slow: "));
    assert_eq!(status(&head), 408, "{head}");
    let body = post_text(CHAT, "", &asks("Hi")).replace("connection: close\r\n", "");
    let part = &body[..body.len() - 1];
    let answer = rest(sent(&daemon, part));
    assert!(status(&answer) == 408 && answer.contains("request_timeout"), "{answer}");
    // The limit is for the whole body: a byte now and then does not put it off.
    let mut trickling = sent(&daemon, &part[..part.len() - 20]);
    let mut writer = trickling.try_clone().unwrap();
    trickling.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut answer = Vec::new();
    until("an answer to a trickle", PATIENCE, || {
        // Not so often that the length is reached before the limit.
        let _ = writer.write_all(b" ");
        let mut buffer = [0; 1024];
        let count = trickling.read(&mut buffer).ok()?;
        answer.extend_from_slice(&buffer[..count]);
        Some(())
    })
    .unwrap();
    assert_eq!(status(&String::from_utf8_lossy(&answer)), 408);
    is_right(&daemon);
    wait_idle(&daemon.client());
}

#[test]
fn what_is_too_much_is_refused_by_name() {
    let model = scripted();
    let daemon = model.daemon().args(["--max-messages", "4"]).start().unwrap();
    let many: String = (0..200).map(|number| format!("x-{number}: y\r\n")).collect();
    let long = format!("x-long: {}\r\n", "y".repeat(200 << 10));
    for headers in [many, long] {
        let mut connection = sent(&daemon, "");
        // The server may close before it has read all.
        let _ = connection.write_all(get("/health", &headers).as_bytes());
        let mut answer = Vec::new();
        let _ = connection.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || status(&answer) == 431, "{answer}");
    }
    let client = daemon.client();
    let nested = format!("{{\"messages\": {}{}}}", "[".repeat(5000), "]".repeat(5000));
    let answer = client.post_text(CHAT, &nested).unwrap();
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("nested too deep"), "{}", answer.body);
    let message = json!({"role": "user", "content": "Hi"});
    for path in [CHAT, "/tokenize"] {
        let answer = client.post(path, &json!({"messages": vec![&message; 5]})).unwrap();
        assert_eq!(answer.status, 400, "{path}");
        assert!(answer.body.contains("has 5 messages; at most 4 are taken"), "{}", answer.body);
    }
    assert_eq!(client.post(CHAT, &json!({"messages": vec![&message; 4]})).unwrap().status, 200);
}
