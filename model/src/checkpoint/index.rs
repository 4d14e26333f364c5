//! Which files of a directory hold the weights, and where the index says each tensor is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use super::distinct::Distinct;
use super::shown;
use crate::ModelError;

/// Name of the index file.
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// Name of the weights when they are one file.
pub(super) const SINGLE: &str = "model.safetensors";

/// The weight files of a checkpoint.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct WeightFiles {
    /// Files that are there, in order of their names.
    pub(super) present: Vec<String>,
    /// Files that should be there and are not.
    pub(super) absent: Vec<String>,
    /// Stored name of a tensor -> file, from the index; none without an index.
    pub(super) index: Option<BTreeMap<String, String>>,
    /// Safetensors files of the directory that belong to no set of weights in use.
    pub(super) unused: Vec<String>,
}

impl WeightFiles {
    /// A checkpoint in one file.
    pub(super) fn single() -> WeightFiles {
        WeightFiles { present: vec![SINGLE.to_owned()], ..Default::default() }
    }

    /// Chooses the files of `directory`: those the index names if there is an index, else
    /// `model.safetensors`, else the one set of files numbered like `model-00001-of-00002.safetensors`.
    pub(super) fn find(directory: &Path) -> Result<WeightFiles, ModelError> {
        let listed = list(directory)?;
        let index_path = directory.join(INDEX);
        let mut files = if index_path.is_file() {
            let text = std::fs::read(&index_path)
                .map_err(|source| ModelError::Read { path: index_path.clone(), source })?;
            from_index(&index_path.display().to_string(), &text, &listed)?
        } else {
            without_index(directory, &listed)?
        };
        files.unused = listed.into_iter().filter(|file| !files.present.contains(file)).collect();
        Ok(files)
    }
}

/// Names of the directory's safetensors files that can be opened; a dangling link counts as absent.
fn list(directory: &Path) -> Result<BTreeSet<String>, ModelError> {
    let wrong = |source| ModelError::Read { path: directory.to_owned(), source };
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(directory).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if let Some(name) = name.filter(|name| name.ends_with(".safetensors"))
            && path.is_file()
        {
            names.insert(name.to_owned());
        }
    }
    Ok(names)
}

fn from_index(
    path: &str,
    text: &[u8],
    listed: &BTreeSet<String>,
) -> Result<WeightFiles, ModelError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: Distinct<String>,
    }
    let wrong = |detail| ModelError::Json { file: path.to_owned(), detail };
    let index: Index =
        serde_json::from_slice(text).map_err(|error| wrong(format!("not an index: {error}")))?;
    if index.weight_map.0.is_empty() {
        return Err(wrong("weight_map names no tensor".to_owned()));
    }
    for (tensor, file) in &index.weight_map.0 {
        // A name that leaves the directory would read whatever lies there.
        if !is_plain_name(file) || !file.ends_with(".safetensors") {
            return Err(wrong(format!(
                "it puts tensor {} in {}: expected the name of a safetensors file beside it",
                shown(tensor),
                shown(file)
            )));
        }
    }
    let named: BTreeSet<&String> = index.weight_map.0.iter().map(|(_, file)| file).collect();
    let (present, absent) = named.into_iter().cloned().partition(|file| listed.contains(file));
    let index = Some(index.weight_map.0.into_iter().collect());
    Ok(WeightFiles { present, absent, index, unused: Vec::new() })
}

fn without_index(directory: &Path, listed: &BTreeSet<String>) -> Result<WeightFiles, ModelError> {
    // (text before the number, number of files) -> numbers that are there
    let mut sets: BTreeMap<(&str, usize), BTreeSet<usize>> = BTreeMap::new();
    for file in listed {
        if let Some((stem, number, count)) = numbered(file) {
            sets.entry((stem, count)).or_default().insert(number);
        }
    }
    let wrong = |reason: String| ModelError::NoCheckpoint { path: directory.to_owned(), reason };
    let mut choices: Vec<String> =
        sets.keys().map(|(stem, count)| numbered_name(stem, 1, *count)).collect();
    choices.extend(listed.get(SINGLE).cloned());
    match (choices.as_slice(), sets.pop_first()) {
        ([], _) => Err(wrong(format!(
            "it has no weights: expected {SINGLE}, or {INDEX} and the files it names"
        ))),
        ([_], None) => Ok(WeightFiles::single()),
        ([_], Some(((stem, count), numbers))) => {
            let name = |number: usize| numbered_name(stem, number, count);
            let (present, absent): (Vec<usize>, Vec<usize>) =
                (1..=count).partition(|number| numbers.contains(number));
            Ok(WeightFiles {
                present: present.into_iter().map(name).collect(),
                absent: absent.into_iter().map(name).collect(),
                ..Default::default()
            })
        }
        (several, _) => Err(wrong(format!(
            "it has several sets of weights and no {INDEX} to choose: {}",
            several.join(", ")
        ))),
    }
}

