//! The recording of a profile. While none runs, a step asks once whether one does, and that is all.
//!
//! It ends by itself at its time limit, and keeps no more of its time line than there is room for: who
//! began it may never come back.

use std::time::{Duration, Instant};

use actix::prelude::*;

use super::Coordinator;
use super::steps::StepUnderWay;
use crate::api::ControlError;
use crate::clock::monotonic_us;
use crate::messages::StepReport;
use crate::profile::{
    Activity, CallId, CallsProfile, PhaseTimes, Profile, RankProfile, Slice, TracedCall,
};

/// Most laps and slices of a time line: 16 MiB or less.
const MOST_SLICES: usize = 500_000;

/// Begins a recording that ends after so long at the latest.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), ControlError>")]
pub(crate) struct StartProfile(pub Duration);

/// Ends the recording and answers with it.
#[derive(Debug, Message)]
#[rtype(result = "Result<Box<Profile>, ControlError>")]
pub(crate) struct StopProfile;

/// A stretch of time on the sampling thread, by the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// What was done.
    pub what: Activity,
    /// When it began, microseconds.
    pub began_us: u64,
    /// How long it took.
    pub us: u64,
}

/// A recording that runs, or has ended at its limit and waits for who asks for it.
pub(super) struct Recording {
    began: Instant,
    began_us: u64,
    limit: Duration,
    room: usize,
    profile: Profile,
}

impl Recording {
    fn new(limit: Duration, world: usize, room: usize) -> Self {
        let profile = Profile { ranks: vec![RankProfile::default(); world], ..Profile::default() };
        Self { began: Instant::now(), began_us: monotonic_us(), limit, room, profile }
    }

    /// Whether it has not reached its limit.
    fn runs(&self, now: Instant) -> bool {
        now.duration_since(self.began) < self.limit
    }

    fn end(mut self, now: Instant) -> Box<Profile> {
        self.profile.timed_out = !self.runs(now);
        self.profile.took = now.duration_since(self.began).min(self.limit);
        Box::new(self.profile)
    }

    /// Whether there is room for so many more on the time line; if not they are left out.
    fn takes(&mut self, more: usize) -> bool {
        let takes = more <= self.room;
        match takes {
            true => self.room -= more,
            false => {
                // Nothing shorter that follows is let in: a time line with holes would mislead.
                self.room = 0;
                self.profile.trace.left_out += more as u64;
            }
        }
        takes
    }

    fn slice(&mut self, call: CallId, Stretch { what, began_us, us }: Stretch) {
        let sums = &mut self.profile.coordinator;
        *match what {
            Activity::Plan => &mut sums.plan_us,
            Activity::Serve => &mut sums.serve_us,
            Activity::Logits => &mut sums.logits_us,
            Activity::Sample => &mut sums.sample_us,
        } += us;
        if self.takes(1) {
            let began_us = began_us.saturating_sub(self.began_us);
            self.profile.trace.slices.push(Slice { what, call, began_us, us });
        }
    }

    /// A rank's report of a call.
    fn report(&mut self, rank: usize, pid: u32, call: CallId, report: &mut StepReport) {
        // One that began before was asked for by an earlier recording.
        let profile = report.profile.take().filter(|profile| profile.began_us >= self.began_us);
        let (Some(own), Some(profile)) = (self.profile.ranks.get_mut(rank), profile) else {
            return;
        };
        own.pid = pid;
        let sums = if call.prefill { &mut own.prefill } else { &mut own.decode };
        let CallsProfile { calls, rows, elapsed_us, times } = sums;
        *calls += 1;
        *rows += call.rows as u64;
        *elapsed_us += report.elapsed_us;
        *times += PhaseTimes::of(&profile.laps);
        if self.takes(1 + profile.laps.len()) {
            self.profile.trace.calls.push(TracedCall {
                rank,
                call,
                began_us: profile.began_us.saturating_sub(self.began_us),
                elapsed_us: report.elapsed_us,
                wait_us: profile.wait_us,
                laps: profile.laps,
            });
        }
    }
}

/// A part of the coordinator's own work that is to be recorded.
pub(super) struct Clocked {
    what: Activity,
    began_us: u64,
}

impl Coordinator {
    /// Begins to clock work of its own, if a recording runs.
    pub(super) fn clock(&self, what: Activity) -> Option<Clocked> {
        let runs = self.recording.as_ref().is_some_and(|recording| recording.runs(Instant::now()));
        runs.then(|| Clocked { what, began_us: monotonic_us() })
    }

    /// Records it.
    pub(super) fn clocked(&mut self, clocked: Option<Clocked>, call: CallId) {
        if let (Some(Clocked { what, began_us }), Some(recording)) = (clocked, &mut self.recording)
        {
            let us = monotonic_us().saturating_sub(began_us);
            recording.slice(call, Stretch { what, began_us, us });
        }
    }

