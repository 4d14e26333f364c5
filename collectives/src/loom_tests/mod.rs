//! The protocols under `loom`, which runs them in every order that threads and the memory model
//! allow (up to a bound on preemptions) and panics on a data race, a deadlock or a failed assertion.
//!
//! The code under test is the very code that ranks run: only the [`Space`] differs. Its data are cells
//! that detect races, its sleep and wake a mutex and a condition variable with the futex's promise:
//! compare and go to sleep in one piece, woken by a wake that comes after.
//!
//! A model is worth something only if it notices faults, so each is run with faults planted in the
//! space: see [`Fault`].
//!
//! [`Space`]: crate::meeting::Space

mod space;

use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use crate::meeting::{self, Stop};
use crate::party::{Cause, Parties, Party};
use crate::pieces::{Receiver, Sender};
use crate::reduce::Reducer;
use space::{Fault, LENGTH, LOGITS_LEN, LoomSpace, Role};

/// Never reached: `loom` knows no time.
const DEADLINE: Duration = Duration::from_secs(86_400);

fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(body);
}

/// What `rank` brings to `round`: every number is another.
fn row(round: usize, rank: usize) -> Vec<f32> {
    (0..LENGTH).map(|i| ((2 * round + rank) * LENGTH + i) as f32 + 0.25).collect()
}

/// Two ranks sum three planes, so that each slot is used again. Sums are looked at in the end: a race
/// shows first.
fn all_reduces(direct: bool, preemptions: usize, spins: u32, fault: Fault) {
    model(preemptions, move || {
        let space = LoomSpace::new(2, if direct { LENGTH } else { 0 }, spins, fault);
        let run = |rank: usize, space: Arc<LoomSpace>| {
            move || {
                let mut reducer = Reducer::new(space, rank, DEADLINE);
                let mut planes = [0, 1, 2].map(|round| row(round, rank));
                planes.iter_mut().for_each(|plane| _ = reducer.reduce(plane, || ()).unwrap());
                planes
            }
        };
        let peer = thread::spawn(run(1, Arc::clone(&space)));
        let sums = run(0, space)();
        let expected = [0, 1, 2].map(|round| {
            row(round, 0).iter().zip(row(round, 1)).map(|(a, b)| a + b).collect::<Vec<_>>()
        });
        assert_eq!(peer.join().unwrap(), expected);
        assert_eq!(sums, expected);
    });
}

/// A rank sends two rows of two pieces, so that each slot is used again; the coordinator takes them.
fn logits(preemptions: usize, spins: u32, fault: Fault) {
    model(preemptions, move || {
        let space = LoomSpace::new(1, LENGTH, spins, fault);
        let rank = thread::spawn({
            let space = Arc::clone(&space);
            move || {
                let mut sender = Sender::new(space, 0, DEADLINE);
                for i in 0..2 {
                    sender.send(&row(i, 0), || ()).unwrap();
                }
            }
        });
        let mut receiver = Receiver::new(space);
        let mut received = [vec![0.0; LENGTH], vec![0.0; LENGTH]];
        for into in &mut received {
            receiver.receive(into, from_ref(&(0..LENGTH)), DEADLINE).unwrap();
        }
        rank.join().unwrap();
        assert_eq!(received, [0, 1].map(|i| row(i, 0)), "rows changed on their way");
    });
}

/// Two ranks sum once and publish a row; the coordinator takes both shards.
fn whole_step(fault: Fault) {
    model(2, move || {
        let space = LoomSpace::new(2, LENGTH, 0, fault);
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                let space = Arc::clone(&space);
                thread::spawn(move || {
                    let mut plane = [rank as f32 + 0.25];
                    let mut reducer = Reducer::new(Arc::clone(&space), rank, DEADLINE);
                    reducer.reduce(&mut plane, || ()).unwrap();
                    Sender::new(space, rank, DEADLINE).send(&plane, || ()).unwrap();
                })
            })
            .collect();
        let mut row = [0.0; 2];
        Receiver::new(space).receive(&mut row, &[0..1, 1..2], DEADLINE).unwrap();
        assert_eq!(row, [1.5, 1.5]);
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
}

