//! Writing a checkpoint directory.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::tensors::Tensor;
use super::tokenizer::Vocabulary;

/// Everything of a checkpoint but its tensors' numbers.
pub(super) struct Checkpoint<'a> {
    pub config: Value,
    pub vocabulary: &'a Vocabulary,
    pub tensors: &'a [Tensor],
    pub shards: usize,
}

/// Writes a checkpoint; `directory` is made if it is not there and must not hold one already.
pub(super) fn write(checkpoint: &Checkpoint<'_>, directory: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let config = directory.join("config.json");
    ensure!(!config.exists(), "{} is there already; choose an empty directory", config.display());
    let eos = checkpoint.vocabulary.end_id();
    write_json(&config, &checkpoint.config)?;
    write_json(&directory.join("generation_config.json"), &json!({"eos_token_id": [eos]}))?;
    write_json(&directory.join("tokenizer.json"), &checkpoint.vocabulary.tokenizer_json())?;
    let tokenizer_config = checkpoint.vocabulary.tokenizer_config();
    write_json(&directory.join("tokenizer_config.json"), &tokenizer_config)?;
    write_tensors(checkpoint.tensors, checkpoint.shards, directory)
}

fn write_json(path: &Path, value: &Value) -> anyhow::Result<()> {
    std::fs::write(path, format!("{value:#}\n"))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn write_tensors(tensors: &[Tensor], shards: usize, directory: &Path) -> anyhow::Result<()> {
    let shards = split(tensors, shards);
    let mut weight_map = BTreeMap::new();
    for (index, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
        };
        let path = directory.join(&name);
        let named = shard.iter().map(|tensor| (tensor.name.as_str(), tensor));
        safetensors::serialize_to_file(named, None, &path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        weight_map.extend(shard.iter().map(|tensor| (tensor.name.as_str(), name.clone())));
    }
    if shards.len() > 1 {
        let total: usize = tensors.iter().map(Tensor::bytes).sum();
        let index = json!({"metadata": {"total_size": total}, "weight_map": weight_map});
        write_json(&directory.join("model.safetensors.index.json"), &index)?;
    }
    Ok(())
}

/// Cuts the list into at most `count` parts of about equal size, none empty.
fn split(tensors: &[Tensor], count: usize) -> Vec<&[Tensor]> {
    let total: usize = tensors.iter().map(Tensor::bytes).sum();
    let mut parts = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, tensor) in tensors.iter().enumerate() {
        bytes += tensor.bytes();
        if bytes * count >= total * (parts.len() + 1) && parts.len() + 1 < count {
            parts.push(&tensors[start..=index]);
            start = index + 1;
        }
    }
    if start < tensors.len() {
        parts.push(&tensors[start..]);
    }
    parts
}