fn numbered_name(stem: &str, number: usize, count: usize) -> String {
    format!("{stem}-{number:05}-of-{count:05}.safetensors")
}

/// Takes `model-00001-of-00002.safetensors` apart into `model`, 1 and 2.
fn numbered(file: &str) -> Option<(&str, usize, usize)> {
    let digits = |text: &str| -> Option<usize> {
        // Five digits exactly, so that the set a name claims stays small enough to list.
        let all = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        all.then(|| text.parse().ok()).flatten()
    };
    let (rest, count) = file.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let (number, count) = (digits(number)?, digits(count)?);
    (1..=count).contains(&number).then_some((stem, number, count))
}

/// Whether a name stays in the directory it is joined to.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn choose(names: &[&str]) -> Result<WeightFiles, String> {
        without_index(Path::new("dir"), &listed(names)).map_err(|error| error.to_string())
    }

    fn index(text: &str) -> String {
        from_index("i.json", text.as_bytes(), &BTreeSet::new()).unwrap_err().to_string()
    }

    #[test]
    fn files_are_chosen_without_an_index() {
        assert_eq!(choose(&["expected.safetensors", SINGLE]).unwrap().present, [SINGLE]);
        let files =
            choose(&["model-00003-of-00003.safetensors", "model-00001-of-00003.safetensors"]);
        let files = files.unwrap();
        assert_eq!(
            files.present,
            ["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"]
        );
        assert_eq!(files.absent, ["model-00002-of-00003.safetensors"]);
        // The spelling of some published checkpoints.
        let files = choose(&["model.safetensors-00001-of-00001.safetensors"]).unwrap();
        assert_eq!(files.present, ["model.safetensors-00001-of-00001.safetensors"]);

        let refusal = choose(&[SINGLE, "model-00001-of-00003.safetensors"]).unwrap_err();
        assert_eq!(
            refusal,
            "no checkpoint at dir: it has several sets of weights and no \
             model.safetensors.index.json to choose: model-00001-of-00003.safetensors, \
             model.safetensors"
        );
        let none = choose(&["expected.safetensors"]).unwrap_err();
        assert!(none.contains("it has no weights: expected model.safetensors, or"), "{none}");
    }

    #[test]
    fn numbers_in_names_are_read_strictly() {
        assert_eq!(numbered("a-b-00002-of-00010.safetensors"), Some(("a-b", 2, 10)));
        for name in [
            "model-2-of-3.safetensors",
            "model-00000-of-00003.safetensors",
            "model-00004-of-00003.safetensors",
            "model-00001-of-00003.bin",
            "model-+0001-of-00003.safetensors",
            "00001-of-00003.safetensors",
        ] {
            assert_eq!(numbered(name), None, "{name}");
        }
    }

    #[test]
    fn an_index_that_cannot_be_right_is_refused() {
        assert!(index("{}").contains("missing field `weight_map`"));
        assert!(index(r#"{"weight_map": {}}"#).contains("weight_map names no tensor"));
        assert!(index(r#"{"weight_map": {"a": 1}}"#).contains("invalid type"));
        for file in
            ["../model.safetensors", "/etc/passwd", "", "pytorch_model.bin", "a/b.safetensors"]
        {
            let message = index(&format!(r#"{{"weight_map": {{"a": "{file}"}}}}"#));
            assert!(message.contains("it puts tensor a in"), "{message}");
        }
        let twice = index(r#"{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}"#);
        assert!(twice.contains("a is listed twice"), "{twice}");
    }
}
