//! Whether two records were made alike.

use serde::Serialize;
use serde_json::{Value, json};

use crate::record::{Record, Server};

/// Settings that are told of in other words.
const TOLD: [&str; 2] = ["tensor_parallel_size", "threads_per_rank"];

/// Each difference of machines, servers, caches and warm-up as one line.
pub(super) fn differences(a: &Record<Value>, b: &Record<Value>) -> Vec<String> {
    let mut found = Differences::default();
    let (here, there) = (&a.machine, &b.machine);
    found.check("the processor", &here.cpu, &there.cpu);
    found.check("the architecture", &here.architecture, &there.architecture);
    found.check("the number of hardware threads", &here.cores, &there.cores);
    found.check("the memory", &here.memory_bytes, &there.memory_bytes);
    found.check("the kernel", &here.kernel, &there.kernel);
    found.check("the warm-up", &a.warmed_up, &b.warmed_up);
    found.check("the tokens from a cache", &a.cached_tokens, &b.cached_tokens);
    // What holds for several servers is said once.
    let mut of_servers: Vec<(String, Vec<&str>)> = Vec::new();
    for server in &a.servers {
        let Some(other) = b.servers.iter().find(|other| other.name == server.name) else {
            found.lines.push(format!("B has no server called {}", server.name));
            continue;
        };
        for line in Differences::of_servers(server, other) {
            match of_servers.iter_mut().find(|(known, _)| *known == line) {
                Some((_, names)) => names.push(&server.name),
                None => of_servers.push((line, vec![&server.name])),
            }
        }
    }
    let both = a.servers.iter().filter(|server| b.servers.iter().any(|b| b.name == server.name));
    let both = both.count();
    let lines = of_servers.into_iter().map(|(line, names)| match names.len() {
        all if all > 1 && all == both => format!("all servers: {line}"),
        _ => format!("{}: {line}", names.join(", ")),
    });
    found.lines.extend(lines);
    for server in &b.servers {
        if !a.servers.iter().any(|other| other.name == server.name) {
            found.lines.push(format!("A has no server called {}", server.name));
        }
    }
    found.lines
}

#[derive(Default)]
struct Differences {
    lines: Vec<String>,
}

impl Differences {
    fn check<T: PartialEq + Serialize>(&mut self, what: &str, a: &T, b: &T) {
        if a != b {
            let (a, b) = (shown(&json!(a)), shown(&json!(b)));
            self.lines.push(format!("{what} differs: {a} in A, {b} in B"));
        }
    }

    fn of_servers(a: &Server, b: &Server) -> Vec<String> {
        let mut found = Self::default();
        found.check("the version", &a.version, &b.version);
        found.check("the model", &a.model, &b.model);
        found.check("the number of ranks", &a.tensor_parallel_size, &b.tensor_parallel_size);
        let (threads, others) = (&a.threads_per_rank, &b.threads_per_rank);
        found.check("the number of threads of a rank", threads, others);
        found.check("the device", &a.device, &b.device);
        let flags = |server: &Server| match server.flags.as_slice() {
            [] => "none".to_owned(),
            flags => flags.join(" "),
        };
        let (here, there) = (flags(a), flags(b));
        if here != there {
            found.lines.push(format!("the flags differ: {here} in A, {there} in B"));
        }
        let more = b.settings.keys().filter(|key| !a.settings.contains_key(*key));
        for key in a.settings.keys().chain(more).filter(|key| !TOLD.contains(&key.as_str())) {
            let (here, there) = (a.settings.get(key), b.settings.get(key));
            if here != there {
                let shown = |value: Option<&Value>| value.map_or_else(|| "none".to_owned(), shown);
                let (here, there) = (shown(here), shown(there));
                found.lines.push(format!("the setting {key} differs: {here} in A, {there} in B"));
            }
        }
        found.lines
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "unknown".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
