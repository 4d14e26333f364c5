//! Whether two records were made alike.

use serde::Serialize;
use serde_json::{Value, json};

use crate::record::{Record, Server};

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
    for server in &a.servers {
        match b.servers.iter().find(|other| other.name == server.name) {
            Some(other) => found.servers(server, other),
            None => found.lines.push(format!("B has no server called {}", server.name)),
        }
    }
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

    fn servers(&mut self, a: &Server, b: &Server) {
        let name = &a.name;
        self.check(&format!("{name}: the version"), &a.version, &b.version);
        self.check(&format!("{name}: the model"), &a.model, &b.model);
        let (ranks, others) = (&a.tensor_parallel_size, &b.tensor_parallel_size);
        self.check(&format!("{name}: the number of ranks"), ranks, others);
        let (threads, others) = (&a.threads_per_rank, &b.threads_per_rank);
        self.check(&format!("{name}: the number of threads of a rank"), threads, others);
        self.check(&format!("{name}: the device"), &a.device, &b.device);
        let flags = |server: &Server| match server.flags.as_slice() {
            [] => "none".to_owned(),
            flags => flags.join(" "),
        };
        let (here, there) = (flags(a), flags(b));
        if here != there {
            self.lines.push(format!("{name}: the flags differ: {here} in A, {there} in B"));
        }
        let keys =
            a.settings.keys().chain(b.settings.keys().filter(|key| !a.settings.contains_key(*key)));
        for key in keys {
            let (here, there) = (a.settings.get(key), b.settings.get(key));
            if here != there {
                let shown = |value: Option<&Value>| value.map_or_else(|| "none".to_owned(), shown);
                self.lines.push(format!(
                    "{name}: the setting {key} differs: {} in A, {} in B",
                    shown(here),
                    shown(there)
                ));
            }
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "unknown".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
