//! What `pocketd inspect` reports of a checkpoint: shape, sizes, and the account of its tensors.

use std::collections::BTreeMap;
use std::fmt;

use pocket_device::{KV_BLOCK_TOKENS, KvDtype};
use serde::Serialize;

use crate::checkpoint::Coverage;
use crate::forward::ModelLimits;
use crate::memory::{Bytes, MemoryPlan, kv_blocks};
use crate::{Checkpoint, ModelConfig, ModelError, Shard};

/// Tensors listed by name in the text form before the rest are counted.
const LISTED: usize = 20;

/// A report on a checkpoint, sound or not.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// What was inspected: its directory, or the demo.
    pub checkpoint: String,
    /// The model's shape.
    pub config: ModelConfig,
    /// Numbers in the tensors the model uses.
    pub parameters: u64,
    /// Bytes of those tensors in the files, by number type.
    pub stored_bytes: BTreeMap<String, u64>,
    /// Numbers of ranks the model splits over.
    pub sizes: Vec<usize>,
    /// Each rank's share at the tensor-parallel size asked for.
    pub ranks: Vec<RankShare>,
    /// Bytes of keys and values a token adds, over all ranks.
    pub kv_bytes_per_token: u64,
    /// Bytes of recurrent and convolution state a sequence has, over all ranks, whatever its length.
    pub state_bytes_per_sequence: u64,
    /// The account of the tensors.
    pub tensors: Coverage,
}

/// One rank's share.
#[derive(Clone, Debug, Serialize)]
pub struct RankShare {
    /// The ranges of the model it holds.
    pub shard: Shard,
    /// Bytes of its weights in memory, as packed.
    pub weight_bytes: u64,
    /// Bytes of keys and values a token adds.
    pub kv_bytes_per_token: u64,
    /// Bytes of recurrent and convolution state a sequence has.
    pub state_bytes_per_sequence: u64,
}

impl Inspection {
    /// Reports on `checkpoint` split over `world` ranks, with matrices packed as `packed_bytes` says
    /// ([`pocket_device::Device::packed_bytes`]).
    pub fn new(
        checkpoint: &Checkpoint,
        world: usize,
        packed_bytes: fn(usize, usize) -> u64,
    ) -> Result<Inspection, ModelError> {
        let config = checkpoint.config();
        // The plan of one sequence of one block.
        let limits = ModelLimits {
            max_model_len: KV_BLOCK_TOKENS.min(config.max_position_embeddings),
            max_rows: 1,
            slots: 1,
            kv_blocks: kv_blocks(1, 1),
            kv_dtype: KvDtype::Float32,
        };
        let memory = MemoryPlan::ranks(config, world, &limits, packed_bytes)?;
        let ranks: Vec<RankShare> = memory
            .into_iter()
            .map(|(shard, memory)| RankShare {
                shard,
                weight_bytes: memory.weights,
                kv_bytes_per_token: memory.kv_cache / KV_BLOCK_TOKENS as u64,
                state_bytes_per_sequence: memory.recurrent_state,
            })
            .collect();
        let tensors = checkpoint.coverage().clone();
        let mut stored_bytes = BTreeMap::new();
        for tensor in &tensors.mapped {
            *stored_bytes.entry(tensor.dtype.clone()).or_default() += tensor.bytes;
        }
        let numbers = |shape: &[usize]| shape.iter().product::<usize>() as u64;
        Ok(Inspection {
            checkpoint: checkpoint.describe(),
            config: config.clone(),
            parameters: tensors.mapped.iter().map(|tensor| numbers(&tensor.shape)).sum(),
            stored_bytes,
            sizes: Shard::sizes(config),
            kv_bytes_per_token: ranks.iter().map(|rank| rank.kv_bytes_per_token).sum(),
            state_bytes_per_sequence: ranks.iter().map(|rank| rank.state_bytes_per_sequence).sum(),
            ranks,
            tensors,
        })
    }

    /// Whether the checkpoint can be loaded.
    pub fn is_sound(&self) -> bool {
        self.tensors.faults.is_empty()
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.config;
        let mut line = |name: &str, value: String| writeln!(to, "{name:<20}{value}");
        line("checkpoint", self.checkpoint.clone())?;
        line("architecture", format!("{} ({})", config.architecture, config.model_type))?;
        line("parameters", grouped(self.parameters))?;
        let stored: Vec<String> = self
            .stored_bytes
            .iter()
            .map(|(dtype, bytes)| format!("{} as {dtype}", Bytes(*bytes)))
            .collect();
        line("stored", stored.join(", "))?;
        line(
            "layers",
            format!(
                "{}: {} linear attention, {} full attention",
                config.layers.len(),
                config.linear_layers(),
                config.full_layers()
            ),
        )?;
        line(
            "shape",
            format!(
                "hidden {}, MLP {}, vocabulary {}{}, context {}",
                config.hidden_size,
                config.intermediate_size,
                config.vocab_size,
                if config.tie_word_embeddings { " (head tied)" } else { "" },
                config.max_position_embeddings
            ),
        )?;
        let sizes: Vec<String> = self.sizes.iter().map(usize::to_string).collect();
        line("tensor parallel", format!("{} (possible: {})", self.ranks.len(), sizes.join(", ")))?;
        line("a token", format!("{} of keys and values", Bytes(self.kv_bytes_per_token)))?;
        line("a sequence", format!("{} of recurrent state", Bytes(self.state_bytes_per_sequence)))?;
        for rank in &self.ranks {
            line(
                &format!("rank {}", rank.shard.rank),
                format!(
                    "{} of weights, {} a token, {} a sequence",
                    Bytes(rank.weight_bytes),
                    Bytes(rank.kv_bytes_per_token),
                    Bytes(rank.state_bytes_per_sequence)
                ),
            )?;
        }
        self.write_tensors(to)
    }
}

