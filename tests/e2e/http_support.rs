//! What the tests of the HTTP API share.

use std::io::{Read, Write};
use std::net::TcpStream;

use nix::sys::signal::Signal;
use pocket_tests::daemon::{Daemon, DaemonOptions};
use pocket_tests::generate::{Script, ScriptedCheckpoint};
use pocket_tests::http::Client;
use pocket_tests::wait::{PATIENCE, until};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::POCKETD;
use crate::http_reading::{Answers, Choice, both_choices, whole_choices};

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

    /// Writes the checkpoint with another chat template.
    pub fn with_template(script: &Script, template: &str) -> Self {
        let model = Self::new(script);
        std::fs::write(model.directory.path().join("chat_template.jinja"), template).unwrap();
        model
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

impl From<Answers> for Answer {
    fn from(answers: Answers) -> Self {
        let [choice] = answers.choices.as_slice() else { panic!("not one choice: {answers:?}") };
        let Choice { text, finish_reason, .. } = choice.clone();
        Self { text, finish_reason, usage: answers.usage }
    }
}

/// The answer in one object.
pub fn whole(client: &Client, path: &str, request: &Value) -> Answer {
    whole_choices(client, path, request).into()
}

/// The answer in both modes, which must not differ.
pub fn both(client: &Client, path: &str, request: &Value) -> Answer {
    both_choices(client, path, request).into()
}

/// A chat of one message.
pub fn asks(content: &str) -> Value {
    json!({"messages": [{"role": "user", "content": content}], "temperature": 0})
}

/// Waits until the engine computes this many requests.
pub fn wait_running(client: &Client, count: u64) {
    wait_health(client, &[("running", count)]);
}

/// Waits until no sequence is there and no memory is held.
pub fn wait_idle(client: &Client) {
    wait_health(client, &[("running", 0), ("waiting", 0), ("kv_blocks_used", 0)]);
}

/// Waits until these members of `/health` have these values.
pub fn wait_health(client: &Client, expected: &[(&str, u64)]) {
    until(&format!("{expected:?}"), PATIENCE, || {
        let health = client.get("/health").ok()?.json().ok()?;
        expected.iter().all(|(name, value)| health[*name] == *value).then_some(())
    })
    .unwrap();
}

/// Has a daemon read its configuration again, and waits until its log says this once more.
pub fn reload(daemon: &mut Daemon, part: &str) {
    let before = daemon.log().matches(part).count();
    daemon.process().signal(Signal::SIGHUP).unwrap();
    until(part, PATIENCE, || (daemon.log().matches(part).count() > before).then_some(())).unwrap();
}

/// A number of `/metrics`; `series` is the name with its labels.
pub fn metric(client: &Client, series: &str) -> f64 {
    let metrics = client.get("/metrics").unwrap().body;
    let line = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in {metrics}")).parse().unwrap()
}

/// Sends a request as it stands and leaves the answer unread.
pub fn sent(daemon: &Daemon, request: &str) -> TcpStream {
    let mut connection = TcpStream::connect(daemon.address()).unwrap();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    connection.write_all(request.as_bytes()).unwrap();
    connection
}

/// Everything that comes on a connection to its end.
pub fn rest(mut connection: TcpStream) -> String {
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

/// Sends a request as it stands and gives everything that comes back.
pub fn raw(daemon: &Daemon, request: &str) -> String {
    rest(sent(daemon, request))
}

/// A POST of JSON as it goes over the wire; the connection closes after the answer.
pub fn post_text(path: &str, headers: &str, body: &Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}
