//! From four sources to one [`Settings`]: defaults, then a file, then variables, then options.

use std::ffi::OsString;
use std::path::PathBuf;

use super::{CONFIG_VARIABLE, SETTINGS, Settings, file, find};
use crate::environment;
use crate::error::{ConfigError, Origin};
use crate::nearest::nearest;

/// Read when it exists and no other file is named.
const DEFAULT_FILE: &str = "/etc/pocketd/pocketd.toml";

/// Everything the settings are made from.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The file named by `--config`; it must exist, and so must one named by `POCKETD_CONFIG`.
    pub config: Option<PathBuf>,
    /// The file read when none is named, if it exists.
    pub default_file: PathBuf,
    /// The environment; names outside `POCKETD_*` and `POCKET_*` are none of ours.
    pub environment: Vec<(OsString, OsString)>,
    /// Keys and values given as options, in order.
    pub command_line: Vec<(&'static str, String)>,
}

impl Sources {
    /// The process's own environment and the usual place for a file.
    pub fn of_process(config: Option<PathBuf>, command_line: Vec<(&'static str, String)>) -> Self {
        Self {
            config,
            default_file: PathBuf::from(DEFAULT_FILE),
            environment: std::env::vars_os().collect(),
            command_line,
        }
    }

    /// The file to read. A file that was asked for is returned whether or not it exists, so that
    /// reading it fails; an empty `POCKETD_CONFIG` asks for none, not even the usual one.
    fn file(&self) -> Option<PathBuf> {
        if let Some(path) = &self.config {
            return Some(path.clone());
        }
        let variable = self.environment.iter().find(|(name, _)| name == CONFIG_VARIABLE);
        match variable {
            Some((_, path)) if path.is_empty() => None,
            Some((_, path)) => Some(PathBuf::from(path)),
            None => self.default_file.exists().then(|| self.default_file.clone()),
        }
    }
}

impl Settings {
    /// Reads all sources; the first mistake found is the error. Touches nothing but the file.
    pub fn load(sources: &Sources) -> Result<Self, ConfigError> {
        let mut settings = Self::default();
        if let Some(path) = sources.file() {
            file::apply(&mut settings, &path)?;
        }
        environment::apply(&mut settings, &sources.environment)?;
        for (key, value) in &sources.command_line {
            settings.set_option(key, value)?;
        }
        settings.check_faults()?;
        settings.check_kv_cache()?;
        Ok(settings)
    }

    fn set_option(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        let origin = Origin::CommandLine;
        let option = format!("--{}", key.replace('_', "-"));
        let Some(setting) = find(key) else {
            let keys = SETTINGS.iter().map(|setting| setting.key);
            return Err(ConfigError::Unknown {
                origin,
                name: option,
                nearest: nearest(key, keys).unwrap_or_default().replace('_', "-"),
                hint: "",
            });
        };
        self.set_from(&origin, setting, &option, value)
    }

    /// Each would set what the other sets; which is meant cannot be told, also not from their sources.
    fn check_kv_cache(&self) -> Result<(), ConfigError> {
        match (self.kv_cache_bytes, self.kv_cache_fraction) {
            (Some(bytes), Some(fraction)) => Err(ConfigError::Conflict {
                first: format!("kv_cache_bytes = {bytes}"),
                second: format!("kv_cache_fraction = {fraction}"),
                both: "say how large the KV cache is",
            }),
            _ => Ok(()),
        }
    }

    fn check_faults(&self) -> Result<(), ConfigError> {
        match self.flags.injected() {
            Some(fault) if !self.allow_faults => Err(ConfigError::FaultsNotAllowed { fault }),
            _ => Ok(()),
        }
    }
}
