//! Messages to the service manager, sent so that nobody waits for it.
//!
//! The manager's socket has room for a few messages of all its services together. When it is full, a send
//! waits until the manager reads again, which is soon, or never where the manager is stuck. So what is to
//! be told is only put down here, and the reporter's thread sends it without blocking.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fmt::Write;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram as Socket};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sd_notify::NotifyState;
use tokio::net::UnixDatagram;
use tokio::sync::Notify;

/// What the manager has still to be told.
#[derive(Debug)]
pub(super) struct Outbox {
    manager: SocketAddr,
    waiting: Mutex<Waiting>,
    more: Notify,
}

/// Messages in their order, one of a kind: of two the later one counts, so there are never more than
/// there are kinds.
#[derive(Debug, Default)]
struct Waiting {
    messages: VecDeque<Message>,
    /// Messages so far.
    count: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Message {
    /// No other has it.
    number: u64,
    text: String,
}

impl Message {
    /// The variable it begins with.
    fn kind(&self) -> &str {
        self.text.split('=').next().unwrap_or_default()
    }
}

impl Waiting {
    fn put(&mut self, text: String) {
        self.count += 1;
        let message = Message { number: self.count, text };
        self.messages.retain(|earlier| earlier.kind() != message.kind());
        self.messages.push_back(message);
    }

    /// It has been sent. A later one of its kind may have come meanwhile and stays.
    fn done(&mut self, message: &Message) {
        self.messages.retain(|waiting| waiting.number != message.number);
    }
}

impl Outbox {
    /// For the manager that listens at `NOTIFY_SOCKET`; none if there is none.
    pub fn to_manager() -> Option<Self> {
        let name = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty())?;
        let outbox = Self::to(&name);
        if let Err(error) = &outbox {
            tracing::warn!(socket = ?name, %error, "NOTIFY_SOCKET names no socket; nobody is told");
        }
        outbox.ok()
    }

    /// For who listens at a path, or at an abstract name with @ before it.
    pub fn to(name: &OsStr) -> io::Result<Self> {
        let manager = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        Ok(Self { manager, waiting: Mutex::default(), more: Notify::new() })
    }

    /// Has this told, in one message. Takes no time.
    pub fn put(&self, states: &[NotifyState<'_>]) {
        let mut text = String::new();
        for state in states {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{state}");
        }
        self.waiting().put(text);
        self.more.notify_one();
    }

    /// Sends whatever is put here, as fast as the manager takes it; never ends.
    pub async fn send(&self) {
        loop {
            self.send_waiting().await;
            self.more.notified().await;
        }
    }

    /// Sends what there is to send. What cannot be sent is lost, with a warning.
    pub async fn send_waiting(&self) {
        while let Some(message) = self.first() {
            if let Err(error) = self.send_first().await {
                tracing::warn!(%error, "the service manager cannot be told how the daemon is");
                self.waiting().done(&message);
            }
        }
    }

    /// Sends what is first when the manager's socket has room; until then the thread is free.
    async fn send_first(&self) -> io::Result<()> {
        let socket = Socket::unbound()?;
        socket.set_nonblocking(true)?;
        socket.connect_addr(&self.manager)?;
        let socket = UnixDatagram::from_std(socket)?;
        loop {
            socket.writable().await?;
            let Some(message) = self.first() else { return Ok(()) };
            // A datagram goes as a whole or not at all.
            let sent = socket.try_send(message.text.as_bytes());
            if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                continue;
            }
            self.waiting().done(&message);
            return sent.map(drop);
        }
    }

    fn first(&self) -> Option<Message> {
        self.waiting().messages.front().cloned()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(waiting: &Waiting) -> Vec<&str> {
        waiting.messages.iter().map(|message| message.text.as_str()).collect()
    }

    #[test]
    fn of_a_kind_only_the_latest_waits_and_the_order_is_that_of_the_latest() {
        let mut waiting = Waiting::default();
        for text in ["READY=1", "STATUS=a", "WATCHDOG=1", "RELOADING=1", "STATUS=b", "READY=1"] {
            waiting.put(text.to_owned());
        }
        assert_eq!(texts(&waiting), ["WATCHDOG=1", "RELOADING=1", "STATUS=b", "READY=1"]);
        for _ in 0..1000 {
            waiting.put("RELOADING=1\nMONOTONIC_USEC=7\n".to_owned());
            waiting.put("READY=1\n".to_owned());
        }
        let reloaded = ["RELOADING=1\nMONOTONIC_USEC=7\n", "READY=1\n"];
        assert_eq!(texts(&waiting)[2..], reloaded);
        assert_eq!(waiting.messages.len(), 4);
    }

    #[test]
    fn a_message_that_came_while_one_of_its_kind_was_sent_is_not_lost() {
        let mut waiting = Waiting::default();
        waiting.put("STATUS=a".to_owned());
        let sent = waiting.messages[0].clone();
        waiting.put("STATUS=b".to_owned());
        waiting.done(&sent);
        assert_eq!(texts(&waiting), ["STATUS=b"]);
        let sent = waiting.messages[0].clone();
        waiting.done(&sent);
        assert!(waiting.messages.is_empty());
    }
}
