//! The all-reduce itself, over any [`Space`].
//!
//! A plane goes through in pieces. Every rank has two slots a piece fits in and uses them in turn. A
//! short piece is summed by everybody (*direct*): write my slot, meet, add all slots in rank order. A
//! long piece is split among the ranks (*scattered*): write my slot, meet, add the part that is mine
//! and write the sum over my own numbers of it, meet, copy the other parts' sums. That moves 3 numbers
//! per number of the plane and rank instead of `world + 1`, for one meeting more. Either way each
//! element is added in rank order by the same code, so the bits are those of a serial sum.
//!
//! Two slots are enough. A rank writes a slot again two pieces later. In between it has met its peers
//! for the piece in the middle, and they come to that meeting only after their last read of the first.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use crate::meeting::{self, Patience, Slot, Space, Stop, Word};
use crate::party::{Cause, Parties, Party};

/// Numbers added at a time: the running sum stays in the nearest cache.
const BLOCK: usize = 1024;

/// Parts of a scattered piece begin at multiples of this many numbers: a cache line.
const PART_ALIGN: usize = 16;

/// One rank's side of the all-reduces of an epoch.
pub(crate) struct Reducer<S: Space> {
    space: Arc<S>,
    rank: usize,
    /// Meetings so far: what the rank's stamp says.
    met: u64,
    /// Pieces so far; its lowest bit chooses the slot.
    pieces: u64,
    patience: Patience,
    /// After an error nothing of the segment is touched any more.
    stopped: Option<Stop>,
}

impl<S: Space> Reducer<S> {
    pub fn new(space: Arc<S>, rank: usize, deadline: Duration) -> Reducer<S> {
        let patience = Patience::new(deadline, &*space);
        Reducer { space, rank, met: 0, pieces: 0, patience, stopped: None }
    }

    /// Replaces `plane` by the sum over the ranks, and answers how long peers were waited for. Calls
    /// `moved` after every piece. After an error the plane holds anything, and the epoch is poisoned.
    pub fn reduce(&mut self, plane: &mut [f32], moved: impl Fn()) -> Result<Duration, Stop> {
        if let Some(stop) = self.stopped {
            return Err(stop);
        }
        self.reduce_pieces(plane, moved).inspect_err(|stop| {
            self.stopped = Some(*stop);
            let missing = match stop {
                Stop::Poisoned(_) => return,
                Stop::Deadline { missing, .. } => *missing,
                Stop::Length { .. } => Parties::default(),
            };
            meeting::poison(&*self.space, Cause { by: Party::Rank(self.rank), missing });
        })
    }

    fn reduce_pieces(&mut self, plane: &mut [f32], moved: impl Fn()) -> Result<Duration, Stop> {
        let len = plane.len() as u64;
        let mut waited = Duration::ZERO;
        for piece in plane.chunks_mut(self.space.plane_len()) {
            meeting::check(&*self.space)?;
            let parity = (self.pieces & 1) as usize;
            self.pieces += 1;
            self.space.rank(self.rank).arrival.len[parity].store(len, Relaxed);
            waited += if piece.len() <= self.space.direct_len() {
                self.direct(piece, parity, len)?
            } else {
                self.scattered(piece, parity, len)?
            };
            moved();
        }
        Ok(waited)
    }

    fn direct(&mut self, piece: &mut [f32], parity: usize, len: u64) -> Result<Duration, Stop> {
        // SAFETY: peers read this slot only after the meeting below; their reads of two pieces ago
        // ended before the meeting of the last piece (see the module).
        unsafe { self.space.put(self.slot(self.rank, parity), 0, piece) };
        let waited = self.meet(parity, len)?;
        self.sum(piece, 0, parity);
        Ok(waited)
    }

