//! Sockets that the service manager has opened and hands over at the start.

use std::env;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;
use nix::sys::socket::{getsockopt, sockopt};

use crate::failure::bad_input;

/// `FileDescriptorName=` of a socket unit for the HTTP API.
const HTTP: &str = "http";
/// `FileDescriptorName=` of a socket unit for the control plane.
const CONTROL: &str = "control";

/// What was handed over; they are listened on instead of what the settings say.
#[derive(Debug, Default)]
pub struct Sockets {
    /// TCP sockets of the HTTP API.
    pub http: Vec<TcpListener>,
    /// The Unix socket of the control plane.
    pub control: Option<UnixListener>,
}

/// What one of them is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Http,
    Control,
}

impl Sockets {
    /// Takes what was handed over to this very process. Call it while the process has one thread and no
    /// children: it clears the environment, and marks the sockets as not to be inherited.
    ///
    /// # Errors
    ///
    /// A name that is not known, a second control socket, a socket of another kind.
    pub fn take() -> anyhow::Result<Self> {
        let variable = |name| env::var(name).unwrap_or_default();
        // Variables may have been inherited from a parent they were meant for.
        if variable("LISTEN_PID") != std::process::id().to_string() {
            return Ok(Self::default());
        }
        let names = variable("LISTEN_FDNAMES");
        let mut handed = ListenFd::from_env();
        let purposes = purposes(&names, handed.len()).map_err(bad_input)?;
        let mut sockets = Self::default();
        for (index, purpose) in purposes.into_iter().enumerate() {
            sockets.add(&mut handed, index, purpose).map_err(|error| {
                let (name, kind) = match purpose {
                    Purpose::Http => {
                        (HTTP, "a TCP socket that listens (ListenStream=ADDRESS:PORT)")
                    }
                    Purpose::Control => {
                        (CONTROL, "a Unix socket that listens (ListenStream=/PATH)")
                    }
                };
                bad_input(format!(
                    "the socket {name:?} that was handed over is not {kind}: {error}"
                ))
            })?;
        }
        Ok(sockets)
    }

    fn add(&mut self, handed: &mut ListenFd, index: usize, purpose: Purpose) -> io::Result<()> {
        match purpose {
            Purpose::Http => {
                let listener = handed.take_tcp_listener(index)?;
                self.http.extend(listener.map(listening).transpose()?);
            }
            Purpose::Control => {
                let listener = handed.take_unix_listener(index)?;
                self.control = listener.map(listening).transpose()?;
            }
        }
        Ok(())
    }
}

/// A socket that is only bound, or connected, accepts nobody.
fn listening<S: AsFd>(socket: S) -> io::Result<S> {
    match getsockopt(&socket, sockopt::AcceptConn)? {
        true => Ok(socket),
        false => Err(io::Error::other("it does not listen")),
    }
}

/// What each of `count` sockets is for, by their names.
fn purposes(names: &str, count: usize) -> Result<Vec<Purpose>, String> {
    let mut names: Vec<&str> = names.split(':').filter(|name| !name.is_empty()).collect();
    // The manager's word for sockets without a name.
    names.resize(count.max(names.len()), "unknown");
    let mut purposes = Vec::with_capacity(count);
    for name in names.into_iter().take(count) {
        purposes.push(match name {
            HTTP => Purpose::Http,
            CONTROL if purposes.contains(&Purpose::Control) => {
                return Err(format!("two sockets {CONTROL:?} were handed over; there can be one"));
            }
            CONTROL => Purpose::Control,
            _ => {
                return Err(format!(
                    "a socket {name:?} was handed over; FileDescriptorName= of its unit has to be {HTTP} \
                     or {CONTROL}"
                ));
            }
        });
    }
    Ok(purposes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_sockets_are_for() {
        assert_eq!(purposes("", 0), Ok(vec![]));
        let all = vec![Purpose::Http, Purpose::Control, Purpose::Http];
        assert_eq!(purposes("http:control:http", 3), Ok(all));
        for (names, count, part) in [
            ("http:pocketd.socket", 2, "\"pocketd.socket\""),
            ("http", 2, "\"unknown\""),
            ("", 1, "\"unknown\""),
            ("connection", 1, "FileDescriptorName="),
            ("control:control", 2, "there can be one"),
        ] {
            let error = purposes(names, count).unwrap_err();
            assert!(error.contains(part), "{names}: {error}");
        }
    }

    #[test]
    fn a_socket_that_does_not_listen_is_refused() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        assert!(listening(listener.try_clone().unwrap()).is_ok());
        assert!(listening(std::net::TcpStream::connect(address).unwrap()).is_err());
    }

    #[test]
    fn without_a_manager_there_are_none() {
        let sockets = Sockets::take().unwrap();
        assert!(sockets.http.is_empty() && sockets.control.is_none());
    }
}
