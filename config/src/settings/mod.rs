//! Settings: what to serve and with what means.

mod address;
mod file;
mod load;
mod otlp;
#[cfg(test)]
mod precedence;
mod security;
mod sizes;
mod table;
mod types;

pub use address::{ControlSocket, HostPort};
pub use load::Sources;
pub use otlp::OtlpEndpoint;
pub use security::{ApiKeys, Origins};
pub use sizes::{ByteSize, MemoryFraction};
pub use table::{SETTINGS, Settings};
pub use types::{
    ContextLength, DeviceKind, KvCacheDtype, LogFilter, LogFormat, MergedRows, MessageLimit,
    ModelName, PrefillBudget, QueueLimit, RequestBytes, RestartCount, SequenceLimit, ThreadCount,
    WorldSize,
};

use crate::error::{ConfigError, Origin};
use crate::value::Kind;

/// Every setting's variable begins so.
pub(crate) const PREFIX: &str = "POCKETD_";

/// The variable that names the configuration file. The file cannot name itself, so it is no row.
pub(crate) const CONFIG_VARIABLE: &str = "POCKETD_CONFIG";

/// Which commands a setting concerns. Files and variables may hold all of them for any command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Which model.
    Model,
    /// How it is split and computed.
    Engine,
    /// Who may ask, and how.
    Server,
    /// What is written down.
    Logging,
}

/// The row of one setting.
#[derive(Debug)]
pub struct Setting {
    /// Key in a file. With dashes it is the option of the command line; in capitals behind `POCKETD_`
    /// it is the variable.
    pub key: &'static str,
    /// Older keys that mean the same, in every source.
    pub older: &'static [&'static str],
    /// Which commands take it.
    pub group: Group,
    /// The shape of its value.
    pub kind: Kind,
    /// How the value is called in a usage line.
    pub placeholder: &'static str,
    /// One line.
    pub meaning: &'static str,
    /// More, in Markdown; may be empty.
    pub doc: &'static str,
    /// What happens when nobody sets it; empty when the default is a plain value.
    default_note: &'static str,
    /// Whether its value may be seen nowhere.
    secret: bool,
    accepts: fn() -> String,
    get: fn(&Settings) -> String,
    set: fn(&mut Settings, &str) -> bool,
}

impl Setting {
    /// The option of the command line, without its dashes.
    pub fn option(&self) -> String {
        self.key.replace('_', "-")
    }

    /// The environment variable.
    pub fn variable(&self) -> String {
        variable(self.key)
    }

    /// What it accepts, for messages and tables.
    pub fn accepts(&self) -> String {
        (self.accepts)()
    }

    /// What holds when nobody sets it.
    pub fn default_text(&self) -> String {
        match self.default_note {
            "" => (self.get)(&Settings::default()),
            note => note.to_owned(),
        }
    }

    /// A value that was refused, as an error may quote it.
    pub(crate) fn quoted(&self, value: &str) -> String {
        if self.secret { security::HIDDEN } else { value }.to_owned()
    }

    /// Its value in `settings` as text; empty for "not set"; a secret is not shown.
    pub fn value_text(&self, settings: &Settings) -> String {
        (self.get)(settings)
    }

    /// Whether `text` is accepted, or what would be.
    pub fn check(&self, text: &str) -> Result<(), String> {
        if (self.set)(&mut Settings::default(), text) {
            Ok(())
        } else {
            Err(format!("accepted is {}", self.accepts()))
        }
    }
}

fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.to_uppercase())
}

impl Settings {
    /// `key=value` of every setting that is not at its default, in table order.
    pub fn non_default(&self) -> Vec<String> {
        let default = Self::default();
        SETTINGS
            .iter()
            .filter(|setting| (setting.get)(self) != (setting.get)(&default))
            .map(|setting| format!("{}={}", setting.key, (setting.get)(self)))
            .collect()
    }

    /// Sets one row from text; `name` is the spelling the source used.
    pub(crate) fn set_from(
        &mut self,
        origin: &Origin,
        setting: &Setting,
        name: &str,
        value: &str,
    ) -> Result<(), ConfigError> {
        if (setting.set)(self, value) {
            return Ok(());
        }
        Err(ConfigError::BadValue {
            origin: origin.clone(),
            name: name.to_owned(),
            value: setting.quoted(value),
            accepts: setting.accepts(),
        })
    }
}

/// What one source has set so far, to notice a setting that it gives under two of its names.
#[derive(Default)]
pub(crate) struct Seen(Vec<(&'static str, String)>);

impl Seen {
    /// Notes that `setting` was given as `name`.
    pub(crate) fn note(
        &mut self,
        origin: &Origin,
        setting: &'static Setting,
        name: &str,
    ) -> Result<(), ConfigError> {
        if let Some((_, first)) = self.0.iter().find(|(key, _)| *key == setting.key) {
            return Err(ConfigError::Twice {
                origin: origin.clone(),
                first: first.clone(),
                second: name.to_owned(),
            });
        }
        self.0.push((setting.key, name.to_owned()));
        Ok(())
    }
}

/// The row set by this variable, newer or older.
pub(crate) fn find_variable(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| {
        setting.variable() == name || setting.older.iter().any(|older| variable(older) == name)
    })
}

/// The row with this key, newer or older.
fn find(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key || setting.older.contains(&key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_defaults_are_values_their_rows_accept() {
        for setting in SETTINGS {
            let text = setting.value_text(&Settings::default());
            if !text.is_empty() {
                assert_eq!(setting.check(&text), Ok(()), "{}", setting.key);
            }
            assert!(!setting.default_text().is_empty(), "{} has no default to show", setting.key);
        }
    }

    #[test]
    fn names_are_unique_older_ones_included() {
        let mut keys: Vec<&str> = SETTINGS
            .iter()
            .flat_map(|setting| setting.older.iter().chain([&setting.key]).copied())
            .collect();
        keys.sort_unstable();
        let count = keys.len();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }

    #[test]
    fn a_row_knows_its_three_spellings() {
        let setting = find("tensor_parallel_size").unwrap();
        assert_eq!(setting.option(), "tensor-parallel-size");
        assert_eq!(setting.variable(), "POCKETD_TENSOR_PARALLEL_SIZE");
        assert_eq!(find("max_context").unwrap().key, "max_model_len");
        assert_eq!(find("prefill_token_budget").unwrap().key, "max_num_batched_tokens");
        assert_eq!(find("max_batch_size").unwrap().key, "max_num_seqs");
    }

    #[test]
    fn what_differs_from_the_defaults_is_reported() {
        assert!(Settings::default().non_default().is_empty());
        let settings = Settings { port: 9, ..Settings::default() };
        assert_eq!(settings.non_default(), ["port=9"]);
    }
}
