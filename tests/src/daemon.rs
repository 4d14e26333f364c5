//! The real daemon, started for a test and gone after it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::signal::Signal;

use crate::http::Client;
use crate::leftovers::shared_segments;
use crate::process::{self, Finished, Running};
use crate::wait::{PATIENCE, until};

/// A `pocketd serve` on a free port. Dropping it kills it and its ranks.
#[derive(Debug)]
pub struct Daemon {
    running: Running,
    address: SocketAddr,
    /// Segments that others had before it was started.
    segments: BTreeSet<String>,
}

/// How a daemon is started.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    program: PathBuf,
    args: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Daemon {
    /// A daemon of this program, usually `env!("CARGO_BIN_EXE_pocketd")`, with the embedded model
    /// unless arguments say otherwise.
    pub fn options(program: impl AsRef<Path>) -> DaemonOptions {
        let program = program.as_ref().to_owned();
        DaemonOptions { program, args: Vec::new(), environment: Vec::new() }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens, as `http://127.0.0.1:8000`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A client whose every call, a whole stream included, ends within a minute.
    pub fn client(&self) -> Client {
        Client::new(self.url(), PATIENCE)
    }

    /// The process: its id, signals, and output.
    pub fn process(&mut self) -> &mut Running {
        &mut self.running
    }

    /// All it has logged.
    pub fn log(&self) -> String {
        self.running.stderr() + &self.running.stdout()
    }

    /// Process ids of its ranks.
    pub fn ranks(&self) -> Vec<u32> {
        self.running.children()
    }

    /// Waits until it serves.
    ///
    /// # Errors
    ///
    /// It has ended, or `/health` does not become 200 in time; shows the log.
    pub fn wait_ready(&mut self) -> anyhow::Result<()> {
        let client = self.client();
        let running = &mut self.running;
        let ready = until("health", PATIENCE, || match running.ended() {
            Ok(None) => {
                let healthy = client.get("/health").is_ok_and(|reply| reply.status == 200);
                healthy.then_some(Ok(()))
            }
            ended => Some(Err(anyhow::anyhow!("it has ended: {ended:?}"))),
        });
        ready.and_then(|ready| ready).with_context(|| format!("the log:\n{}", self.log()))
    }

    /// Asks it to stop (SIGTERM) and waits for its end.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish).
    pub fn stop(self, limit: Duration) -> anyhow::Result<Finished> {
        self.running.signal(Signal::SIGTERM)?;
        self.finish(limit)
    }

    /// Kills it outright and waits for the end of its ranks.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish).
    pub fn kill(self, limit: Duration) -> anyhow::Result<Finished> {
        self.running.signal(Signal::SIGKILL)?;
        self.finish(limit)
    }

    /// Waits for its end, however that came about, and sees that nothing is left of it.
    ///
    /// # Errors
    ///
    /// It has not ended within `limit`; it has left a process or a shared segment.
    pub fn finish(self, limit: Duration) -> anyhow::Result<Finished> {
        let finished = self.running.finish(limit)?;
        // Other tests' daemons make segments too, for a moment: what is left stays.
        let new: BTreeSet<String> = &shared_segments() - &self.segments;
        let mut left = new;
        until("end of its shared segments", PATIENCE, || {
            left = &left & &shared_segments();
            left.is_empty().then_some(())
        })?;
        Ok(finished)
    }
}

impl DaemonOptions {
    /// Adds arguments after `serve`.
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it and waits until it serves.
    ///
    /// # Errors
    ///
    /// It ends or does not become healthy; shows the log.
    pub fn start(&self) -> anyhow::Result<Daemon> {
        let mut daemon = self.start_loading()?;
        daemon.wait_ready()?;
        Ok(daemon)
    }

    /// Starts it and waits only until it listens; it loads meanwhile.
    ///
    /// # Errors
    ///
    /// It ends before; shows the log.
    pub fn start_loading(&self) -> anyhow::Result<Daemon> {
        let segments = shared_segments();
        let mut running = self.spawn()?;
        let address = until("address in the log", PATIENCE, || match running.ended() {
            Ok(None) => address(&running.stderr()).or_else(|| address(&running.stdout())).map(Ok),
            ended => Some(Err(anyhow::anyhow!("it has ended: {ended:?}"))),
        });
        match address.and_then(|address| address) {
            Ok(address) => Ok(Daemon { running, address, segments }),
            Err(error) => bail!("{error:#}; the log:\n{}{}", running.stderr(), running.stdout()),
        }
    }

    /// Starts it and waits for nothing: for starts that fail.
    ///
    /// # Errors
    ///
    /// The program cannot be started.
    pub fn spawn(&self) -> anyhow::Result<Running> {
        let mut command = process::command(&self.program);
        command.arg("serve").args(["--host", "127.0.0.1", "--port", "0"]).args(&self.args);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        Running::spawn(command)
    }
}

/// The address in the log's line on listening, in text or JSON, colours or not.
fn address(log: &str) -> Option<SocketAddr> {
    let line = log.lines().find(|line| line.contains("listening"))?;
    let of_address = |c: char| c.is_ascii_hexdigit() || matches!(c, '.' | ':' | '[' | ']');
    line.split(|c| !of_address(c)).find_map(|word| word.trim_start_matches(':').parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_read_from_text_and_json_logs() {
        let expected: SocketAddr = "127.0.0.1:41234".parse().unwrap();
        for line in [
            "2026-01-01T10:20:30Z  INFO pocketd: listening address=127.0.0.1:41234",
            "\u{1b}[2m2026\u{1b}[0m INFO listening \u{1b}[3maddress\u{1b}[0m\u{1b}[2m=\u{1b}[0m127.0.0.1:41234",
            r#"{"level":"INFO","fields":{"message":"listening","address":"127.0.0.1:41234"}}"#,
        ] {
            assert_eq!(address(&format!("first line\n{line}\n")), Some(expected), "{line}");
        }
        assert_eq!(address("listening [::1]:80").unwrap().port(), 80);
        assert_eq!(address("nothing 127.0.0.1:1"), None);
    }

    #[test]
    fn a_daemon_that_ends_at_once_shows_its_log() {
        let error = Daemon::options("/bin/ls").start().unwrap_err().to_string();
        assert!(error.contains("it has ended") && error.contains("--host"), "{error}");
    }
}
