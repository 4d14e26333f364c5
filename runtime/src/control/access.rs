//! Who may ask.
//!
//! Over the Unix socket, the file's mode decides first: the kernel lets in its owner, its group and root.
//! Then the caller's credentials are looked at, so that a mode that was opened wider by mistake opens
//! nothing. Over TCP it is a token, a certificate (checked in the handshake, before anything gets here),
//! or both.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::path::Path;

use anyhow::Context;
use nix::unistd::{Gid, Uid, User, getgrouplist};
use subtle::ConstantTimeEq;
use tokio::net::unix::UCred;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Status};

use crate::failure::bad_input;

/// The shortest token that is taken: shorter ones are guessed.
const SHORTEST_TOKEN: usize = 16;

/// The user that stands for those without a number, unless the machine's administrator chose another.
const USUAL_UNMAPPED: u32 = 65534;

/// Checks every call of one listener.
#[derive(Debug)]
pub enum Guard {
    /// A Unix socket.
    Peers(Peers),
    /// A TCP address: the token that is asked for, unless certificates are enough.
    Token(Option<Token>),
}

impl Guard {
    /// Lets a call through or says why not.
    pub fn admit(&self, request: &Request<()>) -> Result<(), Status> {
        match self {
            Guard::Peers(peers) => {
                let info = request.extensions().get::<UdsConnectInfo>();
                match info.and_then(|info| info.peer_cred) {
                    Some(peer) => peers.admit(&peer),
                    None => {
                        Err(Status::permission_denied("the system does not say who is calling"))
                    }
                }
            }
            Guard::Token(None) => Ok(()),
            Guard::Token(Some(token)) => {
                let header = request.metadata().get("authorization");
                token.admit(header.map(|value| value.as_bytes()))
            }
        }
    }
}

/// Users who may use a Unix socket.
#[derive(Debug)]
pub struct Peers {
    /// Those who may whatever their groups: the daemon's own user, root, and the user that stands for
    /// all who have no number in this namespace, of whom nothing is known but that the file's mode let
    /// them in.
    pub users: Vec<u32>,
    /// The socket's group.
    pub group: u32,
}

impl Peers {
    /// For a socket of this group, made by this process.
    pub fn of_group(group: u32) -> Self {
        let own_and_root = [Uid::effective().as_raw(), 0];
        Self { users: own_and_root.into_iter().chain(unmapped_user()).collect(), group }
    }

    fn admit(&self, peer: &UCred) -> Result<(), Status> {
        if self.users.contains(&peer.uid()) || self.group_of(peer) {
            return Ok(());
        }
        let (user, group) = (peer.uid(), self.group);
        Err(Status::permission_denied(format!(
            "user {user} is neither the daemon's user, nor root, nor in the socket's group {group}"
        )))
    }

    fn group_of(&self, peer: &UCred) -> bool {
        peer.gid() == self.group
            || peer.pid().is_some_and(|pid| process_groups(pid).contains(&self.group))
            || user_groups(peer.uid(), peer.gid()).contains(&self.group)
    }
}

/// With `PrivateUsers` in a unit, or in a container, users of the host that have no number in here all
/// appear as one user, usually 65534. In a namespace that has all numbers that user is one like others.
fn unmapped_user() -> Option<u32> {
    let map = fs::read_to_string("/proc/self/uid_map").ok()?;
    (!maps_everybody(&map)).then(|| {
        // Hidden in units with ProcSubset=pid.
        let number = fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
        number.and_then(|number| number.trim().parse().ok()).unwrap_or(USUAL_UNMAPPED)
    })
}

fn maps_everybody(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Groups of a living process; none where processes of others are hidden.
fn process_groups(pid: i32) -> BTreeSet<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|group| group.parse().ok()).collect()
}

/// Groups of a user by the machine's user database.
fn user_groups(user: u32, group: u32) -> BTreeSet<u32> {
    let Ok(Some(user)) = User::from_uid(Uid::from_raw(user)) else { return BTreeSet::new() };
    let Ok(name) = CString::new(user.name) else { return BTreeSet::new() };
    let groups = getgrouplist(&name, Gid::from_raw(group)).unwrap_or_default();
    groups.into_iter().map(Gid::as_raw).collect()
}

/// A secret that callers show as `authorization: Bearer TOKEN`.
pub struct Token(Vec<u8>);

