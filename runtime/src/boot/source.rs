//! Which model is meant: the demo, a directory, or one on the hub.

use std::path::Path;

use pocket_actors::api::ModelSource;
use pocket_model::hub::{self, HubSettings, ModelRef};

use crate::progress::Meter;

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

/// Finds the files of what was asked for; fetches them when it is a model of the hub that the cache
/// lacks.
pub fn find(asked: Option<&str>) -> anyhow::Result<Source> {
    let Some(asked) = asked else {
        return Ok(Source { model: ModelSource::Demo, name: DEMO.to_owned() });
    };
    let name = match ModelRef::parse(asked)? {
        ModelRef::Directory(path) => name_of(&path),
        ModelRef::Hub { id, .. } => id,
    };
    let mut meter = Meter::new("downloading");
    let directory = hub::resolve(asked, &HubSettings::from_env(), &mut |transfer| {
        meter.show(transfer.done, transfer.total, &name);
    })?;
    Ok(Source { model: ModelSource::Directory(directory), name })
}

/// The directory's own name, also when it is written as `.` or ends in `..`.
fn name_of(directory: &Path) -> String {
    let full = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    full.file_name().unwrap_or(full.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_called_after_its_directory() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("tiny-model");
        std::fs::create_dir(&directory).unwrap();
        assert_eq!(name_of(&directory), "tiny-model");
        assert_eq!(name_of(&directory.join("..").join("tiny-model").join(".")), "tiny-model");
        assert_eq!(name_of(Path::new("/")), "/");
        let source = find(directory.to_str()).unwrap();
        assert_eq!(source.name, "tiny-model");
        assert_eq!(source.model, ModelSource::Directory(directory));
    }

    #[test]
    fn nothing_asked_is_the_demo() {
        let source = find(None).unwrap();
        assert_eq!(source, Source { model: ModelSource::Demo, name: "demo".to_owned() });
    }

    #[test]
    fn what_is_neither_a_directory_nor_an_id_is_refused() {
        let message = find(Some("/no/such/model")).unwrap_err().to_string();
        assert!(message.contains("no model \"/no/such/model\""), "{message}");
    }
}
