//! The record of a decomposition.

use super::outcome::Prefill;
use crate::arms::ArmCounts;
use crate::record::{Record, Server};

/// Fills a record that was made before the measurement.
pub fn record(begun: Record<()>, prefill: Prefill) -> Record<Prefill> {
    let mut record = begun.map(|()| prefill);
    let measured = &record.result.measured;
    let cached = measured.samples.iter().map(|sample| sample.wave.cached_tokens()).sum();
    let hits = measured.samples.iter().filter(|sample| sample.wave.cached_tokens() > 0).count();
    let servers: Vec<Server> = measured.counts.iter().map(ArmCounts::described).collect();
    let invalid = measured.invalid.clone();
    record.servers = servers;
    record.warmed_up = true;
    record.cached_tokens = Some(cached);
    record.prefix_cache_hits = Some(hits as u64);
    for reason in invalid {
        record.invalidate(reason);
    }
    record
}
