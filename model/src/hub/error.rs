//! Why a model could not be had from the hub, with what to do about it.

use std::path::PathBuf;
use std::time::Duration;

use hf_hub::HFError;

/// Why a model could not be had.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The name is neither a directory nor an id.
    #[error(
        "no model {model:?}: neither a directory that is there nor a Hugging Face id like \
         Qwen/Qwen3.5-0.8B"
    )]
    NoSuchModel {
        /// What was given.
        model: String,
    },
    /// The cache does not have it and the hub may not be asked.
    #[error(
        "{id}@{revision} is not in the cache at {}, and HF_HUB_OFFLINE forbids to download it",
        cache.display()
    )]
    NotCached {
        /// The model.
        id: String,
        /// The revision.
        revision: String,
        /// Directory of the cache.
        cache: PathBuf,
    },
    /// The hub wants to know who asks.
    #[error(
        "{endpoint} does not show {id} without a token: if it exists, it is private or gated; set \
         HF_TOKEN to a token that may read it"
    )]
    TokenNeeded {
        /// The hub.
        endpoint: String,
        /// The model.
        id: String,
    },
    /// The hub knows who asks and refuses.
    #[error(
        "{endpoint} refuses {id} to this token: accept its terms at {endpoint}/{id}, or check HF_TOKEN"
    )]
    Forbidden {
        /// The hub.
        endpoint: String,
        /// The model.
        id: String,
    },
    /// The hub has no such model or revision.
    #[error("{endpoint} has no model {id} with a revision {revision}")]
    NotFound {
        /// The hub.
        endpoint: String,
        /// The model.
        id: String,
        /// The revision.
        revision: String,
    },
    /// The model has no files this program can load.
    #[error("{id}@{revision} has no {what}: it is no checkpoint this program can load")]
    NoCheckpoint {
        /// The model.
        id: String,
        /// The revision.
        revision: String,
        /// What it lacks.
        what: &'static str,
    },
    /// The hub cannot be reached.
    #[error(
        "cannot reach {endpoint}: {reason}; HF_ENDPOINT sets another hub, HF_HUB_OFFLINE=1 uses the \
         cache alone"
    )]
    Unreachable {
        /// The hub.
        endpoint: String,
        /// What the connection said.
        reason: String,
    },
    /// Nothing arrived for too long.
    #[error("{endpoint} has sent nothing of {id} for {} s; run it again to go on", patience.as_secs_f32())]
    Stalled {
        /// The hub.
        endpoint: String,
        /// The model.
        id: String,
        /// How long was waited.
        patience: Duration,
    },
    /// A file is not as long as the hub says. It has been removed from the cache.
    #[error(
        "{file} of {id} has {found} bytes, but the hub states {stated}; run it again to fetch it anew"
    )]
    Size {
        /// The model.
        id: String,
        /// The file.
        file: String,
        /// Bytes on disk; 0 when it is not there.
        found: u64,
        /// Bytes by the hub's listing.
        stated: u64,
    },
    /// The hub, the connection or the disk failed in another way.
    #[error("cannot fetch {id}: {reason}")]
    Failed {
        /// The model.
        id: String,
        /// What was said.
        reason: String,
    },
}

impl HubError {
    /// What `error` means for a user who asked for `id`.
    pub(super) fn of(error: HFError, endpoint: &str, id: &str, revision: &str) -> HubError {
        let (endpoint, id) = (endpoint.to_owned(), id.to_owned());
        let status = match &error {
            HFError::Http { context } => context.status.as_u16(),
            HFError::AuthRequired { .. } => 401,
            HFError::Forbidden { .. } => 403,
            HFError::RepoNotFound { .. } | HFError::RevisionNotFound { .. } => 404,
            _ => 0,
        };
        match (status, error) {
            (401, _) => HubError::TokenNeeded { endpoint, id },
            (403, _) => HubError::Forbidden { endpoint, id },
            (404, _) => HubError::NotFound { endpoint, id, revision: revision.to_owned() },
            (_, HFError::Request { source, .. }) if source.is_connect() || source.is_timeout() => {
                HubError::Unreachable { endpoint, reason: innermost(&source) }
            }
            (_, error) => HubError::Failed { id, reason: one_line(&error.to_string()) },
        }
    }
}

/// The cause at the bottom of a chain of errors: what the system said.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    one_line(&cause.to_string())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
