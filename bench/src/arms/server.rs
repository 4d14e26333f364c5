//! A `pocketd serve` of this same program, for one arm.

use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::header::HeaderMap;
use serde::Serialize;
use serde_json::Value;
use tokio::process::{Child, Command};

use super::ArmError;
use super::control::Control;
use super::counters::Counts;
use super::log::Log;
use crate::load::{Failure, ServerView};
use crate::record::{Server, command_line};

/// Time between two looks at a server that loads.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Longest wait for an answer that takes the server no computing.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// After this time without an answer or a part of it the server is asked how it is: a long call says
/// nothing meanwhile, and one that does not say how it is will not go on.
pub(super) const QUIET: Duration = Duration::from_secs(30);

/// What a server gets to end by itself once asked to; then it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// How an arm's server is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Name of the arm, for messages and records.
    pub arm: String,
    /// This program itself.
    pub program: PathBuf,
    /// Settings, `key` and value, as `serve` takes them as options.
    pub settings: Vec<(String, String)>,
    /// Experiment flags, `POCKET_*`: its own, and all it gets.
    pub flags: Vec<(String, String)>,
    /// What it gets to load.
    pub load_limit: Duration,
}

impl Launch {
    /// The same under another name.
    pub fn named(&self, arm: impl Into<String>) -> Self {
        Self { arm: arm.into(), ..self.clone() }
    }

    /// With a setting, in place of an earlier value of it.
    pub fn setting(mut self, key: impl Into<String>, value: impl fmt::Display) -> Self {
        set(&mut self.settings, key.into(), value.to_string());
        self
    }

    /// With an experiment flag, in place of an earlier value of it.
    pub fn flag(mut self, name: impl Into<String>, value: impl fmt::Display) -> Self {
        set(&mut self.flags, name.into(), value.to_string());
        self
    }

    /// What must be counted on such a server, as far as its flags say.
    pub fn controls(&self) -> impl Iterator<Item = Control> {
        self.flags.iter().filter_map(|(name, value)| Control::of_flag(name, value))
    }

    /// The settings it is started with, under their names.
    pub fn settings_for_record(&self) -> impl Iterator<Item = (String, Value)> {
        self.settings.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str())))
    }

    /// The command line that starts such a server by hand, flags in front.
    pub fn command_line(&self) -> String {
        let settings = self.settings.iter().map(|(key, value)| option(key, value));
        let words = ["pocketd".to_owned(), "serve".to_owned()].into_iter().chain(settings);
        command_line(&self.flags, &words.collect::<Vec<_>>())
    }

    /// `serve` with these settings and flags, and nothing of this process's own environment that would
    /// change what it does.
    pub(crate) fn bare_command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("serve");
        command.args(self.settings.iter().map(|(key, value)| option(key, value)));
        for (name, _) in std::env::vars_os() {
            if is_ours(&name) {
                command.env_remove(name);
            }
        }
        // An empty name asks for no file, not even the usual one.
        command.env("POCKETD_CONFIG", "");
        command.envs(self.flags.iter().map(|(name, value)| (name, value)));
        // A terminal's Ctrl-C is for this process, which then stops its servers in order.
        command.stdin(Stdio::null()).process_group(0).kill_on_drop(true);
        command
    }

    fn command(&self, folder: &tempfile::TempDir) -> Command {
        let mut command = self.bare_command();
        command.args(["--host=127.0.0.1", "--port=0", "--log-format=text", "--log-level=info"]);
        command.arg(option("control_socket", &folder.path().join("control.sock").display()));
        // A rank that fails is the end of a measurement, not a pause in it.
        command.arg("--max-restarts=0");
        // A test of idle ranks would make whoever comes meanwhile wait.
        command.arg("--self-test-interval=0");
        command.arg(option("tied_to_parent", &std::process::id()));
        command.env("TMPDIR", folder.path());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }
}

fn set(all: &mut Vec<(String, String)>, key: String, value: String) {
    all.retain(|(known, _)| *known != key);
    all.push((key, value));
}

fn option(key: &str, value: &impl fmt::Display) -> String {
    format!("--{}={value}", key.replace('_', "-"))
}

/// Variables that would change what a server does: settings, flags and the log filter.
fn is_ours(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b"POCKET_") || name.starts_with(b"POCKETD_") || name == b"RUST_LOG"
}

/// How the names of this process's folders begin.
fn folder_prefix() -> String {
    format!("pocketd-bench-{}-", std::process::id())
}

/// Removes the folders of all own servers, for an end that drops nothing. What is not removed stays: there is
/// nobody left to tell.
pub fn remove_folders() {
    let Ok(folders) = std::fs::read_dir(std::env::temp_dir()) else { return };
    for folder in folders.flatten() {
        if folder.file_name().to_string_lossy().starts_with(&folder_prefix()) {
            let _ = std::fs::remove_dir_all(folder.path());
        }
    }
}

