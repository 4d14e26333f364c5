//! A segment in `loom`'s memory, with faults to plant.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::sync::{Condvar, Mutex};
use loom::thread;

use crate::meeting::{Arrival, Bell, CommonWords, RankWords, Sent, Slot, Space, Taken, Word};

/// Of every plane and row. A plane is one piece; 16 of its numbers are rank 0's part when it is
/// scattered, 2 are rank 1's.
pub(super) const LENGTH: usize = 18;

/// Numbers of a slot that share a cell, to keep the model small: a part of a scattered piece.
const CELL_LEN: usize = 16;

/// Two pieces a row.
pub(super) const LOGITS_LEN: usize = 9;

/// What a word is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Role {
    Arrived,
    Sent,
    Taken,
    /// Of a plane or row: not a stamp, but read under one.
    Length,
    Other,
}

/// What is wrong with a space.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    /// Nothing.
    None,
    /// Stamps of this role are stored relaxed instead of released.
    RelaxedStamp(Role),
    /// Stamps of this role are not checked: every look finds them high enough.
    UncheckedStamp(Role),
    /// Wakes do not wake.
    LostWake,
    /// The fences between a stamp and the look for sleepers are missing.
    MissingFence,
}

impl Fault {
    fn is_of_a_stamp(self) -> bool {
        matches!(self, Fault::RelaxedStamp(_) | Fault::UncheckedStamp(_))
    }
}

/// A word that knows its role, and so which faults are its own.
pub(super) struct LoomWord {
    value: AtomicU64,
    role: Role,
    fault: Fault,
}

impl Word for LoomWord {
    fn load(&self, order: Ordering) -> u64 {
        // Still loads, so that the model's other orders stay the same.
        let value = self.value.load(order);
        if self.fault == Fault::UncheckedStamp(self.role) {
            u64::MAX / 2
        } else if self.role == Role::Length && self.fault.is_of_a_stamp() {
            // The check of lengths would stop most runs with such a fault before a race shows.
            LENGTH as u64
        } else {
            value
        }
    }

    fn store(&self, value: u64, order: Ordering) {
        let relaxed = self.fault == Fault::RelaxedStamp(self.role);
        self.value.store(value, if relaxed { Ordering::Relaxed } else { order });
    }

    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.value.fetch_add(value, order)
    }

    fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.value.fetch_sub(value, order)
    }

    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.value.compare_exchange(current, new, success, failure)
    }
}

/// A segment in `loom`'s memory.
pub(super) struct LoomSpace {
    fault: Fault,
    spins: u32,
    direct_len: usize,
    common: CommonWords<LoomWord>,
    ranks: Vec<RankWords<LoomWord>>,
    /// Of each slot the cells, of each cell the numbers.
    planes: Vec<Vec<UnsafeCell<Vec<f32>>>>,
    logits: Vec<UnsafeCell<Vec<f32>>>,
    /// The kernel's side of the futexes.
    futex: Mutex<()>,
    woken: Condvar,
}

// SAFETY: `loom` runs one thread at a time, and its cells panic on accesses that would race.
unsafe impl Send for LoomSpace {}
// SAFETY: as above.
unsafe impl Sync for LoomSpace {}

impl LoomSpace {
    pub fn new(world: usize, direct_len: usize, spins: u32, fault: Fault) -> Arc<LoomSpace> {
        let word = |role| LoomWord { value: AtomicU64::new(0), role, fault };
        let other = || word(Role::Other);
        let lengths = || [word(Role::Length), word(Role::Length)];
        let bell = || Bell { rings: other(), sleepers: other() };
        let rank = |_| RankWords {
            arrival: Arrival { stamp: word(Role::Arrived), len: lengths() },
            sent: Sent { stamp: word(Role::Sent), len: lengths() },
            taken: Taken { stamp: word(Role::Taken) },
            sent_bell: bell(),
            taken_bell: bell(),
        };
        let cells = |len: usize| {
            let cell = |at: usize| UnsafeCell::new(vec![f32::NAN; CELL_LEN.min(len - at)]);
            (0..len).step_by(CELL_LEN).map(cell).collect()
        };
        Arc::new(LoomSpace {
            fault,
            spins,
            direct_len,
            common: CommonWords { poison: other(), bell: bell() },
            ranks: (0..world).map(rank).collect(),
            planes: (0..2 * world).map(|_| cells(LENGTH)).collect(),
            logits: (0..2 * world).flat_map(|_| cells(LOGITS_LEN)).collect(),
            futex: Mutex::new(()),
            woken: Condvar::new(),
        })
    }

