//! Which packed matrices a rank holds: how the layers fuse their projections, as sizes only. Loading
//! reports its progress against it, and the memory plan counts it before any weight is read.

use crate::config::{LayerKind, ModelConfig};
use crate::shard::Shard;

/// `(outputs, inputs)` of every packed matrix of `shard`, in the order they are loaded.
pub fn matrices(config: &ModelConfig, shard: &Shard) -> Vec<(usize, usize)> {
    let hidden = config.hidden_size;
    let attention = shard.attention_shape(config);
    let linear = shard.linear_shape(config);
    let mlp = shard.intermediate.len();

    let mut sizes = vec![(shard.vocab.len(), hidden)];
    for kind in &config.layers {
        match kind {
            LayerKind::Full => {
                sizes.push((attention.projection(), hidden));
                sizes.push((hidden, attention.heads * attention.head_dim));
            }
            LayerKind::Linear => {
                sizes.push((linear.projection(), hidden));
                sizes.push((hidden, linear.value_heads * linear.value_dim));
            }
        }
        sizes.push((2 * mlp, hidden));
        sizes.push((hidden, mlp));
    }
    if !config.tie_word_embeddings {
        sizes.push((shard.vocab.len(), hidden));
    }
    sizes
}
