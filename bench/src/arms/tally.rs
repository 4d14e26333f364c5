//! What one server did over all its measurements.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::counters::Counts;
use super::server::Launch;
use crate::record::Server;

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
}

impl ArmCounts {
    /// Of a server that was not measured yet.
    pub fn of(launch: &Launch) -> Self {
        let (arm, command) = (launch.arm.clone(), launch.command_line());
        Self { arm, command, ..Self::default() }
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

/// An arm's server, as a record has it.
pub fn described(launch: &Launch, counts: &ArmCounts) -> Server {
    let setting = |(key, value): &(String, String)| (key.clone(), json!(value));
    Server {
        name: launch.arm.clone(),
        flags: launch.flags.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        settings: launch.settings.iter().map(setting).collect(),
        counters_before: counts.before.for_record(),
        counters_after: counts.after.for_record(),
        ..Server::default()
    }
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
