//! How a record was measured, as sections of its report.

use crate::record::{Machine, Record, Server};

use super::number::number;
use super::{Block, Section, Side, Table};

/// Commands, machine and servers.
pub(super) fn sections<T>(record: &Record<T>) -> Vec<Section> {
    let mut sections = vec![Section {
        heading: "To repeat it".to_owned(),
        blocks: vec![Block::Commands(record.reproduce.clone())],
    }];
    let mut measured = Section { heading: "How it was measured".to_owned(), blocks: Vec::new() };
    measured.table(Table::of_facts("", facts(record)));
    for server in &record.servers {
        measured.table(Table::of_facts(called(server), server_facts(server)));
        let counters = counters(server);
        if !counters.is_empty() {
            measured.table(counters);
        }
    }
    sections.push(measured);
    sections
}

fn facts<T>(record: &Record<T>) -> Vec<(String, String)> {
    let Machine { cpu, architecture, cores, memory_bytes, kernel } = &record.machine;
    let unknown = || "not told".to_owned();
    let count = |count: Option<u64>| count.map_or_else(unknown, |count| count.to_string());
    let mut facts = vec![
        ("kind", record.kind.name().to_owned()),
        ("began", record.time.clone()),
        ("processor", cpu.clone().unwrap_or_else(unknown)),
        ("hardware threads", format!("{cores}, {architecture}")),
    ];
    if let Some(bytes) = memory_bytes {
        facts.push(("memory", format!("{:.1} GiB", *bytes as f64 / f64::from(1 << 30))));
    }
    facts.extend([
        ("kernel", kernel.clone().unwrap_or_else(unknown)),
        ("warmed up before", if record.warmed_up { "yes" } else { "no" }.to_owned()),
        ("prompt tokens from a cache", count(record.cached_tokens)),
        ("prefix cache hits", count(record.prefix_cache_hits)),
    ]);
    facts.into_iter().map(|(what, value)| (what.to_owned(), value)).collect()
}

/// A server as a heading has it: records of one have it as `server`.
fn called(server: &Server) -> String {
    match server.name.as_str() {
        "server" => "Server".to_owned(),
        name => format!("Server \u{201c}{name}\u{201d}"),
    }
}

fn server_facts(server: &Server) -> Vec<(String, String)> {
    let mut facts = Vec::new();
    let mut told = |what: &str, value: Option<String>| {
        if let Some(value) = value {
            facts.push((what.to_owned(), value));
        }
    };
    told("address", server.address.clone());
    told("version", server.version.clone());
    told("model", server.model.clone());
    told("device", server.device.clone());
    told("ranks", server.tensor_parallel_size.map(|ranks| ranks.to_string()));
    told("threads a rank", server.threads_per_rank.map(|threads| threads.to_string()));
    let flags = server.flags.join(" ");
    told("flags", Some(if flags.is_empty() { "all at their defaults".to_owned() } else { flags }));
    for (name, value) in &server.settings {
        told(name, Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
    }
    facts
}

/// The counters that moved. The others, and what a `pocketd` shows a second time under vLLM's names, are in
/// the record.
fn counters(server: &Server) -> Table {
    let right = Side::Right;
    let mut table = Table::new(
        format!("{}: counters that moved; all of them are in the record", called(server)),
        &[("counter", Side::Left), ("before", right), ("after", right), ("rise", right)],
    );
    let has_own = server.counters_after.keys().any(|name| name.starts_with("pocket_"));
    for (name, after) in &server.counters_after {
        let again = has_own && name.starts_with("vllm:");
        if again || server.rise(name) == Some(0.0) {
            continue;
        }
        let before = server.counters_before.get(name);
        table.row([
            name.clone(),
            before.map_or_else(|| "-".to_owned(), |value| whole(*value)),
            whole(*after),
            server.rise(name).map_or_else(|| "-".to_owned(), whole),
        ]);
    }
    table
}

/// A counter with all its digits.
fn whole(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { number(value) }
}
