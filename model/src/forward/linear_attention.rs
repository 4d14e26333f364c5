//! A linear-attention (Gated DeltaNet) mixer on one rank: fused q, k, v, z, b and a by head, the
//! recurrence over the rank's own value heads, and its columns of the output projection.

use std::ops::Range;

use pocket_device::{Device, DeviceTensor, LinearAttention, LinearShape, Segment};

use super::ForwardError;
use super::loader::{Loader, Slice};
use crate::config::ModelConfig;
use crate::shard::Shard;

/// Stored rows of q, k and v channels that belong to a rank: each of the three lies in its own range
/// of the fused tensor, so a rank's channels are three pieces.
fn channel_rows(config: &ModelConfig, shard: &Shard) -> [Range<usize>; 3] {
    let (dk, dv) = (config.linear_key_dim, config.linear_value_dim);
    let keys = config.linear_key_heads * dk;
    let of_rank = shard.key_heads.start * dk..shard.key_heads.end * dk;
    [
        of_rank.clone(),
        keys + of_rank.start..keys + of_rank.end,
        2 * keys + shard.value_heads.start * dv..2 * keys + shard.value_heads.end * dv,
    ]
}

/// Weights of one linear-attention mixer.
pub(super) struct LinearMixer<D: Device> {
    shape: LinearShape,
    layer: usize,
    eps: f32,
    input: D::Matrix,
    conv: D::Tensor,
    decay: D::Tensor,
    dt_bias: D::Tensor,
    norm: D::Tensor,
    output: D::Matrix,
}

/// Workspaces of the linear-attention mixers, shared by all layers.
pub(super) struct LinearWork<D: Device> {
    projection: D::Tensor,
    mixed: D::Tensor,
}

impl<D: Device> LinearWork<D> {
    pub fn new(device: &D, shape: &LinearShape, rows: usize) -> Result<Self, ForwardError> {
        Ok(LinearWork {
            projection: device.tensor(rows, shape.projection())?,
            mixed: device.tensor(rows, shape.value_heads * shape.value_dim)?,
        })
    }

    pub fn set_rows(&mut self, rows: usize) {
        self.projection.set_rows(rows);
        self.mixed.set_rows(rows);
    }
}

impl<D: Device> LinearMixer<D> {
    /// Loads the mixer of `prefix` (`model.layers.{i}.linear_attn.`), the `layer`-th of its kind.
    pub fn load(
        loader: &mut Loader<'_, D>,
        config: &ModelConfig,
        prefix: &str,
        layer: usize,
    ) -> Result<Self, ForwardError> {
        let (shard, hidden) = (loader.shard, config.hidden_size);
        let (dv, heads) = (config.linear_value_dim, shard.value_heads.clone());
        let values = heads.start * dv..heads.end * dv;
        let channels = channel_rows(config, shard);
        let slice = |name: &str, rows: &Range<usize>| Slice {
            name: format!("{prefix}{name}.weight"),
            rows: rows.clone(),
            cols: 0..hidden,
        };

        let mut slices: Vec<Slice> =
            channels.iter().map(|rows| slice("in_proj_qkv", rows)).collect();
        slices.push(slice("in_proj_z", &values));
        slices.push(slice("in_proj_b", &heads));
        slices.push(slice("in_proj_a", &heads));
        let input = loader.matrix(&slices)?;
        let output = loader.matrix(&[Slice {
            name: format!("{prefix}out_proj.weight"),
            rows: 0..hidden,
            cols: values,
        }])?;

        let mut taps = Vec::new();
        for rows in channels {
            taps.extend(loader.numbers(&format!("{prefix}conv1d.weight"), rows)?);
        }
        let decay: Vec<f32> = loader
            .numbers(&format!("{prefix}A_log"), heads.clone())?
            .iter()
            .map(|a_log| -a_log.exp())
            .collect();
        Ok(LinearMixer {
            shape: shard.linear_shape(config),
            layer,
            eps: config.rms_norm_eps,
            input,
            conv: loader.device.upload(&taps, config.linear_kernel)?,
            decay: loader.device.upload(&decay, decay.len())?,
            dt_bias: loader.joined(&[(format!("{prefix}dt_bias"), heads)])?,
            norm: loader.joined(&[(format!("{prefix}norm.weight"), 0..dv)])?,
            output,
        })
    }

    /// This rank's part of the mixer's output: `x` `[rows, hidden]` in, `out` `[rows, hidden]`, to be
    /// summed over ranks.
    pub fn run(
        &self,
        device: &D,
        x: &D::Tensor,
        segments: &[Segment<'_>],
        state: &mut D::RecurrentState,
        work: &mut LinearWork<D>,
        out: &mut D::Tensor,
    ) -> Result<(), ForwardError> {
        device.matmul(x, &self.input, &mut work.projection)?;
        let op = LinearAttention {
            shape: self.shape,
            layer: self.layer,
            conv: &self.conv,
            decay: &self.decay,
            dt_bias: &self.dt_bias,
            norm: &self.norm,
            eps: self.eps,
        };
        device.linear_attention(&op, &work.projection, segments, state, &mut work.mixed)?;
        device.matmul(&work.mixed, &self.output, out)?;
        Ok(())
    }
}
