//! Real segments, used by the threads of one process.

#![allow(clippy::unwrap_used)] // All of it is test code.

mod all_reduce;
mod logits;
#[path = "../support/names.rs"]
mod names;
#[path = "../support/numbers.rs"]
mod numbers;
mod segment;

use std::thread;
use std::time::Duration;

use pocket_collectives::{CollectiveError, RankPort, SegmentOwner};

/// A deadline that no passing test reaches.
const NEVER: Duration = Duration::from_secs(3600);

/// A segment with all its ranks attached, and its name removed.
fn group(test: &str, world: usize, deadline: Duration) -> (SegmentOwner, Vec<RankPort>) {
    let mut owner = SegmentOwner::create(&names::spec(test, world)).unwrap();
    let ports = (0..world).map(|rank| attach(&owner, rank, world, deadline).unwrap()).collect();
    owner.unlink().unwrap();
    (owner, ports)
}

fn attach(
    owner: &SegmentOwner,
    rank: usize,
    world: usize,
    deadline: Duration,
) -> Result<RankPort, CollectiveError> {
    RankPort::attach(owner.name(), rank, world, 3, deadline)
}

/// Returns once `condition` holds.
fn until(condition: impl Fn() -> bool) {
    while !condition() {
        thread::sleep(Duration::from_millis(1));
    }
}
