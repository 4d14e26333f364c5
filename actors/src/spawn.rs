//! Starting a rank process and saying how it ended.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use nix::sys::signal::Signal;
use tokio::process::{Child, ChildStderr, Command};

/// A rank process, our end of the socket to it, and what it says that is no log.
pub(crate) struct RankProcess {
    /// The process. Dropping it kills it.
    pub child: Child,
    /// Its id.
    pub pid: u32,
    /// Our end.
    pub socket: OwnedFd,
    /// Where it says why it aborts.
    pub stderr: ChildStderr,
}

/// Starts `program rank`, with these variables set and one end of a socket pair as standard input:
/// there is no socket file to name, guard and clean up, and the end of either process closes the
/// socket.
///
/// The rank asks the kernel to be killed when the *thread* that started it ends, so call this on a
/// thread that lives as long as the ranks are to.
pub(crate) fn spawn_rank(
    program: &Path,
    environment: &[(String, String)],
) -> io::Result<RankProcess> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut child = Command::new(program)
        .arg("rank")
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        // A rank has no answers to print: its standard output is for its log, which goes where ours
        // does. What comes on standard error is the runtime's or a library's, and is read here.
        .stdout(Stdio::from(io::stderr()))
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    // A child has no id only after it has been waited for.
    let pid = child.id().ok_or_else(|| io::Error::other("it ended while starting"))?;
    let stderr = child.stderr.take().ok_or_else(|| io::Error::other("it has no standard error"))?;
    Ok(RankProcess { child, pid, socket: ours.into(), stderr })
}

/// How a process ended, in words: "exited with code 1", "killed by signal 9 (SIGKILL)".
pub(crate) fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(number)) => match Signal::try_from(number) {
            Ok(signal) => format!("killed by signal {number} ({signal})"),
            Err(_) => format!("killed by signal {number}"),
        },
        (None, None) => format!("ended: {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_are_told_in_words() {
        // Wait statuses as the kernel encodes them: code in the second byte, signal in the first.
        let told = |raw| describe_exit(ExitStatus::from_raw(raw));
        assert_eq!(told(0), "exited with code 0");
        assert_eq!(told(101 << 8), "exited with code 101");
        assert_eq!(told(9), "killed by signal 9 (SIGKILL)");
        assert_eq!(told(6 | 0x80), "killed by signal 6 (SIGABRT)");
        assert_eq!(told(40), "killed by signal 40");
    }
}
