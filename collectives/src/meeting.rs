//! How parties that share a segment wait for each other: stamps, bells and poison.
//!
//! A *stamp* is a counter with one writer. Raising it (release) publishes everything the writer did
//! before; whoever reads it (acquire) may then touch that data. Stamps alone decide who may read or
//! write what. A *bell* is only for sleeping: it is rung when somebody sleeps on it, so parties that
//! find each other awake make no system call. The *poison* word ends an epoch: every wait looks at
//! it, and setting it rings every bell.
//!
//! Everything is generic over [`Space`], so that the functions which ranks run over a real segment are
//! the ones that `loom` runs over its own atomics (see `loom_tests`).

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use crate::party::{Cause, Parties};

/// An atomic 64-bit counter.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64;
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64>;
}

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }
    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_add(self, value, order)
    }
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_sub(self, value, order)
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        AtomicU64::compare_exchange(self, current, new, success, failure)
    }
}

/// What sleepers sleep on. Two cache lines long: processors fetch lines in pairs.
#[repr(C, align(128))]
pub(crate) struct Bell<W> {
    /// Counts rings; the futex word.
    pub rings: W,
    /// How many sleep or are about to. A sleeper killed here leaves it too high for good, which costs
    /// a needless system call a ring until the epoch ends.
    pub sleepers: W,
}

/// What a rank tells the others of the all-reduce it is in.
#[repr(C, align(128))]
pub(crate) struct Arrival<W> {
    /// Meetings this rank has arrived at in this epoch.
    pub stamp: W,
    /// Length of the plane, by parity of the piece: ranks that disagree must not add.
    pub len: [W; 2],
}

/// The words of a rank's path of logits to the coordinator, one line a writer.
#[repr(C, align(128))]
pub(crate) struct Sent<W> {
    /// Pieces the rank has written in this epoch.
    pub stamp: W,
    /// Length of the row, by parity of the piece.
    pub len: [W; 2],
}

/// See [`Sent`].
#[repr(C, align(128))]
pub(crate) struct Taken<W> {
    /// Pieces the coordinator has copied out.
    pub stamp: W,
}

/// The words of one rank.
#[repr(C)]
pub(crate) struct RankWords<W> {
    pub arrival: Arrival<W>,
    pub sent: Sent<W>,
    pub taken: Taken<W>,
    /// Where the coordinator sleeps until this rank has sent.
    pub sent_bell: Bell<W>,
    /// Where this rank sleeps until the coordinator has taken.
    pub taken_bell: Bell<W>,
}

/// The words all share.
#[repr(C, align(128))]
pub(crate) struct CommonWords<W> {
    /// 0, or the [`Cause`] for which the epoch was given up.
    pub poison: W,
    /// Where ranks sleep in an all-reduce.
    pub bell: Bell<W>,
}

/// A buffer of the data area. Each rank has two of each kind, used in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Piece of a plane.
    Plane { rank: usize, parity: usize },
    /// Piece of a row of logits.
    Logits { rank: usize, parity: usize },
}

/// What parties share, and how they sleep: a mapped segment and futexes, or `loom`'s model of both.
pub(crate) trait Space {
    type Word: Word;

    fn world(&self) -> usize;
    fn common(&self) -> &CommonWords<Self::Word>;
    fn rank(&self, rank: usize) -> &RankWords<Self::Word>;
    /// Numbers in a plane slot.
    fn plane_len(&self) -> usize;
    /// Longest piece that every rank sums for itself.
    fn direct_len(&self) -> usize;
    /// Numbers in a logits slot.
    fn logits_len(&self) -> usize;

    /// Copies `from` to a slot.
    ///
    /// # Safety
    /// No other party reads or writes these numbers until a later stamp of the caller tells it to.
    unsafe fn put(&self, slot: Slot, at: usize, from: &[f32]);
    /// Copies from a slot.
    ///
    /// # Safety
    /// No party writes these numbers meanwhile; the caller has acquired the stamp of who wrote them.
    unsafe fn get(&self, slot: Slot, at: usize, into: &mut [f32]);
    /// Adds a slot's numbers to `into`.
    ///
    /// # Safety
    /// As for [`Space::get`].
    unsafe fn add(&self, slot: Slot, at: usize, into: &mut [f32]);

    /// A sequentially consistent fence.
    fn fence(&self);
    /// How often a waiter looks again before it sleeps, at most.
    fn spins(&self) -> u32;
    /// Between two looks.
    fn pause(&self);
    /// Sleeps until [`Space::wake`], at most `timeout`; returns at once if the word is not `seen`.
    fn sleep(&self, word: &Self::Word, seen: u64, timeout: Duration);
    /// Wakes all who sleep on the word.
    fn wake(&self, word: &Self::Word);
}

