//! Names of segments, and where they lie.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use pocket_collectives::SegmentSpec;

/// What to make for a test: its run id is that of no other test or process.
pub fn spec(test: &str, world: usize) -> SegmentSpec {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    SegmentSpec { world, epoch: 3, run_id: format!("test-{test}-{process}-{count}") }
}

/// Files in `/dev/shm` whose names contain `part`.
pub fn files_with(part: &str) -> Vec<String> {
    let names = fs::read_dir("/dev/shm").unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains(part)).collect()
}
