//! A forward call of one token through all ranks, at the start and whenever nothing has run for a while.
//!
//! A rank that answers pings has a process that turns. Whether it can still compute, and meet the others,
//! is seen only when it does; so a group that is idle does it from time to time. The call is like any
//! other: who does not get through it is stalled, dead or failed. It begins only when there is no work,
//! holds work up for no longer than its one row takes, and writes where nobody reads.
//!
//! It is no work: it is in no count of calls, rows, tokens or requests, and says nothing of what calls cost.

use std::time::{Duration, Instant};

use actix::prelude::*;

use super::steps::StepUnderWay;
use super::{Coordinator, merge};
use crate::api::{EngineState, SelfTestStatus};
use crate::error::EngineError;
use crate::messages::{ShardStats, StepReport};

/// When the ranks last showed that they compute.
#[derive(Debug)]
pub(crate) struct Proofs {
    /// Ranks that have been idle for this long are tested; never, if there is none.
    interval: Option<Duration>,
    /// The last completed step, and its epoch.
    last_step: Option<(Instant, u64)>,
    /// The last completed self-test, and what it took.
    last_test: Option<(Instant, Duration)>,
    /// Self-tests that were passed.
    passed: u64,
}

impl Proofs {
    /// None yet.
    pub fn new(interval: Option<Duration>) -> Self {
        Self { interval, last_step: None, last_test: None, passed: 0 }
    }

    /// A step of this epoch is complete.
    pub fn step_completed(&mut self, epoch: u64, now: Instant) {
        self.last_step = Some((now, epoch));
    }

    fn test_passed(&mut self, took: Duration, now: Instant) {
        self.last_test = Some((now, took));
        self.passed += 1;
    }

    /// Whether ranks of this epoch are to be tested before they count as ready.
    pub fn lacks(&self, epoch: u64) -> bool {
        self.interval.is_some() && self.last_step.is_none_or(|(_, of)| of != epoch)
    }

    /// What is left of the interval; zero when a test is due.
    fn rest(&self, now: Instant) -> Option<Duration> {
        let idle = self.last_step.map(|(at, _)| now.duration_since(at));
        Some(self.interval?.saturating_sub(idle.unwrap_or_default()))
    }

    /// Seconds since the last completed step.
    pub fn last_step_age_s(&self, now: Instant) -> Option<f64> {
        self.last_step.map(|(at, _)| now.duration_since(at).as_secs_f64())
    }

    /// For people and `/health`.
    pub fn last_test(&self, now: Instant) -> Option<SelfTestStatus> {
        self.last_test.map(|(at, took)| SelfTestStatus {
            passed: self.passed,
            age_s: now.duration_since(at).as_secs_f64(),
            took_ms: took.as_secs_f64() * 1e3,
        })
    }
}

impl Coordinator {
    /// Tests the ranks, if they wait for something to do.
    pub(super) fn test_ranks(&mut self) {
        let ready = self.group.as_ref().is_some_and(|group| group.is_ready());
        if !ready || self.leaving || self.step.is_some() {
            return;
        }
        if let Some(planned) = self.scheduler.self_test() {
            let flags = self.options.flags.clone();
            self.send_step(planned, flags, Some(Vec::new()), true, None);
        }
    }

    /// From now on ranks are tested whenever nothing has run for as long as the interval says.
    pub(super) fn watch_idleness(&mut self, ctx: &mut Context<Self>) {
        let Some(rest) = self.proofs.rest(Instant::now()) else { return };
        let busy = rest.is_zero();
        // A step that takes longer than the interval, or a restart: there is time.
        let wait = if busy { self.proofs.interval.unwrap_or(rest) } else { rest };
        ctx.run_later(wait, |coordinator, ctx| {
            let due = coordinator.proofs.rest(Instant::now()).is_some_and(|rest| rest.is_zero());
            if due && coordinator.state == EngineState::Ready && coordinator.recovery.is_none() {
                coordinator.test_ranks();
            }
            coordinator.watch_idleness(ctx);
        });
    }

    /// A self-test is complete.
    pub(super) fn tested(&mut self, step: StepUnderWay, ctx: &mut Context<Self>) {
        let (took, reports) = (step.took(), step.into_reports());
        self.note_counters(&reports);
        if let Err(what) = self.check_numbers(&reports) {
            let reason = format!("the self-test failed: {what}");
            let error = EngineError::RankFailed(reason.clone());
            return self.fail(reason, None, error, ctx);
        }
        tracing::debug!(took_us = took.as_micros() as u64, "self-test passed");
        self.proofs.test_passed(took, Instant::now());
        self.metrics.self_tested();
        // Who waits for it may begin.
        self.begin_to_serve(ctx);
    }

    /// Whether a token could be chosen from what the ranks have computed. Outputs that are wrong by
    /// request may be no numbers either.
    fn check_numbers(&self, reports: &[StepReport]) -> Result<(), String> {
        if self.outputs_wrong().is_some() {
            return Ok(());
        }
        let row = |(rank, report): (usize, &StepReport)| {
            let row = report.rows.first().copied().flatten();
            row.ok_or_else(|| format!("rank {rank} left the output out"))
        };
        let shards: Vec<ShardStats> =
            reports.iter().enumerate().map(row).collect::<Result<_, _>>()?;
        merge::greedy(&shards).map(|_| ()).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(30);

    #[test]
    fn a_test_is_due_when_nothing_was_done_for_the_interval() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut proofs = Proofs::new(Some(INTERVAL));
        proofs.step_completed(1, start);
        assert_eq!(proofs.rest(at(10)), Some(Duration::from_secs(20)));
        assert_eq!(proofs.rest(at(30)), Some(Duration::ZERO));
        proofs.step_completed(1, at(25));
        assert_eq!(proofs.rest(at(30)), Some(Duration::from_secs(25)));
        assert_eq!(Proofs::new(None).rest(at(99)), None, "tests are off");
    }

    #[test]
    fn every_epoch_is_tested_and_shown() {
        let start = Instant::now();
        let mut proofs = Proofs::new(Some(INTERVAL));
        assert!(proofs.lacks(1));
        assert_eq!((proofs.last_test(start), proofs.last_step_age_s(start)), (None, None));
        proofs.step_completed(1, start);
        proofs.test_passed(Duration::from_millis(5), start);
        assert!(!proofs.lacks(1) && proofs.lacks(2));
        let later = start + Duration::from_secs(2);
        let shown = SelfTestStatus { passed: 1, age_s: 2.0, took_ms: 5.0 };
        assert_eq!(proofs.last_test(later), Some(shown));
        assert_eq!(proofs.last_step_age_s(later), Some(2.0));
        assert!(!Proofs::new(None).lacks(1), "tests are off");
    }
}
