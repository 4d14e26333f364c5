//! A full-attention mixer on one rank: fused q, gate, k and v by head, attention over the rank's own
//! heads, and its columns of the output projection.

use pocket_device::{AttentionShape, Device, DeviceTensor, FullAttention, Segment};

use super::ForwardError;
use super::loader::{Loader, Slice};
use crate::config::ModelConfig;

/// Rotary frequencies `theta^(-2 j / rot)`, computed in float32 from a float64 exponent as the
/// reference does.
pub(super) fn frequencies(config: &ModelConfig) -> Vec<f32> {
    let rot = config.rotary_dim;
    (0..rot / 2)
        .map(|j| (1.0 / config.rope_theta.powf((2 * j) as f64 / rot as f64)) as f32)
        .collect()
}

/// Weights of one full-attention mixer.
pub(super) struct AttentionMixer<D: Device> {
    shape: AttentionShape,
    layer: usize,
    qkv: D::Matrix,
    qkv_bias: Option<D::Tensor>,
    q_norm: D::Tensor,
    k_norm: D::Tensor,
    output: D::Matrix,
    output_bias: Option<D::Tensor>,
}

/// Workspaces of the full-attention mixers, shared by all layers.
pub(super) struct AttentionWork<D: Device> {
    /// Projection of the step's rows.
    pub qkv: D::Tensor,
    /// Attended values, gated.
    pub attended: D::Tensor,
    /// What [`Device::rotary`] made for the step.
    pub rotary: D::Tensor,
}

impl<D: Device> AttentionWork<D> {
    pub fn new(device: &D, shape: &AttentionShape, rows: usize) -> Result<Self, ForwardError> {
        Ok(AttentionWork {
            qkv: device.tensor(rows, shape.projection())?,
            attended: device.tensor(rows, shape.heads * shape.head_dim)?,
            rotary: device.tensor(rows, shape.rotary_dim)?,
        })
    }

    pub fn set_rows(&mut self, rows: usize) {
        for tensor in [&mut self.qkv, &mut self.attended, &mut self.rotary] {
            tensor.set_rows(rows);
        }
    }
}

impl<D: Device> AttentionMixer<D> {
    /// Loads the mixer of `prefix` (`model.layers.{i}.self_attn.`), the `layer`-th of its kind.
    pub fn load(
        loader: &mut Loader<'_, D>,
        config: &ModelConfig,
        prefix: &str,
        layer: usize,
    ) -> Result<Self, ForwardError> {
        let (shard, hidden, dim) = (loader.shard, config.hidden_size, config.head_dim);
        // Each query head brings D query rows and D gate rows.
        let q_rows = shard.heads.start * 2 * dim..shard.heads.end * 2 * dim;
        let kv_rows = shard.kv_heads.start * dim..shard.kv_heads.end * dim;
        let inputs = [("q_proj", q_rows), ("k_proj", kv_rows.clone()), ("v_proj", kv_rows)];

        let slices: Vec<Slice> = inputs
            .iter()
            .map(|(name, rows)| Slice {
                name: format!("{prefix}{name}.weight"),
                rows: rows.clone(),
                cols: 0..hidden,
            })
            .collect();
        let qkv = loader.matrix(&slices)?;
        let output = loader.matrix(&[Slice {
            name: format!("{prefix}o_proj.weight"),
            rows: 0..hidden,
            cols: shard.heads.start * dim..shard.heads.end * dim,
        }])?;

        let (mut qkv_bias, mut output_bias) = (None, None);
        if config.attention_bias {
            let biases: Vec<_> = inputs
                .iter()
                .map(|(name, rows)| (format!("{prefix}{name}.bias"), rows.clone()))
                .collect();
            qkv_bias = Some(loader.joined(&biases)?);
            // The ranks' outputs are summed: only one of them may bring the bias.
            if shard.rank == 0 {
                output_bias = Some(loader.joined(&[(format!("{prefix}o_proj.bias"), 0..hidden)])?);
            }
        }
        Ok(AttentionMixer {
            shape: shard.attention_shape(config),
            layer,
            qkv,
            qkv_bias,
            q_norm: loader.norm(&format!("{prefix}q_norm.weight"), dim)?,
            k_norm: loader.norm(&format!("{prefix}k_norm.weight"), dim)?,
            output,
            output_bias,
        })
    }

    /// This rank's part of the mixer's output: `x` `[rows, hidden]` in, `out` `[rows, hidden]`, to be
    /// summed over ranks.
    pub fn run(
        &self,
        device: &D,
        x: &D::Tensor,
        segments: &[Segment<'_>],
        cache: &mut D::KvCache,
        work: &mut AttentionWork<D>,
        out: &mut D::Tensor,
    ) -> Result<(), ForwardError> {
        device.matmul(x, &self.qkv, &mut work.qkv)?;
        if let Some(bias) = &self.qkv_bias {
            device.add_bias(&mut work.qkv, bias)?;
        }
        let op = FullAttention {
            shape: self.shape,
            layer: self.layer,
            q_norm: &self.q_norm,
            k_norm: &self.k_norm,
            rotary: &work.rotary,
        };
        device.full_attention(&op, &work.qkv, segments, cache, &mut work.attended)?;
        device.matmul(&work.attended, &self.output, out)?;
        if let Some(bias) = &self.output_bias {
            device.add_bias(out, bias)?;
        }
        Ok(())
    }
}
