//! What a server has counted, as it says itself in `/health` and `/metrics`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::record::{Counters, Invalid};

/// All-reduces of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllReduces {
    /// Calls that summed.
    pub run: u64,
    /// Calls that returned at once because they were to be skipped.
    pub skipped: u64,
    /// Bytes of the planes summed.
    pub bytes: u64,
    /// Microseconds spent waiting for peers.
    pub wait_us: u64,
}

impl AllReduces {
    /// As `/metrics` has them: there a server's tests of its own are left out, in `/health` they are not.
    fn of(rank: usize, series: &BTreeMap<String, f64>) -> Self {
        let number = |name: &str| {
            let sample = format!("pocket_all_reduce_{name}_total{{rank=\"{rank}\"}}");
            series.get(&sample).copied().unwrap_or_default()
        };
        // Whole numbers, below 2^53 for a very long time.
        Self {
            run: number("calls") as u64,
            skipped: number("skips") as u64,
            bytes: number("bytes") as u64,
            wait_us: (number("wait_seconds") * 1e6) as u64,
        }
    }
}

/// A server's counters at a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Group of ranks; another one means that ranks were started again.
    pub epoch: u64,
    /// Times the ranks were started again.
    pub restarts: u64,
    /// Forward calls.
    pub forward_passes: u64,
    /// All-reduces of a forward call on each rank; 0 with one rank.
    pub all_reduces_per_pass: u64,
    /// By rank.
    pub all_reduces: Vec<AllReduces>,
    /// Experiment flags that are not at their defaults, `NAME=value`.
    pub flags: Vec<String>,
    /// Why outputs are wrong by request, if they are.
    pub outputs_wrong: Option<String>,
    /// Flags that have nothing to act on.
    pub notes: Vec<String>,
    /// The samples of `/metrics`, with their labels, histograms' buckets left out.
    pub series: BTreeMap<String, f64>,
}

impl Counts {
    /// As a record has them.
    pub fn for_record(&self) -> Counters {
        let mut all = self.series.clone();
        all.insert("epoch".to_owned(), self.epoch as f64);
        all.insert("restarts".to_owned(), self.restarts as f64);
        all.insert("forward_passes".to_owned(), self.forward_passes as f64);
        for (rank, counters) in self.all_reduces.iter().enumerate() {
            let AllReduces { run, skipped, bytes, wait_us } = *counters;
            for (name, value) in
                [("run", run), ("skipped", skipped), ("bytes", bytes), ("wait_us", wait_us)]
            {
                all.insert(format!("all_reduce_{name}, rank {rank}"), value as f64);
            }
        }
        all
    }

    /// From the bodies of both.
    pub fn read(health: &str, metrics: &str) -> Result<Self, String> {
        let health: Value =
            serde_json::from_str(health).map_err(|error| format!("/health is no JSON: {error}"))?;
        let number = |name: &str| {
            let missing = || format!("/health has no number called {name:?}");
            health[name].as_u64().ok_or_else(missing)
        };
        let list = |name: &str| serde_json::from_value(health[name].clone()).unwrap_or_default();
        let ranks = health["ranks"].as_array().ok_or("/health has no ranks")?;
        let series = series(metrics);
        Ok(Self {
            epoch: number("epoch")?,
            restarts: number("restarts")?,
            forward_passes: number("forward_passes")?,
            all_reduces_per_pass: number("all_reduces_per_pass")?,
            all_reduces: (0..ranks.len()).map(|rank| AllReduces::of(rank, &series)).collect(),
            flags: list("flags"),
            outputs_wrong: health["outputs_wrong"].as_str().map(str::to_owned),
            notes: list("notes"),
            series,
        })
    }

    /// What of the server `name` is not the same any more: its ranks, or its flags.
    pub fn changes(&self, name: &str, after: &Self) -> Vec<Invalid> {
        let mut all = Vec::new();
        let server = || format!("server of arm {name:?}");
        if (self.epoch, self.restarts) != (after.epoch, after.restarts) {
            let what = "the epoch of its ranks".to_owned();
            let (before, after) = (self.epoch.to_string(), after.epoch.to_string());
            all.push(Invalid::ServerRestarted { server: server(), what, before, after });
        }
        if self.flags != after.flags {
            let flag = "set".to_owned();
            let (before, after) = (self.flags.join(" "), after.flags.join(" "));
            all.push(Invalid::FlagChanged { server: server(), flag, before, after });
        }
        all
    }