/// A running server. [`OwnServer::stop`] it; one that is dropped is killed, and its ranks go with it.
#[derive(Debug)]
pub struct OwnServer {
    launch: Launch,
    child: Child,
    log: Log,
    client: reqwest::Client,
    url: Option<String>,
    started: Instant,
    /// Holds its control socket and what it writes to a temporary folder.
    _folder: tempfile::TempDir,
}

impl OwnServer {
    /// Starts one; it loads meanwhile. Call it where the thread lives as long as the servers are to:
    /// the system ends them with the thread that started them.
    pub fn spawn(launch: Launch) -> Result<Self, ArmError> {
        let system = |what| move |source| ArmError::System { what, source };
        let folder = tempfile::Builder::new()
            .prefix(&folder_prefix())
            .tempdir()
            .map_err(system("making a folder for a server"))?;
        let program = launch.program.clone();
        let mut child = launch
            .command(&folder)
            .spawn()
            .map_err(|source| ArmError::Spawn { program, source })?;
        let Some(pipe) = child.stderr.take() else {
            let source = std::io::Error::other("there is no pipe");
            return Err(system("reading a server's log")(source));
        };
        let log = Log::of(pipe);
        let client = reqwest::Client::builder().no_proxy().build().map_err(|error| {
            system("making an HTTP client")(std::io::Error::other(error.to_string()))
        })?;
        let started = Instant::now();
        Ok(Self { launch, child, log, client, url: None, started, _folder: folder })
    }

    /// Waits until it serves; `loaded` hears the share of the weights that is there, 0 to 1.
    pub async fn ready(&mut self, mut loaded: impl FnMut(f64)) -> Result<(), ArmError> {
        loop {
            self.check().await?;
            if self.url.is_none() {
                self.url = self.log.address().map(|address| format!("http://{address}"));
            }
            if let Some(url) = &self.url {
                let asked = self.client.get(format!("{url}/health")).timeout(ANSWER_LIMIT);
                // Until it listens, nobody answers.
                if let Ok(reply) = asked.send().await {
                    if reply.status().is_success() {
                        return Ok(());
                    }
                    let body = reply.json::<Value>().await.unwrap_or_default();
                    if let Some(share) = body["loaded"].as_f64() {
                        loaded(share);
                    }
                }
            }
            let limit = self.launch.load_limit;
            if self.started.elapsed() > limit {
                let (arm, said) = (self.arm().to_owned(), self.log.last_words());
                return Err(ArmError::NotReady { arm, limit, said });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Whether it still runs.
    pub(super) async fn check(&mut self) -> Result<(), ArmError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                // Its last words may still be in the pipe.
                let _ = tokio::time::timeout(STOP_LIMIT, self.log.ended()).await;
                Err(self.ended(status))
            }
            Err(source) => Err(ArmError::System { what: "looking after a server", source }),
        }
    }

    fn ended(&self, status: ExitStatus) -> ArmError {
        ArmError::Ended { arm: self.arm().to_owned(), status, said: self.log.last_words() }
    }

    /// Name of its arm.
    pub fn arm(&self) -> &str {
        &self.launch.arm
    }

    /// How it was started.
    pub fn launch(&self) -> &Launch {
        &self.launch
    }

    /// Where it listens, as `http://127.0.0.1:40000`; empty before it has said so.
    pub fn url(&self) -> &str {
        self.url.as_deref().unwrap_or_default()
    }

    /// A client for it.
    pub fn client(&self) -> &reqwest::Client {
        &self.client
    }

    /// Its process.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// What it has counted so far.
    pub async fn counts(&mut self) -> Result<Counts, ArmError> {
        let health = self.get("/health").await?;
        let metrics = self.get("/metrics").await?;
        Counts::read(&health, &metrics).map_err(|reason| ArmError::Refused {
            arm: self.arm().to_owned(),
            what: "what it has counted",
            reason,
        })
    }

    /// An error unless it answers.
    pub(super) async fn alive(&mut self) -> Result<(), ArmError> {
        self.get("/health").await.map(|_| ())
    }

    /// What it says of itself, as a record has it, without counters.
    pub async fn description(&self) -> Server {
        let said = ServerView::read(&self.client, self.url(), &HeaderMap::new()).await;
        let (counters_before, counters_after) = Default::default();
        // It is there for this measurement only: its address tells nobody anything.
        let address = None;
        let server = ServerView::entry(self.arm(), self.url(), &said, &said);
        let settings = self.launch.settings_for_record().chain(server.settings).collect();
        Server { address, settings, counters_before, counters_after, ..server }
    }

