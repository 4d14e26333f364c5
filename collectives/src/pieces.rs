//! Rows of logits on their way from the ranks to the coordinator, over any [`Space`].
//!
//! Each rank has a lane of two slots. The rank may be two pieces ahead of the coordinator: it writes
//! piece `n` once piece `n - 2` was taken, and goes on computing while the coordinator copies.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use crate::meeting::{self, Patience, Slot, Space, Stop, Word};
use crate::party::{Cause, Parties, Party};

/// Slots of a lane.
const SLOTS: u64 = 2;

/// A rank's end of its lane.
pub(crate) struct Sender<S: Space> {
    space: Arc<S>,
    rank: usize,
    /// Pieces written so far.
    sent: u64,
    patience: Patience,
    stopped: Option<Stop>,
}

impl<S: Space> Sender<S> {
    pub fn new(space: Arc<S>, rank: usize, deadline: Duration) -> Sender<S> {
        let patience = Patience::new(deadline, &*space);
        Sender { space, rank, sent: 0, patience, stopped: None }
    }

    /// Writes a row, waiting where the coordinator is more than two pieces behind. Calls `moved` after
    /// every piece.
    pub fn send(&mut self, row: &[f32], moved: impl Fn()) -> Result<(), Stop> {
        if let Some(stop) = self.stopped {
            return Err(stop);
        }
        self.send_pieces(row, moved).map_err(|stop| {
            let missing = [Party::Coordinator].into_iter().collect();
            let stop = match stop {
                Stop::Deadline { waited, .. } => Stop::Deadline { waited, missing },
                other => other,
            };
            if !matches!(stop, Stop::Poisoned(_)) {
                meeting::poison(&*self.space, Cause { by: Party::Rank(self.rank), missing });
            }
            self.stopped = Some(stop);
            stop
        })
    }

    fn send_pieces(&mut self, row: &[f32], moved: impl Fn()) -> Result<(), Stop> {
        let space = &*self.space;
        let words = space.rank(self.rank);
        for piece in row.chunks(space.logits_len()) {
            let number = self.sent;
            meeting::wait(space, &words.taken_bell, &mut self.patience, || {
                words.taken.stamp.load(Acquire) + SLOTS > number
            })?;
            let parity = (number % SLOTS) as usize;
            // SAFETY: the coordinator has taken what this slot held, and reads it again only after
            // the stamp below.
            unsafe { space.put(Slot::Logits { rank: self.rank, parity }, 0, piece) };
            words.sent.len[parity].store(row.len() as u64, Relaxed);
            self.sent = number + 1;
            meeting::post(space, &words.sent.stamp, self.sent, &words.sent_bell, || true);
            moved();
        }
        Ok(())
    }
}

/// The coordinator's end of all lanes.
pub(crate) struct Receiver<S: Space> {
    space: Arc<S>,
    /// Pieces taken so far, by rank.
    taken: Vec<u64>,
    patience: Patience,
    stopped: Option<Stop>,
}

impl<S: Space> Receiver<S> {
    pub fn new(space: Arc<S>) -> Receiver<S> {
        let taken = vec![0; space.world()];
        let patience = Patience::new(Duration::MAX, &*space);
        Receiver { space, taken, patience, stopped: None }
    }

    /// Puts rank `r`'s next row at `shards[r]` of `row`. `shards` has one range a rank, each within
    /// `row`. The deadline is that of one wait: it starts anew with every piece.
    pub fn receive(
        &mut self,
        row: &mut [f32],
        shards: &[Range<usize>],
        deadline: Duration,
    ) -> Result<(), Stop> {
        if let Some(stop) = self.stopped {
            return Err(stop);
        }
        self.patience.deadline = deadline;
        self.receive_pieces(row, shards).inspect_err(|stop| {
            self.stopped = Some(*stop);
            let missing = match stop {
                Stop::Poisoned(_) => return,
                Stop::Deadline { missing, .. } => *missing,
                Stop::Length { .. } => Parties::default(),
            };
            meeting::poison(&*self.space, Cause { by: Party::Coordinator, missing });
        })
    }

    fn receive_pieces(&mut self, row: &mut [f32], shards: &[Range<usize>]) -> Result<(), Stop> {
        let piece_len = self.space.logits_len();
        let longest = shards.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        // Round by round, so that no rank waits while another's whole row is taken.
        for round in 0..longest.div_ceil(piece_len) {
            let owing = |rank: usize| round * piece_len < shards[rank].len();
            for rank in (0..shards.len()).filter(|&rank| owing(rank)) {
                self.await_piece(rank, shards[rank].len() as u64).map_err(|stop| match stop {
                    Stop::Deadline { waited, .. } => {
                        let late = (rank..shards.len()).filter(|&r| owing(r) && !self.has_sent(r));
                        Stop::Deadline { waited, missing: late.map(Party::Rank).collect() }
                    }
                    other => other,
                })?;
                let from = shards[rank].start + round * piece_len;
                let to = (from + piece_len).min(shards[rank].end);
                self.take(rank, &mut row[from..to]);
            }
        }
        Ok(())
    }

    fn has_sent(&self, rank: usize) -> bool {
        self.space.rank(rank).sent.stamp.load(Acquire) > self.taken[rank]
    }

    fn await_piece(&mut self, rank: usize, ours: u64) -> Result<(), Stop> {
        let (space, taken) = (&*self.space, self.taken[rank]);
        let words = space.rank(rank);
        meeting::wait(space, &words.sent_bell, &mut self.patience, || {
            words.sent.stamp.load(Acquire) > taken
        })?;
        let theirs = words.sent.len[(taken % SLOTS) as usize].load(Relaxed);
        if theirs == ours { Ok(()) } else { Err(Stop::Length { rank, theirs, ours }) }
    }

    /// Copies the piece that was waited for, and gives the slot back.
    fn take(&mut self, rank: usize, into: &mut [f32]) {
        let words = self.space.rank(rank);
        let parity = (self.taken[rank] % SLOTS) as usize;
        // SAFETY: the rank has stamped this piece, and writes the slot again only after the stamp
        // below.
        unsafe { self.space.get(Slot::Logits { rank, parity }, 0, into) };
        self.taken[rank] += 1;
        let taken = self.taken[rank];
        meeting::post(&*self.space, &words.taken.stamp, taken, &words.taken_bell, || true);
    }
}
