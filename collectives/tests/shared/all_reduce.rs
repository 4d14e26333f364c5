//! The all-reduce over a real segment, its ranks threads.

use std::thread;
use std::time::Duration;

use pocket_collectives::{
    AllReduce, CollectiveError, Counters, Missing, Party, Phase, ProgressSink, RankPort,
    SegmentOwner, SharedAllReduce,
};

use pocket_device::DeviceTensor;
use pocket_device::cpu::{CpuDevice, CpuTensor};

use crate::names::spec;
use crate::numbers::{assert_same_bits, mix, plane, serial_sum};
use crate::{NEVER, attach, group, until};

/// Runs `body` on every rank's all-reduce, each on a thread, and answers what they answer.
fn on_ranks<T: Send>(
    ports: Vec<RankPort>,
    body: impl Fn(usize, &mut SharedAllReduce) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let run = |(rank, mut port): (usize, RankPort)| {
            let body = &body;
            scope.spawn(move || body(rank, &mut port.all_reduce))
        };
        let threads: Vec<_> = ports.into_iter().enumerate().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn sums_have_the_bits_of_a_serial_sum_in_rank_order() {
    for world in [2, 3, 4, 16] {
        let (_owner, ports) = group("exact", world, NEVER);
        let sums = [1, 7, 4096, 5_000_003].map(|len| serial_sum(0..world, len));
        let counters = on_ranks(ports, |rank, all_reduce| {
            for sum in &sums {
                let mut plane = plane(rank, sum.len());
                all_reduce.reduce(&mut plane).unwrap();
                assert_same_bits(&plane, sum, &format!("rank {rank} of {world}"));
            }
            all_reduce.counters()
        });
        for Counters { run, skipped, bytes, .. } in counters {
            assert_eq!((run, skipped, bytes), (4, 0, 4 * (1 + 7 + 4096 + 5_000_003)));
        }
    }
}

#[test]
fn tensors_are_summed_in_the_rows_in_use() {
    let (_owner, ports) = group("tensors", 2, NEVER);
    on_ranks(ports, |rank, all_reduce| {
        let all_reduce: &mut dyn AllReduce<CpuDevice> = all_reduce;
        let mut tensor = CpuTensor::from_slice(&[rank as f32 + 1.0; 6], 2).unwrap();
        tensor.set_rows(2);
        all_reduce.all_reduce(&mut tensor).unwrap();
        tensor.set_rows(3);
        let one = rank as f32 + 1.0;
        assert_eq!(tensor.as_slice(), [3.0, 3.0, 3.0, 3.0, one, one]);
        assert_eq!((all_reduce.counters().run, all_reduce.counters().bytes), (1, 16));
    });
}

#[test]
fn another_order_would_show() {
    assert_ne!(serial_sum(0..3, 4096), serial_sum((0..3).rev(), 4096));
}

#[test]
fn negative_zeros_and_empty_planes_survive() {
    let (_owner, ports) = group("zeros", 3, NEVER);
    on_ranks(ports, |_, all_reduce| {
        let mut plane = [-0.0, 0.0];
        all_reduce.reduce(&mut plane).unwrap();
        assert_eq!(plane.map(f32::to_bits), [(-0.0f32).to_bits(), 0]);
        all_reduce.reduce(&mut []).unwrap();
        assert_eq!(all_reduce.counters().run, 2);
    });
}

#[test]
fn ten_thousand_rounds_with_random_delays_do_not_stall() {
    const ROUNDS: usize = 10_000;
    let (_owner, ports) = group("delays", 4, NEVER);
    on_ranks(ports, |rank, all_reduce| {
        let mut plane = Vec::new();
        for round in 0..ROUNDS {
            let chance = mix((rank * ROUNDS + round) as u64);
            match chance % 64 {
                0 => thread::sleep(Duration::from_micros(chance >> 32 & 127)),
                1..8 => thread::yield_now(),
                8..16 => (0..chance >> 32 & 4095).for_each(|_| std::hint::spin_loop()),
                _ => {}
            }
            // One round in 50 is long enough to be scattered.
            let len = if round % 50 == 0 { 20_000 } else { 1 + mix(round as u64) as usize % 100 };
            plane.clear();
            plane.resize(len, (round + rank) as f32);
            all_reduce.reduce(&mut plane).unwrap();
            let sum = (4 * round + 6) as f32;
            assert!(plane.iter().all(|&x| x == sum), "round {round}, rank {rank}");
        }
    });
}

#[test]
fn ranks_that_wait_long_leave_their_cores_to_others() {
    let (owner, mut ports) = group("asleep", 3, NEVER);
    let mut last = ports.pop().unwrap();
    let watch = owner.watch();
    let used = thread::scope(|scope| {
        scope.spawn(|| {
            until(|| (0..2).all(|rank| watch.progress(rank).phase == Phase::AllReduce));
            thread::sleep(Duration::from_millis(200));
            last.all_reduce.reduce(&mut [1.0]).unwrap();
        });
        on_ranks(ports, |_, all_reduce| {
            let before = cpu_time();
            all_reduce.reduce(&mut [1.0]).unwrap();
            cpu_time() - before
        })
    });
    for used in used {
        assert!(used < Duration::from_millis(20), "{used:?} of computing in a wait of 200 ms");
    }
}

/// What this thread has computed so far; other threads and processes do not count.
fn cpu_time() -> Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    Duration::from(time)
}

