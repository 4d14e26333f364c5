//! The step of a self-test.

use pocket_model::forward::{OutputRow, Step, StepSegment, Want};

use super::{Planned, Scheduler};

impl Scheduler {
    /// A step of one token that is nobody's; none while somebody runs or waits. It writes where nobody
    /// reads: who gets the slot next begins with a zero state, and who gets the block writes it first.
    pub fn self_test(&mut self) -> Option<Planned> {
        if !self.running.is_empty() || !self.waiting.is_empty() {
            return None;
        }
        let token = StepSegment {
            slot: 0,
            tokens: vec![0],
            position: 0,
            generated: false,
            blocks: vec![0],
        };
        let step = Step {
            number: self.next_step,
            segments: vec![token],
            outputs: vec![OutputRow { row: 0, want: Want::Greedy }],
            forks: Vec::new(),
        };
        self.next_step += 1;
        Some(Planned { step, ..Planned::default() })
    }
}
