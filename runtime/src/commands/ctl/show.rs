//! The answers of the daemon as people read them.

use std::io::{self, Write};

use super::table::{Side::Left, Side::Right, Table, bytes, duration, or_dash};
use crate::control::proto;

/// The daemon, its engine and its ranks.
pub fn status(out: &mut impl Write, status: &proto::Status) -> io::Result<()> {
    let throughput = status.throughput.unwrap_or_default();
    let mut lines = vec![
        ("state", state(status)),
        ("model", or_dash(&status.model)),
        ("daemon", format!("pocketd {}, pid {}", status.version, status.pid)),
        ("up", duration(status.uptime_s)),
        ("memory", memory(status.memory_bytes)),
        ("epoch", format!("{}, restarts {}", status.epoch, status.restarts)),
        (
            "sequences",
            format!(
                "{} running, {} waiting, of {} open requests",
                status.running, status.waiting, status.open_requests
            ),
        ),
        ("KV blocks", format!("{} of {}", status.kv_blocks_used, status.kv_blocks)),
        (
            "tokens/s",
            format!(
                "{:.1} prompt, {:.1} generated, over {:.0} s",
                throughput.prompt_tokens_per_s,
                throughput.generated_tokens_per_s,
                throughput.interval_s
            ),
        ),
        ("forward calls", status.forward_passes.to_string()),
        ("flags", or_dash(status.flags.join(", "))),
    ];
    if !status.outputs_wrong.is_empty() {
        lines.push(("OUTPUTS WRONG", status.outputs_wrong.clone()));
    }
    lines.extend(status.missing.iter().map(|rank| ("waited for", missing(rank))));
    lines.extend(status.notes.iter().map(|note| ("note", note.clone())));
    for (name, value) in lines {
        writeln!(out, "{name:<14} {value}")?;
    }
    if status.ranks.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    ranks(&status.ranks).write(out)
}

/// What the daemon does, and why if that is not what it should.
pub fn state(status: &proto::Status) -> String {
    match (status.state.as_str(), status.reason.as_str()) {
        ("starting", _) => format!("starting, {:.0} % loaded", status.loaded * 100.0),
        (state, "") => state.to_owned(),
        (state, reason) => format!("{state}: {reason}"),
    }
}

/// Whom others wait for.
fn missing(missing: &proto::MissingRank) -> String {
    let proto::MissingRank { rank, call, phase, layer, step } = missing;
    let layer =
        layer.map_or_else(|| "outside the layers".to_owned(), |layer| format!("layer {layer}"));
    format!("rank {rank} in all-reduce {call}; it is in {phase}, step {step}, {layer}")
}

/// Resident memory; a dash where the system does not say.
pub fn memory(count: u64) -> String {
    if count == 0 { "-".to_owned() } else { bytes(count) }
}

fn ranks(ranks: &[proto::Rank]) -> Table {
    let mut table = Table::new(&[
        ("rank", Right),
        ("pid", Right),
        ("state", Left),
        ("device", Left),
        ("loaded", Right),
        ("phase", Left),
        ("step", Right),
        ("layer", Right),
        ("call", Right),
        ("memory", Right),
        ("reduced", Right),
        ("skipped", Right),
        ("bytes", Right),
        ("waited", Right),
    ]);
    for rank in ranks {
        table.row(vec![
            rank.rank.to_string(),
            rank.pid.to_string(),
            rank.state.clone(),
            or_dash(&rank.device),
            format!("{:.0} %", rank.loaded * 100.0),
            rank.phase.clone(),
            rank.step.to_string(),
            rank.layer.map_or_else(|| "-".to_owned(), |layer| layer.to_string()),
            rank.all_reduce.to_string(),
            memory(rank.memory_bytes),
            rank.all_reduces_run.to_string(),
            rank.all_reduces_skipped.to_string(),
            bytes(rank.all_reduce_bytes),
            duration(rank.all_reduce_wait_us as f64 * 1e-6),
        ]);
    }
    table
}

/// The daemon in one line, for logs.
pub fn status_line(out: &mut impl Write, status: &proto::Status) -> io::Result<()> {
    let throughput = status.throughput.unwrap_or_default();
    write!(
        out,
        "up={:.1} state={} running={} waiting={} kv_blocks={}/{} prompt_tokens_per_s={:.1} \
         generated_tokens_per_s={:.1} restarts={}",
        status.uptime_s,
        status.state,
        status.running,
        status.waiting,
        status.kv_blocks_used,
        status.kv_blocks,
        throughput.prompt_tokens_per_s,
        throughput.generated_tokens_per_s,
        status.restarts
    )?;
    if !status.reason.is_empty() {
        write!(out, " reason={:?}", status.reason)?;
    }
    if !status.outputs_wrong.is_empty() {
        write!(out, " outputs_wrong={:?}", status.outputs_wrong)?;
    }
    writeln!(out)
}

/// The live requests.
pub fn requests(requests: &[proto::Request]) -> Table {
    let mut table = Table::new(&[
        ("id", Left),
        ("label", Left),
        ("age", Right),
        ("running", Right),
        ("waiting", Right),
        ("prompt", Right),
        ("generated", Right),
        ("queued ms", Right),
        ("prefill ms", Right),
        ("decode ms", Right),
        ("preempted", Right),
    ]);
    for request in requests {
        table.row(vec![
            request.id.clone(),
            or_dash(&request.label),
            duration(request.age_s),
            request.running.to_string(),
            request.waiting.to_string(),
            request.prompt_tokens.to_string(),
            request.completion_tokens.to_string(),
            format!("{:.0}", request.queue_ms),
            format!("{:.0}", request.prefill_ms),
            format!("{:.0}", request.decode_ms),
            request.preemptions.to_string(),
        ]);
    }
    table
}

/// The experiment flags.
pub fn flags(flags: &[proto::Flag]) -> Table {
    let yes_no = |value| if value { "yes" } else { "no" }.to_owned();
    let mut table = Table::new(&[
        ("flag", Left),
        ("value", Left),
        ("default", Left),
        ("runtime", Left),
        ("correct", Left),
        ("meaning", Left),
    ]);
    for flag in flags {
        table.row(vec![
            flag.name.clone(),
            or_dash(&flag.value),
            or_dash(&flag.default_value),
            yes_no(flag.runtime),
            yes_no(flag.outputs_correct),
            flag.meaning.clone(),
        ]);
    }
    table
}

/// The settings.
pub fn settings(settings: &[proto::Setting]) -> Table {
    let mut table = Table::new(&[("setting", Left), ("value", Left), ("default", Left)]);
    for setting in settings {
        table.row(vec![
            setting.key.clone(),
            or_dash(&setting.value),
            setting.default_value.clone(),
        ]);
    }
    table
}
