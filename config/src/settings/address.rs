//! Places to listen on: a Unix socket, and a host with a port.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::value::{Kind, Value, parse_integer};

/// Where operators reach the daemon on its own machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlSocket {
    /// Nowhere.
    None,
    /// A Unix socket of this path.
    At(PathBuf),
}

impl ControlSocket {
    const NONE: &str = "none";
    /// The kernel takes 107 bytes; the socket is made under a longer name first.
    const MAX: usize = 100;
}

impl Value for ControlSocket {
    const KIND: Kind = Kind::Text;

    fn accepts() -> String {
        format!("{} or an absolute path of at most {} bytes", Self::NONE, Self::MAX)
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            Self::NONE => Some(Self::None),
            path => (path.len() <= Self::MAX && Path::new(path).is_absolute())
                .then(|| Self::At(PathBuf::from(path))),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::None => Self::NONE.to_owned(),
            Self::At(path) => path.display().to_string(),
        }
    }
}

/// A host and a port to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    host: String,
    port: u16,
}

impl HostPort {
    /// A name or an address; an IPv6 address without its brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port; 0 takes a free one.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.show())
    }
}

impl Value for HostPort {
    const KIND: Kind = Kind::Text;

    fn accepts() -> String {
        "HOST:PORT, such as 127.0.0.1:9000 or [::1]:9000".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bare {
            Some(address) => address,
            // Without brackets nobody knows where an IPv6 address ends.
            None => Some(host).filter(|host| !host.contains([':', '[', ']']))?,
        };
        let host =
            Some(host).filter(|host| !host.is_empty() && !host.contains(char::is_whitespace))?;
        Some(Self { host: host.to_owned(), port: parse_integer(port)? })
    }

    fn show(&self) -> String {
        let Self { host, port } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_socket_is_an_absolute_path_or_none() {
        assert_eq!(ControlSocket::parse("none"), Some(ControlSocket::None));
        let path = "/run/pocketd/control.sock";
        assert_eq!(ControlSocket::parse(path), Some(ControlSocket::At(path.into())));
        let long = format!("/{}", "x".repeat(100));
        for wrong in ["", "control.sock", "./control.sock", &long] {
            assert_eq!(ControlSocket::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_host_and_port_may_be_ipv6() {
        for text in ["127.0.0.1:9000", "localhost:0", "[::1]:65535"] {
            assert_eq!(HostPort::parse(text).unwrap().show(), text);
        }
        assert_eq!(HostPort::parse("[::1]:80").unwrap().host(), "::1");
        for wrong in ["", "localhost", ":80", "::1:80", "a:65536", "a:-1", "a b:1", "[::1]", "[]:1"]
        {
            assert_eq!(HostPort::parse(wrong), None, "{wrong:?}");
        }
    }
}
