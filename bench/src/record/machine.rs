//! Where a measurement was made.

use std::fs;
use std::thread;

use serde::{Deserialize, Serialize};

/// A machine, as far as results depend on it. It has no name: records are shown around.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's own name; `None` where the kernel does not tell.
    pub cpu: Option<String>,
    /// The instruction set, such as `x86_64`.
    pub architecture: String,
    /// Hardware threads that this process may use.
    pub cores: usize,
    /// Bytes of memory; `None` where the kernel does not tell.
    pub memory_bytes: Option<u64>,
    /// The kernel's release; `None` where it does not tell.
    pub kernel: Option<String>,
}

impl Machine {
    /// This one.
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).ok();
        Self {
            cpu: read("/proc/cpuinfo").and_then(|text| cpu(&text)),
            architecture: std::env::consts::ARCH.to_owned(),
            cores: thread::available_parallelism().map_or(1, |cores| cores.get()),
            memory_bytes: read("/proc/meminfo").and_then(|text| memory(&text)),
            kernel: read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()),
        }
    }
}

/// The value of the first `key : value` with this key.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}

fn cpu(text: &str) -> Option<String> {
    field(text, "model name").map(|name| name.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn memory(text: &str) -> Option<u64> {
    let kilobytes: u64 = field(text, "MemTotal")?.strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_read() {
        let info = "processor\t: 0\nmodel name\t: Some(R)  CPU @ 2.00GHz\nflags\t\t: a b\n";
        assert_eq!(cpu(info).as_deref(), Some("Some(R) CPU @ 2.00GHz"));
        assert_eq!(cpu("processor : 0\n"), None);
        assert_eq!(memory("MemTotal:       1024 kB\nMemFree: 1 kB\n"), Some(1 << 20));
        assert_eq!(memory("nothing"), None);
    }

    #[test]
    fn this_machine_has_cores_and_a_kernel() {
        let here = Machine::here();
        assert!(here.cores >= 1);
        assert!(here.memory_bytes.is_some_and(|bytes| bytes > 1 << 20), "{here:?}");
        assert!(here.kernel.is_some_and(|kernel| kernel.starts_with(|c: char| c.is_numeric())));
    }
}