/// Nobody comes to a rank's all-reduce and nobody takes a rank's logits, until the coordinator gives
/// the epoch up: whatever they were about to do, all are freed.
fn poison(fault: Fault) {
    model(3, move || {
        let space = LoomSpace::new(2, LENGTH, 1, fault);
        let cause = Cause { by: Party::Coordinator, missing: Parties::default() };
        let reducing = thread::spawn({
            let space = Arc::clone(&space);
            move || Reducer::new(space, 0, DEADLINE).reduce(&mut [1.0], || ())
        });
        let sending = thread::spawn({
            let space = Arc::clone(&space);
            move || Sender::new(space, 1, DEADLINE).send(&[0.0; 3 * LOGITS_LEN], || ())
        });
        meeting::poison(&*space, cause);
        assert_eq!(reducing.join().unwrap(), Err(Stop::Poisoned(cause)));
        assert_eq!(sending.join().unwrap(), Err(Stop::Poisoned(cause)));
    });
}

/// The models as they are.
mod sound {
    use super::*;

    #[test]
    fn direct_all_reduces() {
        all_reduces(true, 3, 0, Fault::None);
    }

    #[test]
    fn direct_all_reduces_that_spin_before_they_sleep() {
        all_reduces(true, 3, 1, Fault::None);
    }

    #[test]
    fn scattered_all_reduces() {
        all_reduces(false, 2, 0, Fault::None);
    }

    #[test]
    fn rows_of_logits() {
        logits(2, 0, Fault::None);
    }

    #[test]
    fn rows_of_logits_with_spins() {
        logits(3, 1, Fault::None);
    }

    #[test]
    fn a_whole_step() {
        whole_step(Fault::None);
    }

    #[test]
    fn poisoned_waits() {
        poison(Fault::None);
    }
}

/// The same with a fault: `loom` must find it.
mod faulty {
    use super::*;

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn relaxed_arrival_at_a_direct_all_reduce() {
        all_reduces(true, 3, 0, Fault::RelaxedStamp(Role::Arrived));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn relaxed_arrival_at_a_scattered_all_reduce() {
        all_reduces(false, 3, 0, Fault::RelaxedStamp(Role::Arrived));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn relaxed_stamp_of_sent_logits() {
        logits(3, 0, Fault::RelaxedStamp(Role::Sent));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn relaxed_stamp_of_taken_logits() {
        logits(3, 0, Fault::RelaxedStamp(Role::Taken));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn unchecked_arrival_at_a_direct_all_reduce() {
        all_reduces(true, 3, 0, Fault::UncheckedStamp(Role::Arrived));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn unchecked_arrival_at_a_scattered_all_reduce() {
        all_reduces(false, 3, 0, Fault::UncheckedStamp(Role::Arrived));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn unchecked_stamp_of_sent_logits() {
        logits(3, 0, Fault::UncheckedStamp(Role::Sent));
    }

    #[test]
    #[should_panic(expected = "rows changed on their way")]
    fn unchecked_stamp_of_taken_logits() {
        // The sender runs ahead and writes over what was not taken: no race, if it ran far enough.
        logits(3, 0, Fault::UncheckedStamp(Role::Taken));
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn lost_wake_of_an_all_reduce() {
        all_reduces(true, 3, 0, Fault::LostWake);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn lost_wake_of_logits() {
        logits(3, 0, Fault::LostWake);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn lost_wake_of_a_poison() {
        poison(Fault::LostWake);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn missing_fence_of_an_all_reduce() {
        all_reduces(true, 3, 0, Fault::MissingFence);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn missing_fence_of_logits() {
        logits(3, 0, Fault::MissingFence);
    }
}
