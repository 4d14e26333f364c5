//! What memory the host can still give: the kernel's estimate, bounded by the limits of the control
//! groups this process is in.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Bytes;
use crate::ModelError;

/// Memory that can still be had, and who says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostMemory {
    /// Bytes.
    pub bytes: u64,
    /// The source that sets the bound.
    pub from: String,
}

impl HostMemory {
    /// Reads what is available now.
    pub fn read() -> Result<HostMemory, ModelError> {
        HostMemory::read_under(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
    }

    fn read_under(proc: &Path, groups: &Path) -> Result<HostMemory, ModelError> {
        let path = proc.join("meminfo");
        let text = std::fs::read_to_string(&path)
            .map_err(|source| ModelError::Read { path: path.clone(), source })?;
        let kib = field(&text, "MemAvailable:").ok_or_else(|| ModelError::Read {
            path,
            source: std::io::Error::other("it has no MemAvailable"),
        })?;
        let mut least =
            HostMemory { bytes: kib.saturating_mul(1024), from: "MemAvailable".to_owned() };
        // No group file means no groups, hence no limit.
        let membership = std::fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
        for group in membership.lines().flat_map(|line| Group::of(line, groups)) {
            for directory in group.up_to_root() {
                if let Some(found) = group.room(&directory)
                    && found.bytes < least.bytes
                {
                    least = found;
                }
            }
        }
        Ok(least)
    }
}

/// A hierarchy of groups, and where in it this process is.
struct Group {
    root: PathBuf,
    path: String,
    /// Names of the files with the limit and the usage, and the prefix of the counters of memory
    /// used for cached files.
    limit: &'static str,
    usage: &'static str,
    cached: &'static str,
}

impl Group {
    /// The hierarchies with memory limits that a line of `/proc/self/cgroup` puts this process in.
    fn of(line: &str, groups: &Path) -> Vec<Group> {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            return Vec::new();
        };
        let path = path.to_owned();
        if controllers.is_empty() {
            // Version 2, alone or beside version 1.
            let roots = [groups.to_owned(), groups.join("unified")];
            let group = |root| Group {
                root,
                path: path.clone(),
                limit: "memory.max",
                usage: "memory.current",
                cached: "",
            };
            roots.into_iter().map(group).collect()
        } else if controllers.split(',').any(|name| name == "memory") {
            vec![Group {
                root: groups.join("memory"),
                path,
                limit: "memory.limit_in_bytes",
                usage: "memory.usage_in_bytes",
                cached: "total_",
            }]
        } else {
            Vec::new()
        }
    }

    /// The group's directory and those above it. Inside a container the path is often that of the
    /// host while only the container's own group is mounted, at the root: what is not there has no
    /// say, the root always does.
    fn up_to_root(&self) -> Vec<PathBuf> {
        let inside = self.root.join(self.path.trim_start_matches('/'));
        let above = inside.ancestors().take_while(|path| path.starts_with(&self.root));
        above.map(Path::to_path_buf).collect()
    }

    /// What the group at `directory` leaves, if it has a limit.
    fn room(&self, directory: &Path) -> Option<HostMemory> {
        let read = |name: &str| std::fs::read_to_string(directory.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        // "max" is no number, and version 1 writes no limit as one that no machine reaches.
        let limit = number(self.limit).filter(|limit| *limit < 1 << 60)?;
        let usage = number(self.usage)?;
        let counters = read("memory.stat").unwrap_or_default();
        // Cached files are given up under pressure; what is mapped and dirty is a small part of them.
        let cached: u64 = ["inactive_file", "active_file"]
            .iter()
            .filter_map(|name| field(&counters, &format!("{}{name}", self.cached)))
            .sum();
        Some(HostMemory {
            bytes: limit.saturating_sub(usage.saturating_sub(cached)),
            from: format!("limit {} of {}", Bytes(limit), directory.display()),
        })
    }
}

/// The number after `name` in a file of one entry a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Host(tempfile::TempDir);

    impl Host {
        fn new(available_kib: u64, membership: &str) -> Host {
            let host = Host(tempfile::tempdir().unwrap());
            let meminfo = format!("MemTotal: 999 kB\nMemAvailable:   {available_kib} kB\n");
            host.write("proc/meminfo", &meminfo);
            host.write("proc/self/cgroup", membership);
            host
        }
        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fn read(&self) -> HostMemory {
            let root = self.0.path();
            HostMemory::read_under(&root.join("proc"), &root.join("groups")).unwrap()
        }
    }

    #[test]
    fn without_limits_the_kernel_decides() {
        let host = Host::new(1000, "0::/user.slice\n");
        let expected = HostMemory { bytes: 1_024_000, from: "MemAvailable".to_owned() };
        assert_eq!(host.read(), expected);
        host.write("groups/user.slice/memory.max", "max\n");
        host.write("groups/user.slice/memory.current", "5\n");
        assert_eq!(host.read(), expected);
        fs::remove_file(host.0.path().join("proc/self/cgroup")).unwrap();
        assert_eq!(host.read(), expected);
    }

    #[test]
    fn the_tightest_group_on_the_way_up_decides() {
        let host = Host::new(1 << 20, "0::/a/b\n");
        host.write("groups/a/b/memory.max", "900000\n");
        host.write("groups/a/b/memory.current", "100000\n");
        assert_eq!(host.read().bytes, 800_000);
        host.write("groups/a/memory.max", "700000\n");
        host.write("groups/a/memory.current", "300000\n");
        host.write("groups/a/memory.stat", "anon 1\ninactive_file 50000\nactive_file 50000\n");
        let found = host.read();
        assert_eq!(found.bytes, 500_000);
        assert!(found.from.starts_with("limit 683.6 KiB of "), "{}", found.from);
        assert!(found.from.ends_with("groups/a"), "{}", found.from);
        // A group over its limit has nothing left.
        host.write("groups/a/memory.current", "900000\n");
        assert_eq!(host.read().bytes, 0);
    }

    #[test]
    fn version_1_counts_too_and_its_absent_limit_does_not() {
        let host = Host::new(1 << 20, "4:cpu,cpuacct:/\n3:memory:/docker/abc\n0::/\n");
        host.write("groups/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
        host.write("groups/memory/docker/abc/memory.usage_in_bytes", "1\n");
        assert_eq!(host.read().from, "MemAvailable");
        host.write("groups/memory/docker/abc/memory.limit_in_bytes", "500000\n");
        host.write("groups/memory/docker/abc/memory.usage_in_bytes", "200000\n");
        host.write("groups/memory/docker/abc/memory.stat", "total_inactive_file 100000\n");
        assert_eq!(host.read().bytes, 400_000);
    }

    #[test]
    fn in_a_container_the_group_mounted_at_the_root_counts() {
        let host = Host::new(1 << 20, "3:memory:/docker/abc\n0::/\n");
        host.write("groups/memory/memory.limit_in_bytes", "300000\n");
        host.write("groups/memory/memory.usage_in_bytes", "0\n");
        assert_eq!(host.read().bytes, 300_000);
    }

    #[test]
    fn this_machine_has_memory() {
        let found = HostMemory::read().unwrap();
        assert!(found.bytes > 1 << 20, "{found:?}");
    }

    #[test]
    fn a_system_without_the_estimate_is_an_error_not_a_guess() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("meminfo"), "MemTotal: 5 kB\n").unwrap();
        let message = HostMemory::read_under(directory.path(), directory.path()).unwrap_err();
        assert!(message.to_string().ends_with("it has no MemAvailable"), "{message}");
    }
}
