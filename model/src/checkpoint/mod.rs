//! A checkpoint: the files of a model on disk, or the demo model inside this program.
//!
//! [`Checkpoint::open`] reads the small files and the headers, checks every name, shape and offset, and
//! maps the weights without touching them. A rank then takes only the slices it holds, by
//! [`TensorView::part`], so the system reads no page that no rank needs.

mod coverage;
mod distinct;
mod fault;
mod header;
mod index;
pub mod names;
mod tensor;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pocket_device::file::MappedFile;

pub use coverage::{Coverage, Ignored, Stored};
pub use fault::Fault;
pub use tensor::TensorView;

use crate::{GenerationConfig, ModelConfig, ModelError, demo};
use coverage::Located;
use index::WeightFiles;

/// Name of the file with the model's shape.
pub const CONFIG: &str = "config.json";
/// Name of the file with the sampling its makers recommend.
pub const GENERATION_CONFIG: &str = "generation_config.json";

/// An open checkpoint.
pub struct Checkpoint {
    source: Source,
    config: ModelConfig,
    generation: GenerationConfig,
    weights: Vec<Weights>,
    tensors: BTreeMap<String, Located>,
    coverage: Coverage,
}

enum Source {
    Directory(PathBuf),
    Demo,
}

enum Weights {
    Mapped(MappedFile),
    Embedded(&'static [u8]),
}

impl Weights {
    fn bytes(&self) -> &[u8] {
        match self {
            Weights::Mapped(file) => file.bytes(),
            Weights::Embedded(bytes) => bytes,
        }
    }
}

impl Checkpoint {
    /// Opens a checkpoint directory and refuses it if a single tensor is missing, unexpected, of the
    /// wrong shape or not where the index says.
    pub fn open(directory: &Path) -> Result<Checkpoint, ModelError> {
        let checkpoint = Checkpoint::survey(directory)?;
        match checkpoint.coverage.faults.split_first() {
            None => Ok(checkpoint),
            Some((first, others)) => Err(ModelError::Unsound {
                checkpoint: checkpoint.describe(),
                fault: Box::new(first.clone()),
                more: others.len(),
            }),
        }
    }

    /// Opens a checkpoint directory for a report: faults of its tensors are listed in
    /// [`Checkpoint::coverage`] instead of refused. Unreadable files are still errors.
    pub fn survey(directory: &Path) -> Result<Checkpoint, ModelError> {
        let no_checkpoint = |reason: &str| ModelError::NoCheckpoint {
            path: directory.to_owned(),
            reason: reason.to_owned(),
        };
        if !directory.exists() {
            return Err(no_checkpoint("no such directory"));
        }
        if !directory.is_dir() {
            return Err(no_checkpoint("not a directory; give the one that holds config.json"));
        }
        let source = Source::Directory(directory.to_owned());
        let (config, generation) = source.configs()?;
        let files = WeightFiles::find(directory)?;
        let mut weights = Vec::with_capacity(files.present.len());
        let mut headers = Vec::with_capacity(files.present.len());
        for file in &files.present {
            let path = directory.join(file);
            let mapped = MappedFile::open(&path)?;
            headers.push(header::parse(&path.display().to_string(), mapped.bytes())?);
            weights.push(Weights::Mapped(mapped));
        }
        let (coverage, tensors) = coverage::examine(&config, &files, headers);
        for file in &coverage.unused_files {
            tracing::debug!(file, "safetensors file is not part of the weights");
        }
        Ok(Checkpoint { source, config, generation, weights, tensors, coverage })
    }

    /// The demo model inside this program.
    pub fn demo() -> Result<Checkpoint, ModelError> {
        let source = Source::Demo;
        let (config, generation) = source.configs()?;
        let files = WeightFiles::single();
        let headers = vec![header::parse(&source.describe(index::SINGLE), demo::WEIGHTS)?];
        let (coverage, tensors) = coverage::examine(&config, &files, headers);
        let weights = vec![Weights::Embedded(demo::WEIGHTS)];
        Ok(Checkpoint { source, config, generation, weights, tensors, coverage })
    }

    /// The model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The sampling its makers recommend, and the ids that end a generation.
    pub fn generation(&self) -> &GenerationConfig {
        &self.generation
    }

    /// The account of its tensors.
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// Its directory, or none for the demo.
    pub fn directory(&self) -> Option<&Path> {
        match &self.source {
            Source::Directory(path) => Some(path),
            Source::Demo => None,
        }
    }

    /// The files its weights come from; none for the demo.
    pub fn weight_files(&self) -> impl Iterator<Item = &MappedFile> {
        self.weights.iter().filter_map(|weights| match weights {
            Weights::Mapped(file) => Some(file),
            Weights::Embedded(_) => None,
        })
    }

    /// What to call it in a message: its directory, or that it is the demo.
    pub fn describe(&self) -> String {
        match &self.source {
            Source::Directory(path) => path.display().to_string(),
            Source::Demo => demo::NAME.to_owned(),
        }
    }

    /// A tensor by its one name, such as `model.layers.0.mlp.up_proj.weight`; the prefix of a
    /// multimodal file is taken care of. See [`names`].
    pub fn tensor<'a>(&'a self, name: &str) -> Result<TensorView<'a>, ModelError> {
        let Some((name, located)) = self.tensors.get_key_value(name) else {
            return Err(ModelError::NoTensor {
                checkpoint: self.describe(),
                tensor: name.to_owned(),
            });
        };
        // In range: the header was checked against this very mapping.
        let bytes = &self.weights[located.file].bytes()[located.entry.bytes.clone()];
        Ok(TensorView { name, dtype: located.dtype, shape: &located.entry.shape, bytes })
    }

    /// The contents of one of its small files, such as `tokenizer.json`, or none if it has no such file.
    pub fn file(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>, ModelError> {
        self.source.file(name)
    }
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Checkpoint")
            .field("source", &self.describe())
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}

impl Source {
    /// What to call one of its files in a message.
    fn describe(&self, file: &str) -> String {
        match self {
            Source::Directory(path) => path.join(file).display().to_string(),
            Source::Demo => format!("{file} of {}", demo::NAME),
        }
    }

    fn file(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>, ModelError> {
        let directory = match self {
            Source::Directory(path) => path,
            Source::Demo => return Ok(demo::file(name).map(Cow::Borrowed)),
        };
        let path = directory.join(name);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(Cow::Owned(bytes))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(ModelError::Read { path, source }),
        }
    }

    fn configs(&self) -> Result<(ModelConfig, GenerationConfig), ModelError> {
        let text = self.file(CONFIG)?.ok_or_else(|| ModelError::NoCheckpoint {
            path: self.describe("").into(),
            reason: format!("it has no {CONFIG}"),
        })?;
        let config = ModelConfig::parse(&self.describe(CONFIG), &text)?;
        let generation = match self.file(GENERATION_CONFIG)? {
            Some(text) => {
                GenerationConfig::parse(&self.describe(GENERATION_CONFIG), &text, &config)?
            }
            None => GenerationConfig::without_file(&config),
        };
        Ok((config, generation))
    }
}

/// A name out of a file as it goes into a message: one line, whatever it holds.
fn shown(name: &str) -> String {
    const LONGEST: usize = 120;
    let mut text: String = name.escape_debug().take(LONGEST).collect();
    if text.is_empty() {
        text.push_str("\"\"");
    }
    text
}

#[cfg(test)]
mod tests;
