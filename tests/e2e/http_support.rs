//! What the tests of the HTTP API share.

use std::io::{Read, Write};
use std::net::TcpStream;

use pocket_tests::daemon::{Daemon, DaemonOptions};
use pocket_tests::generate::{Script, ScriptedCheckpoint};
use pocket_tests::http::Client;
use pocket_tests::wait::{PATIENCE, until};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::POCKETD;

/// Where chats are answered.
pub const CHAT: &str = "/v1/chat/completions";
/// Where texts are continued.
pub const COMPLETIONS: &str = "/v1/completions";

/// A checkpoint that answers by a script, and a way to serve it.
pub struct Scripted {
    /// What it answers.
    pub checkpoint: ScriptedCheckpoint,
    directory: TempDir,
}

impl Scripted {
    /// Writes the checkpoint.
    pub fn new(script: &Script) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let checkpoint = script.write(directory.path()).unwrap();
        Self { checkpoint, directory }
    }

    /// A daemon that serves it on one rank, under the name `scripted`.
    pub fn daemon(&self) -> DaemonOptions {
        let directory = self.directory.path().to_str().unwrap();
        Daemon::options(POCKETD).args([
            "--model",
            directory,
            "--served-model-name",
            "scripted",
            "--tensor-parallel-size",
            "1",
        ])
    }
}

/// An answer, however it was delivered.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The whole text.
    pub text: String,
    /// Why it ended.
    pub finish_reason: String,
    /// Tokens of prompt and answer.
    pub usage: Value,
}

/// The answer in one object.
pub fn whole(client: &Client, path: &str, request: &Value) -> Answer {
    let reply = client.post(path, request).unwrap();
    assert_eq!(reply.status, 200, "{request}: {}", reply.body);
    let object = reply.json().unwrap();
    let choice = &object["choices"][0];
    let text = if path == CHAT { &choice["message"]["content"] } else { &choice["text"] };
    Answer {
        text: text.as_str().unwrap_or_else(|| panic!("no text: {object}")).to_owned(),
        finish_reason: choice["finish_reason"].as_str().unwrap().to_owned(),
        usage: object["usage"].clone(),
    }
}

/// The answer by server-sent events, each of which is checked for its form.
pub fn streamed(client: &Client, path: &str, request: &Value) -> Answer {
    let mut request = request.clone();
    request["stream"] = json!(true);
    request["stream_options"] = json!({"include_usage": true});
    let events: Vec<String> =
        client.stream(path, &request).unwrap().map(|event| event.unwrap().data).collect();
    let (done, chunks) = events.split_last().expect("events");
    assert_eq!(done, "[DONE]");
    let chunks: Vec<Value> =
        chunks.iter().map(|data| serde_json::from_str(data).unwrap()).collect();
    let (usage, chunks) = chunks.split_last().expect("a chunk with the usage");
    assert_eq!(usage["choices"], json!([]), "{usage}");
    let mut text = String::new();
    for chunk in chunks {
        let choice = &chunk["choices"][0];
        let piece = if path == CHAT { &choice["delta"]["content"] } else { &choice["text"] };
        text.push_str(piece.as_str().unwrap_or_default());
    }
    let last = &chunks.last().expect("a chunk")["choices"][0];
    Answer {
        text,
        finish_reason: last["finish_reason"].as_str().unwrap().to_owned(),
        usage: usage["usage"].clone(),
    }
}

/// The answer in both modes, which must not differ.
pub fn both(client: &Client, path: &str, request: &Value) -> Answer {
    let whole = whole(client, path, request);
    assert_eq!(streamed(client, path, request), whole, "{path} {request}");
    whole
}

/// A chat of one message.
pub fn asks(content: &str) -> Value {
    json!({"messages": [{"role": "user", "content": content}], "temperature": 0})
}

/// Waits until the engine computes this many requests.
pub fn wait_running(client: &Client, count: u64) {
    until("requests running", PATIENCE, || {
        let health = client.get("/health").ok()?.json().ok()?;
        (health["running"].as_u64() == Some(count)).then_some(())
    })
    .unwrap();
}

/// Sends a request as it stands and gives everything that comes back.
pub fn raw(daemon: &Daemon, request: &str) -> String {
    let mut connection = TcpStream::connect(daemon.address()).unwrap();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}
