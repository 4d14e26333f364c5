//! What the coordinator knows of the model before any weight is read: sizes, the ranks' shares, what
//! ends an answer, and the tokenizer.

use std::sync::Arc;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use pocket_device::cpu::{WeightStore, weight_store_bytes};
use pocket_device::{KV_BLOCK_TOKENS, RECURRENCE_CHUNK};
use pocket_model::checkpoint::Checkpoint;
use pocket_model::forward::{ModelLimits, all_reduces, matrices, weights_identity};
use pocket_model::shard::Shard;
use pocket_model::tokenizer::Tokenizer;

use crate::api::{EngineOptions, ModelSource};
use crate::checkpoint;
use crate::coordinator::Bounds;
use crate::error::EngineError;
use crate::messages::WeightsAt;
use crate::wire::MAX_STEP_ROWS;

/// One rank's packed weights, in memory that outlives it.
pub(crate) struct KeptWeights {
    store: WeightStore,
    identity: [u8; 32],
}

impl KeptWeights {
    /// Room for the weights of a shard.
    fn new(checkpoint: &Checkpoint, shard: &Shard) -> Result<Self, EngineError> {
        let identity = weights_identity(checkpoint, shard);
        let bytes = weight_store_bytes(&matrices(checkpoint.config(), shard));
        Ok(Self { store: WeightStore::create(bytes, identity)?, identity })
    }

    /// Where the rank finds them.
    pub fn place(&self) -> WeightsAt {
        WeightsAt { path: self.store.path(), identity: self.identity }
    }
}

/// See the module.
pub(crate) struct Facts {
    /// What requests are measured against.
    pub bounds: Bounds,
    /// What ranks reserve memory for.
    pub limits: ModelLimits,
    /// Each rank's share.
    pub shards: Vec<Shard>,
    /// Where each rank's packed weights are kept, so that a rank that is started again finds them.
    /// Empty when ranks are never started again.
    pub weights: Vec<KeptWeights>,
    /// Each rank's cores, if there are enough for all.
    pub cpus: Vec<Option<Vec<usize>>>,
    /// All-reduces of each rank in a forward call.
    pub all_reduces_per_pass: u64,
    /// Tokens that end an answer.
    pub eos: Arc<[u32]>,
    /// Absent when the checkpoint has none: requests and answers are then token ids only.
    pub tokenizer: Option<Tokenizer>,
}

impl Facts {
    /// Reads the checkpoint's small files and checks the options against them.
    pub fn gather(options: &EngineOptions) -> Result<Self, EngineError> {
        let refuse = |message: String| Err(EngineError::Options(message));
        let (rows, context) = (options.max_num_batched_tokens, options.max_model_len);
        if rows == 0 || rows > MAX_STEP_ROWS || !rows.is_multiple_of(RECURRENCE_CHUNK) {
            return refuse(format!(
                "--max-num-batched-tokens is {rows}; it must be a multiple of {RECURRENCE_CHUNK}, at \
                 most {MAX_STEP_ROWS}"
            ));
        }
        let slots = options.max_num_seqs;
        if slots == 0 || rows + slots > MAX_STEP_ROWS {
            return refuse(format!(
                "--max-num-seqs is {slots}; it must be at least 1, and at most {} with \
                 --max-num-batched-tokens {rows}",
                MAX_STEP_ROWS.saturating_sub(rows)
            ));
        }
        let least = context.div_ceil(KV_BLOCK_TOKENS);
        if options.kv_blocks < least {
            return refuse(format!(
                "the KV cache has {} blocks; one sequence of --max-model-len {context} takes {least}",
                options.kv_blocks
            ));
        }
        if context == 0 {
            return refuse("--max-model-len is 0; it must be at least 1".to_string());
        }
        if options.threads_per_rank == 0 {
            return refuse("a rank needs at least one thread".to_string());
        }
        if options.stall_timeout.is_zero() || options.load_timeout.is_zero() {
            return refuse("--stall-timeout and --load-timeout must be above 0".to_string());
        }
        if let ModelSource::Directory(path) = &options.model
            && path.to_str().is_none()
        {
            return refuse(format!(
                "the path {} is not UTF-8, so it cannot be told to the ranks; rename it",
                path.display()
            ));
        }
        let checkpoint = checkpoint::open(&options.model)?;
        let config = checkpoint.config();
        // No rank at all is refused by what rank 0 says of it.
        let shards: Vec<Shard> = (0..options.world.max(1))
            .map(|rank| Shard::new(config, rank, options.world))
            .collect::<Result<_, _>>()?;
        let tokenizer = checkpoint::tokenizer(&checkpoint)?;
        let mut eos = checkpoint.generation().eos_token_ids.clone();
        // Chat models name the token that ends a turn here, and not always in the other two files.
        if let Some(id) = tokenizer.as_ref().and_then(Tokenizer::eos_id)
            && !eos.contains(&id)
        {
            eos.push(id);
        }
        Ok(Self {
            bounds: Bounds {
                vocab_size: config.vocab_size,
                max_model_len: context,
                max_rows: rows,
                kv_blocks: options.kv_blocks,
            },
            limits: options.limits(),
            weights: match options.max_restarts {
                0 => Vec::new(),
                _ => shards
                    .iter()
                    .map(|shard| KeptWeights::new(&checkpoint, shard))
                    .collect::<Result<_, _>>()?,
            },
            shards,
            cpus: place(options.world, options.threads_per_rank, &allowed_cpus()),
            all_reduces_per_pass: match options.world {
                0 | 1 => 0,
                _ => all_reduces(config) as u64,
            },
            eos: eos.into(),
            tokenizer,
        })
    }
}

/// The cores this process may use, which a container or `taskset` may have narrowed.
fn allowed_cpus() -> Vec<usize> {
    match sched_getaffinity(Pid::from_raw(0)) {
        Ok(set) => (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect(),
        Err(error) => {
            tracing::warn!(%error, "cannot read the allowed cores; ranks are not pinned");
            Vec::new()
        }
    }
}

/// Gives every compute thread a core of its own. With fewer cores than threads nobody is pinned: two
/// threads pinned to one core would wait for each other while another core is free.
fn place(world: usize, threads: usize, cpus: &[usize]) -> Vec<Option<Vec<usize>>> {
    if world * threads > cpus.len() {
        return vec![None; world];
    }
    cpus.chunks(threads).take(world).map(|cpus| Some(cpus.to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_get_cores_of_their_own_or_none() {
        assert_eq!(place(2, 2, &[0, 2, 4, 6, 8]), [Some(vec![0, 2]), Some(vec![4, 6])]);
        assert_eq!(place(1, 2, &[3, 5]), [Some(vec![3, 5])]);
        assert_eq!(place(2, 1, &[7]), [None, None]);
        assert_eq!(place(4, 1, &[]), [None, None, None, None]);
    }

    #[test]
    fn the_machine_has_a_core_for_this_test() {
        assert!(!allowed_cpus().is_empty());
    }
}
