//! Which model is meant: the demo, a directory, or one on the hub.

use std::path::Path;

use pocket_actors::api::ModelSource;
use pocket_config::ModelName;
use pocket_model::ModelError;
use pocket_model::checkpoint::Checkpoint;

/// Name of the demo checkpoint in the API.
const DEMO: &str = "demo";

/// Where a model's files are, and what it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its files.
    pub model: ModelSource,
    /// Its name in the API unless another is asked for.
    pub name: String,
}

/// Finds the files of what was asked for; fetches them when it is on the hub.
pub fn find(asked: Option<&ModelName>) -> anyhow::Result<Source> {
    let Some(asked) = asked else {
        return Ok(Source { model: ModelSource::Demo, name: DEMO.to_owned() });
    };
    let path = Path::new(asked.as_str());
    if !path.exists() && is_hub_id(asked.as_str()) {
        let directory = fetch(asked.as_str())?;
        return Ok(Source {
            model: ModelSource::Directory(directory),
            name: asked.as_str().to_owned(),
        });
    }
    Ok(Source { model: ModelSource::Directory(path.to_owned()), name: name_of(path) })
}

/// Opens the files and checks their headers.
pub fn open(model: &ModelSource) -> Result<Checkpoint, ModelError> {
    match model {
        ModelSource::Demo => Checkpoint::demo(),
        ModelSource::Directory(directory) => Checkpoint::open(directory),
    }
}

/// The directory's own name, also when it is written as `.` or ends in `..`.
fn name_of(directory: &Path) -> String {
    let full = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    full.file_name().unwrap_or(full.as_os_str()).to_string_lossy().into_owned()
}

/// `owner/name` as the hub has it; anything that can only be a path is none.
fn is_hub_id(text: &str) -> bool {
    let part = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_alphanumeric())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    text.split_once('/').is_some_and(|(owner, name)| part(owner) && part(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hub_ids_are_told_from_paths() {
        for id in ["Qwen/Qwen3.5-0.8B", "a/b", "open-models/x_1.2"] {
            assert!(is_hub_id(id), "{id}");
        }
        for path in ["/models/x", "./x/y", "../x", "x", "a/b/c", "a/", "/a", "~/x", "a b/c", ""] {
            assert!(!is_hub_id(path), "{path}");
        }
    }

    #[test]
    fn a_model_is_called_after_its_directory() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("tiny-model");
        std::fs::create_dir(&directory).unwrap();
        assert_eq!(name_of(&directory), "tiny-model");
        assert_eq!(name_of(&directory.join("..").join("tiny-model").join(".")), "tiny-model");
        assert_eq!(name_of(Path::new("/")), "/");
    }

    #[test]
    fn nothing_asked_is_the_demo() {
        let source = find(None).unwrap();
        assert_eq!(source, Source { model: ModelSource::Demo, name: "demo".to_owned() });
        assert!(open(&source.model).unwrap().config().vocab_size > 0);
    }
}