#[test]
fn poison_frees_all_who_wait_and_all_who_come_later() {
    let (owner, mut ports) = group("poison", 4, NEVER);
    let mut late = ports.pop().unwrap();
    let watch = owner.watch();
    let errors = thread::scope(|scope| {
        scope.spawn(|| {
            until(|| (0..3).all(|rank| watch.progress(rank).phase == Phase::AllReduce));
            owner.poison(Party::Coordinator);
            owner.poison(Party::Rank(2));
        });
        on_ranks(ports, |_, all_reduce| all_reduce.reduce(&mut [1.0]).unwrap_err().to_string())
    });
    assert_eq!(errors, ["epoch 3 was poisoned by the coordinator"; 3]);
    assert_eq!(watch.poisoned().as_deref(), Some("the coordinator"));
    for _ in 0..2 {
        let error = late.all_reduce.reduce(&mut [1.0]).unwrap_err();
        assert!(matches!(error, CollectiveError::Poisoned { epoch: 3, .. }), "{error}");
    }
    assert_eq!(late.all_reduce.counters(), Counters::default());
}

#[test]
fn a_deadline_names_who_is_missing_and_frees_the_others() {
    // Rank 0 is the impatient one, rank 1 never comes.
    let owner = SegmentOwner::create(&spec("deadline", 3)).unwrap();
    let deadlines = [Duration::from_millis(50), NEVER, NEVER];
    let ports: Vec<_> =
        (0..3).map(|rank| attach(&owner, rank, 3, deadlines[rank]).unwrap()).collect();
    let errors = on_ranks(ports, |rank, all_reduce| {
        (rank != 1).then(|| all_reduce.reduce(&mut [1.0]).unwrap_err())
    });
    let [Some(first), None, Some(last)] = &errors[..] else { panic!("{errors:?}") };
    let CollectiveError::Deadline { waiter, missing, call: 1, waited_ms, .. } = first else {
        panic!("{first}");
    };
    assert_eq!(waiter, "rank 0");
    assert!(missing.contains("rank 1"), "{missing}");
    assert!(*waited_ms >= 50);
    let by = "epoch 3 was poisoned by rank 0, which had waited for rank 1";
    assert!(last.to_string().starts_with(by), "{last}");
}

