//! The tensors of a checkpoint: names, shapes, and what they are filled with.

use std::borrow::Cow;

use safetensors::{Dtype, View};

use super::fill::{self, Fill};
use super::shape::Shape;

/// A tensor that is made when it is written: a checkpoint may be larger than memory.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub dtype: Dtype,
    pub fill: Fill,
    pub seed: u64,
}

impl Tensor {
    pub fn bytes(&self) -> usize {
        let width = if self.dtype == Dtype::F32 { 4 } else { 2 };
        self.shape.iter().product::<usize>() * width
    }
}

impl View for &Tensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        fill::bytes(self).into()
    }

    fn data_len(&self) -> usize {
        self.bytes()
    }
}

/// All tensors of a model of this shape, filled so that activations neither vanish nor grow: a
/// projection of n inputs has variance 1/n, and what is added to the residual shrinks with depth.
pub(super) fn random(shape: &Shape, seed: u64) -> Vec<Tensor> {
    let mut tensors = Vec::new();
    let mut add = |name: String, shape: Vec<usize>, dtype: Dtype, fill: Fill| {
        tensors.push(Tensor { name, shape, dtype, fill, seed });
    };
    let Shape { hidden_size: hidden, intermediate_size: wide, head_dim, .. } = *shape;
    let projection =
        |inputs: usize| Fill::Normal { mean: 0.0, deviation: (inputs as f32).sqrt().recip() };
    let depth = (2.0 * shape.num_hidden_layers as f32).sqrt();
    let residual = |inputs: usize| Fill::Normal {
        mean: 0.0,
        deviation: (inputs as f32).sqrt().recip() / depth,
    };
    // Stored zero-centred: the layer adds 1.
    let norm = Fill::Normal { mean: 0.0, deviation: 0.02 };

    add(
        "model.embed_tokens.weight".into(),
        vec![shape.vocab_size, hidden],
        Dtype::BF16,
        projection(hidden),
    );
    for layer in 0..shape.num_hidden_layers {
        let mut add = |name: &str, shape: Vec<usize>, dtype: Dtype, fill: Fill| {
            add(format!("model.layers.{layer}.{name}"), shape, dtype, fill);
        };
        add("input_layernorm.weight", vec![hidden], Dtype::BF16, norm.clone());
        if shape.is_full(layer) {
            let (heads, kv) =
                (shape.num_attention_heads * head_dim, shape.num_key_value_heads * head_dim);
            add(
                "self_attn.q_proj.weight",
                vec![2 * heads, hidden],
                Dtype::BF16,
                projection(hidden),
            );
            add("self_attn.k_proj.weight", vec![kv, hidden], Dtype::BF16, projection(hidden));
            add("self_attn.v_proj.weight", vec![kv, hidden], Dtype::BF16, projection(hidden));
            add("self_attn.o_proj.weight", vec![hidden, heads], Dtype::BF16, residual(heads));
            add("self_attn.q_norm.weight", vec![head_dim], Dtype::BF16, norm.clone());
            add("self_attn.k_norm.weight", vec![head_dim], Dtype::BF16, norm.clone());
        } else {
            let key = shape.linear_num_key_heads * shape.linear_key_head_dim;
            let heads = shape.linear_num_value_heads;
            let value = heads * shape.linear_value_head_dim;
            let (channels, taps) = (2 * key + value, shape.linear_conv_kernel_dim);
            add(
                "linear_attn.in_proj_qkv.weight",
                vec![channels, hidden],
                Dtype::BF16,
                projection(hidden),
            );
            add(
                "linear_attn.in_proj_z.weight",
                vec![value, hidden],
                Dtype::BF16,
                projection(hidden),
            );
            add(
                "linear_attn.in_proj_b.weight",
                vec![heads, hidden],
                Dtype::BF16,
                projection(hidden),
            );
            add(
                "linear_attn.in_proj_a.weight",
                vec![heads, hidden],
                Dtype::BF16,
                projection(hidden),
            );
            add(
                "linear_attn.conv1d.weight",
                vec![channels, 1, taps],
                Dtype::BF16,
                projection(taps),
            );
            // Decays from slow to fast, as these layers are initialised for training.
            add(
                "linear_attn.A_log",
                vec![heads],
                Dtype::F32,
                Fill::LogOfUniform { from: 1.0, to: 16.0 },
            );
            add(
                "linear_attn.dt_bias",
                vec![heads],
                Dtype::BF16,
                Fill::InverseSoftplus { from: 1e-3, to: 0.1 },
            );
            add(
                "linear_attn.norm.weight",
                vec![shape.linear_value_head_dim],
                Dtype::F32,
                Fill::Normal { mean: 1.0, deviation: 0.02 },
            );
            add("linear_attn.out_proj.weight", vec![hidden, value], Dtype::BF16, residual(value));
        }
        add("post_attention_layernorm.weight", vec![hidden], Dtype::BF16, norm.clone());
        add("mlp.gate_proj.weight", vec![wide, hidden], Dtype::BF16, projection(hidden));
        add("mlp.up_proj.weight", vec![wide, hidden], Dtype::BF16, projection(hidden));
        add("mlp.down_proj.weight", vec![hidden, wide], Dtype::BF16, residual(wide));
    }
    add("model.norm.weight".into(), vec![hidden], Dtype::BF16, norm);
    if !shape.tie_word_embeddings {
        add(
            "lm_head.weight".into(),
            vec![shape.vocab_size, hidden],
            Dtype::BF16,
            projection(hidden),
        );
    }
    tensors
}
