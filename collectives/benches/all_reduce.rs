//! Time of one all-reduce over a real segment, from what a decoded token brings to what a long prompt
//! does. Ranks are threads here: the segment, the protocol and the system calls are those of processes.
//!
//! `cargo bench -p pocket-collectives`. Throughput counts the bytes of one rank's plane.

use std::thread;
use std::time::Duration;

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use pocket_collectives::{Party, RankPort, SegmentOwner, SegmentSpec};

fn main() {
    divan::main();
}

const SIZES: [usize; 8] =
    [10 << 10, 20 << 10, 40 << 10, 80 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

#[divan::bench(args = SIZES, consts = [2, 4])]
fn all_reduce<const WORLD: usize>(bencher: Bencher<'_, '_>, bytes: usize) {
    let run_id = format!("bench-{}", std::process::id());
    let spec = SegmentSpec { world: WORLD, epoch: (bytes * 32 + WORLD) as u64, run_id };
    let mut owner = SegmentOwner::create(&spec).expect("a segment");
    let attach = |rank| {
        RankPort::attach(owner.name(), rank, WORLD, spec.epoch, Duration::from_secs(60))
            .expect("a port")
            .all_reduce
    };
    let mut first = attach(0);
    let others: Vec<_> = (1..WORLD).map(attach).collect();
    owner.unlink().expect("an unlinked segment");
    let plane = || vec![0.0f32; bytes / size_of::<f32>()];
    thread::scope(|scope| {
        for mut other in others {
            // Ends when the segment is poisoned.
            scope.spawn(move || {
                let mut plane = plane();
                while other.reduce(black_box(&mut plane)).is_ok() {}
            });
        }
        let mut plane = plane();
        bencher
            .counter(BytesCount::new(bytes))
            .bench_local(|| first.reduce(black_box(&mut plane)).expect("a sum"));
        owner.poison(Party::Coordinator);
    });
}