    fn scattered(&mut self, piece: &mut [f32], parity: usize, len: u64) -> Result<Duration, Stop> {
        let world = self.space.world();
        let mine = part(piece.len(), world, self.rank);
        let slot = self.slot(self.rank, parity);
        // SAFETY: as in `direct`. What is mine is left out: its place will hold the sum.
        unsafe {
            self.space.put(slot, 0, &piece[..mine.start]);
            self.space.put(slot, mine.end, &piece[mine.end..]);
        }
        let mut waited = self.meet(parity, len)?;
        self.sum(&mut piece[mine.clone()], mine.start, parity);
        // SAFETY: of my slot peers read between the two meetings only what is theirs.
        unsafe { self.space.put(slot, mine.start, &piece[mine]) };
        waited += self.meet(parity, len)?;
        for peer in (0..world).filter(|&peer| peer != self.rank) {
            let theirs = part(piece.len(), world, peer);
            // SAFETY: the peer wrote its sum before the meeting and writes this slot again only
            // after the meeting of the next piece, which this rank has not come to.
            unsafe { self.space.get(self.slot(peer, parity), theirs.start, &mut piece[theirs]) };
        }
        Ok(waited)
    }

    /// Adds all ranks' numbers in rank order into `own`, which holds this rank's and lies at `at` in
    /// the slots. The peers have arrived.
    fn sum(&self, own: &mut [f32], at: usize, parity: usize) {
        let mut sum = [0.0; BLOCK];
        for (i, block) in own.chunks_mut(BLOCK).enumerate() {
            let (sum, at) = (&mut sum[..block.len()], at + i * BLOCK);
            for rank in 0..self.space.world() {
                let slot = self.slot(rank, parity);
                // The sum starts from rank 0's number, not from 0 + it: that would lose -0.0.
                match (rank == self.rank, rank == 0) {
                    (true, true) => sum.copy_from_slice(block),
                    (true, false) => sum.iter_mut().zip(&*block).for_each(|(s, x)| *s += x),
                    // SAFETY: the peer wrote these numbers before the meeting, and does not write
                    // them before the next one.
                    (false, true) => unsafe { self.space.get(slot, at, sum) },
                    // SAFETY: as above.
                    (false, false) => unsafe { self.space.add(slot, at, sum) },
                }
            }
            block.copy_from_slice(sum);
        }
    }

    /// Arrives at the next meeting, waits until all are there, and checks that they bring planes of
    /// the same length.
    fn meet(&mut self, parity: usize, len: u64) -> Result<Duration, Stop> {
        self.met += 1;
        let (space, target) = (&*self.space, self.met);
        let bell = &space.common().bell;
        let stamp = |rank: usize| &space.rank(rank).arrival.stamp;
        let all_here = || (0..space.world()).all(|rank| stamp(rank).load(Acquire) >= target);

        meeting::post(space, stamp(self.rank), target, bell, all_here);
        let waited =
            meeting::wait(space, bell, &mut self.patience, all_here).map_err(
                |stop| match stop {
                    Stop::Deadline { waited, .. } => {
                        let late = (0..space.world()).filter(|&r| stamp(r).load(Relaxed) < target);
                        Stop::Deadline { waited, missing: late.map(Party::Rank).collect() }
                    }
                    other => other,
                },
            )?;
        for rank in 0..space.world() {
            let theirs = space.rank(rank).arrival.len[parity].load(Relaxed);
            if theirs != len {
                return Err(Stop::Length { rank, theirs, ours: len });
            }
        }
        Ok(waited)
    }

    fn slot(&self, rank: usize, parity: usize) -> Slot {
        Slot::Plane { rank, parity }
    }
}

/// The part of a scattered piece that `rank` sums.
fn part(len: usize, world: usize, rank: usize) -> Range<usize> {
    let each = len.div_ceil(world).next_multiple_of(PART_ALIGN);
    (rank * each).min(len)..((rank + 1) * each).min(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_end_to_end_and_cover_the_piece() {
        for len in [0, 1, 15, 16, 17, 1000, 4096, 262_143] {
            for world in 2..=16 {
                let mut end = 0;
                for rank in 0..world {
                    let part = part(len, world, rank);
                    assert_eq!(part.start, end, "rank {rank} of {world}, {len} numbers");
                    end = part.end;
                }
                assert_eq!(end, len);
            }
        }
    }
}
