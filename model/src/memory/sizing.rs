//! Chooses the sizes that memory decides: KV blocks for a budget, and how many sequences fit.

use pocket_device::KV_BLOCK_TOKENS;
use serde::{Deserialize, Serialize};

use super::{Bytes, HostMemory, MemoryPlan, RankMemory, block_bytes, kv_blocks};
use crate::forward::ModelLimits;
use crate::{ModelConfig, ModelError};

/// What keys and values may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvBudget {
    /// So many bytes over all ranks together, rounded down to whole blocks.
    Bytes(u64),
    /// This part (from 0 to 1) of what is available beside weights, recurrent state, activations and
    /// segment, but never more than the full context of every slot takes.
    FractionOfFree(f64),
    /// The full context of every slot, but at most half of what is available beside the rest.
    #[default]
    Auto,
}

impl KvBudget {
    /// Bytes to take of those that are free, and the words for them.
    fn room(self, free: u64) -> (u64, String) {
        match self {
            KvBudget::Bytes(bytes) => (bytes, format!("the KV budget of {}", Bytes(bytes))),
            KvBudget::FractionOfFree(part) => {
                // The conversion saturates: below zero and what is not a number become zero.
                let bytes = ((free as f64 * part) as u64).min(free);
                (bytes, format!("the KV budget of {part} of the {} free", Bytes(free)))
            }
            KvBudget::Auto => (free / 2, format!("half of the {} free", Bytes(free))),
        }
    }
}

/// A model on a machine, before its sizes are settled.
#[derive(Clone, Debug)]
pub struct Sizing<'a> {
    /// The model.
    pub config: &'a ModelConfig,
    /// Number of ranks.
    pub world: usize,
    /// The device's [`packed_bytes`](pocket_device::Device::packed_bytes).
    pub packed_bytes: fn(usize, usize) -> u64,
    /// Bytes of the segment the ranks meet in.
    pub shared_segment: u64,
    /// What the host has left.
    pub available: HostMemory,
}

/// What limits take over all ranks.
struct Costs {
    /// Everything but keys and values.
    fixed: u64,
    /// One KV block.
    block: u64,
}

