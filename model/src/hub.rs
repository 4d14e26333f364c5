//! Models by their Hugging Face id: found in the local cache, or downloaded into it.
//!
//! The cache is the one every Hugging Face tool shares, so what another program fetched is not fetched
//! again. Only the files a model needs are taken, and each is held against the size the hub states,
//! because an error page that was saved under the name of a weight file would stay in the cache.

mod download;
mod error;
mod reference;

use std::path::PathBuf;
use std::time::Duration;

pub use error::HubError;
pub use reference::ModelRef;

/// How far a download is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Bytes here.
    pub done: u64,
    /// Bytes in all; what was in the cache before is not counted.
    pub total: u64,
}

/// Where and how to ask for models. A field left empty takes the default of the Hugging Face tools.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// Address of the hub (`HF_ENDPOINT`).
    pub endpoint: String,
    /// Access token (`HF_TOKEN`).
    pub token: Option<String>,
    /// Directory of the cache (`HF_HUB_CACHE`, or `hub` under `HF_HOME`).
    pub cache: Option<PathBuf>,
    /// Whether to use the cache alone (`HF_HUB_OFFLINE`).
    pub offline: bool,
    /// How long nothing may arrive before the download is given up.
    pub patience: Duration,
    /// How often a request is made before it has failed.
    pub attempts: usize,
}

impl Default for HubSettings {
    fn default() -> Self {
        HubSettings {
            endpoint: "https://huggingface.co".to_owned(),
            token: None,
            cache: None,
            offline: false,
            patience: Duration::from_secs(60),
            attempts: 5,
        }
    }
}

impl HubSettings {
    /// Reads the environment, as the Hugging Face tools do.
    pub fn from_env() -> HubSettings {
        HubSettings::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> HubSettings {
        // An empty variable means none, as it is the usual way to switch one off in a unit file.
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let cache = variable("HF_HUB_CACHE")
            .or_else(|| variable("HUGGINGFACE_HUB_CACHE"))
            .map(PathBuf::from)
            .or_else(|| variable("HF_HOME").map(|home| PathBuf::from(home).join("hub")));
        let defaults = HubSettings::default();
        HubSettings {
            endpoint: variable("HF_ENDPOINT").unwrap_or(defaults.endpoint),
            token: variable("HF_TOKEN"),
            cache,
            offline: variable("HF_HUB_OFFLINE").is_some_and(|value| {
                ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str())
            }),
            ..defaults
        }
    }
}

/// The directory of a model given as a directory or as `organisation/name`, optionally `@revision`.
/// A directory that is there is taken as it is; an id is looked up in the cache or downloaded, and
/// `progress` hears of it, on the calling thread.
pub fn resolve(
    model: &str,
    settings: &HubSettings,
    progress: &mut (dyn FnMut(Transfer) + Send),
) -> Result<PathBuf, HubError> {
    match ModelRef::parse(model)? {
        ModelRef::Directory(path) => Ok(path),
        ModelRef::Hub { id, revision } => download::fetch(&id, &revision, settings, progress),
    }
}

#[cfg(test)]
mod stub;
#[cfg(test)]
mod tests;
