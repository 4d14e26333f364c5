//! A new group of ranks in place of one that failed.
//!
//! The requests stay: their prompts, the tokens they have, their samplers and who listens. When the new
//! ranks are ready they are computed again from those tokens, to the same bits, and go on; their clients
//! see a pause. Restarts wait longer each time, start over after a completed step, and have an end: so
//! many within a window, and the engine has failed for good.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use actix::prelude::*;

use super::Coordinator;
use crate::error::EngineError;
use crate::rank_link::LinkCommand;

/// Wait before the first restart in a row; doubled with each.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Killed processes are gone in no time, unless the kernel holds them (a device driver may).
const REAP_LIMIT: Duration = Duration::from_secs(10);

/// How often ranks are started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RestartLimit {
    /// At most so many times
    pub restarts: usize,
    /// within this time.
    pub window: Duration,
}

/// The restarts so far.
#[derive(Debug, Default)]
pub(crate) struct Restarts {
    /// Of the window that counts.
    recent: VecDeque<Instant>,
    /// Since the last completed step.
    in_a_row: u32,
    /// All of them.
    pub total: u64,
}

impl Restarts {
    /// Whether a restart is left.
    pub fn left(&mut self, now: Instant, limit: RestartLimit) -> bool {
        while self.recent.front().is_some_and(|at| now.duration_since(*at) > limit.window) {
            self.recent.pop_front();
        }
        self.recent.len() < limit.restarts
    }

    /// Takes a restart, if one is left: how long to wait before it.
    pub fn take(&mut self, now: Instant, limit: RestartLimit) -> Option<Duration> {
        if !self.left(now, limit) {
            return None;
        }
        self.recent.push_back(now);
        self.total += 1;
        let wait = FIRST_WAIT.saturating_mul(1 << self.in_a_row.min(16)).min(LONGEST_WAIT);
        self.in_a_row += 1;
        Some(wait)
    }

    /// The ranks work: the next restart waits as long as the first.
    pub fn step_completed(&mut self) {
        self.in_a_row = 0;
    }
}

/// A restart that is under way.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    /// Why the last group ended.
    pub reason: String,
    /// When the failure was noticed.
    since: Instant,
    /// Wait between the end of the last group and the start of the next; none once it has begun.
    wait: Option<Duration>,
}

impl Coordinator {
    /// Ends the group of ranks and has it started again.
    pub(super) fn recover(&mut self, reason: String, wait: Duration, ctx: &mut Context<Self>) {
        let RestartLimit { restarts, window } = self.options.restart_limit();
        tracing::warn!(
            epoch = self.epoch,
            restart = self.restarts.total,
            wait_ms = wait.as_millis() as u64,
            "ranks are started again (at most {restarts} times within {window:?}); {} requests go on \
             then",
            self.requests.all().len()
        );
        self.step = None;
        self.scheduler.rewind();
        self.metrics.restarted();
        self.recovery = Some(Recovery { reason, since: Instant::now(), wait: Some(wait) });
        self.show_levels();
        let Some(group) = &mut self.group else { return self.begin_again(ctx) };
        group.dying = true;
        group.command(&LinkCommand::Kill);
        if group.all_dead() {
            return self.begin_again(ctx);
        }
        let epoch = group.epoch;
        ctx.run_later(REAP_LIMIT, move |coordinator, ctx| {
            let stuck = coordinator
                .group
                .as_ref()
                .is_some_and(|group| group.epoch == epoch && group.dying && !group.all_dead());
            if stuck {
                let reason = "rank processes do not end although they were killed".to_string();
                coordinator.fail_for_good(reason, EngineError::Crashed, ctx);
            }
        });
    }

    /// No rank of the last group is left.
    pub(super) fn begin_again(&mut self, ctx: &mut Context<Self>) {
        let wait = self.recovery.as_mut().and_then(|recovery| recovery.wait.take());
        let Some(wait) = wait else { return };
        ctx.run_later(wait, |coordinator, ctx| {
            if !coordinator.leaving {
                coordinator.begin_epoch(ctx);
            }
        });
    }

    /// The new ranks are ready.
    pub(super) fn recovered(&mut self, ctx: &mut Context<Self>) {
        let Some(recovery) = self.recovery.take() else { return };
        let requests: Vec<String> = self
            .requests
            .all()
            .into_iter()
            .filter_map(|key| self.requests.get(key))
            .map(|request| format!("{} after {} tokens", request.id, request.tokens()))
            .collect();
        tracing::info!(
            epoch = self.epoch,
            took_ms = recovery.since.elapsed().as_millis() as u64,
            requests = ?requests,
            "ranks are ready again; requests go on"
        );
        self.next_step(ctx);
        self.stop_if_drained(ctx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: RestartLimit = RestartLimit { restarts: 3, window: Duration::from_secs(60) };

    #[test]
    fn waits_double_and_start_over_after_a_step() {
        let mut restarts = Restarts::default();
        let now = Instant::now();
        let many = RestartLimit { restarts: 100, ..LIMIT };
        let waits: Vec<u128> =
            (0..9).map(|_| restarts.take(now, many).unwrap().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        restarts.step_completed();
        assert_eq!(restarts.take(now, many), Some(FIRST_WAIT));
        assert_eq!(restarts.total, 10);
    }

    #[test]
    fn a_window_has_so_many_restarts() {
        let mut restarts = Restarts::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for second in [0, 10, 20] {
            assert!(restarts.take(at(second), LIMIT).is_some());
        }
        assert_eq!(restarts.take(at(59), LIMIT), None);
        assert!(restarts.take(at(61), LIMIT).is_some(), "the first is out of the window");
        assert_eq!(restarts.take(at(62), LIMIT), None);
        assert_eq!(restarts.take(at(0), RestartLimit { restarts: 0, ..LIMIT }), None);
    }
}
