//! Every tensor accounted for: used, left alone on purpose, or a fault with a name.

use std::collections::{BTreeMap, BTreeSet};

use pocket_device::StorageType;
use safetensors::Dtype;
use serde::Serialize;

use super::fault::Fault;
use super::header::Entry;
use super::index::{INDEX, WeightFiles};
use super::names::{self, Needed, Role};
use super::shown;
use crate::ModelConfig;

/// A stored tensor in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stored {
    /// Name as stored.
    pub name: String,
    /// File that holds it.
    pub file: String,
    /// Its number type, as the file spells it.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Bytes it takes.
    pub bytes: u64,
}

/// A tensor left alone on purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ignored {
    /// The tensor.
    #[serde(flatten)]
    pub tensor: Stored,
    /// Why.
    pub because: &'static str,
}

/// The account of a checkpoint's tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// Tensors the model uses.
    pub mapped: Vec<Stored>,
    /// Tensors left alone on purpose.
    pub ignored: Vec<Ignored>,
    /// Tensors the model has no place for.
    pub unexpected: Vec<Stored>,
    /// Names of the tensors the model needs and no file has, without any prefix variant.
    pub missing: Vec<String>,
    /// Safetensors files in the directory that belong to no set of weights in use.
    pub unused_files: Vec<String>,
    /// Everything that keeps the checkpoint from being loaded, causes before consequences.
    pub faults: Vec<Fault>,
}

/// A tensor the model uses, and where it lies.
#[derive(Clone, Debug)]
pub(super) struct Located {
    /// Index of its file among the files present.
    pub(super) file: usize,
    pub(super) dtype: StorageType,
    pub(super) entry: Entry,
}

/// Holds the headers of the files present against what the model needs and what the index says.
/// Returns the account and the usable tensors by their one name.
pub(super) fn examine(
    config: &ModelConfig,
    files: &WeightFiles,
    headers: Vec<Vec<Entry>>,
) -> (Coverage, BTreeMap<String, Located>) {
    let needed = names::needed(config);
    let mut account = Account {
        config,
        files,
        shapes: needed.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect(),
        found: BTreeMap::new(),
        coverage: Coverage { unused_files: files.unused.clone(), ..Default::default() },
    };
    let mut faults = Vec::new();
    for (file, entries) in headers.into_iter().enumerate() {
        for entry in entries {
            faults.extend(account.enter(file, entry));
        }
    }
    let mut causes = absent_shards(files);
    causes.extend(account.missing(&needed));
    causes.extend(account.against_index());
    causes.append(&mut faults);

    let Account { found, mut coverage, .. } = account;
    coverage.faults = causes;
    let located = found.into_iter().filter_map(|(name, (file, entry))| {
        let dtype = storage_type(entry.dtype)?;
        Some((name, Located { file, dtype, entry }))
    });
    (coverage, located.collect())
}

struct Account<'a> {
    config: &'a ModelConfig,
    files: &'a WeightFiles,
    /// Shape of every tensor needed.
    shapes: BTreeMap<String, Vec<usize>>,
    /// Tensors needed and there: index of the file, and its header's entry.
    found: BTreeMap<String, (usize, Entry)>,
    coverage: Coverage,
}

