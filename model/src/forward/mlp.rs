//! The gated MLP on one rank: `down(silu(gate(x)) * up(x))` over the rank's intermediate rows.

use pocket_device::{Device, DeviceTensor};

use super::ForwardError;
use super::loader::{Loader, Slice};
use crate::config::ModelConfig;

/// Weights of one MLP.
pub(super) struct Mlp<D: Device> {
    gate_up: D::Matrix,
    down: D::Matrix,
}

/// Workspaces of the MLPs, shared by all layers.
pub(super) struct MlpWork<D: Device> {
    gate_up: D::Tensor,
    activated: D::Tensor,
}

impl<D: Device> MlpWork<D> {
    pub fn new(device: &D, intermediate: usize, rows: usize) -> Result<Self, ForwardError> {
        Ok(MlpWork {
            gate_up: device.tensor(rows, 2 * intermediate)?,
            activated: device.tensor(rows, intermediate)?,
        })
    }

    pub fn set_rows(&mut self, rows: usize) {
        self.gate_up.set_rows(rows);
        self.activated.set_rows(rows);
    }
}

impl<D: Device> Mlp<D> {
    /// Loads the MLP of `prefix` (`model.layers.{i}.mlp.`).
    pub fn load(
        loader: &mut Loader<'_, D>,
        config: &ModelConfig,
        prefix: &str,
    ) -> Result<Self, ForwardError> {
        let (hidden, rows) = (config.hidden_size, loader.shard.intermediate.clone());
        let input = |name: &str| Slice {
            name: format!("{prefix}{name}.weight"),
            rows: rows.clone(),
            cols: 0..hidden,
        };
        Ok(Mlp {
            gate_up: loader.matrix(&[input("gate_proj"), input("up_proj")])?,
            down: loader.matrix(&[Slice {
                name: format!("{prefix}down_proj.weight"),
                rows: 0..hidden,
                cols: rows.clone(),
            }])?,
        })
    }

    /// This rank's part of the output: `x` and `out` `[rows, hidden]`, to be summed over ranks.
    pub fn run(
        &self,
        device: &D,
        x: &D::Tensor,
        work: &mut MlpWork<D>,
        out: &mut D::Tensor,
    ) -> Result<(), ForwardError> {
        device.matmul(x, &self.gate_up, &mut work.gate_up)?;
        device.swiglu(&work.gate_up, &mut work.activated)?;
        device.matmul(&work.activated, &self.down, out)?;
        Ok(())
    }
}
