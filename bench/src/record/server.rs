//! What was measured.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Counters by name, such as `forward_passes` or `all_reduce_skipped`.
pub type Counters = BTreeMap<String, f64>;

/// A server, as it described itself. What a server of another kind does not tell is `None` or empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Server {
    /// Which of the record's servers: an arm's name, or `server`.
    pub name: String,
    /// Where it was asked, such as `http://localhost:8000`.
    pub address: Option<String>,
    /// Its program and version, such as `pocketd 0.1.0`.
    pub version: Option<String>,
    /// The model it served.
    pub model: Option<String>,
    /// Ranks that the model was split over.
    pub tensor_parallel_size: Option<usize>,
    /// Threads of each rank.
    pub threads_per_rank: Option<usize>,
    /// What the ranks ran on, such as `cpu`.
    pub device: Option<String>,
    /// Experiment flags that are not at their defaults, as `K=V`.
    pub flags: Vec<String>,
    /// Settings in force.
    pub settings: BTreeMap<String, Value>,
    /// Its counters before the measurement.
    pub counters_before: Counters,
    /// Its counters after the measurement.
    pub counters_after: Counters,
}

impl Server {
    /// How far a counter rose; `None` unless it was there before and after.
    pub fn rise(&self, counter: &str) -> Option<f64> {
        Some(self.counters_after.get(counter)? - self.counters_before.get(counter)?)
    }
}