    async fn get(&mut self, path: &'static str) -> Result<String, ArmError> {
        let asked = self.client.get(format!("{}{path}", self.url())).timeout(ANSWER_LIMIT);
        match asked.send().await {
            Ok(reply) => match reply.text().await {
                Ok(text) => Ok(text),
                Err(error) => Err(self.silent(path, &error).await),
            },
            Err(error) => Err(self.silent(path, &error).await),
        }
    }

    /// Posts JSON; an answer that is not 200 is an error with its body.
    pub async fn post(
        &mut self,
        path: &'static str,
        body: &impl Serialize,
    ) -> Result<reqwest::Response, ArmError> {
        let asked = self.client.post(format!("{}{path}", self.url())).json(body);
        let mut sent = pin!(asked.send());
        let reply = loop {
            match tokio::time::timeout(QUIET, &mut sent).await {
                Ok(Ok(reply)) => break reply,
                Ok(Err(error)) => return Err(self.silent(path, &error).await),
                Err(_) => self.alive().await?,
            }
        };
        if reply.status().is_success() {
            return Ok(reply);
        }
        let status = reply.status().as_u16();
        let reason = Failure::status(status, &reply.text().await.unwrap_or_default()).to_string();
        Err(ArmError::Refused { arm: self.arm().to_owned(), what: path, reason })
    }

    /// Why there was no answer: what the server last said says more than what the client saw.
    async fn silent(&mut self, what: &'static str, error: &reqwest::Error) -> ArmError {
        if let Err(ended) = self.check().await {
            return ended;
        }
        let mut reason = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(inner) = cause {
            reason = format!("{reason}: {inner}");
            cause = inner.source();
        }
        ArmError::Silent { arm: self.arm().to_owned(), what, reason }
    }

    /// Lets it drain and waits for its end; kills one that does not end.
    pub async fn stop(mut self) -> Result<(), ArmError> {
        let system = |what| move |source| ArmError::System { what, source };
        if let Some(id) = self.child.id() {
            // A process id is below 2^22, and this one is not reaped yet. One that has just ended is
            // no error: how is seen below.
            let _ = kill(Pid::from_raw(id as i32), Signal::SIGTERM);
        }
        let status = match tokio::time::timeout(STOP_LIMIT, self.child.wait()).await {
            Ok(status) => status.map_err(system("waiting for a server's end"))?,
            Err(_) => {
                self.child.kill().await.map_err(system("killing a server"))?;
                let said = self.log.last_words();
                let (arm, limit) = (self.arm().to_owned(), STOP_LIMIT.as_secs());
                let reason = format!("it was killed after {limit} s; it last said: {said}");
                return Err(ArmError::Silent { arm, what: "the wish to end", reason });
            }
        };
        // Its ranks have the pipe too; none is left when it is closed.
        let _ = tokio::time::timeout(STOP_LIMIT, self.log.ended()).await;
        if status.success() { Ok(()) } else { Err(self.ended(status)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(program: &str) -> Launch {
        Launch {
            arm: "a".to_owned(),
            program: program.into(),
            settings: vec![("tensor_parallel_size".to_owned(), "2".to_owned())],
            flags: vec![],
            load_limit: Duration::from_secs(60),
        }
    }

    #[test]
    fn what_is_set_again_replaces_what_was_set() {
        let launch = launch("pocketd")
            .flag("POCKET_CALL_DELAY_US", 5)
            .setting("max_num_seqs", 4)
            .setting("tensor_parallel_size", 1)
            .setting("model", "a b")
            .flag("POCKET_CALL_DELAY_US", 7);
        assert_eq!(launch.flags, [("POCKET_CALL_DELAY_US".to_owned(), "7".to_owned())]);
        assert_eq!(
            launch.command_line(),
            "POCKET_CALL_DELAY_US=7 pocketd serve --max-num-seqs=4 --tensor-parallel-size=1 \
             '--model=a b'"
        );
    }

    #[test]
    fn only_settings_flags_and_filters_are_taken_from_the_environment() {
        for name in ["POCKET_CALL_DELAY_US", "POCKETD_PORT", "RUST_LOG"] {
            assert!(is_ours(OsStr::new(name)), "{name}");
        }
        for name in ["PATH", "HF_TOKEN", "XPOCKET_A", "POCKETS"] {
            assert!(!is_ours(OsStr::new(name)), "{name}");
        }
    }

    #[tokio::test]
    async fn a_program_that_ends_or_is_not_there_is_named() {
        let mut server = OwnServer::spawn(launch("/bin/ls")).unwrap();
        let error = server.ready(|_| {}).await.unwrap_err().to_string();
        assert!(error.contains("arm \"a\" ended") && error.contains("exit status"), "{error}");
        let error = OwnServer::spawn(launch("/no/such/program")).unwrap_err().to_string();
        assert!(error.contains("/no/such/program"), "{error}");
    }
}
