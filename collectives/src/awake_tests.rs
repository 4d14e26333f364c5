//! That parties which find each other awake make no system call.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::Duration;

use shared_memory::ShmemConf;

use crate::layout::Layout;
use crate::mapping::Mapping;
use crate::meeting::{CommonWords, RankWords, Slot, Space};
use crate::pieces::{Receiver, Sender};
use crate::reduce::Reducer;

const NEVER: Duration = Duration::from_secs(3600);

/// A real mapping in which nobody tires of looking, and where a system call is a panic.
struct Sleepless(Mapping);

impl Sleepless {
    fn new(world: usize) -> Arc<Sleepless> {
        let layout = Layout::for_world(world);
        // A random name, which goes when the mapping does.
        let memory = ShmemConf::new().size(layout.bytes()).create().unwrap();
        Arc::new(Sleepless(Mapping::create(memory, layout, 0, world)))
    }
}

impl Space for Sleepless {
    type Word = AtomicU64;

    fn world(&self) -> usize {
        self.0.world()
    }
    fn common(&self) -> &CommonWords<AtomicU64> {
        self.0.common()
    }
    fn rank(&self, rank: usize) -> &RankWords<AtomicU64> {
        self.0.rank(rank)
    }
    fn plane_len(&self) -> usize {
        self.0.plane_len()
    }
    fn direct_len(&self) -> usize {
        self.0.direct_len()
    }
    fn logits_len(&self) -> usize {
        self.0.logits_len()
    }
    unsafe fn put(&self, slot: Slot, at: usize, from: &[f32]) {
        // SAFETY: the caller's promise.
        unsafe { self.0.put(slot, at, from) }
    }
    unsafe fn get(&self, slot: Slot, at: usize, into: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe { self.0.get(slot, at, into) }
    }
    unsafe fn add(&self, slot: Slot, at: usize, into: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(slot, at, into) }
    }
    fn fence(&self) {
        self.0.fence();
    }
    fn spins(&self) -> u32 {
        u32::MAX
    }
    fn pause(&self) {
        // There may be fewer cores than threads.
        thread::yield_now();
    }
    fn sleep(&self, _word: &AtomicU64, _seen: u64, _timeout: Duration) {
        panic!("a party slept");
    }
    fn wake(&self, _word: &AtomicU64) {
        panic!("a party woke others though nobody slept");
    }
}

#[test]
fn ranks_that_are_awake_sum_without_system_calls() {
    let space = Sleepless::new(3);
    let direct = space.direct_len();
    thread::scope(|scope| {
        for rank in 0..3 {
            let mut reducer = Reducer::new(Arc::clone(&space), rank, NEVER);
            scope.spawn(move || {
                for round in 0..200 {
                    // Summed directly and scattered, in turn.
                    let mut plane = vec![rank as f32; direct + round % 2];
                    reducer.reduce(&mut plane, || ()).unwrap();
                    assert!(plane.iter().all(|&sum| sum == 3.0));
                }
            });
        }
    });
}

#[test]
fn logits_that_are_there_are_taken_without_system_calls() {
    let space = Sleepless::new(1);
    let mut sender = Sender::new(Arc::clone(&space), 0, NEVER);
    let mut receiver = Receiver::new(space);
    for i in 0..100 {
        let mut row = [0.0; 3];
        sender.send(&[i as f32; 3], || ()).unwrap();
        receiver.receive(&mut row, std::slice::from_ref(&(0..3)), NEVER).unwrap();
        assert_eq!(row, [i as f32; 3]);
    }
}
