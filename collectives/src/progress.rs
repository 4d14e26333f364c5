//! Where a rank is: written by the rank's compute thread with plain stores, read by anyone.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use serde::{Deserialize, Serialize};

/// What a rank is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum Phase {
    /// The process started and has not attached or been told its shard yet.
    #[default]
    Starting = 0,
    /// Reading and packing weights.
    Load = 1,
    /// Waiting for a plan.
    Idle = 2,
    /// In a forward pass that carries prompt tokens.
    Prefill = 3,
    /// In a forward pass of generated tokens only.
    Decode = 4,
    /// In an all-reduce, waiting for peers or adding.
    AllReduce = 5,
    /// Handing logits to the coordinator.
    Logits = 6,
}

impl Phase {
    /// Whether the rank walks through layers in this phase.
    fn has_layers(self) -> bool {
        matches!(self, Phase::Prefill | Phase::Decode | Phase::AllReduce)
    }

    /// The phase of a number written by [`ProgressWords`]; another number reads as the first phase.
    fn from_u32(number: u32) -> Phase {
        use Phase::{AllReduce, Decode, Idle, Load, Logits, Prefill, Starting};
        [Starting, Load, Idle, Prefill, Decode, AllReduce, Logits]
            .into_iter()
            .find(|&phase| phase as u32 == number)
            .unwrap_or_default()
    }
}

/// A reading of one rank's progress cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What it is doing.
    pub phase: Phase,
    /// Layer it is in, while in a forward pass; `u32::MAX` outside the layers, which is written as
    /// null.
    #[serde(with = "layer")]
    pub layer: u32,
    /// Steps begun in this epoch.
    pub step: u64,
    /// All-reduce calls begun in this epoch, skipped ones included.
    pub all_reduce: u64,
    /// Counts every report: it moves as long as the rank does.
    pub beat: u64,
}

/// A layer as readers of JSON expect it: a number or null.
mod layer {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(layer: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        (*layer != super::NO_LAYER).then_some(*layer).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        Ok(Option::deserialize(deserializer)?.unwrap_or(super::NO_LAYER))
    }
}

/// Where a forward pass says how far it is; every call also counts a beat. Implementations are a few
/// relaxed stores.
pub trait ProgressSink {
    /// A step begins in `phase`.
    fn begin_step(&self, step: u64, phase: Phase);
    /// The pass enters `layer`.
    fn enter_layer(&self, layer: u32);
    /// Anything else moved (bytes loaded, a piece of logits taken).
    fn beat(&self, phase: Phase);
}

impl ProgressSink for () {
    fn begin_step(&self, _step: u64, _phase: Phase) {}
    fn enter_layer(&self, _layer: u32) {}
    fn beat(&self, _phase: Phase) {}
}

/// Layer of a rank that is in none.
const NO_LAYER: u32 = u32::MAX;

/// One rank's progress cell in a segment: two cache lines that only this rank writes.
///
/// All-zero, as in a fresh segment, means: starting. One thread at a time reports; reports of two at
/// once lose beats, nothing more.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(crate) struct ProgressWords {
    /// 1 once a rank has attached.
    attached: AtomicU64,
    /// Phase in the low half, layer + 1 in the high one, written together.
    place: AtomicU64,
    step: AtomicU64,
    all_reduce: AtomicU64,
    beat: AtomicU64,
}

impl ProgressWords {
    /// Claims the cell for a rank that attaches. False if one did before.
    pub fn attach(&self) -> bool {
        self.attached.compare_exchange(0, 1, Release, Relaxed).is_ok()
    }

    pub fn is_attached(&self) -> bool {
        self.attached.load(Acquire) == 1
    }

    /// Fields are read one after the other: a report in between may show in some of them only.
    pub fn read(&self) -> Progress {
        let (phase, layer) = unpack(self.place.load(Relaxed));
        Progress {
            phase,
            layer,
            step: self.step.load(Relaxed),
            all_reduce: self.all_reduce.load(Relaxed),
            beat: self.beat.load(Relaxed),
        }
    }

    /// An all-reduce begins. Answers its number in this epoch, from 1, and the place to return to.
    pub fn begin_all_reduce(&self) -> (u64, u64) {
        let (call, place) = (self.all_reduce.load(Relaxed) + 1, self.place.load(Relaxed));
        self.all_reduce.store(call, Relaxed);
        self.place.store(pack(Phase::AllReduce, unpack(place).1), Relaxed);
        self.count();
        (call, place)
    }

    /// The all-reduce is over.
    pub fn end_all_reduce(&self, place: u64) {
        self.place.store(place, Relaxed);
    }

    /// Something moved, at the place it was at.
    pub fn count(&self) {
        // Not an atomic addition: nobody else writes.
        self.beat.store(self.beat.load(Relaxed) + 1, Relaxed);
    }
}

impl ProgressSink for ProgressWords {
    fn begin_step(&self, step: u64, phase: Phase) {
        self.step.store(step, Relaxed);
        self.place.store(pack(phase, NO_LAYER), Relaxed);
        self.count();
    }

    fn enter_layer(&self, layer: u32) {
        self.place.store(pack(unpack(self.place.load(Relaxed)).0, layer), Relaxed);
        self.count();
    }

    fn beat(&self, phase: Phase) {
        let layer = unpack(self.place.load(Relaxed)).1;
        self.place.store(pack(phase, if phase.has_layers() { layer } else { NO_LAYER }), Relaxed);
        self.count();
    }
}

fn pack(phase: Phase, layer: u32) -> u64 {
    u64::from(layer.wrapping_add(1)) << 32 | u64::from(phase as u32)
}

fn unpack(place: u64) -> (Phase, u32) {
    (Phase::from_u32(place as u32), ((place >> 32) as u32).wrapping_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_cell_is_starting_outside_the_layers() {
        let fresh = Progress { layer: NO_LAYER, ..Progress::default() };
        assert_eq!(ProgressWords::default().read(), fresh);
    }

    #[test]
    fn every_report_shows_and_counts_a_beat() {
        let cell = ProgressWords::default();
        let mut beat = 0;
        let mut expect = |phase, layer, step, all_reduce| {
            beat += 1;
            assert_eq!(cell.read(), Progress { phase, layer, step, all_reduce, beat });
        };
        cell.beat(Phase::Load);
        expect(Phase::Load, NO_LAYER, 0, 0);
        cell.begin_step(7, Phase::Prefill);
        expect(Phase::Prefill, NO_LAYER, 7, 0);
        cell.enter_layer(3);
        expect(Phase::Prefill, 3, 7, 0);
        let (call, place) = cell.begin_all_reduce();
        assert_eq!(call, 1);
        expect(Phase::AllReduce, 3, 7, 1);
        cell.end_all_reduce(place);
        cell.count();
        expect(Phase::Prefill, 3, 7, 1);
        cell.beat(Phase::Logits);
        expect(Phase::Logits, NO_LAYER, 7, 1);
    }

    #[test]
    fn every_phase_survives_the_cell() {
        for phase in [
            Phase::Starting,
            Phase::Load,
            Phase::Idle,
            Phase::Prefill,
            Phase::Decode,
            Phase::AllReduce,
            Phase::Logits,
        ] {
            assert_eq!(unpack(pack(phase, 5)), (phase, 5));
        }
    }

    #[test]
    fn a_cell_is_claimed_once() {
        let cell = ProgressWords::default();
        assert!(!cell.is_attached());
        assert!(cell.attach());
        assert!(cell.is_attached() && !cell.attach());
    }
}
