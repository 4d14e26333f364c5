//! Which part of a model each rank holds: a pure function of the model's shape, the rank and the number
//! of ranks.
//!
//! Heads and the MLP's width are split evenly or not at all, because the ranks must finish together.
//! Key/value heads of full attention are the exception: with more ranks than heads, each head is held
//! by several ranks. The vocabulary is split as evenly as it goes, at any size.

use std::ops::Range;

use pocket_device::{AttentionShape, KvDtype, KvShape, LinearShape};
use serde::{Deserialize, Serialize};

use crate::{ModelConfig, ModelError};

/// Most ranks a model is split over: what the shared segment of the all-reduce has room for.
pub const MAX_WORLD: usize = 16;

/// One rank's share of a model, as ranges of the whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// The rank, from 0.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// Query heads of full attention.
    pub heads: Range<usize>,
    /// Key/value heads of full attention; shared with other ranks when there are fewer heads than ranks.
    pub kv_heads: Range<usize>,
    /// Query/key heads of linear attention.
    pub key_heads: Range<usize>,
    /// Value heads of linear attention.
    pub value_heads: Range<usize>,
    /// Rows of the gate and up projections, columns of the down projection.
    pub intermediate: Range<usize>,
    /// Rows of the embedding and of the head; ranks may differ by one, and have none when there are
    /// more ranks than ids.
    pub vocab: Range<usize>,
}

impl Shard {
    /// The share of rank `rank` of `world`. Refused with the numbers, and the sizes that would work,
    /// when the model does not split over `world` ranks.
    pub fn new(config: &ModelConfig, rank: usize, world: usize) -> Result<Shard, ModelError> {
        if let Some(reason) = obstacle(config, world) {
            return Err(ModelError::Split { world, reason, sizes: Shard::sizes(config) });
        }
        if rank >= world {
            return Err(ModelError::NoSuchRank { rank, world });
        }
        let part = |count: usize| rank * count / world..(rank + 1) * count / world;
        // With fewer key/value heads than ranks, `part` is empty or crosses; the head is the one the
        // rank's query heads attend with.
        let kv_heads = if config.kv_heads >= world {
            part(config.kv_heads)
        } else {
            let head = rank * config.kv_heads / world;
            head..head + 1
        };
        Ok(Shard {
            rank,
            world,
            heads: part(config.heads),
            kv_heads,
            key_heads: part(config.linear_key_heads),
            value_heads: part(config.linear_value_heads),
            intermediate: part(config.intermediate_size),
            vocab: part(config.vocab_size),
        })
    }

    /// Numbers of ranks the model splits over, ascending; 1 is always among them.
    pub fn sizes(config: &ModelConfig) -> Vec<usize> {
        (1..=MAX_WORLD).filter(|world| obstacle(config, *world).is_none()).collect()
    }

    /// Full attention of this rank.
    pub fn attention_shape(&self, config: &ModelConfig) -> AttentionShape {
        AttentionShape {
            heads: self.heads.len(),
            kv_heads: self.kv_heads.len(),
            ..config.attention_shape()
        }
    }

    /// Linear attention of this rank.
    pub fn linear_shape(&self, config: &ModelConfig) -> LinearShape {
        LinearShape {
            key_heads: self.key_heads.len(),
            value_heads: self.value_heads.len(),
            ..config.linear_shape()
        }
    }

    /// A KV cache of this rank with `blocks` blocks.
    pub fn kv_shape(&self, config: &ModelConfig, blocks: usize, dtype: KvDtype) -> KvShape {
        KvShape {
            layers: config.full_layers(),
            kv_heads: self.kv_heads.len(),
            head_dim: config.head_dim,
            blocks,
            dtype,
        }
    }
}

