//! How much memory a model takes, rank by rank, before any weight is read.
//!
//! The plan adds up what the ranks will reserve: weights as the device packs them, keys and values,
//! recurrent state, the activations of the largest step, and the segment the ranks meet in. What does
//! not fit is refused with the numbers, and with the largest setting that would. Workspaces of kernels
//! are left out: under a MiB for each thread, whatever the settings.

mod host;
mod sizing;

use std::fmt;

use pocket_device::{KV_BLOCK_TOKENS, KvDtype};
use serde::Serialize;

use crate::forward::{HEAD_ROWS, ModelLimits, matrices};
use crate::{LayerKind, ModelConfig, ModelError, Shard};

pub use host::HostMemory;
pub use sizing::{KvBudget, Sizing};

/// KV blocks that let each of `slots` sequences grow to `max_model_len` tokens.
pub fn kv_blocks(max_model_len: usize, slots: usize) -> usize {
    max_model_len.div_ceil(KV_BLOCK_TOKENS).saturating_mul(slots)
}

/// Bytes one rank reserves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RankMemory {
    /// Matrices as the device packs them, and the small float32 parameters.
    pub weights: u64,
    /// Keys and values of all blocks.
    pub kv_cache: u64,
    /// Recurrent and convolution state of all slots.
    pub recurrent_state: u64,
    /// Activations of the largest step.
    pub activations: u64,
}

impl RankMemory {
    /// All of it.
    pub fn total(&self) -> u64 {
        [self.weights, self.kv_cache, self.recurrent_state, self.activations]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    fn of(
        config: &ModelConfig,
        shard: &Shard,
        limits: &ModelLimits,
        packed_bytes: fn(usize, usize) -> u64,
    ) -> RankMemory {
        let packed = matrices(config, shard)
            .into_iter()
            .map(|(outputs, inputs)| packed_bytes(outputs, inputs))
            .fold(0, u64::saturating_add);
        let state = shard.linear_shape(config).state_bytes();
        let states = (config.linear_layers() as u64).saturating_mul(limits.slots as u64);
        RankMemory {
            weights: packed.saturating_add(small_parameters(config, shard)),
            kv_cache: block_bytes(config, shard, limits.kv_dtype)
                .saturating_mul(limits.kv_blocks as u64),
            recurrent_state: state.saturating_mul(states),
            activations: activations(config, shard, limits.max_rows),
        }
    }
}

/// What a model takes over all ranks, and what there is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryPlan {
    /// What the model is to be loaded for.
    pub limits: ModelLimits,
    /// Bytes each rank reserves, by rank.
    pub ranks: Vec<RankMemory>,
    /// Bytes of the segment the ranks meet in.
    pub shared_segment: u64,
    /// Bytes over all ranks, the segment included.
    pub total: u64,
    /// What the host has left.
    pub available: HostMemory,
    /// The longest context of which one sequence fits with as many slots and rows; none when not even
    /// one KV block does.
    pub largest_max_model_len: Option<usize>,
    /// The most slots that fit with as many prompt rows and one sequence of the context; none when not
    /// even one does.
    pub largest_slots: Option<usize>,
}

