//! What a forward call asks of the machine.

use anyhow::Context;
use pocket_device::cpu::packed_bytes;
use pocket_model::forward::matrices;
use pocket_model::{ModelConfig, Shard};
use serde::Serialize;

/// Work of one forward call, all ranks together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Work {
    /// Weight bytes it reads, once.
    pub bytes: u64,
    /// Floating-point operations of its matrix products.
    pub flops: u64,
}

impl Work {
    /// Of a model over `world` ranks, for a call of `rows` rows, `outputs` of which go through the head.
    pub fn of(
        config: &ModelConfig,
        world: usize,
        rows: usize,
        outputs: usize,
    ) -> anyhow::Result<Work> {
        let (mut all_bytes, mut all_flops) = (0, 0);
        for rank in 0..world {
            let sizes = matrices(config, &Shard::new(config, rank, world)?);
            // The embedding comes first. Tied, it is the head as well and is read whole; untied, a
            // step touches one row of it, and the head comes last.
            let (embedding, rest) = sizes.split_first().context("a model without matrices")?;
            let (head, layers) = if config.tie_word_embeddings {
                (embedding, rest)
            } else {
                rest.split_last().context("a model without a head")?
            };
            let bytes = |(outputs, inputs): &(usize, usize)| packed_bytes(*outputs, *inputs);
            all_bytes += bytes(head) + layers.iter().map(bytes).sum::<u64>();
            let flops = |(outputs, inputs): &(usize, usize)| 2 * (outputs * inputs) as u64;
            all_flops += rows as u64 * layers.iter().map(flops).sum::<u64>();
            all_flops += outputs as u64 * flops(head);
        }
        Ok(Work { bytes: all_bytes, flops: all_flops })
    }
}

/// One side of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mark {
    /// What the machine can do, per second.
    pub limit: f64,
    /// What the engine did, per second, in its best repeat.
    pub engine: f64,
    /// `engine / limit`.
    pub share: f64,
}

impl Mark {
    /// What the engine did beside what the machine can do.
    pub fn new(limit: f64, engine: f64) -> Mark {
        Mark { limit, engine, share: engine / limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demo() -> ModelConfig {
        pocket_model::Checkpoint::demo().unwrap().config().clone()
    }

    #[test]
    fn work_counts_every_weight_once_whatever_the_ranks() {
        let mut config = demo();
        let one = Work::of(&config, 1, 1, 1).unwrap();
        // Tied: every matrix parameter is read once, two bytes, and multiplied once, two operations.
        let (bytes, flops) = (one.bytes as f64, one.flops as f64);
        assert!((1.0..1.1).contains(&(bytes / flops)), "{bytes} bytes: only padding comes on top");
        let two = Work::of(&config, 2, 1, 1).unwrap();
        assert_eq!(two.flops, one.flops);
        let long = Work::of(&config, 1, 512, 1).unwrap();
        let head = 2 * (config.vocab_size * config.hidden_size) as u64;
        assert_eq!(long.flops - head, 512 * (one.flops - head));
        // Untied: a second vocabulary matrix exists, but a step reads one of the two.
        config.tie_word_embeddings = false;
        assert_eq!(Work::of(&config, 1, 1, 1).unwrap(), one);
    }
}
