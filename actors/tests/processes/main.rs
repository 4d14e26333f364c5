//! Engines with real rank processes on real (tiny) checkpoints: answers, experiments, and what happens
//! when ranks are killed, stopped, or told to fail.
//!
//! The rank processes are this program itself, started as `PROGRAM rank`; that is why it has its own
//! `main`. Tests wait for conditions, never for a time, and each ends the processes it has started.

#![expect(clippy::unwrap_used, reason = "a test, though one with its own `main`")]

mod answers;
mod company;
mod counters;
mod failures;
mod heard;
mod identity;
mod leaving;
mod lifecycle;
mod memory;
mod mixed;
mod poisoned;
mod random;
mod recovery;
mod rig;

use libtest_mimic::{Arguments, Trial};

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("rank") => {
            failures::panic_if_told_to();
            std::process::exit(pocket_actors::rank_main());
        }
        Some("coordinate") => return lifecycle::coordinate(),
        _ => {}
    }
    let mut arguments = Arguments::from_args();
    // Each test has up to four ranks and its own limits on how long one may be silent.
    arguments.test_threads.get_or_insert(2);
    let tests: [Vec<Trial>; 11] = [
        answers::tests(),
        identity::tests(),
        company::tests(),
        counters::tests(),
        poisoned::tests(),
        memory::tests(),
        leaving::tests(),
        mixed::tests(),
        failures::tests(),
        recovery::tests(),
        lifecycle::tests(),
    ];
    let tests = tests.into_iter().flatten().collect();
    libtest_mimic::run(&arguments, tests).exit();
}