impl Token {
    /// Reads it from the file of this setting or option; white space around it is not part of it.
    pub fn read(name: &str, path: &Path) -> anyhow::Result<Self> {
        let refused = || format!("{name} {}", path.display());
        let text = fs::read_to_string(path).map_err(|e| bad_input(e.to_string()));
        let text = text.with_context(refused)?;
        let token = text.trim();
        if token.len() < SHORTEST_TOKEN {
            let length = token.len();
            return Err(bad_input(format!(
                "the token has {length} characters, at least {SHORTEST_TOKEN} are needed"
            )))
            .with_context(refused);
        }
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(bad_input("the token has to be one word of visible ASCII characters"))
                .with_context(refused);
        }
        Ok(Self(token.as_bytes().to_vec()))
    }

    /// The header that shows it.
    pub fn header(&self) -> String {
        format!("Bearer {}", String::from_utf8_lossy(&self.0))
    }

    fn admit(&self, header: Option<&[u8]>) -> Result<(), Status> {
        let shown = header.and_then(|header| header.strip_prefix(b"Bearer "));
        match shown {
            // How long it takes to compare says nothing about how much of it was right.
            Some(shown) if bool::from(shown.ct_eq(&self.0)) => Ok(()),
            Some(_) => Err(Status::unauthenticated("the token is wrong")),
            None => Err(Status::unauthenticated(
                "a token is needed, in the header authorization: Bearer TOKEN",
            )),
        }
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(secret)")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_daemons_own_user_and_root_are_let_in() {
        let users = Peers::of_group(0).users;
        assert!(users.contains(&Uid::effective().as_raw()) && users.contains(&0));
        let map = fs::read_to_string("/proc/self/uid_map").unwrap();
        let expected = if maps_everybody(&map) { 2 } else { 3 };
        assert_eq!(
            users.len(),
            expected,
            "nobody is let in only where users are hidden: {users:?}"
        );
    }

    #[test]
    fn a_namespace_that_maps_everybody_is_told_from_one_that_does_not() {
        assert!(maps_everybody("         0          0 4294967295\n"));
        assert!(!maps_everybody("         0     100000      65536\n"));
        assert!(!maps_everybody("0 0 1\n990 990 1\n"));
    }

    #[test]
    fn groups_are_those_of_the_process_and_of_the_database() {
        let own = std::process::id() as i32;
        let expected: BTreeSet<u32> =
            nix::unistd::getgroups().unwrap().into_iter().map(Gid::as_raw).collect();
        assert_eq!(process_groups(own), expected);
        assert!(process_groups(0).is_empty());
        assert!(user_groups(0, 12345).contains(&12345), "root is in every database");
        assert!(user_groups(3_999_999_999, 7).is_empty());
    }

    #[test]
    fn a_token_is_compared_as_a_whole() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "  0123456789abcdef ").unwrap();
        let token = Token::read("control_token_file", file.path()).unwrap();
        assert!(token.admit(Some(b"Bearer 0123456789abcdef")).is_ok());
        assert_eq!(token.header(), "Bearer 0123456789abcdef");
        for wrong in [
            None,
            Some(&b"Bearer "[..]),
            Some(b"Bearer 0123456789abcde"),
            Some(b"Bearer 0123456789abcdefg"),
            Some(b"Bearer 0123456789abcdeF"),
            Some(b"0123456789abcdef"),
            Some(b"Basic 0123456789abcdef"),
        ] {
            let refused = token.admit(wrong).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::Unauthenticated, "{wrong:?}");
            assert!(!refused.message().contains("0123"), "the secret stays one");
        }
        assert_eq!(format!("{token:?}"), "Token(secret)");
    }

    #[test]
    fn short_and_odd_tokens_are_refused_by_their_file() {
        for (text, part) in [("short", "5 characters"), ("0123456789 abcdef", "one word")] {
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::write(file.path(), text).unwrap();
            let error =
                format!("{:#}", Token::read("control_token_file", file.path()).unwrap_err());
            assert!(error.contains(part) && error.contains("control_token_file"), "{error}");
            assert!(!error.contains(text), "{error}");
        }
        let error =
            format!("{:#}", Token::read("--token-file", Path::new("/no/such/file")).unwrap_err());
        assert!(error.contains("/no/such/file"), "{error}");
    }
}