impl Account<'_> {
    /// Enters one tensor of a header; says what is wrong with it.
    fn enter(&mut self, file: usize, entry: Entry) -> Vec<Fault> {
        let file_name = &self.files.present[file];
        let stored = Stored {
            name: entry.name.clone(),
            file: file_name.clone(),
            dtype: entry.dtype.to_string(),
            shape: entry.shape.clone(),
            bytes: entry.bytes.len() as u64,
        };
        let name = match names::role(&entry.name, self.config) {
            Role::Ignored(because) => {
                self.coverage.ignored.push(Ignored { tensor: stored, because });
                return Vec::new();
            }
            Role::Model(name) => name,
        };
        let (tensor, in_file) = (shown(&entry.name), file_name.clone());
        let Some(shape) = self.shapes.get(&name) else {
            self.coverage.unexpected.push(stored);
            return vec![Fault::Unexpected { tensor, file: in_file }];
        };
        if let Some((first, other)) = self.found.get(&name) {
            let place = |file: &str, stored: &str| format!("{file} as {}", shown(stored));
            return vec![Fault::Twice {
                tensor: name,
                first: place(&self.files.present[*first], &other.name),
                second: place(&in_file, &entry.name),
            }];
        }
        let mut faults = Vec::new();
        if entry.shape != *shape {
            faults.push(Fault::Shape {
                tensor: tensor.clone(),
                file: in_file.clone(),
                expected: shape.clone(),
                found: entry.shape.clone(),
            });
        }
        if storage_type(entry.dtype).is_none() {
            faults.push(Fault::Type { tensor, file: in_file, found: entry.dtype.to_string() });
        }
        self.coverage.mapped.push(stored);
        self.found.insert(name, (file, entry));
        faults
    }

    /// Tensors needed that no header has, each with the reason.
    fn missing(&mut self, needed: &[Needed]) -> Vec<Fault> {
        let absent: Vec<&Needed> =
            needed.iter().filter(|tensor| !self.found.contains_key(&tensor.name)).collect();
        self.coverage.missing = absent.iter().map(|tensor| tensor.name.clone()).collect();
        let indexed = self.indexed();
        absent.into_iter().map(|tensor| self.absence(tensor, &indexed)).collect()
    }

    /// Why a tensor is missing. Which of the three it is decides what its owner has to do.
    fn absence(&self, tensor: &Needed, indexed: &BTreeMap<String, &str>) -> Fault {
        let name = tensor.name.clone();
        match (indexed.get(&name), &self.files.absent) {
            (Some(shard), absent) if absent.iter().any(|file| file == shard) => {
                Fault::ShardAbsent { tensor: name, shard: (*shard).to_owned() }
            }
            (Some(shard), _) => Fault::NotInHeader { tensor: name, shard: (*shard).to_owned() },
            (None, absent) if self.files.index.is_none() && !absent.is_empty() => {
                Fault::ShardAbsent { tensor: name, shard: absent.join(" or ") }
            }
            (None, _) => {
                let mut searched = match (&self.files.index, self.files.present.as_slice()) {
                    (Some(_), _) => format!("no file has it and {INDEX} does not name it"),
                    (None, [only]) => format!("{only} does not have it"),
                    (None, several) => format!("none of its {} files has it", several.len()),
                };
                if name == names::HEAD {
                    searched += ", and config.json says that the head is not tied to the embedding";
                }
                Fault::NeverHere { tensor: name, shape: tensor.shape.clone(), searched }
            }
        }
    }

    /// Where the index says the language model's tensors are, by their one name.
    fn indexed(&self) -> BTreeMap<String, &str> {
        let entries = self.files.index.iter().flatten();
        entries
            .filter_map(|(stored, file)| match names::role(stored, self.config) {
                Role::Model(name) => Some((name, file.as_str())),
                Role::Ignored(_) => None,
            })
            .collect()
    }

    /// Disagreements of index and headers, both ways, beyond the tensors that are missing.
    fn against_index(&self) -> Vec<Fault> {
        if self.files.index.is_none() {
            return Vec::new();
        }
        let indexed = self.indexed();
        let unexpected: BTreeSet<&str> =
            self.coverage.unexpected.iter().map(|stored| stored.name.as_str()).collect();
        let mut faults = Vec::new();
        for (name, shard) in &indexed {
            let stray = !self.shapes.contains_key(name) && !unexpected.contains(name.as_str());
            if stray && self.files.present.iter().any(|file| file == shard) {
                let (tensor, shard) = (shown(name), (*shard).to_owned());
                faults.push(Fault::NotInHeader { tensor, shard });
            }
        }
        for (name, (file, _)) in &self.found {
            let found = &self.files.present[*file];
            let says = match indexed.get(name) {
                Some(shard) if *shard == found => continue,
                Some(shard) => format!("puts it in {shard}"),
                None => "does not name it".to_owned(),
            };
            faults.push(Fault::NotAsIndexed { tensor: name.clone(), found: found.clone(), says });
        }
        faults
    }
}

fn absent_shards(files: &WeightFiles) -> Vec<Fault> {
    let because = match (&files.index, files.present.first()) {
        (Some(_), _) => format!("{INDEX} names it"),
        (None, Some(sibling)) => format!("{sibling} is one of a set with it"),
        (None, None) => String::new(),
    };
    let absent = files.absent.iter();
    absent
        .map(|shard| Fault::AbsentShard { shard: shard.clone(), because: because.clone() })
        .collect()
}

fn storage_type(dtype: Dtype) -> Option<StorageType> {
    match dtype {
        Dtype::BF16 => Some(StorageType::Bf16),
        Dtype::F16 => Some(StorageType::F16),
        Dtype::F32 => Some(StorageType::F32),
        _ => None,
    }
}