#[test]
fn skipped_calls_touch_no_plane_and_wait_for_nobody() {
    let (owner, mut ports) = group("skip", 2, NEVER);
    let mut port = ports.remove(0);
    port.progress.begin_step(1, Phase::Decode);
    port.all_reduce.set_skip(true);
    for _ in 0..5 {
        let mut plane = [1.5, 2.5];
        port.all_reduce.reduce(&mut plane).unwrap();
        assert_eq!(plane, [1.5, 2.5]);
    }
    assert_eq!(port.all_reduce.counters(), Counters { skipped: 5, ..Counters::default() });
    let progress = owner.watch().progress(0);
    assert_eq!((progress.all_reduce, progress.phase), (5, Phase::Decode));
    assert!(owner.watch().missing().is_empty(), "nobody waits");

    // And back: the control ends where it began.
    port.all_reduce.set_skip(false);
    ports.insert(0, port);
    let counters = on_ranks(ports, |rank, all_reduce| {
        let mut plane = [rank as f32 + 1.0];
        all_reduce.reduce(&mut plane).unwrap();
        assert_eq!(plane, [3.0]);
        all_reduce.counters()
    });
    let [first, second] = &counters[..] else { unreachable!("two ranks") };
    assert_eq!((first.run, first.skipped, second.run, second.skipped), (1, 5, 1, 0));
}

/// The record's mistake: a path that the skip does not sit on.
#[test]
fn larger_planes_get_around_the_skip_where_that_fault_is_set_and_are_counted() {
    let (_owner, ports) = group("around", 2, NEVER);
    let counters = on_ranks(ports, |rank, all_reduce| {
        all_reduce.set_skip(true);
        all_reduce.let_larger_around_skip(4);
        let mut small = [rank as f32 + 1.0; 4];
        all_reduce.reduce(&mut small).unwrap();
        assert_eq!(small, [rank as f32 + 1.0; 4], "skipped");
        let mut large = [rank as f32 + 1.0; 5];
        all_reduce.reduce(&mut large).unwrap();
        assert_eq!(large, [3.0; 5], "summed");
        all_reduce.counters()
    });
    assert!(counters.iter().all(|counters| (counters.run, counters.skipped) == (1, 1)));
}

#[test]
fn a_world_of_one_has_nothing_to_reduce_or_skip() {
    let (owner, mut ports) = group("single", 1, NEVER);
    for skip in [false, true] {
        ports[0].all_reduce.set_skip(skip);
        let mut plane = [1.5];
        ports[0].all_reduce.reduce(&mut plane).unwrap();
        assert_eq!(plane, [1.5]);
    }
    assert_eq!(ports[0].all_reduce.counters(), Counters::default());
    assert_eq!(owner.watch().progress(0).all_reduce, 0);
}

#[test]
fn planes_of_different_lengths_are_refused_by_everybody() {
    let (_owner, ports) = group("lengths", 2, NEVER);
    let errors = on_ranks(ports, |rank, all_reduce| {
        all_reduce.reduce(&mut vec![1.0; 5 + rank]).unwrap_err().to_string()
    });
    let mut mismatches = 0;
    for error in &errors {
        let mismatch = error.contains("all-reduce 1: rank") && error.contains("numbers");
        assert!(mismatch || error.starts_with("epoch 3 was poisoned by rank"), "{error}");
        mismatches += usize::from(mismatch);
    }
    assert!(mismatches > 0, "{errors:?}");
}

#[test]
fn the_watch_names_who_is_waited_for_and_where_it_is() {
    let (owner, mut ports) = group("watch", 2, NEVER);
    let watch = owner.watch();
    assert_eq!(watch.attached(), [0, 1]);
    assert!(watch.missing().is_empty());
    for port in &ports {
        port.progress.begin_step(9, Phase::Prefill);
        port.progress.enter_layer(4);
    }
    let [first, second] = &mut ports[..] else { unreachable!("two ranks") };
    thread::scope(|scope| {
        let waiting = scope.spawn(|| first.all_reduce.reduce(&mut [1.0]));
        until(|| !watch.missing().is_empty());
        second.progress.enter_layer(5);
        let expected = Missing { rank: 1, call: 1, phase: Phase::Prefill, layer: 5, step: 9 };
        assert_eq!(watch.missing(), [expected]);
        second.all_reduce.reduce(&mut [1.0]).unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert!(watch.missing().is_empty());
    let progress = watch.all();
    assert_eq!(progress.iter().map(|p| p.all_reduce).collect::<Vec<_>>(), [1, 1]);
    assert_eq!((progress[0].phase, progress[0].layer), (Phase::Prefill, 4));
    assert!(first.all_reduce.counters().wait_us > 0);
}