impl MemoryPlan {
    /// Plans `config` over `world` ranks for `limits`. `packed_bytes` is the device's
    /// ([`pocket_device::Device::packed_bytes`]); `shared_segment` is in bytes. Refuses limits the
    /// model cannot have, whatever the memory; whether it fits, [`MemoryPlan::check`] says.
    pub fn new(
        config: &ModelConfig,
        world: usize,
        limits: ModelLimits,
        packed_bytes: fn(usize, usize) -> u64,
        shared_segment: u64,
        available: HostMemory,
    ) -> Result<MemoryPlan, ModelError> {
        check_context(config, &limits)?;
        let (shards, ranks): (Vec<Shard>, Vec<RankMemory>) =
            MemoryPlan::ranks(config, world, &limits, packed_bytes)?.into_iter().unzip();
        let total = ranks.iter().map(RankMemory::total).fold(shared_segment, u64::saturating_add);

        // What is left beside everything but keys and values goes to blocks.
        let kv: u64 = ranks.iter().map(|rank| rank.kv_cache).fold(0, u64::saturating_add);
        let block: u64 =
            shards.iter().map(|shard| block_bytes(config, shard, limits.kv_dtype)).sum();
        let longest = config.max_position_embeddings;
        let largest_max_model_len = available.bytes.checked_sub(total - kv).and_then(|room| {
            match room.checked_div(block) {
                None => Some(longest),
                Some(0) => None,
                Some(blocks) => {
                    Some(longest.min((blocks as usize).saturating_mul(KV_BLOCK_TOKENS)))
                }
            }
        });
        let one_sequence = kv_blocks(limits.max_model_len, 1) as u64;
        let sizing = Sizing { config, world, packed_bytes, shared_segment, available };
        let largest_slots =
            sizing.largest_slots(&limits, KvBudget::Bytes(block.saturating_mul(one_sequence)));
        Ok(MemoryPlan {
            limits,
            ranks,
            shared_segment,
            total,
            available: sizing.available,
            largest_max_model_len,
            largest_slots,
        })
    }

    /// Each rank's share, and the memory it takes.
    pub(crate) fn ranks(
        config: &ModelConfig,
        world: usize,
        limits: &ModelLimits,
        packed_bytes: fn(usize, usize) -> u64,
    ) -> Result<Vec<(Shard, RankMemory)>, ModelError> {
        // At least one, so that an impossible world is refused and not taken for an empty one.
        (0..world.max(1))
            .map(|rank| {
                let shard = Shard::new(config, rank, world)?;
                let memory = RankMemory::of(config, &shard, limits, packed_bytes);
                Ok((shard, memory))
            })
            .collect()
    }

    /// Refuses a plan that does not fit, with the numbers and what to change.
    pub fn check(&self) -> Result<(), ModelError> {
        if self.total <= self.available.bytes {
            return Ok(());
        }
        let advice = match self.largest_max_model_len {
            Some(longest) if longest < self.limits.max_model_len => {
                format!("the largest max-model-len that fits is {longest}")
            }
            Some(_) => self.advice_on_blocks(),
            None => self.advice_without_context(),
        };
        Err(ModelError::Memory {
            slots: self.limits.slots,
            context: self.limits.max_model_len,
            needed: Bytes(self.total),
            available: Bytes(self.available.bytes),
            from: self.available.from.clone(),
            advice,
        })
    }

    /// What to do when the context fits, but not as many KV blocks.
    fn advice_on_blocks(&self) -> String {
        let kv: u64 = self.ranks.iter().map(|rank| rank.kv_cache).fold(0, u64::saturating_add);
        let room = Bytes(self.available.bytes.saturating_sub(self.total - kv));
        format!("keys and values take {}, {room} is left for them; lower the KV budget", Bytes(kv))
    }

    /// What to do when no context fits: fewer sequences or rows, or another machine.
    fn advice_without_context(&self) -> String {
        let sum = |part: fn(&RankMemory) -> u64| Bytes(self.ranks.iter().map(part).sum());
        let (weights, state) = (sum(|rank| rank.weights), sum(|rank| rank.recurrent_state));
        let activations = sum(|rank| rank.activations);
        if weights.0.saturating_add(self.shared_segment) > self.available.bytes {
            return format!("the weights alone take {weights}; use a smaller model");
        }
        let slots = match self.largest_slots {
            Some(slots) => format!(" (the largest that fits is {slots})"),
            None => String::new(),
        };
        format!(
            "weights take {weights}, the state of {} sequences {state}, the activations of {} rows \
             {activations}; lower max-num-seqs{slots} or max-num-batched-tokens",
            self.limits.slots, self.limits.max_rows
        )
    }
}

