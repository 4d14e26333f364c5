//! Who may ask: keys, shown as `Authorization: Bearer KEY`.
//!
//! Everything needs a key but what [`is_open`] lists, so that a route nobody thought of is closed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use actix_web::ResponseError;
use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::{Method, header};
use actix_web::middleware::Next;
use actix_web::web::Data;
use anyhow::Context;
use pocket_config::{ApiKeys, Settings};
use subtle::{Choice, ConstantTimeEq};

use super::error::ApiError;
use super::state::App;
use crate::failure::bad_input;

/// Paths that need no key: what probers of the machine ask. None says anything of what was asked.
const OPEN: [&str; 3] = ["/health", "/health/live", "/health/ready"];

/// Permission bits of those who are neither a file's owner nor of its group.
const OTHERS: u32 = 0o007;

/// Whether this path needs no key.
pub fn is_open(path: &str) -> bool {
    OPEN.contains(&path)
}

/// The keys that are taken. They can be replaced while requests come in, and are shown nowhere.
pub struct Keys {
    /// From the settings; they hold as long as the process lives.
    fixed: Vec<String>,
    /// More of them, read again by [`Keys::reload`].
    file: Option<PathBuf>,
    current: RwLock<Arc<[String]>>,
}

impl Keys {
    /// None: everybody may ask.
    #[cfg(test)]
    pub fn none() -> Self {
        Self { fixed: Vec::new(), file: None, current: RwLock::new(Arc::new([])) }
    }

    /// Those of `api_key` and `api_key_file` together.
    ///
    /// # Errors
    ///
    /// The file cannot be read, has no key or a text that is none, or others can read it.
    pub fn load(settings: &Settings) -> anyhow::Result<Self> {
        let fixed = settings.api_key.as_ref().map_or(Vec::new(), |keys| keys.secrets().to_vec());
        let keys =
            Self { fixed, file: settings.api_key_file.clone(), current: RwLock::new(Arc::new([])) };
        keys.reload()?;
        Ok(keys)
    }

    /// Reads the file again; from now on its keys hold, and those it no longer has are refused.
    /// Requests that were let in go on. Gives the number of keys, those of the settings included.
    ///
    /// # Errors
    ///
    /// As [`Keys::load`]; then the keys stay as they were.
    pub fn reload(&self) -> anyhow::Result<usize> {
        let mut keys = self.fixed.clone();
        if let Some(path) = &self.file {
            let read = read(path).with_context(|| format!("api_key_file {}", path.display()))?;
            keys.extend(read);
        }
        let count = keys.len();
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = keys.into();
        Ok(count)
    }

    /// Whether a key must be shown at all. This never changes: a file without keys is refused.
    pub fn are_needed(&self) -> bool {
        !self.fixed.is_empty() || self.file.is_some()
    }

    /// Checks the header `Authorization`. How long that takes says how many keys there are and how
    /// long, and nothing else about them.
    fn admit(&self, header: Option<&[u8]>) -> Result<(), ApiError> {
        if !self.are_needed() {
            return Ok(());
        }
        let Some(shown) = header.and_then(bearer) else {
            return Err(ApiError::no_key());
        };
        let keys = Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner));
        let known =
            keys.iter().fold(Choice::from(0), |known, key| known | key.as_bytes().ct_eq(shown));
        if bool::from(known) { Ok(()) } else { Err(ApiError::wrong_key()) }
    }
}

/// What stands behind the scheme, whose case does not matter (RFC 9110, 11.1).
fn bearer(header: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"Bearer ";
    let (scheme, rest) = header.split_at_checked(SCHEME.len())?;
    let shown = rest.trim_ascii();
    (scheme.eq_ignore_ascii_case(SCHEME) && !shown.is_empty()).then_some(shown)
}

/// The keys of a file. An error names the line and never what stands on it.
fn read(path: &Path) -> anyhow::Result<Vec<String>> {
    let refused = |error: std::io::Error| bad_input(error.to_string());
    let mode = fs::metadata(path).map_err(refused)?.permissions().mode();
    if mode & OTHERS != 0 {
        return Err(bad_input(format!(
            "everybody on this machine can use it (mode {:03o}); allowed are its owner and group: \
             chmod 600",
            mode & 0o777
        )));
    }
    let text = fs::read_to_string(path).map_err(refused)?;
    let mut keys = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if !ApiKeys::is_key(line) {
            let (number, accepts) = (number + 1, ApiKeys::key_accepts());
            return Err(bad_input(format!("line {number} is no key; a key is {accepts}")));
        }
        keys.push(line.to_owned());
    }
    if keys.is_empty() {
        return Err(bad_input("it has no key; one a line is expected"));
    }
    Ok(keys)
}

