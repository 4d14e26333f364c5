//! Time by phase of the forward pass (`POCKET_PHASE_PROFILE=1`). Measuring waits for the device after
//! each phase, so a profiled pass is slower than a plain one.

use std::time::{Duration, Instant};

use pocket_device::{Device, DeviceError};
use serde::{Deserialize, Serialize};

/// A phase of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassPhase {
    /// Embedding rows.
    Embed,
    /// Norms and residual additions.
    Norm,
    /// Linear-attention mixers with their projections.
    Linear,
    /// Full-attention mixers with their projections.
    Full,
    /// MLPs.
    Mlp,
    /// All-reduces: waiting and adding.
    AllReduce,
    /// Head and its statistics.
    Head,
}

/// Microseconds spent in each phase of one or more passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseTimes {
    /// Embedding rows.
    pub embed_us: u64,
    /// Norms and residual additions.
    pub norm_us: u64,
    /// Linear-attention mixers with their projections.
    pub linear_us: u64,
    /// Full-attention mixers with their projections.
    pub full_us: u64,
    /// MLPs.
    pub mlp_us: u64,
    /// All-reduces.
    pub all_reduce_us: u64,
    /// Head and its statistics.
    pub head_us: u64,
}

impl PhaseTimes {
    fn slot(&mut self, phase: PassPhase) -> &mut u64 {
        match phase {
            PassPhase::Embed => &mut self.embed_us,
            PassPhase::Norm => &mut self.norm_us,
            PassPhase::Linear => &mut self.linear_us,
            PassPhase::Full => &mut self.full_us,
            PassPhase::Mlp => &mut self.mlp_us,
            PassPhase::AllReduce => &mut self.all_reduce_us,
            PassPhase::Head => &mut self.head_us,
        }
    }
}

/// Lap timer of one pass; does nothing unless profiling is on.
pub(super) struct Laps {
    started: Option<Instant>,
    spent: [Duration; 7],
}

impl Laps {
    pub fn new(enabled: bool) -> Self {
        Laps { started: enabled.then(Instant::now), spent: [Duration::ZERO; 7] }
    }

    /// Books the time since the last lap on `phase`.
    pub fn lap<D: Device>(&mut self, device: &D, phase: PassPhase) -> Result<(), DeviceError> {
        if let Some(started) = self.started {
            device.synchronize()?;
            let now = Instant::now();
            self.spent[phase as usize] += now - started;
            self.started = Some(now);
        }
        Ok(())
    }

    /// The pass's times, if it was profiled.
    pub fn finish(self) -> Option<PhaseTimes> {
        self.started?;
        let mut times = PhaseTimes::default();
        for phase in [
            PassPhase::Embed,
            PassPhase::Norm,
            PassPhase::Linear,
            PassPhase::Full,
            PassPhase::Mlp,
            PassPhase::AllReduce,
            PassPhase::Head,
        ] {
            *times.slot(phase) = self.spent[phase as usize].as_micros() as u64;
        }
        Some(times)
    }
}