    /// The sum of a series over its labels, or one sample of it where `name` has its labels; none where
    /// there is no such series.
    pub fn total(&self, name: &str) -> Option<f64> {
        if let Some(sample) = self.series.get(name) {
            return Some(*sample);
        }
        let labelled = format!("{name}{{");
        let samples: Vec<f64> = self
            .series
            .iter()
            .filter(|(sample, _)| sample.starts_with(&labelled))
            .map(|(_, value)| *value)
            .collect();
        (!samples.is_empty()).then(|| samples.iter().sum())
    }
}

/// Samples of Prometheus' text format.
fn series(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.contains("_bucket{"));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    lines.filter_map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = "# HELP pocket_all_reduce_calls_total All-reduces run\n\
        pocket_all_reduce_calls_total{rank=\"0\"} 17\n\
        pocket_all_reduce_calls_total{rank=\"1\"} 18\n\
        pocket_all_reduce_skips_total{rank=\"0\"} 2\n\
        pocket_all_reduce_bytes_total{rank=\"0\"} 3\n\
        pocket_all_reduce_wait_seconds_total{rank=\"0\"} 0.000004\n\
        pocket_rows_per_call_bucket{le=\"8\"} 1\n\
        pocket_rows_per_call_sum 8\n";

    #[test]
    fn both_answers_make_one_set_of_counts() {
        let health = r#"{"state":"ready","epoch":1,"restarts":0,"forward_passes":9,
            "all_reduces_per_pass":17,"flags":["A=1"],"outputs_wrong":null,"notes":[],
            "ranks":[{"rank":0,"counters":{"run":99}}]}"#;
        let counts = Counts::read(health, METRICS).unwrap();
        assert_eq!((counts.forward_passes, counts.all_reduces_per_pass), (9, 17));
        let expected = AllReduces { run: 17, skipped: 2, bytes: 3, wait_us: 4 };
        assert_eq!(counts.all_reduces, [expected]);
        assert_eq!(counts.flags, ["A=1"]);
        let recorded = counts.for_record();
        assert_eq!(recorded["all_reduce_skipped, rank 0"], 2.0);
        assert_eq!((recorded["forward_passes"], recorded["pocket_rows_per_call_sum"]), (9.0, 8.0));
        assert_eq!(counts.series.len(), 6, "buckets are left out");
        assert_eq!(counts.total("pocket_all_reduce_calls_total"), Some(35.0));
        assert_eq!(counts.total("pocket_all_reduce_calls_total{rank=\"1\"}"), Some(18.0));
        assert_eq!(counts.total("pocket_rows_per_call_sum"), Some(8.0));
        assert_eq!(counts.total("pocket_rows"), None, "the beginning of a name is no name");
    }

    #[test]
    fn a_server_that_is_another_one_is_noticed() {
        let before = Counts { epoch: 1, flags: vec!["A=1".to_owned()], ..Counts::default() };
        assert_eq!(before.changes("a", &before.clone()), []);
        let restarted = Counts { epoch: 2, restarts: 1, ..before.clone() };
        let reasons = before.changes("a", &restarted);
        assert!(matches!(&reasons[..], [Invalid::ServerRestarted { .. }]), "{reasons:?}");
        let reasons = before.changes("a", &Counts { flags: vec![], ..before.clone() });
        assert!(matches!(&reasons[..], [Invalid::FlagChanged { .. }]), "{reasons:?}");
    }

    #[test]
    fn another_programs_answers_are_refused_by_name() {
        assert!(Counts::read("<html>", "").unwrap_err().contains("no JSON"));
        assert!(Counts::read("{\"ranks\":[]}", "").unwrap_err().contains("\"epoch\""));
    }
}