/// Refuses requests without a key. `OPTIONS` goes through: browsers ask it without keys, and no route
/// does anything on it.
pub async fn check<B: MessageBody>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B>>, actix_web::Error> {
    let admitted = match request.app_data::<Data<App>>() {
        Some(app) if !is_open(request.path()) && request.method() != Method::OPTIONS => {
            let header = request.headers().get(header::AUTHORIZATION);
            app.keys.admit(header.map(|value| value.as_bytes()))
        }
        _ => Ok(()),
    };
    match admitted {
        Ok(()) => Ok(next.call(request).await?.map_into_left_body()),
        // Not an `Err`, which the middleware around this one could not add headers to.
        Err(error) => Ok(request.into_response(error.error_response()).map_into_right_body()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        // Temporary files are their owner's alone.
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        file
    }

    fn keys(fixed: &[&str], file: Option<&Path>) -> anyhow::Result<Keys> {
        let keys = Keys {
            fixed: fixed.iter().map(|key| (*key).to_owned()).collect(),
            file: file.map(Path::to_owned),
            current: RwLock::new(Arc::new([])),
        };
        keys.reload()?;
        Ok(keys)
    }

    fn code(keys: &Keys, header: Option<&str>) -> Option<String> {
        let error = keys.admit(header.map(str::as_bytes)).err()?;
        Some(error.to_json()["error"]["code"].as_str().unwrap().to_owned())
    }

    #[test]
    fn without_keys_everybody_may_ask() {
        assert_eq!(code(&Keys::none(), None), None);
        assert_eq!(code(&Keys::none(), Some("Bearer whatever")), None);
    }

    #[test]
    fn any_of_the_keys_is_taken_and_nothing_like_them() {
        let file = file("# ours\n\n  key-of-file-1  \nkey-of-file-2\n");
        let keys = keys(&["key-of-settings"], Some(file.path())).unwrap();
        for right in ["key-of-settings", "key-of-file-1", "key-of-file-2"] {
            assert_eq!(code(&keys, Some(&format!("Bearer {right}"))), None, "{right}");
            assert_eq!(code(&keys, Some(&format!("bearer  {right}"))), None, "{right}");
        }
        for wrong in ["key-of-file", "key-of-file-12", "KEY-OF-FILE-1", "# ours", "key-of-file-3"] {
            let code = code(&keys, Some(&format!("Bearer {wrong}")));
            assert_eq!(code.as_deref(), Some("invalid_api_key"), "{wrong}");
        }
        for none in [None, Some(""), Some("Bearer"), Some("Bearer "), Some("Basic key-of-file-1")] {
            assert_eq!(code(&keys, none).as_deref(), Some("missing_api_key"), "{none:?}");
        }
    }

    #[test]
    fn a_file_read_again_takes_and_gives_and_a_bad_one_changes_nothing() {
        let file = file("first-key\nsecond-key\n");
        let keys = keys(&[], Some(file.path())).unwrap();
        fs::write(file.path(), "second-key\nthird-key\n").unwrap();
        assert_eq!(code(&keys, Some("Bearer first-key")), None);
        assert_eq!(keys.reload().unwrap(), 2);
        let held = |keys: &Keys| {
            ["first-key", "second-key", "third-key"]
                .map(|key| code(keys, Some(&format!("Bearer {key}"))).is_none())
        };
        assert_eq!(held(&keys), [false, true, true]);
        for bad in ["", "# none\n", "third-key\nno key\n"] {
            fs::write(file.path(), bad).unwrap();
            keys.reload().unwrap_err();
            assert_eq!(held(&keys), [false, true, true]);
        }
    }

    #[test]
    fn a_file_is_refused_with_a_reason_that_gives_nothing_away() {
        let refusal = |file: &tempfile::NamedTempFile| {
            format!("{:#}", keys(&[], Some(file.path())).map(|_| ()).unwrap_err())
        };
        let bad = refusal(&file("good-key-1\nbad secret\n"));
        assert!(bad.contains("line 2 is no key") && !bad.contains("secret"), "{bad}");
        assert!(refusal(&file("#\n")).contains("it has no key"));
        let open = file("good-key-1\n");
        fs::set_permissions(open.path(), fs::Permissions::from_mode(0o644)).unwrap();
        assert!(refusal(&open).contains("mode 644"), "{}", refusal(&open));
        let group = file("good-key-1\n");
        fs::set_permissions(group.path(), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(keys(&[], Some(group.path())).is_ok());
        let absent = keys(&[], Some(Path::new("/nowhere/keys"))).map(|_| ()).unwrap_err();
        assert!(format!("{absent:#}").starts_with("api_key_file /nowhere/keys: No such"));
    }
}