    /// Records what the ranks and the sampling thread measured of a step.
    pub(super) fn record_step(&mut self, step: &mut StepUnderWay, call: CallId, took: Duration) {
        let (Some(recording), Some(group)) = (&mut self.recording, &self.group) else { return };
        if !step.is_profiled() {
            return;
        }
        recording.profile.coordinator.call_us += took.as_micros() as u64;
        for stretch in std::mem::take(&mut step.sampled) {
            recording.slice(call, stretch);
        }
        let reports = step.reports.iter_mut().zip(&group.ranks).enumerate();
        for (rank, (report, view)) in reports {
            if let Some(report) = report {
                recording.report(rank, view.pid, call, report);
            }
        }
    }
}

impl Handler<StartProfile> for Coordinator {
    type Result = Result<(), ControlError>;

    fn handle(&mut self, StartProfile(limit): StartProfile, _: &mut Self::Context) -> Self::Result {
        self.steerable()?;
        if self.recording.as_ref().is_some_and(|recording| recording.runs(Instant::now())) {
            return Err(ControlError::NotServing(
                "a profile is being recorded already; stop it first".to_string(),
            ));
        }
        tracing::info!(limit_s = limit.as_secs_f64(), "recording a profile: calls take longer");
        self.recording = Some(Recording::new(limit, self.options.world, MOST_SLICES));
        Ok(())
    }
}

impl Handler<StopProfile> for Coordinator {
    type Result = Result<Box<Profile>, ControlError>;

    fn handle(&mut self, _: StopProfile, _: &mut Self::Context) -> Self::Result {
        let recording = self.recording.take().ok_or_else(|| {
            ControlError::NotServing("no profile is being recorded; start one first".to_string())
        })?;
        let profile = recording.end(Instant::now());
        tracing::info!(took_s = profile.took.as_secs_f64(), "a profile was recorded");
        Ok(profile)
    }
}

#[cfg(test)]
mod tests {
    use pocket_collectives::Counters;
    use pocket_device::WorkDone;

    use super::*;
    use crate::messages::StepProfile;
    use crate::profile::{Lap, PassPhase};

    const CALL: CallId = CallId { epoch: 1, step: 7, rows: 3, prefill: false };

    fn report(began_us: u64, laps: usize) -> StepReport {
        let lap = Lap { phase: PassPhase::Mlp, layer: Some(0), us: 5 };
        StepReport {
            step: 7,
            rows: vec![],
            counters: Counters::default(),
            work: WorkDone::default(),
            elapsed_us: 100,
            profile: Some(Box::new(StepProfile { began_us, wait_us: 1, laps: vec![lap; laps] })),
        }
    }

    #[test]
    fn sums_go_on_when_the_time_line_is_full() {
        let mut recording = Recording::new(Duration::from_secs(60), 2, 9);
        let began_us = recording.began_us + 40;
        let call = CallId { prefill: true, ..CALL };
        recording.report(0, 11, call, &mut report(began_us, 3));
        recording.slice(CALL, Stretch { what: Activity::Plan, began_us, us: 2 });
        recording.report(1, 12, CALL, &mut report(began_us, 4));
        recording.slice(CALL, Stretch { what: Activity::Plan, began_us, us: 3 });
        let profile = recording.end(Instant::now());
        assert!(!profile.timed_out);
        let [first, second] = profile.ranks[..] else { panic!("{profile:?}") };
        let times = |count: u64| PhaseTimes { mlp_us: 5 * count, ..PhaseTimes::default() };
        let once = |times| CallsProfile { calls: 1, rows: 3, elapsed_us: 100, times };
        assert_eq!((first.pid, first.prefill, first.decode.calls), (11, once(times(3)), 0));
        assert_eq!((second.pid, second.decode, second.prefill.calls), (12, once(times(4)), 0));
        assert_eq!(profile.coordinator.plan_us, 5);
        // The second report needs five places where four are left, and then nothing more is let in.
        let trace = profile.trace;
        assert_eq!((trace.calls.len(), trace.slices.len(), trace.left_out), (1, 1, 6));
        assert_eq!((trace.calls[0].began_us, trace.slices[0].began_us), (40, 40));
    }

    #[test]
    fn it_ends_at_its_limit() {
        let limit = Duration::from_secs(5);
        let recording = Recording::new(limit, 1, 9);
        let (began, just_before) = (recording.began, limit - Duration::from_millis(1));
        assert!(recording.runs(began + just_before));
        assert!(!recording.runs(began + limit));
        let profile = recording.end(began + 2 * limit);
        assert_eq!((profile.timed_out, profile.took), (true, limit));
    }

    #[test]
    fn a_report_that_it_did_not_ask_for_counts_for_nothing() {
        let mut recording = Recording::new(Duration::from_secs(5), 1, 9);
        recording.report(0, 11, CALL, &mut StepReport { profile: None, ..report(0, 0) });
        let before = recording.began_us - 1;
        recording.report(0, 11, CALL, &mut report(before, 1));
        assert_eq!(recording.end(Instant::now()).ranks, [RankProfile::default()]);
    }
}