/// Why a wait ended without what it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The epoch is over.
    Poisoned(Cause),
    /// Nobody came in time.
    Deadline { waited: Duration, missing: Parties },
    /// A rank brought a plane or a row of another length.
    Length { rank: usize, theirs: u64, ours: u64 },
}

/// How one party waits: how long at most, and how long awake. The spins follow what paid off lately,
/// so that a rank whose peers need its core gives it up at once.
#[derive(Debug)]
pub(crate) struct Patience {
    pub deadline: Duration,
    spins: u32,
}

impl Patience {
    pub fn new(deadline: Duration, space: &impl Space) -> Patience {
        Patience { deadline, spins: space.spins() }
    }

    /// A wait ended after `used` spins, or in sleep.
    fn learn(&mut self, used: Option<u32>, most: u32) {
        let wish = used.map_or(0, |used| used.saturating_mul(2).saturating_add(most / 16));
        self.spins = (self.spins - self.spins / 8 + wish / 8).clamp(most / 16, most);
    }
}

/// Publishes `value` in `stamp`, and wakes sleepers if `enough` (all that they wait for is there).
pub(crate) fn post<S: Space>(
    space: &S,
    stamp: &S::Word,
    value: u64,
    bell: &Bell<S::Word>,
    enough: impl FnOnce() -> bool,
) {
    stamp.store(value, Release);
    // Orders the stamp before the look for sleepers, as `wait` orders its announcement before its
    // look at the stamps: one of the two sees the other.
    space.fence();
    if bell.sleepers.load(Relaxed) != 0 && enough() {
        ring(space, bell);
    }
}

fn ring<S: Space>(space: &S, bell: &Bell<S::Word>) {
    bell.rings.fetch_add(1, Release);
    space.wake(&bell.rings);
}

/// Waits until `ready`, which reads stamps with acquire loads. Answers how long that took; what is
/// ready at once takes no time. On a deadline the caller fills in who is missing.
pub(crate) fn wait<S: Space>(
    space: &S,
    bell: &Bell<S::Word>,
    patience: &mut Patience,
    ready: impl Fn() -> bool,
) -> Result<Duration, Stop> {
    check(space)?;
    if ready() {
        return Ok(Duration::ZERO);
    }
    let begun = Instant::now();
    for spin in 0..patience.spins {
        space.pause();
        if ready() {
            patience.learn(Some(spin), space.spins());
            return Ok(begun.elapsed());
        }
    }
    patience.learn(None, space.spins());

    bell.sleepers.fetch_add(1, Relaxed);
    space.fence();
    let end = loop {
        // Read before looking, so that a ring after the look makes the sleep return at once.
        let seen = bell.rings.load(Acquire);
        if ready() {
            break Ok(begun.elapsed());
        }
        if let Err(stop) = check(space) {
            break Err(stop);
        }
        let waited = begun.elapsed();
        match patience.deadline.checked_sub(waited) {
            Some(left) if !left.is_zero() => space.sleep(&bell.rings, seen, left),
            _ => break Err(Stop::Deadline { waited, missing: Parties::default() }),
        }
    };
    bell.sleepers.fetch_sub(1, Relaxed);
    end
}

/// Whether the epoch goes on.
pub(crate) fn check<S: Space>(space: &S) -> Result<(), Stop> {
    match Cause::decode(space.common().poison.load(Acquire)) {
        None => Ok(()),
        Some(cause) => Err(Stop::Poisoned(cause)),
    }
}

/// Ends the epoch for everybody and wakes all who wait. The first cause stays.
pub(crate) fn poison<S: Space>(space: &S, cause: Cause) {
    let common = space.common();
    // A failure means that it was poisoned before; its author may have died before ringing.
    let _ = common.poison.compare_exchange(0, cause.encode(), AcqRel, Relaxed);
    // Rung unasked: a waiter that has yet to announce itself finds the bell rung.
    ring(space, &common.bell);
    for rank in 0..space.world() {
        let words = space.rank(rank);
        ring(space, &words.sent_bell);
        ring(space, &words.taken_bell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_follow_what_pays_off() {
        let most = 1600;
        let mut patience = Patience { deadline: Duration::MAX, spins: most };
        for _ in 0..100 {
            patience.learn(None, most);
        }
        assert!(patience.spins <= most / 16 + 8, "{} spins though sleeping is all", patience.spins);
        for _ in 0..100 {
            patience.learn(Some(patience.spins.saturating_sub(1)), most);
        }
        assert_eq!(patience.spins, most, "spins that pay off grow to the limit");
        for _ in 0..100 {
            patience.learn(Some(10), most);
        }
        assert!((20..=140).contains(&patience.spins), "{} spins where 10 do", patience.spins);
    }
}