impl Inspection {
    fn write_tensors(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors = &self.tensors;
        let mut list = |kind: &str, names: Vec<String>| -> fmt::Result {
            write!(to, "\n{kind:<20}{}", names.len())?;
            for name in names.iter().take(LISTED) {
                write!(to, "\n  {name}")?;
            }
            match names.len().saturating_sub(LISTED) {
                0 => Ok(()),
                more => write!(to, "\n  and {more} more, which --json lists"),
            }
        };
        list(
            "mapped",
            tensors
                .mapped
                .iter()
                .map(|t| format!("{} {} {:?}", t.name, t.dtype, t.shape))
                .collect(),
        )?;
        list(
            "ignored on purpose",
            tensors.ignored.iter().map(|t| format!("{} ({})", t.tensor.name, t.because)).collect(),
        )?;
        list(
            "unexpected",
            tensors.unexpected.iter().map(|t| format!("{} in {}", t.name, t.file)).collect(),
        )?;
        list("missing", tensors.missing.clone())?;
        if !tensors.unused_files.is_empty() {
            list("files not used", tensors.unused_files.clone())?;
        }
        if !tensors.faults.is_empty() {
            list("faults", tensors.faults.iter().map(ToString::to_string).collect())?;
        }
        Ok(())
    }
}

/// A number with its digits in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn report(checkpoint: &Checkpoint, world: usize) -> Result<Inspection, ModelError> {
        Inspection::new(checkpoint, world, pocket_device::cpu::packed_bytes)
    }

    #[test]
    fn the_demo_is_reported_with_its_published_size() {
        let demo = Checkpoint::demo().unwrap();
        let found = report(&demo, 4).unwrap();
        assert!(found.is_sound());
        assert_eq!(found.parameters, 1_757_568);
        assert_eq!(found.sizes, [1, 2, 4]);
        assert_eq!(found.kv_bytes_per_token, 2 * 2 * 4 * 16 * 4);
        assert_eq!(found.ranks[3].kv_bytes_per_token, 2 * 2 * 16 * 4);
        assert_eq!(found.state_bytes_per_sequence, 6 * 4 * (8 * 16 * 16 + 3 * 256));
        let stored: u64 = found.stored_bytes.values().sum();
        assert_eq!(found.stored_bytes.keys().collect::<Vec<_>>(), ["BF16", "F32"]);
        assert!(stored < 3_526_904 && stored > 3_500_000);

        let text = found.to_string();
        assert!(text.contains("parameters          1,757,568\n"), "{text}");
        assert!(text.contains("mapped              108\n"), "{text}");
        assert!(text.contains("  and 88 more, which --json lists"), "{text}");
        assert!(text.contains("missing             0"), "{text}");
        let value = serde_json::to_value(&found).unwrap();
        assert_eq!(value["tensors"]["mapped"].as_array().unwrap().len(), 108);
        assert_eq!(value["config"]["dtype"], "bfloat16");
        assert_eq!(value["ranks"][1]["shard"]["vocab"]["start"], 256);
    }

    #[test]
    fn what_is_ignored_is_named_with_the_reason() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tiny-sharded");
        let found = report(&Checkpoint::open(&path).unwrap(), 1).unwrap();
        let text = found.to_string();
        assert!(text.contains("mtp.fc.weight (multi-token prediction)"), "{text}");
        assert!(text.contains("model.visual.patch_embed.proj.bias (vision tower)"), "{text}");
        assert!(text.contains("files not used      1\n  expected.safetensors"), "{text}");
    }

    #[test]
    fn a_damaged_checkpoint_is_reported_not_refused() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tiny-sharded");
        let directory = tempfile::tempdir().unwrap();
        for file in
            ["config.json", "model.safetensors.index.json", "model-00001-of-00003.safetensors"]
        {
            fs::copy(source.join(file), directory.path().join(file)).unwrap();
        }
        let found = report(&Checkpoint::survey(directory.path()).unwrap(), 2).unwrap();
        assert!(!found.is_sound());
        let text = found.to_string();
        assert!(text.contains("model-00002-of-00003.safetensors is not there, though"), "{text}");
        assert!(text.contains("\nmissing             "), "{text}");
    }

    #[test]
    fn a_size_that_does_not_divide_is_refused() {
        let refusal = report(&Checkpoint::demo().unwrap(), 3).unwrap_err().to_string();
        assert!(refusal.contains("sizes that work: 1, 2, 4"), "{refusal}");
    }

    #[test]
    fn digits_are_grouped() {
        assert_eq!([0, 999, 1000, 1_757_568].map(grouped), ["0", "999", "1,000", "1,757,568"]);
    }
}
