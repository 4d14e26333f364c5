//! Time by phase of the forward pass (`POCKET_PHASE_PROFILE=1`, and the control plane's profile).
//! Measuring waits for the device after each phase, so a profiled pass is slower than a plain one.

use std::ops::AddAssign;
use std::time::Instant;

use pocket_device::{Device, DeviceError};
use serde::{Deserialize, Serialize};

/// A phase of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

impl PassPhase {
    /// All of them, in the order in which a pass first comes to them.
    pub const ALL: [Self; 7] =
        [Self::Embed, Self::Norm, Self::Linear, Self::Full, Self::Mlp, Self::AllReduce, Self::Head];

    /// Its name in tables and traces.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Norm => "norm",
            Self::Linear => "linear attention",
            Self::Full => "full attention",
            Self::Mlp => "mlp",
            Self::AllReduce => "all-reduce",
            Self::Head => "head",
        }
    }
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
    /// The sums of laps.
    pub fn of(laps: &[Lap]) -> Self {
        let mut times = Self::default();
        for lap in laps {
            *times.slot(lap.phase) += u64::from(lap.us);
        }
        times
    }

    /// Microseconds of one phase.
    pub fn get(&self, phase: PassPhase) -> u64 {
        let mut copy = *self;
        *copy.slot(phase)
    }

    /// Microseconds of all phases.
    pub fn total_us(&self) -> u64 {
        PassPhase::ALL.iter().map(|phase| self.get(*phase)).sum()
    }

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

impl AddAssign for PhaseTimes {
    fn add_assign(&mut self, other: Self) {
        for phase in PassPhase::ALL {
            *self.slot(phase) += other.get(phase);
        }
    }
}

/// A stretch of a pass in one phase. Each begins where the one before ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lap {
    /// What was done.
    pub phase: PassPhase,
    /// The layer it was done in; none outside the layers.
    pub layer: Option<u32>,
    /// Microseconds it took.
    pub us: u32,
}

/// Where the time of one pass went.
#[derive(Clone, Debug)]
pub struct PassProfile {
    /// When the first lap began.
    pub began: Instant,
    /// The laps, end to end.
    pub laps: Vec<Lap>,
}

/// Lap timer of one pass; does nothing unless profiling is on.
pub(super) struct Laps {
    profile: Option<PassProfile>,
    layer: Option<u32>,
    /// Microseconds from the beginning to the last lap. Laps are cut from one clock, so that their
    /// roundings do not add up.
    until: u64,
}

impl Laps {
    pub fn new(enabled: bool) -> Self {
        let profile = || PassProfile { began: Instant::now(), laps: Vec::with_capacity(256) };
        Laps { profile: enabled.then(profile), layer: None, until: 0 }
    }

    /// The laps from here on belong to this layer.
    pub fn enter(&mut self, layer: Option<u32>) {
        self.layer = layer;
    }

    /// Books the time since the last lap on `phase`.
    pub fn lap<D: Device>(&mut self, device: &D, phase: PassPhase) -> Result<(), DeviceError> {
        if let Some(profile) = &mut self.profile {
            device.synchronize()?;
            let now = profile.began.elapsed().as_micros() as u64;
            // A lap of more than an hour would have been a stall.
            let us = u32::try_from(now - self.until).unwrap_or(u32::MAX);
            profile.laps.push(Lap { phase, layer: self.layer, us });
            self.until = now;
        }
        Ok(())
    }

    /// The pass's laps, if it was profiled.
    pub fn finish(self) -> Option<PassProfile> {
        self.profile
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laps_are_summed_by_phase() {
        let lap = |phase, us| Lap { phase, layer: None, us };
        let laps = [
            lap(PassPhase::Norm, 3),
            lap(PassPhase::Mlp, 10),
            lap(PassPhase::Norm, 4),
            lap(PassPhase::Head, 1),
        ];
        let mut times = PhaseTimes::of(&laps);
        assert_eq!(times, PhaseTimes { norm_us: 7, mlp_us: 10, head_us: 1, ..Default::default() });
        times += times;
        assert_eq!((times.get(PassPhase::Norm), times.total_us()), (14, 36));
    }
}
