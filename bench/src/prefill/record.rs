//! The record of a decomposition.

use super::outcome::Prefill;
use super::plan::Plan;
use crate::arms::described;
use crate::record::{Record, Server};

/// Fills a record that was made before the measurement.
pub fn record(begun: Record<()>, plan: &Plan, prefill: Prefill) -> Record<Prefill> {
    let mut record = begun.map(|()| prefill);
    let Prefill { facts, measured, .. } = &record.result;
    let cached = measured.samples.iter().map(|sample| sample.wave.cached_tokens()).sum();
    let hits = measured.samples.iter().filter(|sample| sample.wave.cached_tokens() > 0).count();
    let servers = plan.arms.iter().zip(&measured.counts).map(|(launch, counts)| {
        let server = described(launch, counts);
        Server {
            version: Some(format!("pocketd {}", measured.version)),
            model: Some(facts.model.clone()),
            tensor_parallel_size: Some(facts.tensor_parallel_size),
            threads_per_rank: Some(facts.threads_per_rank),
            ..server
        }
    });
    let (servers, invalid): (Vec<Server>, _) = (servers.collect(), measured.invalid.clone());
    record.servers = servers;
    record.warmed_up = true;
    record.cached_tokens = Some(cached);
    record.prefix_cache_hits = Some(hits as u64);
    for reason in invalid {
        record.invalidate(reason);
    }
    record
}
