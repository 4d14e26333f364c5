//! Tells a directory from a Hugging Face id.

use std::path::{Path, PathBuf};

use super::HubError;

/// What a user can give as a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelRef {
    /// A directory that is there.
    Directory(PathBuf),
    /// A model of the hub.
    Hub {
        /// `organisation/name`.
        id: String,
        /// Branch, tag or commit; `main` unless given.
        revision: String,
    },
}

impl ModelRef {
    /// Reads `model`. What exists on disk is meant as such, whatever it looks like; what does not has
    /// to have the form of an id.
    pub fn parse(model: &str) -> Result<ModelRef, HubError> {
        if !model.is_empty() && Path::new(model).exists() {
            return Ok(ModelRef::Directory(PathBuf::from(model)));
        }
        let (id, revision) = model.split_once('@').unwrap_or((model, "main"));
        let known = || {
            let (organisation, name) = id.split_once('/')?;
            (is_name(organisation) && is_name(name) && revision.split('/').all(is_name))
                .then_some(())
        };
        match known() {
            Some(()) => Ok(ModelRef::Hub { id: id.to_owned(), revision: revision.to_owned() }),
            None => Err(HubError::NoSuchModel { model: model.to_owned() }),
        }
    }
}

/// Whether a part of an id or revision is one. These parts become parts of paths in the cache, so one
/// that starts with a dot never is.
fn is_name(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !part.is_empty()
        && part.len() <= 96
        && !part.starts_with(['.', '-'])
        && part.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(id: &str, revision: &str) -> ModelRef {
        ModelRef::Hub { id: id.to_owned(), revision: revision.to_owned() }
    }

    #[test]
    fn ids_with_and_without_revision() {
        assert_eq!(ModelRef::parse("Qwen/Qwen3.5-0.8B").unwrap(), hub("Qwen/Qwen3.5-0.8B", "main"));
        assert_eq!(ModelRef::parse("a/b@v1.0").unwrap(), hub("a/b", "v1.0"));
        assert_eq!(ModelRef::parse("a/b@refs/pr/3").unwrap(), hub("a/b", "refs/pr/3"));
    }

    #[test]
    fn what_is_on_disk_is_a_directory_even_if_it_looks_like_an_id() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        assert_eq!(ModelRef::parse(path).unwrap(), ModelRef::Directory(path.into()));
        // Tests run in the crate's directory.
        assert_eq!(ModelRef::parse("src/hub").unwrap(), ModelRef::Directory("src/hub".into()));
    }

    #[test]
    fn anything_else_is_refused() {
        for model in [
            "",
            "absent",
            "/absent/model",
            "./absent",
            "../a/b",
            "a/b/c",
            "a/",
            "/b",
            "a/b@",
            "~/models/x",
            "a/b@../../x",
            "a/b@..",
            "a b/c",
            "-a/b",
            "a/b@x//y",
            "a/é",
        ] {
            let message = ModelRef::parse(model).unwrap_err().to_string();
            assert_eq!(
                message,
                format!(
                    "no model {model:?}: neither a directory that is there nor a Hugging Face id \
                     like Qwen/Qwen3.5-0.8B"
                )
            );
        }
    }
}
