//! A rank's side of a segment.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use memmap2::MmapRaw;

use crate::layout::{Layout, MAX_WORLD};
use crate::mapping::Mapping;
use crate::meeting::{Space, Stop};
use crate::party::Party;
use crate::pieces::Sender;
use crate::reduce::Reducer;
use crate::room::system;
use crate::segment::{open_segment, private_file};
use crate::{CollectiveError, Counters, Phase, ProgressSink};

/// A rank's connection to its epoch's segment. The parts are for the rank's compute thread to hold
/// side by side; each keeps the mapping alive.
pub struct RankPort {
    /// The collective of the forward pass.
    pub all_reduce: SharedAllReduce,
    /// Where the rank says how far it is.
    pub progress: ProgressCell,
    /// The way of its logits to the coordinator.
    pub logits: LogitsSender,
}

impl RankPort {
    /// Attaches as `rank` of `world` to the segment `name` (or the place that
    /// [`SegmentOwner::detach`](crate::SegmentOwner::detach) told), if it is what the handshake says
    /// it is.
    /// `deadline` bounds every single wait on a peer from then on.
    pub fn attach(
        name: &str,
        rank: usize,
        world: usize,
        epoch: u64,
        deadline: Duration,
    ) -> Result<RankPort, CollectiveError> {
        let mismatch = |detail| CollectiveError::Mismatch { name: name.into(), detail };
        if !(1..=MAX_WORLD).contains(&world) || rank >= world {
            return Err(mismatch(format!("there is no rank {rank} of {world}")));
        }
        let layout = Layout::for_world(world);
        let file = open_segment(name).map_err(|error| system(name, "open", error))?;
        let facts = file.metadata().map_err(|error| system(name, "look at", error))?;
        private_file(&facts, layout.bytes() as u64).map_err(mismatch)?;
        // Blocks of 512 bytes, whatever the file system's own are.
        if facts.blocks() * 512 < facts.len() {
            return Err(mismatch("it is not allocated in full".into()));
        }
        let memory = MmapRaw::map_raw(&file).map_err(|error| system(name, "map", error))?;
        let mapping = Mapping::open(memory, name, layout, epoch).map_err(mismatch)?;
        if !mapping.progress(rank).attach() {
            return Err(mismatch(format!("rank {rank} has attached already")));
        }
        let mapping = Arc::new(mapping);
        let progress = ProgressCell { mapping: Arc::clone(&mapping), rank };
        Ok(RankPort {
            all_reduce: SharedAllReduce {
                reducer: Reducer::new(Arc::clone(&mapping), rank, deadline),
                progress: progress.clone(),
                skip: false,
                skip_at_most: usize::MAX,
                counters: Counters::default(),
                waited: Duration::ZERO,
            },
            logits: LogitsSender {
                sender: Sender::new(mapping, rank, deadline),
                progress: progress.clone(),
                rows: 0,
            },
            progress,
        })
    }
}

/// The all-reduce over a shared segment.
pub struct SharedAllReduce {
    reducer: Reducer<Mapping>,
    progress: ProgressCell,
    skip: bool,
    /// Planes of more numbers get around the skip.
    skip_at_most: usize,
    counters: Counters,
    waited: Duration,
}

impl SharedAllReduce {
    /// While on, every call returns at once, leaves its plane as it is, and touches nothing shared but
    /// the progress cell: a control whose outputs are wrong. All ranks switch between the same calls.
    pub fn set_skip(&mut self, skip: bool) {
        self.skip = skip;
    }

    /// From now on planes of more numbers are summed also while skipping is on: a fault, as if they took
    /// a path that the skip does not sit on. Whoever relies on the skip must notice by the counters.
    pub fn let_larger_around_skip(&mut self, numbers: usize) {
        self.skip_at_most = numbers;
    }

    /// [`crate::AllReduce::all_reduce`] on plain numbers. After an error `plane` holds anything, the epoch is
    /// poisoned, and every later call fails at once.
    pub fn reduce(&mut self, plane: &mut [f32]) -> Result<(), CollectiveError> {
        let ProgressCell { mapping, rank } = &self.progress;
        if mapping.world() == 1 {
            return Ok(());
        }
        let cell = mapping.progress(*rank);
        let (call, place) = cell.begin_all_reduce();
        if self.skip && plane.len() <= self.skip_at_most {
            self.counters.skipped += 1;
            cell.end_all_reduce(place);
            return Ok(());
        }
        let result = self.reducer.reduce(plane, || cell.count());
        cell.end_all_reduce(place);
        match result {
            Ok(waited) => {
                self.waited += waited;
                self.counters.run += 1;
                self.counters.bytes += size_of_val(plane) as u64;
                self.counters.wait_us = self.waited.as_micros() as u64;
                Ok(())
            }
            Err(stop) => Err(explain(stop, mapping, Party::Rank(*rank), "all-reduce", call)),
        }
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

/// A rank's progress cell: a few stores a report, in cache lines that no other rank writes. One thread
/// at a time reports.
#[derive(Clone)]
pub struct ProgressCell {
    mapping: Arc<Mapping>,
    rank: usize,
}

impl ProgressSink for ProgressCell {
    fn begin_step(&self, step: u64, phase: Phase) {
        self.mapping.progress(self.rank).begin_step(step, phase);
    }

    fn enter_layer(&self, layer: u32) {
        self.mapping.progress(self.rank).enter_layer(layer);
    }

    fn beat(&self, phase: Phase) {
        self.mapping.progress(self.rank).beat(phase);
    }
}

/// Hands rows of logits to the coordinator's [`crate::LogitsReceiver`], in order.
pub struct LogitsSender {
    sender: Sender<Mapping>,
    progress: ProgressCell,
    rows: u64,
}

impl LogitsSender {
    /// Publishes this rank's shard of a row. Returns when the last piece is written, which may be
    /// before the coordinator has copied it; waits only where the coordinator is two pieces behind.
    pub fn send(&mut self, shard: &[f32]) -> Result<(), CollectiveError> {
        self.rows += 1;
        let ProgressCell { mapping, rank } = &self.progress;
        self.progress.beat(Phase::Logits);
        self.sender
            .send(shard, || self.progress.beat(Phase::Logits))
            .map_err(|stop| explain(stop, mapping, Party::Rank(*rank), "row of logits", self.rows))
    }
}

/// What a stopped wait of `waiter` means to who reads it.
pub(crate) fn explain(
    stop: Stop,
    mapping: &Mapping,
    waiter: Party,
    what: &'static str,
    call: u64,
) -> CollectiveError {
    match stop {
        Stop::Poisoned(cause) => {
            CollectiveError::Poisoned { epoch: mapping.epoch(), by: cause.to_string() }
        }
        Stop::Deadline { waited, missing } => CollectiveError::Deadline {
            waiter: waiter.to_string(),
            missing: missing.to_string(),
            what,
            call,
            waited_ms: waited.as_millis() as u64,
        },
        Stop::Length { rank, theirs, ours } => CollectiveError::Mismatch {
            name: mapping.name().into(),
            detail: format!(
                "{what} {call}: rank {rank} brings {theirs} numbers, {waiter} expects {ours}"
            ),
        },
    }
}
