//! Running a program to its end, or beside the test, and never leaving any of it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::errno::Errno;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use crate::leftovers;
use crate::terminal::Terminal;
use crate::wait::{PATIENCE, until};

/// Longest wait for the output of a program that has ended and may have left a child with the pipe.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A program that has ended, with all it wrote.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Exit code, or signal.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Finished {
    /// The one JSON object that `--json` commands print.
    ///
    /// # Errors
    ///
    /// The output is anything else; shows it.
    pub fn json(&self) -> anyhow::Result<serde_json::Value> {
        serde_json::from_str(&self.stdout).with_context(|| format!("not one JSON value: {self:?}"))
    }
}

/// Runs a program to its end. Of the test's environment it does not see `POCKET_*`.
///
/// # Errors
///
/// It cannot be started, has not ended within `limit` (it is killed), or has left processes behind.
pub fn run<A: AsRef<OsStr>>(
    program: impl AsRef<Path>,
    args: impl IntoIterator<Item = A>,
    limit: Duration,
) -> anyhow::Result<Finished> {
    let mut command = command(program);
    command.args(args);
    Running::spawn(command)?.finish(limit)
}

/// A command with a clean environment, to be added to and handed to [`Running::spawn`].
pub fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    // The usual place of the control socket is for a daemon that is no test.
    command.env("POCKETD_CONTROL_SOCKET", "none");
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"POCKET_") {
            command.env_remove(name);
        }
    }
    command
}

/// A program running beside the test, in a process group of its own. It and all it has started are
/// killed when this is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    mark: String,
    stdout: Capture,
    stderr: Capture,
}

impl Running {
    /// Starts a command; its output is captured.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub fn spawn(mut command: Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut running = Self::start(command)?;
        running.stdout = Capture::of(running.child.stdout.take());
        Ok(running)
    }

    /// Starts a command on a terminal: its standard input and output are there, and what it draws is
    /// captured as output.
    ///
    /// # Errors
    ///
    /// It cannot be started, or the terminal has had a program.
    pub fn spawn_on(mut command: Command, terminal: &mut Terminal) -> anyhow::Result<Self> {
        let (screen, program) = terminal.ends()?;
        command.stdin(program.try_clone()?).stdout(program);
        let mut running = Self::start(command)?;
        running.stdout = Capture::of(Some(screen));
        Ok(running)
    }

    fn start(mut command: Command) -> anyhow::Result<Self> {
        let mark = uuid::Uuid::new_v4().to_string();
        let program = command.get_program().to_owned();
        command.env(leftovers::MARK, &mark).process_group(0).stderr(Stdio::piped());
        let mut child =
            command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let stdout = Capture::of(None::<File>);
        let stderr = Capture::of(child.stderr.take());
        Ok(Self { child, mark, stdout, stderr })
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Living processes of the run: the program and all it has started.
    pub fn processes(&self) -> Vec<u32> {
        leftovers::processes(&self.mark)
    }

    /// Living processes of the run but the program itself.
    pub fn children(&self) -> Vec<u32> {
        self.processes().into_iter().filter(|&id| id != self.id()).collect()
    }

    /// Sends a signal to the program alone.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(signal::kill(pid(self.id()), signal)?)
    }

    /// Sends a signal to the whole process group, as a terminal and systemd's default do.
    ///
    /// # Errors
    ///
    /// All of it has ended.
    pub fn signal_group(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(signal::killpg(pid(self.id()), signal)?)
    }

    /// What has come on standard output so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// What has come on standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Whether the program has ended; if so its last words have been read too, unless a child of
    /// it still holds the pipe.
    ///
    /// # Errors
    ///
    /// The system does not say.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        if status.is_some() {
            for capture in [&self.stdout, &self.stderr] {
                let _ = until("last words", LAST_WORDS, || capture.is_complete().then_some(()));
            }
        }
        Ok(status)
    }

    /// Waits for the end of the program, and of everything it has started.
    ///
    /// # Errors
    ///
    /// It has not ended within `limit`, or left processes behind; both are killed.
    pub fn finish(mut self, limit: Duration) -> anyhow::Result<Finished> {
        let child = &mut self.child;
        let status = until("end of the program", limit, || child.try_wait().transpose())
            .with_context(|| format!("it wrote: {}{}", self.stdout.text(), self.stderr.text()))??;
        // Its children have a moment to notice.
        let gone =
            until("end of its children", PATIENCE, || self.processes().is_empty().then_some(()));
        let left = self.processes();
        gone.with_context(|| format!("left behind: {}", leftovers::describe(&left)))?;
        let (stdout, stderr) = (self.stdout.all()?, self.stderr.all()?);
        Ok(Finished { status, stdout, stderr })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A process may start another while it is being killed.
        let _ = until("death of the run", PATIENCE, || {
            let living = self.processes();
            for &id in &living {
                let _ = signal::kill(pid(id), Signal::SIGKILL);
            }
            let reaped = matches!(self.child.try_wait(), Ok(Some(_)) | Err(_));
            (living.is_empty() && reaped).then_some(())
        });
    }
}

