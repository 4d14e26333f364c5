//! The tensors a Qwen3.5 checkpoint holds: their names, their shapes, and which are left alone.
//!
//! Inside this program a tensor has one name, the text-only one. A multimodal file keeps the language
//! model under `model.language_model.`; [`role`] takes that prefix off.

use crate::{LayerKind, ModelConfig};

/// The embedding, `[vocab, hidden]`.
pub const EMBEDDING: &str = "model.embed_tokens.weight";
/// The head, `[vocab, hidden]`; absent when tied to the embedding.
pub const HEAD: &str = "lm_head.weight";
/// The final norm, `[hidden]`.
pub const FINAL_NORM: &str = "model.norm.weight";

/// Prefix of a layer's tensors.
pub fn layer_prefix(layer: usize) -> String {
    format!("model.layers.{layer}.")
}

/// A tensor the model cannot run without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needed {
    /// Its name, without any prefix variant.
    pub name: String,
    /// Its whole shape, outputs first.
    pub shape: Vec<usize>,
}

/// Every tensor the model needs, in the order of the forward pass.
pub fn needed(config: &ModelConfig) -> Vec<Needed> {
    let mut all = Vec::new();
    let mut add = |name: String, shape: &[usize]| {
        all.push(Needed { name, shape: shape.to_vec() });
    };
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    add(EMBEDDING.to_owned(), &[config.vocab_size, hidden]);
    for (layer, kind) in config.layers.iter().enumerate() {
        let prefix = layer_prefix(layer);
        let mut add = |name: &str, shape: &[usize]| add(format!("{prefix}{name}"), shape);
        add("input_layernorm.weight", &[hidden]);
        match kind {
            LayerKind::Full => full_attention(config, &mut add),
            LayerKind::Linear => linear_attention(config, &mut add),
        }
        add("post_attention_layernorm.weight", &[hidden]);
        add("mlp.gate_proj.weight", &[inner, hidden]);
        add("mlp.up_proj.weight", &[inner, hidden]);
        add("mlp.down_proj.weight", &[hidden, inner]);
    }
    add(FINAL_NORM.to_owned(), &[hidden]);
    if !config.tie_word_embeddings {
        add(HEAD.to_owned(), &[config.vocab_size, hidden]);
    }
    all
}

fn full_attention(config: &ModelConfig, add: &mut impl FnMut(&str, &[usize])) {
    let (hidden, dim) = (config.hidden_size, config.head_dim);
    // Every query head carries its gate.
    let (queries, keys) = (2 * config.heads * dim, config.kv_heads * dim);
    add("self_attn.q_proj.weight", &[queries, hidden]);
    add("self_attn.k_proj.weight", &[keys, hidden]);
    add("self_attn.v_proj.weight", &[keys, hidden]);
    add("self_attn.o_proj.weight", &[hidden, config.heads * dim]);
    if config.attention_bias {
        add("self_attn.q_proj.bias", &[queries]);
        add("self_attn.k_proj.bias", &[keys]);
        add("self_attn.v_proj.bias", &[keys]);
        add("self_attn.o_proj.bias", &[hidden]);
    }
    add("self_attn.q_norm.weight", &[dim]);
    add("self_attn.k_norm.weight", &[dim]);
}

fn linear_attention(config: &ModelConfig, add: &mut impl FnMut(&str, &[usize])) {
    let hidden = config.hidden_size;
    let channels = config.linear_shape().channels();
    let heads = config.linear_value_heads;
    let values = heads * config.linear_value_dim;
    add("linear_attn.in_proj_qkv.weight", &[channels, hidden]);
    add("linear_attn.in_proj_z.weight", &[values, hidden]);
    add("linear_attn.in_proj_b.weight", &[heads, hidden]);
    add("linear_attn.in_proj_a.weight", &[heads, hidden]);
    add("linear_attn.conv1d.weight", &[channels, 1, config.linear_kernel]);
    add("linear_attn.dt_bias", &[heads]);
    add("linear_attn.A_log", &[heads]);
    add("linear_attn.norm.weight", &[config.linear_value_dim]);
    add("linear_attn.out_proj.weight", &[hidden, values]);
}

/// What a stored name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// A tensor of the language model, under its one name; whether it is needed, [`needed`] says.
    Model(String),
    /// Left alone, and why.
    Ignored(&'static str),
}

/// What a name in a file stands for.
pub fn role(stored: &str, config: &ModelConfig) -> Role {
    if stored.starts_with("model.visual.") {
        Role::Ignored("vision tower")
    } else if stored.starts_with("mtp.") {
        Role::Ignored("multi-token prediction")
    } else if stored == HEAD && config.tie_word_embeddings {
        // Some exporters write the shared matrix under both names; config.json says which one counts.
        Role::Ignored("tied to the embedding")
    } else {
        match stored.strip_prefix("model.language_model.") {
            Some(rest) => Role::Model(format!("model.{rest}")),
            None => Role::Model(stored.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_name_for_both_layouts() {
        let config = crate::config::small();
        for stored in [
            "model.language_model.layers.0.mlp.up_proj.weight",
            "model.layers.0.mlp.up_proj.weight",
        ] {
            let expected = Role::Model("model.layers.0.mlp.up_proj.weight".to_owned());
            assert_eq!(role(stored, &config), expected);
        }
        assert_eq!(role("mtp.fc.weight", &config), Role::Ignored("multi-token prediction"));
        assert_eq!(role("model.visual.blocks.0.x", &config), Role::Ignored("vision tower"));
        // Tied: the head is the embedding, whatever the file holds beside it.
        assert_eq!(role(HEAD, &config), Role::Ignored("tied to the embedding"));
        let untied = ModelConfig { tie_word_embeddings: false, ..config };
        assert_eq!(role(HEAD, &untied), Role::Model(HEAD.to_owned()));
    }

    #[test]
    fn biases_and_head_are_needed_only_when_configured() {
        let small = crate::config::small();
        let names = |config: &ModelConfig| -> Vec<String> {
            needed(config).into_iter().map(|tensor| tensor.name).collect()
        };
        let plain = names(&small);
        assert!(!plain.iter().any(|name| name.ends_with("proj.bias") || name == HEAD));
        let config = ModelConfig { attention_bias: true, tie_word_embeddings: false, ..small };
        let more: Vec<String> =
            names(&config).into_iter().filter(|name| !plain.contains(name)).collect();
        assert_eq!(
            more,
            [
                "model.layers.3.self_attn.q_proj.bias",
                "model.layers.3.self_attn.k_proj.bias",
                "model.layers.3.self_attn.v_proj.bias",
                "model.layers.3.self_attn.o_proj.bias",
                "lm_head.weight"
            ]
        );
    }
}
