//! Everything that can be wrong with what the daemon was told. All of it is bad input: exit code 2.

use std::fmt;
use std::path::PathBuf;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An option of the command line.
    CommandLine,
    /// An environment variable.
    Environment,
    /// A call, while the program runs.
    Call,
    /// A line of a TOML file, counting from 1.
    File {
        /// The file.
        path: PathBuf,
        /// The line the value stands on.
        line: usize,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::CommandLine => write!(f, "command line"),
            Origin::Environment => write!(f, "environment"),
            Origin::Call => write!(f, "request"),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
        }
    }
}

/// Why the settings or flags were refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A name that is in no table.
    #[error("{origin}: {name} is unknown; the nearest valid name is {nearest}{hint}")]
    Unknown {
        /// Where it stood.
        origin: Origin,
        /// The name.
        name: String,
        /// The valid name most like it.
        nearest: String,
        /// More help, or nothing.
        hint: &'static str,
    },
    /// A value its row does not accept.
    #[error("{origin}: {name} = {value:?} is refused; accepted is {accepts}")]
    BadValue {
        /// Where it stood.
        origin: Origin,
        /// The name as it was given.
        name: String,
        /// The value as it was given.
        value: String,
        /// What would be accepted.
        accepts: String,
    },
    /// One setting under two names in one source.
    #[error("{origin}: {first} and {second} are the same setting; keep one of them")]
    Twice {
        /// Where the second stood.
        origin: Origin,
        /// The name that came first.
        first: String,
        /// The other.
        second: String,
    },
    /// Two settings that say the same thing in different ways.
    #[error("{first} and {second} both {both}; keep one of them")]
    Conflict {
        /// One of them with its value.
        first: String,
        /// The other.
        second: String,
        /// What both do.
        both: &'static str,
    },
    /// A fault without leave to inject it.
    #[error("{fault} makes a rank fail on purpose and is refused without --allow-faults")]
    FaultsNotAllowed {
        /// The flag, `NAME=value`.
        fault: String,
    },
    /// The file cannot be read.
    #[error("configuration file {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The file is not TOML.
    #[error("{origin}: {reason}")]
    Syntax {
        /// Where reading stopped.
        origin: Origin,
        /// What the parser said.
        reason: String,
    },
}
