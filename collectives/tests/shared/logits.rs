//! Rows of logits from ranks, which are threads, to the coordinator.

use std::ops::Range;
use std::slice::from_ref;
use std::thread;
use std::time::Duration;

use pocket_collectives::{CollectiveError, Phase, SegmentOwner};

use crate::names::spec;
use crate::numbers::{assert_same_bits, number};
use crate::{NEVER, attach, group};

const SHORT: Duration = Duration::from_millis(50);

/// More than three pieces of a lane.
const LONG: usize = 200_000;

fn row(seed: usize, range: Range<usize>) -> Vec<f32> {
    range.map(|i| number(seed, i)).collect()
}

#[test]
fn rows_arrive_in_order_and_whole() {
    // A long shard, a short one, none, and one that ends with a piece.
    let shards = [0..LONG, LONG..LONG + 7, LONG + 7..LONG + 7, LONG + 7..LONG + 7 + 65_536];
    let len = shards[3].end;
    let (mut owner, ports) = group("rows", 4, NEVER);
    let mut receiver = owner.take_receiver().unwrap();
    assert!(owner.take_receiver().is_none(), "there is one receiver");
    thread::scope(|scope| {
        for (mut port, shard) in ports.into_iter().zip(shards.clone()) {
            scope.spawn(move || {
                for seed in 0..20 {
                    port.logits.send(&row(seed, shard.clone())).unwrap();
                }
            });
        }
        let mut received = vec![f32::NAN; len];
        for seed in 0..20 {
            receiver.receive(&mut received, &shards, NEVER).unwrap();
            assert_same_bits(&received, &row(seed, 0..len), &format!("row {seed}"));
        }
    });
    assert_eq!(owner.watch().progress(0).phase, Phase::Logits);
}

#[test]
fn the_coordinator_names_the_ranks_that_do_not_send() {
    let (mut owner, mut ports) = group("late", 3, NEVER);
    ports[0].logits.send(&[1.0]).unwrap();
    let mut receiver = owner.take_receiver().unwrap();
    let error = receiver.receive(&mut [0.0; 3], &[0..1, 1..2, 2..3], SHORT).unwrap_err();
    let CollectiveError::Deadline { waiter, missing, what, call, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((waiter.as_str(), missing.as_str()), ("the coordinator", "rank 1, rank 2"));
    assert_eq!((*what, *call), ("row of logits", 1));
    // That ended the epoch for all.
    let error = ports[1].logits.send(&[1.0]).unwrap_err();
    let by = "epoch 3 was poisoned by the coordinator, which had waited for rank 1, rank 2";
    assert_eq!(error.to_string(), by);
    assert!(ports[2].all_reduce.reduce(&mut [1.0]).is_err());
    assert!(receiver.receive(&mut [0.0; 3], &[0..1, 1..2, 2..3], NEVER).is_err());
}

#[test]
fn a_rank_does_not_wait_for_ever_for_the_coordinator() {
    let owner = SegmentOwner::create(&spec("idle", 1)).unwrap();
    let mut port = attach(&owner, 0, 1, SHORT).unwrap();
    let error = port.logits.send(&row(0, 0..LONG)).unwrap_err();
    let CollectiveError::Deadline { waiter, missing, .. } = &error else { panic!("{error}") };
    assert_eq!((waiter.as_str(), missing.as_str()), ("rank 0", "the coordinator"));
    assert_eq!(
        owner.watch().poisoned().as_deref(),
        Some("rank 0, which had waited for the coordinator")
    );
}

#[test]
fn a_shard_of_another_length_is_refused_with_both_numbers() {
    let (mut owner, mut ports) = group("shards", 1, NEVER);
    ports[0].logits.send(&[1.0, 2.0]).unwrap();
    let mut receiver = owner.take_receiver().unwrap();
    let error = receiver.receive(&mut [0.0; 3], from_ref(&(0..3)), NEVER).unwrap_err().to_string();
    let told = "row of logits 1: rank 0 brings 2 numbers, the coordinator expects 3";
    assert!(error.ends_with(told), "{error}");
    assert!(ports[0].logits.send(&[1.0]).is_err());
}

#[test]
fn shards_that_do_not_fit_the_row_or_the_ranks_are_refused() {
    let (mut owner, _ports) = group("ranges", 2, NEVER);
    let mut receiver = owner.take_receiver().unwrap();
    let backwards = Range { start: 2, end: 1 };
    for shards in [vec![], vec![0..1, 1..4], vec![0..1, backwards]] {
        let error = receiver.receive(&mut [0.0; 3], &shards, NEVER).unwrap_err();
        assert!(matches!(error, CollectiveError::Mismatch { .. }), "{error}");
    }
    assert_eq!(owner.watch().poisoned(), None, "a bad call is the caller's trouble only");
}