/// Why the model does not split over `world` ranks, if it does not.
fn obstacle(config: &ModelConfig, world: usize) -> Option<String> {
    if !(1..=MAX_WORLD).contains(&world) {
        return Some(format!("it has to be from 1 to {MAX_WORLD}"));
    }
    let mut obstacles: Vec<String> = [
        ("num_attention_heads", config.heads),
        ("linear_num_key_heads", config.linear_key_heads),
        ("linear_num_value_heads", config.linear_value_heads),
        ("intermediate_size", config.intermediate_size),
    ]
    .iter()
    .filter(|(_, count)| !count.is_multiple_of(world))
    .map(|(name, count)| format!("it does not divide {name} {count}"))
    .collect();
    let kv = config.kv_heads;
    if !kv.is_multiple_of(world) && !world.is_multiple_of(kv) {
        obstacles
            .push(format!("it neither divides num_key_value_heads {kv} nor is a multiple of it"));
    }
    (!obstacles.is_empty()).then(|| obstacles.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shapes of the table: heads, kv heads, linear key heads, linear value heads, intermediate, vocab.
    fn model(shape: [usize; 6]) -> ModelConfig {
        let [heads, kv_heads, linear_key_heads, linear_value_heads, intermediate_size, vocab_size] =
            shape;
        ModelConfig {
            heads,
            kv_heads,
            linear_key_heads,
            linear_value_heads,
            intermediate_size,
            vocab_size,
            ..crate::config::small()
        }
    }

    const SMALLEST: [usize; 6] = [8, 2, 16, 16, 3584, 248_320];
    const LARGEST: [usize; 6] = [24, 4, 16, 48, 17408, 248_320];

    #[test]
    fn published_shapes_split_over_these_sizes() {
        assert_eq!(Shard::sizes(&model(SMALLEST)), [1, 2, 4, 8]);
        assert_eq!(Shard::sizes(&model(LARGEST)), [1, 2, 4, 8]);
        assert_eq!(Shard::sizes(&model([32, 4, 16, 32, 9216, 248_320])), [1, 2, 4, 8, 16]);
        assert_eq!(Shard::sizes(&model([4, 1, 4, 8, 160, 640])), [1, 2, 4]);
    }

    #[test]
    fn ranges_of_a_rank() {
        // shape, rank, world -> heads, kv heads, key heads, value heads, intermediate, vocab
        type Row = ([usize; 6], usize, usize, [Range<usize>; 6]);
        #[rustfmt::skip]
        let table: [Row; 7] = [
            (SMALLEST, 0, 1, [0..8, 0..2, 0..16, 0..16, 0..3584, 0..248_320]),
            (SMALLEST, 1, 2, [4..8, 1..2, 8..16, 8..16, 1792..3584, 124_160..248_320]),
            (SMALLEST, 1, 4, [2..4, 0..1, 4..8, 4..8, 896..1792, 62_080..124_160]),
            (SMALLEST, 2, 4, [4..6, 1..2, 8..12, 8..12, 1792..2688, 124_160..186_240]),
            (SMALLEST, 7, 8, [7..8, 1..2, 14..16, 14..16, 3136..3584, 217_280..248_320]),
            (LARGEST, 3, 4, [18..24, 3..4, 12..16, 36..48, 13_056..17_408, 186_240..248_320]),
            (LARGEST, 3, 8, [9..12, 1..2, 6..8, 18..24, 6528..8704, 93_120..124_160]),
        ];
        for (shape, rank, world, expected) in table {
            let s = Shard::new(&model(shape), rank, world).unwrap();
            let found = [s.heads, s.kv_heads, s.key_heads, s.value_heads, s.intermediate, s.vocab];
            assert_eq!(found, expected, "rank {rank} of {world}, {shape:?}");
        }
    }

    #[test]
    fn every_rank_attends_with_the_heads_its_queries_need() {
        for shape in [SMALLEST, LARGEST, [16, 16, 16, 64, 16, 10], [16, 1, 16, 16, 64, 5]] {
            let config = model(shape);
            for world in Shard::sizes(&config) {
                let shards: Vec<Shard> =
                    (0..world).map(|rank| Shard::new(&config, rank, world).unwrap()).collect();
                for s in &shards {
                    // Query head h of the whole model attends with kv head h / group.
                    let group = config.heads / config.kv_heads;
                    let needed = s.heads.start / group..(s.heads.end - 1) / group + 1;
                    assert_eq!(s.kv_heads, needed, "rank {} of {world}, {shape:?}", s.rank);
                    let repeat = config.linear_value_heads / config.linear_key_heads;
                    assert_eq!(s.value_heads.start, s.key_heads.start * repeat);
                    assert_eq!(s.value_heads.end, s.key_heads.end * repeat);
                }
                // The split ranges follow one another and cover everything once.
                for pick in [
                    |s: &Shard| s.heads.clone(),
                    |s: &Shard| s.value_heads.clone(),
                    |s: &Shard| s.intermediate.clone(),
                    |s: &Shard| s.vocab.clone(),
                ] {
                    let mut next = 0;
                    for s in &shards {
                        assert_eq!(pick(s).start, next);
                        next = pick(s).end;
                    }
                    assert_eq!(next, pick(&shards[world - 1]).end);
                }
                assert_eq!(shards[world - 1].vocab.end, config.vocab_size);
            }
        }
    }

    #[test]
    fn an_uneven_vocabulary_is_never_a_reason_to_refuse() {
        for vocab in [1, 3, 16, 1021] {
            let config = model([16, 16, 16, 16, 16, vocab]);
            let lengths: Vec<usize> =
                (0..16).map(|rank| Shard::new(&config, rank, 16).unwrap().vocab.len()).collect();
            assert_eq!(lengths.iter().sum::<usize>(), vocab);
            let most = lengths.iter().max().unwrap();
            assert!(lengths.iter().all(|length| most - length <= 1), "{lengths:?}");
        }
    }

    #[test]
    fn refusals_carry_the_numbers_and_the_sizes_that_work() {
        let refusal =
            |shape, rank, world| Shard::new(&model(shape), rank, world).unwrap_err().to_string();
        assert_eq!(
            refusal(SMALLEST, 0, 3),
            "tensor-parallel size 3 does not fit this model: it does not divide num_attention_heads \
             8, it does not divide linear_num_key_heads 16, it does not divide \
             linear_num_value_heads 16, it does not divide intermediate_size 3584, it neither \
             divides num_key_value_heads 2 nor is a multiple of it; sizes that work: 1, 2, 4, 8"
        );
        assert_eq!(
            refusal([8, 8, 8, 8, 12, 640], 0, 8),
            "tensor-parallel size 8 does not fit this model: it does not divide intermediate_size \
             12; sizes that work: 1, 2, 4"
        );
        for world in [0, 17, usize::MAX] {
            let message = refusal(SMALLEST, 0, world);
            assert!(
                message.contains("it has to be from 1 to 16; sizes that work: 1, 2"),
                "{message}"
            );
        }
        assert_eq!(refusal(SMALLEST, 2, 2), "rank 2 of 2: ranks are counted from 0");
    }
}
