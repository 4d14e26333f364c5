//! Clients that send nonsense, by the thousands: nothing breaks, nothing grows, and who asks properly is
//! answered properly.

mod connections;
mod frames;
mod grpc;
mod http;
mod requests;

use std::fs;

use pocket_tests::daemon::{Daemon, DaemonOptions};
use pocket_tests::wait::{PATIENCE, until};

use crate::common::POCKETD;
use crate::http_support::{CHAT, asks, wait_idle, whole};

/// What the daemon's resident memory may grow by under an attack, in bytes: what the allocator keeps of
/// the largest heads and bodies that were on their way at a time. An attack that left anything of each
/// request behind would take more.
const GROWTH: u64 = 16 << 20;

/// A stream of numbers that is the same every time (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }

    fn one_of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }

    fn byte(&mut self) -> u8 {
        (self.next() & 0xff) as u8
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }

    /// Changes, loses or puts in a few bytes.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(6) {
            if bytes.is_empty() {
                return;
            }
            let at = self.below(bytes.len());
            match self.below(4) {
                0 => bytes[at] = self.byte(),
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, self.byte()),
                _ => bytes.truncate(at.max(1)),
            }
        }
    }
}

/// The demo model on two ranks.
fn target() -> DaemonOptions {
    Daemon::options(POCKETD).args(["--tensor-parallel-size", "2"])
}

/// What the coordinator's process has: resident memory in bytes, and descriptors.
fn holds(daemon: &mut Daemon) -> (u64, usize) {
    let id = daemon.process().id();
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kibibytes: u64 = resident.trim().strip_suffix("kB").unwrap().trim().parse().unwrap();
    (kibibytes << 10, fs::read_dir(format!("/proc/{id}/fd")).unwrap().count())
}

/// After an attack: memory and descriptors are what they were, no request is left, and a question is
/// answered right by the ranks that were there from the beginning. Then the daemon ends in order.
fn is_unharmed(mut daemon: Daemon, before: (u64, usize)) {
    let client = daemon.client();
    wait_idle(&client);
    // Connections are closed by their own threads.
    until("its connections to be closed", PATIENCE, || {
        (holds(&mut daemon).1 <= before.1 + 4).then_some(())
    })
    .unwrap();
    let after = holds(&mut daemon);
    eprintln!("resident: {} KiB before, {} KiB after", before.0 >> 10, after.0 >> 10);
    assert!(after.0 <= before.0 + GROWTH, "{before:?} became {after:?}");
    is_right(&daemon);
    let health = client.get("/health").unwrap().json().unwrap();
    assert_eq!((&health["state"], &health["restarts"]), (&"ready".into(), &0.into()), "{health}");
    let stopped = daemon.stop(PATIENCE).unwrap();
    assert_eq!(stopped.status.code(), Some(0), "{stopped:?}");
    for bad in ["ERROR", "panicked"] {
        assert!(!stopped.stderr.contains(bad), "{}", stopped.stderr);
    }
}

fn is_right(daemon: &Daemon) {
    let answer = whole(&daemon.client(), CHAT, &asks("What is the capital of France?"));
    assert_eq!(answer.text, "The capital of France is Paris.");
}
