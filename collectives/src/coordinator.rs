//! What the coordinator reads from a segment: rows of logits, and how far the ranks are.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::mapping::Mapping;
use crate::meeting::{self, Space, Stop};
use crate::party::Party;
use crate::pieces::Receiver;
use crate::port::explain;
use crate::{CollectiveError, Phase, Progress};

/// Collects rows of logits from all ranks. Its waits block the thread.
pub struct LogitsReceiver {
    mapping: Arc<Mapping>,
    receiver: Receiver<Mapping>,
    rows: u64,
}

impl LogitsReceiver {
    pub(crate) fn new(mapping: Arc<Mapping>) -> LogitsReceiver {
        LogitsReceiver { receiver: Receiver::new(Arc::clone(&mapping)), mapping, rows: 0 }
    }

    /// Fills `row` with the next row: rank `r`'s shard goes to `shards[r]`, one range a rank, as long as
    /// what that rank sends. `deadline` bounds the wait for each piece, so the first of them includes
    /// what the ranks still compute. After an error the epoch is poisoned.
    pub fn receive(
        &mut self,
        row: &mut [f32],
        shards: &[Range<usize>],
        deadline: Duration,
    ) -> Result<(), CollectiveError> {
        let world = self.mapping.world();
        let fits = |shard: &Range<usize>| shard.start <= shard.end && shard.end <= row.len();
        if shards.len() != world || !shards.iter().all(fits) {
            return Err(CollectiveError::Mismatch {
                name: self.mapping.name().into(),
                detail: format!("shards {shards:?} of {world} ranks in a row of {}", row.len()),
            });
        }
        self.rows += 1;
        self.receiver.receive(row, shards, deadline).map_err(|stop| {
            explain(stop, &self.mapping, Party::Coordinator, "row of logits", self.rows)
        })
    }
}

/// A rank that others wait for in an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Who is missing.
    pub rank: usize,
    /// The call it is missing in: the newest that any rank has arrived at, counted from 1.
    pub call: u64,
    /// Where it is instead: the phase it last reported.
    pub phase: Phase,
    /// And the layer, `u32::MAX` outside the layers.
    pub layer: u32,
    /// The step it last began.
    pub step: u64,
}

/// Reads how far ranks are, without waiting and without disturbing them. Cheap to clone.
#[derive(Clone)]
pub struct Watch {
    mapping: Arc<Mapping>,
}

impl Watch {
    pub(crate) fn new(mapping: Arc<Mapping>) -> Watch {
        Watch { mapping }
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.mapping.world()
    }

    /// The ranks that have attached, in order.
    pub fn attached(&self) -> Vec<usize> {
        (0..self.world()).filter(|&rank| self.mapping.progress(rank).is_attached()).collect()
    }

    /// How far `rank` is. Panics if there is no such rank.
    pub fn progress(&self, rank: usize) -> Progress {
        assert!(rank < self.world(), "rank {rank} of {}", self.world());
        self.mapping.progress(rank).read()
    }

    /// How far every rank is.
    pub fn all(&self) -> Vec<Progress> {
        (0..self.world()).map(|rank| self.progress(rank)).collect()
    }

    /// Who has not arrived where the foremost rank waits. Empty if nobody waits for anybody. Ranks on
    /// their way show here too: only one that stays is stalled.
    pub fn missing(&self) -> Vec<Missing> {
        let stamp = |rank: usize| self.mapping.rank(rank).arrival.stamp.load(Acquire);
        let stamps: Vec<u64> = (0..self.world()).map(stamp).collect();
        let Some(foremost) = (0..self.world()).max_by_key(|&rank| stamps[rank]) else {
            return Vec::new();
        };
        // Nobody leaves a meeting that somebody has not come to: this rank is in this call still.
        let call = self.progress(foremost).all_reduce;
        let late = (0..self.world()).filter(|&rank| stamps[rank] < stamps[foremost]);
        late.map(|rank| {
            let Progress { phase, layer, step, .. } = self.progress(rank);
            Missing { rank, call, phase, layer, step }
        })
        .collect()
    }

    /// Who gave the epoch up and for whom, if somebody did.
    pub fn poisoned(&self) -> Option<String> {
        match meeting::check(&*self.mapping) {
            Err(Stop::Poisoned(cause)) => Some(cause.to_string()),
            _ => None,
        }
    }
}
