//! What one server did over all its measurements.

use serde::{Deserialize, Serialize};

use super::counters::Counts;
use super::server::{Launch, OwnServer};
use super::wave::Wave;
use crate::record::{Invalid, Record, Server};

/// What was counted by one server over its measurements.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ArmCounts {
    /// Name of the arm.
    pub arm: String,
    /// How to start it by hand.
    pub command: String,
    /// Before its first measurement.
    pub before: Counts,
    /// After its last.
    pub after: Counts,
    /// Forward calls in its measurements.
    pub calls: u64,
    /// All-reduces run in them, by rank.
    pub run: Vec<u64>,
    /// All-reduces skipped in them, by rank.
    pub skipped: Vec<u64>,
    /// The server as it described itself, for the record, which has it once.
    #[serde(skip)]
    pub server: Server,
}

impl ArmCounts {
    /// Of a server that was not measured yet.
    pub fn of(launch: &Launch) -> Self {
        let (arm, command) = (launch.arm.clone(), launch.command_line());
        let server = Server { name: arm.clone(), ..Server::default() };
        Self { arm, command, server, ..Self::default() }
    }

    /// Lets a server describe itself, unless the same was asked before.
    pub async fn meet(&mut self, server: &OwnServer) {
        if self.server.version.is_none() {
            self.server = server.description().await;
        }
    }

    /// The server, as a record has it.
    pub fn described(&self) -> Server {
        Server {
            counters_before: self.before.for_record(),
            counters_after: self.after.for_record(),
            ..self.server.clone()
        }
    }

    /// Adds a measurement.
    pub fn add(&mut self, before: Counts, after: Counts) {
        self.calls += after.forward_passes.saturating_sub(before.forward_passes);
        self.run.resize(after.all_reduces.len(), 0);
        self.skipped.resize(after.all_reduces.len(), 0);
        for (rank, (old, new)) in before.all_reduces.iter().zip(&after.all_reduces).enumerate() {
            self.run[rank] += new.run.saturating_sub(old.run);
            self.skipped[rank] += new.skipped.saturating_sub(old.skipped);
        }
        if self.before == Counts::default() {
            self.before = before;
        }
        self.after = after;
    }
}

/// A record that was made before the measurement, with its servers, what came from caches, and what speaks
/// against it.
pub fn filled<'a>(
    begun: Record<()>,
    counts: &[ArmCounts],
    waves: impl Iterator<Item = &'a Wave>,
    invalid: Vec<Invalid>,
) -> Record<()> {
    let mut record = begun;
    record.servers = counts.iter().map(ArmCounts::described).collect();
    record.warmed_up = true;
    let cached: Vec<u64> = waves.map(Wave::cached_tokens).collect();
    record.cached_tokens = Some(cached.iter().sum());
    record.prefix_cache_hits = Some(cached.iter().filter(|tokens| **tokens > 0).count() as u64);
    for reason in invalid {
        record.invalidate(reason);
    }
    record
}

#[cfg(test)]
mod tests {
    use super::super::counters::AllReduces;
    use super::*;

    #[test]
    fn measurements_are_added_and_what_lies_between_them_is_not() {
        let counts = |forward_passes, run| Counts {
            forward_passes,
            all_reduces: vec![AllReduces { run, ..AllReduces::default() }],
            ..Counts::default()
        };
        let mut arm = ArmCounts::default();
        arm.add(counts(2, 34), counts(3, 51));
        arm.add(counts(9, 153), counts(10, 170));
        assert_eq!((arm.calls, &arm.run[..], &arm.skipped[..]), (2, &[34][..], &[0][..]));
        assert_eq!((arm.before.forward_passes, arm.after.forward_passes), (2, 10));
    }
}
