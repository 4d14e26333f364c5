//! Records of measurements: `record.json`, and whether one can be believed.
//!
//! A [`Record`] holds a result together with all that is needed to judge and to repeat it: the commands, the
//! machine, the servers with their flags and counters, and what spoke against the measurement. A record
//! with a reason against it is invalid: it is written all the same, reports show it in red, [`Record::verdict`]
//! is an error, and the program that made it ends with exit code [`INVALID_EXIT_CODE`].

mod command;
mod invalid;
mod machine;
mod server;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use chrono::{SecondsFormat, Utc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

pub use command::{command_line, this_command};
pub use invalid::{Invalid, InvalidRecord};
pub use machine::Machine;
pub use server::{Counters, Server};

/// The version of the record's own fields. It changes when a field changes its meaning or goes away.
pub const SCHEMA: u32 = 1;

/// The file's name in a result directory.
pub const FILE_NAME: &str = "record.json";

/// The exit code of a measurement that was made and cannot be believed: not 1 (it did not fail) and not 2
/// (what was asked for was right).
pub const INVALID_EXIT_CODE: u8 = 3;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Points from elsewhere (`fit`).
    Fit,
    /// A load on a server (`bench serve`).
    Serve,
    /// The cost of prefill calls (`bench prefill`).
    Prefill,
    /// Two arms of an experiment (`bench ab`).
    Ab,
    /// Waves of rising width (`bench ladder`).
    Ladder,
    /// The largest slots and context that start (`bench limit`).
    Limit,
}

impl Kind {
    /// The name in records and titles.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Fit => "fit",
            Kind::Serve => "serve",
            Kind::Prefill => "prefill",
            Kind::Ab => "ab",
            Kind::Ladder => "ladder",
            Kind::Limit => "limit",
        }
    }
}

/// A measurement, with what is needed to judge and to repeat it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record<T> {
    /// [`SCHEMA`] of the program that wrote it.
    pub schema: u32,
    /// What was measured.
    pub kind: Kind,
    /// When it began, RFC 3339, UTC.
    pub time: String,
    /// The commands that repeat it, in order, as a shell takes them.
    pub reproduce: Vec<String>,
    /// Where the measuring program ran.
    pub machine: Machine,
    /// The servers that were measured, one for each arm or configuration.
    pub servers: Vec<Server>,
    /// Whether requests that were not measured went before those that were.
    pub warmed_up: bool,
    /// Prompt tokens that servers said they took from a cache; `None` where no server says so.
    pub cached_tokens: Option<u64>,
    /// Requests in which a prefix cache was hit; `None` where no server says so.
    pub prefix_cache_hits: Option<u64>,
    /// Whether it can be believed: there is no reason in `invalid`.
    valid: bool,
    /// What speaks against it.
    invalid: Vec<Reason>,
    /// What was found.
    pub result: T,
}

/// A reason in a record, with its message for those who read the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Reason {
    #[serde(flatten)]
    reason: Invalid,
    message: String,
}