/// Refuses a context the model does not have, or none.
fn check_context(config: &ModelConfig, limits: &ModelLimits) -> Result<(), ModelError> {
    let longest = config.max_position_embeddings;
    if !(1..=longest).contains(&limits.max_model_len) {
        return Err(ModelError::ContextLength { asked: limits.max_model_len, longest });
    }
    Ok(())
}

/// Bytes of one KV block on a rank, over all layers.
fn block_bytes(config: &ModelConfig, shard: &Shard, dtype: KvDtype) -> u64 {
    shard.kv_shape(config, 1, dtype).block_bytes()
}

/// Bytes of the parameters kept as float32: norms, biases, convolutions, decays.
fn small_parameters(config: &ModelConfig, shard: &Shard) -> u64 {
    let hidden = config.hidden_size;
    let attention = shard.attention_shape(config);
    let linear = shard.linear_shape(config);
    let layer = |kind: &LayerKind| {
        let mixer = match kind {
            LayerKind::Full if config.attention_bias => {
                2 * config.head_dim + attention.projection() + hidden
            }
            LayerKind::Full => 2 * config.head_dim,
            LayerKind::Linear => {
                linear.channels() * linear.kernel + 2 * linear.value_heads + linear.value_dim
            }
        };
        mixer + 2 * hidden
    };
    let numbers = hidden + config.layers.iter().map(layer).sum::<usize>();
    4 * numbers as u64
}

/// Bytes of the activations of a step of `rows` rows: every tensor the forward pass keeps, float32.
fn activations(config: &ModelConfig, shard: &Shard, rows: usize) -> u64 {
    let hidden = config.hidden_size;
    let attention = shard.attention_shape(config);
    let linear = shard.linear_shape(config);
    // The residual stream, its norm, and what a layer adds to it.
    let columns = 3 * hidden
        + attention.projection()
        + attention.heads * attention.head_dim
        + attention.rotary_dim
        + linear.projection()
        + linear.value_heads * linear.value_dim
        + 3 * shard.intermediate.len();
    let head_columns = 2 * hidden + shard.vocab.len();
    let of = |columns: usize, rows: usize| (4 * columns as u64).saturating_mul(rows as u64);
    of(columns, rows).saturating_add(of(head_columns, rows.min(HEAD_ROWS)))
}

/// A number of bytes, shown with a binary unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return to.pad(&format!("{} B", self.0));
        }
        let mut size = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while size >= 1024.0 && unit + 1 < UNITS.len() {
            size /= 1024.0;
            unit += 1;
        }
        to.pad(&format!("{size:.1} {}", UNITS[unit]))
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = &self.limits;
        writeln!(
            to,
            "memory plan: {} rank{}, {} sequences of up to {} tokens, {} KV blocks of {}, {} rows a step",
            self.ranks.len(),
            if self.ranks.len() == 1 { "" } else { "s" },
            limits.slots,
            limits.max_model_len,
            limits.kv_blocks,
            limits.kv_dtype,
            limits.max_rows
        )?;
        let mut line = |name: &str, cells: [String; 5]| {
            write!(to, "{name:<16}")?;
            for cell in cells {
                write!(to, "{cell:>13}")?;
            }
            writeln!(to)
        };
        let heads = ["weights", "KV cache", "recurrent", "activations", "total"];
        line("", heads.map(str::to_owned))?;
        let cells = |rank: &RankMemory| {
            [rank.weights, rank.kv_cache, rank.recurrent_state, rank.activations, rank.total()]
                .map(|bytes| Bytes(bytes).to_string())
        };
        for (rank, memory) in self.ranks.iter().enumerate() {
            line(&format!("rank {rank}"), cells(memory))?;
        }
        writeln!(to, "{:<16}{:>65}", "shared segment", Bytes(self.shared_segment))?;
        writeln!(to, "{:<16}{:>65}", "needed", Bytes(self.total))?;
        write!(
            to,
            "{:<16}{:>65} ({})",
            "available",
            Bytes(self.available.bytes),
            self.available.from
        )
    }
}

#[cfg(test)]
mod tests;
