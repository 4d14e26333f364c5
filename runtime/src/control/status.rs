//! `GetStatus`: what the engine says, and what only the daemon knows.

use pocket_actors::api::{EngineState, MissingRank, RankStatus};
use serde::Serialize;

use super::{Daemon, proto};
use crate::http::Report;

/// The daemon as it is now.
pub async fn status(daemon: &Daemon) -> proto::Status {
    let Report { state, loading, engine } = Report::of(&daemon.app).await;
    let rates = daemon.rates();
    let (state, reason) = named(&state);
    let mut status = proto::Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        model: daemon.app.serving().map(|s| s.model.name.clone()).unwrap_or_default(),
        uptime_s: daemon.started.elapsed().as_secs_f64(),
        state: state.to_owned(),
        reason,
        loaded: loading.unwrap_or(if engine.is_some() { 1.0 } else { 0.0 }),
        pid: std::process::id(),
        memory_bytes: resident_bytes(std::process::id()),
        open_requests: daemon.app.open_requests() as u64,
        throughput: Some(proto::Throughput {
            interval_s: rates.interval.as_secs_f64(),
            prompt_tokens_per_s: rates.prompt,
            generated_tokens_per_s: rates.generated,
            first_token_s: rates.first_token.map(|time| time.as_secs_f64()),
        }),
        flags: daemon.settings.flags.non_default(),
        ..proto::Status::default()
    };
    if let Some(engine) = engine {
        status.epoch = engine.epoch;
        status.restarts = engine.restarts;
        status.forward_passes = engine.forward_passes;
        status.running = engine.running as u64;
        status.waiting = engine.waiting as u64;
        status.kv_blocks_used = engine.kv_blocks_used as u64;
        status.kv_blocks = engine.kv_blocks as u64;
        status.flags = engine.flags;
        status.outputs_wrong = engine.outputs_wrong.unwrap_or_default();
        status.notes = engine.notes;
        status.ranks = engine.ranks.iter().map(rank).collect();
        status.missing = engine.missing.iter().map(missing).collect();
    }
    status
}

/// The name of a state, as `/health` has it, and its reason.
fn named(state: &EngineState) -> (&'static str, String) {
    match state {
        EngineState::Starting => ("starting", String::new()),
        EngineState::Ready => ("ready", String::new()),
        EngineState::Recovering(reason) => ("recovering", reason.clone()),
        EngineState::Draining => ("draining", String::new()),
        EngineState::Failed(reason) => ("failed", reason.clone()),
    }
}

fn rank(status: &RankStatus) -> proto::Rank {
    let RankStatus { rank, pid, state, device, progress, counters, loaded } = status;
    proto::Rank {
        rank: *rank as u32,
        pid: *pid,
        state: state.clone(),
        device: device.clone(),
        loaded: *loaded,
        phase: word(&progress.phase),
        step: progress.step,
        layer: (progress.layer != u32::MAX).then_some(progress.layer),
        all_reduce: progress.all_reduce,
        memory_bytes: resident_bytes(*pid),
        all_reduces_run: counters.run,
        all_reduces_skipped: counters.skipped,
        all_reduce_bytes: counters.bytes,
        all_reduce_wait_us: counters.wait_us,
    }
}

fn missing(missing: &MissingRank) -> proto::MissingRank {
    let MissingRank { rank, call, phase, layer, step } = missing;
    proto::MissingRank {
        rank: *rank as u32,
        call: *call,
        phase: word(phase),
        layer: *layer,
        step: *step,
    }
}

/// The word a value without fields is written as.
pub fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

/// Resident memory of a process, shared pages included; 0 for one that is gone or hidden.
fn resident_bytes(pid: u32) -> u64 {
    // A rank that has not been started has no id, and /proc/0 is nothing.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    parse_resident(&status).unwrap_or(0)
}

/// `VmRSS` is what `statm` has too, but in kibibytes, whatever the size of a page.
fn parse_resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use pocket_collectives::{Counters, Phase, Progress};

    use super::*;

    #[test]
    fn resident_memory_is_read() {
        assert_eq!(parse_resident("VmPeak:\t 9 kB\nVmRSS:\t  1234 kB\n"), Some(1234 * 1024));
        assert_eq!(parse_resident("VmRSS:\t 1 MB\n"), None);
        assert_eq!(parse_resident(""), None);
        assert!(resident_bytes(std::process::id()) > 1 << 20);
        assert_eq!(resident_bytes(0), 0);
    }

    #[test]
    fn a_rank_outside_the_layers_is_in_none() {
        let mut status = RankStatus {
            rank: 3,
            pid: 0,
            state: "busy".to_owned(),
            device: "cpu".to_owned(),
            progress: Progress { phase: Phase::AllReduce, layer: 5, ..Progress::default() },
            counters: Counters::default(),
            loaded: 1.0,
        };
        assert_eq!((rank(&status).layer, rank(&status).phase.as_str()), (Some(5), "all_reduce"));
        status.progress.layer = u32::MAX;
        assert_eq!(rank(&status).layer, None);
    }
}
