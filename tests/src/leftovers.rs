//! What a run may leave behind: processes and shared segments.
//!
//! A run's processes are found by a variable in their environment, which children inherit: neither a
//! new process group nor a dead parent hides them.

use std::collections::BTreeSet;
use std::fs;

/// Variable that marks the processes of one run.
pub(crate) const MARK: &str = "E2E_RUN";

/// Ids of the living processes that carry this mark. Zombies do not live.
pub(crate) fn processes(mark: &str) -> Vec<u32> {
    let wanted = format!("{MARK}={mark}");
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // A zombie's environment is empty; another user's cannot be read.
    let marked = |id: &u32| {
        let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    ids.filter(marked).collect()
}

/// Command lines of processes, for messages.
pub(crate) fn describe(ids: &[u32]) -> String {
    let line = |id: &u32| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        format!("{id} ({})", String::from_utf8_lossy(&line).replace('\0', " ").trim_end())
    };
    ids.iter().map(line).collect::<Vec<_>>().join(", ")
}

/// Names of the shared segments of any daemon on this machine.
pub fn shared_segments() -> BTreeSet<String> {
    let Ok(entries) = fs::read_dir("/dev/shm") else { return BTreeSet::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with("pocketd-")).collect()
}