/// Sends a signal to any process; `Ok(false)` if there is none of this id.
///
/// # Errors
///
/// Not permitted.
pub fn signal(id: u32, signal: Signal) -> anyhow::Result<bool> {
    match signal::kill(pid(id), signal) {
        Ok(()) => Ok(true),
        Err(Errno::ESRCH) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn pid(id: u32) -> Pid {
    // Linux process ids are below 2^22.
    Pid::from_raw(id as i32)
}

/// Reads a pipe as it fills, so that the program never waits for the test.
#[derive(Debug)]
struct Capture {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Capture {
    fn of(pipe: Option<impl Read + Send + 'static>) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let reader = pipe.map(|mut pipe| {
            let bytes = bytes.clone();
            thread::spawn(move || {
                let mut buffer = [0; 8192];
                while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                    let mut bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
                    bytes.extend_from_slice(&buffer[..count]);
                }
            })
        });
        Self { bytes, reader }
    }

    fn text(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn is_complete(&self) -> bool {
        self.reader.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Everything, once no process has the other end.
    fn all(&mut self) -> anyhow::Result<String> {
        if let Some(reader) = self.reader.take() {
            until("end of output", PATIENCE, || reader.is_finished().then_some(()))?;
            ensure!(reader.join().is_ok(), "the reader of the output panicked");
        }
        Ok(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Running {
        let mut command = command("/bin/sh");
        command.args(["-c", script]);
        Running::spawn(command).unwrap()
    }

    #[test]
    fn output_and_exit_code_are_kept() {
        let script = "echo out; echo err >&2; exit 3";
        let finished = run("/bin/sh", ["-c", script], PATIENCE).unwrap();
        assert_eq!(finished.status.code(), Some(3));
        assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("out\n", "err\n"));
        assert!(finished.json().is_err());
        let json = run("/bin/sh", ["-c", "echo '{\"a\": 1}'"], PATIENCE).unwrap();
        assert_eq!(json.json().unwrap()["a"], 1);
        assert!(run("/no/such/program", [""], PATIENCE).is_err());
    }

    #[test]
    fn more_than_a_pipe_holds_does_not_block() {
        let finished =
            run("/bin/sh", ["-c", "head -c 300000 /dev/zero | tr '\\0' x"], PATIENCE).unwrap();
        assert_eq!(finished.stdout.len(), 300_000);
    }

    #[test]
    fn a_program_that_does_not_end_is_killed_with_its_children() {
        // One child in the group and one that has left it.
        let running = shell("setsid sleep 1000 & sleep 1000 & echo started; wait");
        until("start", PATIENCE, || running.stdout().contains("started").then_some(())).unwrap();
        until("children", PATIENCE, || (running.children().len() == 2).then_some(())).unwrap();
        let mark = running.mark.clone();
        let error = running.finish(Duration::from_millis(50)).unwrap_err();
        assert!(format!("{error:#}").contains("end of the program: not within 50ms"), "{error:#}");
        assert!(leftovers::processes(&mark).is_empty());
    }

    #[test]
    fn signals_reach_the_program_or_its_group() {
        let trap = "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.02; done";
        let running = shell(trap);
        until("trap", PATIENCE, || running.stdout().contains("ready").then_some(())).unwrap();
        running.signal(Signal::SIGTERM).unwrap();
        let finished = running.finish(PATIENCE).unwrap();
        assert_eq!(finished.status.code(), Some(5));
        assert!(finished.stdout.contains("caught"));

        let mut running = shell("sleep 1000 & sleep 1000");
        until("child", PATIENCE, || (running.children().len() == 2).then_some(())).unwrap();
        assert!(running.ended().unwrap().is_none());
        running.signal_group(Signal::SIGTERM).unwrap();
        let id = running.id();
        running.finish(PATIENCE).unwrap();
        assert!(!signal(id, Signal::SIGTERM).unwrap());
    }

    #[test]
    fn nothing_is_left_when_a_run_is_dropped() {
        let running = shell("setsid sleep 1000 & sleep 1000");
        until("children", PATIENCE, || (running.children().len() == 2).then_some(())).unwrap();
        let mark = running.mark.clone();
        drop(running);
        assert!(leftovers::processes(&mark).is_empty());
    }
}