    fn cells(&self, slot: Slot) -> &[UnsafeCell<Vec<f32>>] {
        match slot {
            Slot::Plane { rank, parity } => &self.planes[2 * rank + parity],
            Slot::Logits { rank, parity } => std::slice::from_ref(&self.logits[2 * rank + parity]),
        }
    }

    /// Shows `read` each number of a slot with its index from `at`, cell by cell.
    fn read(&self, slot: Slot, at: usize, len: usize, mut read: impl FnMut(usize, f32)) {
        for (index, cell) in self.cells(slot).iter().enumerate() {
            let (from, to) = overlap(index, at, len);
            if from < to {
                cell.with(|numbers| {
                    // SAFETY: `loom` runs one thread at a time and panics on a race.
                    let numbers = unsafe { &*numbers };
                    (from..to).for_each(|i| read(i - at, numbers[i - index * CELL_LEN]));
                });
            }
        }
    }
}

/// Which numbers of `at..at + len` lie in cell `index`.
fn overlap(index: usize, at: usize, len: usize) -> (usize, usize) {
    ((index * CELL_LEN).max(at), ((index + 1) * CELL_LEN).min(at + len))
}

impl Space for LoomSpace {
    type Word = LoomWord;

    fn world(&self) -> usize {
        self.ranks.len()
    }

    fn common(&self) -> &CommonWords<LoomWord> {
        &self.common
    }

    fn rank(&self, rank: usize) -> &RankWords<LoomWord> {
        &self.ranks[rank]
    }

    fn plane_len(&self) -> usize {
        LENGTH
    }

    fn direct_len(&self) -> usize {
        self.direct_len
    }

    fn logits_len(&self) -> usize {
        LOGITS_LEN
    }

    unsafe fn put(&self, slot: Slot, at: usize, from: &[f32]) {
        for (index, cell) in self.cells(slot).iter().enumerate() {
            let (first, end) = overlap(index, at, from.len());
            if first < end {
                cell.with_mut(|numbers| {
                    // SAFETY: as in `read`.
                    let numbers = unsafe { &mut *numbers };
                    (first..end).for_each(|i| numbers[i - index * CELL_LEN] = from[i - at]);
                });
            }
        }
    }

    unsafe fn get(&self, slot: Slot, at: usize, into: &mut [f32]) {
        self.read(slot, at, into.len(), |i, number| into[i] = number);
    }

    unsafe fn add(&self, slot: Slot, at: usize, into: &mut [f32]) {
        self.read(slot, at, into.len(), |i, number| into[i] += number);
    }

    fn fence(&self) {
        if self.fault != Fault::MissingFence {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }
    }

    fn spins(&self) -> u32 {
        self.spins
    }

    fn pause(&self) {
        thread::yield_now();
    }

    fn sleep(&self, word: &LoomWord, seen: u64, _timeout: Duration) {
        let asleep = self.futex.lock().unwrap();
        if word.load(Ordering::Relaxed) == seen {
            drop(self.woken.wait(asleep).unwrap());
        }
    }

    fn wake(&self, _word: &LoomWord) {
        if self.fault != Fault::LostWake {
            let _asleep = self.futex.lock().unwrap();
            self.woken.notify_all();
        }
    }
}