impl Sizing<'_> {
    /// The plan for settled limits, see [`MemoryPlan::new`].
    pub fn plan(&self, limits: ModelLimits) -> Result<MemoryPlan, ModelError> {
        MemoryPlan::new(
            self.config,
            self.world,
            limits,
            self.packed_bytes,
            self.shared_segment,
            self.available.clone(),
        )
    }

    /// KV blocks for `limits`, whose own number of blocks does not count. Refuses a budget that does
    /// not hold one sequence of `max_model_len` tokens. Whether a budget in bytes is there at all,
    /// [`MemoryPlan::check`] says.
    pub fn kv_blocks(&self, limits: &ModelLimits, budget: KvBudget) -> Result<usize, ModelError> {
        let costs = self.costs(limits)?;
        let blocks = self.blocks_for(limits, budget, &costs);
        let needed = kv_blocks(limits.max_model_len, 1);
        if blocks >= needed {
            return Ok(blocks);
        }
        if costs.fixed > self.available.bytes {
            // The rest is too large already, and that is what to say.
            self.plan(ModelLimits { kv_blocks: needed, ..*limits })?.check()?;
        }
        let (room, budget) = budget.room(self.available.bytes.saturating_sub(costs.fixed));
        Err(ModelError::KvBudget {
            slots: limits.slots,
            context: limits.max_model_len,
            needed: Bytes(costs.block.saturating_mul(needed as u64)),
            there: Bytes(room),
            budget,
            largest: blocks.saturating_mul(KV_BLOCK_TOKENS),
        })
    }

    /// The most slots, up to those of `limits`, that fit with everything else as it is: the same
    /// prompt rows a step (`max_rows` includes a row for each slot) and KV blocks as the budget gives
    /// them. None when not even one does.
    pub fn largest_slots(&self, limits: &ModelLimits, budget: KvBudget) -> Option<usize> {
        let fits = |slots: usize| {
            let max_rows = limits.max_rows.saturating_sub(limits.slots - slots).max(1);
            let limits = ModelLimits { slots, max_rows, ..*limits };
            self.costs(&limits).is_ok_and(|costs| {
                let blocks = self.blocks_for(&limits, budget, &costs);
                let kv = costs.block.saturating_mul(blocks as u64);
                blocks >= kv_blocks(limits.max_model_len, 1)
                    && costs.fixed.saturating_add(kv) <= self.available.bytes
            })
        };
        // Fewer slots never take more: `below` fits or is zero, `above` does not.
        let (mut below, mut above) = (0, limits.slots);
        if above > 0 && fits(above) {
            return Some(above);
        }
        while above - below > 1 {
            let middle = below + (above - below) / 2;
            if fits(middle) {
                below = middle;
            } else {
                above = middle;
            }
        }
        (below > 0).then_some(below)
    }

    fn costs(&self, limits: &ModelLimits) -> Result<Costs, ModelError> {
        super::check_context(self.config, limits)?;
        let without = ModelLimits { kv_blocks: 0, ..*limits };
        let ranks = MemoryPlan::ranks(self.config, self.world, &without, self.packed_bytes)?;
        let fixed = ranks
            .iter()
            .map(|(_, memory)| RankMemory::total(memory))
            .fold(self.shared_segment, u64::saturating_add);
        let block =
            ranks.iter().map(|(shard, _)| block_bytes(self.config, shard, limits.kv_dtype)).sum();
        Ok(Costs { fixed, block })
    }

    fn blocks_for(&self, limits: &ModelLimits, budget: KvBudget, costs: &Costs) -> usize {
        let all = kv_blocks(limits.max_model_len, limits.slots);
        let (room, _) = budget.room(self.available.bytes.saturating_sub(costs.fixed));
        // A model without full attention keeps no keys and values.
        let Some(blocks) = room.checked_div(costs.block) else { return all };
        let blocks = usize::try_from(blocks).unwrap_or(usize::MAX);
        if matches!(budget, KvBudget::Bytes(_)) { blocks } else { blocks.min(all) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{GIB, available, largest, limits};
    use super::*;

    fn sizing(config: &ModelConfig, bytes: u64) -> Sizing<'_> {
        Sizing {
            config,
            world: 2,
            packed_bytes: pocket_device::cpu::packed_bytes,
            shared_segment: 32 << 20,
            available: available(bytes),
        }
    }

    /// Bytes that are free beside everything but keys and values.
    fn free(sizing: &Sizing<'_>, limits: &ModelLimits) -> u64 {
        sizing.available.bytes - sizing.costs(limits).unwrap().fixed
    }

    const BLOCK: u64 = 16 * 2 * 4 * 256 * 64 * 4;

    #[test]
    fn bytes_are_those_of_all_ranks_in_whole_blocks() {
        let config = largest();
        let (sizing, limits) = (sizing(&config, 80 * GIB), limits(4096, 2));
        for (bytes, blocks) in [(64 * BLOCK, 64), (65 * BLOCK - 1, 64), (65 * BLOCK, 65)] {
            assert_eq!(sizing.kv_blocks(&limits, KvBudget::Bytes(bytes)).unwrap(), blocks);
        }
        let half = ModelLimits { kv_dtype: pocket_device::KvDtype::Bf16, ..limits };
        assert_eq!(sizing.kv_blocks(&half, KvBudget::Bytes(64 * BLOCK)).unwrap(), 128);
        // More than there is: the plan refuses it.
        let blocks = sizing.kv_blocks(&limits, KvBudget::Bytes(1 << 40)).unwrap();
        assert!(sizing.plan(ModelLimits { kv_blocks: blocks, ..limits }).unwrap().check().is_err());
    }

    #[test]
    fn a_part_of_what_is_free_is_taken_up_to_every_slots_context() {
        let config = largest();
        let sizing = sizing(&config, 80 * GIB);
        let many = limits(16_384, 64);
        let blocks = |part| sizing.kv_blocks(&many, KvBudget::FractionOfFree(part)).unwrap();
        let free = free(&sizing, &many);
        assert_eq!(blocks(0.5) as u64, free / 2 / BLOCK);
        assert_eq!(blocks(1.0) as u64, free / BLOCK);
        assert_eq!(blocks(7.0), blocks(1.0));
        let plan = sizing.plan(ModelLimits { kv_blocks: blocks(1.0), ..many }).unwrap();
        assert!(plan.check().is_ok() && plan.total > 80 * GIB - BLOCK);
        let few = limits(640, 3);
        assert_eq!(sizing.kv_blocks(&few, KvBudget::FractionOfFree(0.9)).unwrap(), 30);
        for part in [0.0, -1.0, f64::NAN] {
            assert!(sizing.kv_blocks(&few, KvBudget::FractionOfFree(part)).is_err());
        }
    }

    #[test]
    fn by_default_every_slot_has_its_context_within_half_of_what_is_free() {
        let config = largest();
        let sizing = sizing(&config, 80 * GIB);
        assert_eq!(sizing.kv_blocks(&limits(4096, 8), KvBudget::Auto).unwrap(), 8 * 64);
        let many = limits(16_384, 64);
        let blocks = sizing.kv_blocks(&many, KvBudget::Auto).unwrap();
        assert_eq!(blocks as u64, free(&sizing, &many) / 2 / BLOCK);
        assert!((256..64 * 256).contains(&blocks));
    }

    #[test]
    fn a_budget_that_holds_no_sequence_is_refused_with_the_numbers() {
        let config = largest();
        let sizing = sizing(&config, 80 * GIB);
        let message = |context, budget| {
            sizing.kv_blocks(&limits(context, 4), budget).unwrap_err().to_string()
        };
        assert_eq!(
            message(4096, KvBudget::Bytes(63 * BLOCK)),
            "max-model-len is 4096, of which one sequence needs 512.0 MiB of keys and values, and the \
             KV budget of 504.0 MiB leaves 504.0 MiB for all slots (max-num-seqs 4): the largest \
             max-model-len that fits is 4032"
        );
        let none = message(64, KvBudget::Bytes(BLOCK - 1));
        assert!(none.ends_with("no context fits, raise the KV budget"), "{none}");
        let half = message(262_144, KvBudget::Auto);
        assert!(half.contains("and half of the "), "{half}");
        // What it names does fit.
        let longest = half.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(sizing.kv_blocks(&limits(longest, 4), KvBudget::Auto).is_ok());
        assert!(sizing.kv_blocks(&limits(longest + 1, 4), KvBudget::Auto).is_err());
        // Where the weights are too large, that is what is said.
        let small = self::sizing(&config, 20 * GIB);
        let weights = small.kv_blocks(&limits(64, 1), KvBudget::Auto).unwrap_err().to_string();
        assert!(weights.contains("the weights alone take"), "{weights}");
        let long = small.kv_blocks(&limits(1 << 20, 1), KvBudget::Auto).unwrap_err();
        assert!(matches!(long, ModelError::ContextLength { .. }), "{long}");
    }

    #[test]
    fn the_most_slots_are_those_whose_state_fits_beside_the_rest() {
        let config = largest();
        let sizing = sizing(&config, 60 * GIB);
        for budget in [KvBudget::Auto, KvBudget::FractionOfFree(0.9), KvBudget::Bytes(GIB)] {
            let asked = limits(4096, 512);
            let most = sizing.largest_slots(&asked, budget).unwrap();
            assert!((8..512).contains(&most), "{most}");
            let fits = |slots: usize| {
                let max_rows = asked.max_rows - (asked.slots - slots);
                let limits = ModelLimits { slots, max_rows, ..asked };
                sizing.kv_blocks(&limits, budget).is_ok_and(|kv_blocks| {
                    sizing.plan(ModelLimits { kv_blocks, ..limits }).unwrap().check().is_ok()
                })
            };
            assert!(fits(most) && !fits(most + 1), "{most}");
            assert_eq!(sizing.largest_slots(&limits(4096, 4), budget), Some(4));
        }
        let small = self::sizing(&config, 20 * GIB);
        assert_eq!(small.largest_slots(&limits(64, 8), KvBudget::Auto), None);
        assert_eq!(sizing.largest_slots(&limits(64, 0), KvBudget::Auto), None);
    }

    #[test]
    fn a_model_without_full_attention_needs_no_budget() {
        let config =
            ModelConfig { layers: vec![crate::LayerKind::Linear; 4], ..crate::config::small() };
        let sizing = sizing(&config, GIB);
        assert_eq!(sizing.kv_blocks(&limits(640, 2), KvBudget::Bytes(0)).unwrap(), 20);
    }
}