/// Why a record cannot be read or written.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is not a record, or not one of the kind that was expected.
    #[error("{} is not a record of pocketd", .path.display())]
    Parse {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The file was written by another version.
    #[error("{} has schema {found}; this version reads {SCHEMA}", .path.display())]
    Schema {
        /// Which file.
        path: PathBuf,
        /// Its schema.
        found: u32,
    },
    /// The file says that it is valid and why it is not, or the reverse.
    #[error("{} says valid: {valid} beside {reasons} reasons against it", .path.display())]
    Contradiction {
        /// Which file.
        path: PathBuf,
        /// What it says.
        valid: bool,
        /// How many reasons it gives.
        reasons: usize,
    },
    /// The file cannot be written.
    #[error("cannot write {}", .path.display())]
    Write {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The result cannot be written as JSON.
    #[error("the record cannot be written as JSON")]
    Serialise(#[source] serde_json::Error),
}

impl<T> Record<T> {
    /// A valid record of this machine and this moment. Make it before the measurement, so that its time is
    /// the beginning.
    pub fn new(kind: Kind, reproduce: Vec<String>, result: T) -> Self {
        Self {
            schema: SCHEMA,
            kind,
            time: Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true),
            reproduce,
            machine: Machine::here(),
            servers: Vec::new(),
            warmed_up: false,
            cached_tokens: None,
            prefix_cache_hits: None,
            valid: true,
            invalid: Vec::new(),
            result,
        }
    }

    /// The same with a result of another form.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Record<U> {
        Record {
            schema: self.schema,
            kind: self.kind,
            time: self.time,
            reproduce: self.reproduce,
            machine: self.machine,
            servers: self.servers,
            warmed_up: self.warmed_up,
            cached_tokens: self.cached_tokens,
            prefix_cache_hits: self.prefix_cache_hits,
            valid: self.valid,
            invalid: self.invalid,
            result: change(self.result),
        }
    }

    /// Adds a reason against it.
    pub fn invalidate(&mut self, reason: Invalid) {
        self.valid = false;
        let message = reason.to_string();
        self.invalid.push(Reason { reason, message });
    }

    /// Whether nothing speaks against it.
    pub fn is_valid(&self) -> bool {
        self.valid
    }

    /// What speaks against it.
    pub fn reasons(&self) -> impl Iterator<Item = &Invalid> {
        self.invalid.iter().map(|reason| &reason.reason)
    }

    /// An error if it cannot be believed; the program's exit code is then [`INVALID_EXIT_CODE`].
    pub fn verdict(&self) -> Result<(), InvalidRecord> {
        if self.valid {
            Ok(())
        } else {
            Err(InvalidRecord { reasons: self.reasons().cloned().collect() })
        }
    }
}

impl<T: Serialize> Record<T> {
    /// Writes it as [`FILE_NAME`] into a directory, which is made if it is not there. A file that is there is
    /// replaced in one step, so that no reader sees half of one.
    pub fn write(&self, directory: &Path) -> Result<PathBuf, RecordError> {
        let mut text = serde_json::to_string_pretty(self).map_err(RecordError::Serialise)?;
        text.push('\n');
        write_file(directory, FILE_NAME, &text)
    }
}

impl<T: DeserializeOwned> Record<T> {
    /// Reads a file: a record, or a result of `bench serve --save-result`, which has its record inside.
    pub fn read(path: &Path) -> Result<Self, RecordError> {
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let here = || path.to_owned();
        let text = fs::read_to_string(path)
            .map_err(|source| RecordError::Read { path: here(), source })?;
        let parse = |source| RecordError::Parse { path: here(), source };
        let value = unfolded(serde_json::from_str(&text).map_err(parse)?);
        // The version first: another one's fields may not be these.
        let Version { schema } = Version::deserialize(&value).map_err(parse)?;
        if schema != SCHEMA {
            return Err(RecordError::Schema { path: here(), found: schema });
        }
        let record: Self = serde_json::from_value(value).map_err(parse)?;
        if record.valid != record.invalid.is_empty() {
            let (valid, reasons) = (record.valid, record.invalid.len());
            return Err(RecordError::Contradiction { path: here(), valid, reasons });
        }
        Ok(record)
    }
}

/// The record of a file that has its result around it.
fn unfolded(mut value: Value) -> Value {
    match value.as_object_mut().and_then(|members| members.remove("record")) {
        Some(Value::Object(mut record)) => {
            record.insert("result".to_owned(), value);
            Value::Object(record)
        }
        Some(other) => {
            value["record"] = other;
            value
        }
        None => value,
    }
}

/// Writes a text into a directory in one step.
pub(crate) fn write_file(directory: &Path, name: &str, text: &str) -> Result<PathBuf, RecordError> {
    let path = directory.join(name);
    let failed = |source| RecordError::Write { path: path.clone(), source };
    fs::create_dir_all(directory).map_err(failed)?;
    let draft = directory.join(format!(".{name}.{}", std::process::id()));
    let written = fs::write(&draft, text).and_then(|()| fs::rename(&draft, &path));
    if let Err(source) = written {
        // The draft may never have come to be.
        let _ = fs::remove_file(&draft);
        return Err(failed(source));
    }
    Ok(path)
}

#[cfg(test)]
mod tests;
