//! News of the ranks, and the end of an epoch when one of them fails.
//!
//! A group of ranks is as good as its worst: each step needs all of them in every all-reduce. So one
//! rank's failure ends the epoch, frees those who wait for it, and kills the rest. The group is then
//! started again ([`super::recovery`]), or the requests end with a sentence that names the rank and where
//! it was.

use std::time::{Duration, Instant};

use actix::prelude::*;
use pocket_collectives::{Missing, Party};
use pocket_config::FaultPhase;

use super::Coordinator;
use super::ranks::Stage;
use crate::LoadProgress;
use crate::api::{EngineState, RequestError};
use crate::error::EngineError;
use crate::rank_link::{LinkCommand, LinkEvent, News, Stall};
use crate::rendezvous::{Census, Poison, RankAttached, TakeCensus};

/// What Rust's runtime says before it aborts for want of memory, and what the system says of it.
const OUT_OF_MEMORY: [&str; 2] = ["memory allocation of", "Cannot allocate memory"];
/// The keeper of the segment answers from memory. If it does not, the first suspicion stands.
const CENSUS_LIMIT: Duration = Duration::from_secs(1);

impl Handler<LinkEvent> for Coordinator {
    type Result = ();

    fn handle(&mut self, event: LinkEvent, ctx: &mut Self::Context) {
        let LinkEvent { rank, epoch, news } = event;
        let Some(group) = self.group.as_mut().filter(|group| group.epoch == epoch) else { return };
        if group.dying && !matches!(news, News::Ended { .. } | News::NotStarted(_)) {
            // What it says is of the past.
            return;
        }
        let view = &mut group.ranks[rank];
        match news {
            News::Started { pid } => view.pid = pid,
            News::Attached => {
                view.stage = Stage::Loading;
                self.rank_attached(epoch, ctx);
            }
            News::Loading { loaded, total } => {
                view.loaded = (loaded, total);
                // Nobody has to listen.
                let _ = self.load.send(LoadProgress { rank, loaded, total });
            }
            News::Ready { device } => {
                tracing::info!(rank, pid = view.pid, device, "rank is ready");
                view.stage = Stage::Ready;
                view.device = device;
                self.begin_to_serve(ctx);
            }
            News::Done(report) => {
                view.stage = Stage::Ready;
                self.step_reported(rank, report, ctx);
            }
            News::Gave { reason, waited_for_peer: false } => {
                let place = self.place(rank);
                let reason = format!("rank {rank} failed {place}: {reason}{}", hint(&reason));
                self.rank_failed(rank, reason, ctx);
            }
            News::Gave { reason, waited_for_peer: true } => {
                self.find_the_missing(rank, reason, ctx);
            }
            News::Stalled(stall @ Stall::Silent(_)) => {
                view.stage = Stage::Stalled;
                let reason = format!("rank {rank} stalled {}: {stall}", self.place(rank));
                self.rank_failed(rank, reason, ctx);
            }
            News::Stalled(stall @ Stall::Work(_)) => {
                self.find_the_missing(rank, stall.to_string(), ctx);
            }
            News::LoadTimeout => {
                let limit = self.options.load_timeout;
                let stage = self.place(rank);
                let error = EngineError::LoadTimeout { rank, stage, limit };
                self.fail(error.to_string(), Some(rank), error, ctx);
            }
            News::Broken { detail, version } => {
                let reason = format!("rank {rank}: {detail}");
                let program = self.options.rank_program.clone();
                let error = match version {
                    true => EngineError::Handshake { rank, program, detail },
                    false => EngineError::RankFailed(reason.clone()),
                };
                self.fail(reason, Some(rank), error, ctx);
            }
            News::NotStarted(source) => {
                let program = self.options.rank_program.display();
                let error = EngineError::Spawn { what: format!("rank {rank} ({program})"), source };
                let reason = error.to_string();
                self.rank_is_gone(rank, ctx, reason, error);
            }
            News::Ended { how, clean } => {
                if let Some(killed) = &mut self.asked_to_leave
                    && !clean
                {
                    killed.push(rank);
                }
                let reason = format!("rank {rank} died {}: {how}{}", self.place(rank), hint(&how));
                let error = EngineError::RankFailed(reason.clone());
                self.rank_is_gone(rank, ctx, reason, error);
            }
        }
    }
}

/// What a person should think of.
fn hint(how: &str) -> &'static str {
    if OUT_OF_MEMORY.iter().any(|words| how.contains(words)) {
        " (it is out of memory: give it more, or lower --max-num-seqs or the KV budget)"
    } else if how.contains("SIGKILL") {
        " (as the kernel's out-of-memory killer does)"
    } else {
        ""
    }
}

/// Who is at fault when `reporter` has waited in vain: the first rank that others wait for, which is
/// not the one that complains unless it waits for nobody.
fn culprit(reporter: usize, missing: &[Missing]) -> usize {
    let complains = missing.iter().any(|missing| missing.rank == reporter);
    if complains { reporter } else { missing.first().map_or(reporter, |missing| missing.rank) }
}

impl Coordinator {
    /// The keeper of the segment closes it once the last rank has attached.
    fn rank_attached(&mut self, epoch: u64, ctx: &mut Context<Self>) {
        let attached = self.rendezvous.send(RankAttached { epoch }).into_actor(self);
        ctx.spawn(attached.map(move |all, coordinator, ctx| {
            let group = coordinator.group.as_mut().filter(|group| group.epoch == epoch);
            if let (Ok(true), Some(group)) = (all, group) {
                group.attached = true;
                coordinator.begin_to_serve(ctx);
            }
        }));
    }

    pub(super) fn begin_to_serve(&mut self, ctx: &mut Context<Self>) {
        if !self.group.as_ref().is_some_and(|group| group.is_ready()) {
            return;
        }
        let awaited = self.recovery.is_some() || self.state == EngineState::Starting;
        // Requests that go on are a test as good as any.
        if awaited && self.requests.is_empty() && self.proofs.lacks(self.epoch) {
            return self.test_ranks();
        }
        if self.recovery.is_some() {
            return self.recovered(ctx);
        }
        if self.state != EngineState::Starting {
            return;
        }
        self.state = EngineState::Ready;
        self.watch_idleness(ctx);
        let heard = self.ready.take().is_none_or(|ready| ready.send(Ok(())).is_ok());
        if heard {
            self.next_step(ctx);
        }
    }

    /// Where a rank is, as the end of a sentence.
    pub(super) fn place(&self, rank: usize) -> String {
        let work = self.step.as_ref().map(|step| step.work());
        self.group.as_ref().map(|group| group.place(rank, work)).unwrap_or_default()
    }

    /// A rank complains of waiting: the keeper of the segment knows for whom.
    fn find_the_missing(&mut self, rank: usize, complaint: String, ctx: &mut Context<Self>) {
        let dying = self.group.as_ref().is_some_and(|group| group.dying);
        if self.leaving || dying || matches!(self.state, EngineState::Failed(_)) {
            return;
        }
        let census = tokio::time::timeout(CENSUS_LIMIT, self.rendezvous.send(TakeCensus));
        ctx.spawn(census.into_actor(self).map(move |census, coordinator, ctx| {
            let census = census.ok().and_then(Result::ok).flatten();
            coordinator.blame(rank, &complaint, census.as_ref(), ctx);
        }));
    }

    fn blame(
        &mut self,
        rank: usize,
        complaint: &str,
        census: Option<&Census>,
        ctx: &mut Context<Self>,
    ) {
        let missing = census.map(|census| census.missing.as_slice()).unwrap_or_default();
        let guilty = culprit(rank, missing);
        if let Some(group) = &mut self.group {
            group.ranks[guilty].stage = Stage::Stalled;
        }
        let place = self.place(guilty);
        let waited = match missing.iter().find(|missing| missing.rank == guilty) {
            Some(missing) => format!("; others wait for it in all-reduce {}", missing.call),
            None => String::new(),
        };
        let reason = format!("rank {guilty} stalled {place}{waited} (rank {rank}: {complaint})");
        self.rank_failed(guilty, reason, ctx);
    }

    fn rank_failed(&mut self, rank: usize, reason: String, ctx: &mut Context<Self>) {
        let error = EngineError::RankFailed(reason.clone());
        self.fail(reason, Some(rank), error, ctx);
    }

    /// A rank's process is no more, whether it should be or not.
    fn rank_is_gone(
        &mut self,
        rank: usize,
        ctx: &mut Context<Self>,
        reason: String,
        error: EngineError,
    ) {
        let Some(group) = &mut self.group else { return };
        group.ranks[rank].stage = Stage::Dead;
        let (all_dead, dying) = (group.all_dead(), group.dying);
        if !self.leaving && !dying {
            return self.fail(reason, Some(rank), error, ctx);
        }
        if !all_dead {
            return;
        }
        if self.leaving {
            self.is_over(ctx);
        } else if !matches!(self.state, EngineState::Failed(_)) {
            self.begin_again(ctx);
        }
    }

    /// The thread that samples is gone.
    pub(super) fn sampling_gone(&mut self, ctx: &mut Context<Self>) {
        let reason = "the sampling thread has ended".to_string();
        self.fail(reason, None, EngineError::Crashed, ctx);
    }

    /// Something has gone wrong, by the fault of `culprit` if it is a rank's: ends the epoch.
    pub(super) fn fail(
        &mut self,
        reason: String,
        culprit: Option<usize>,
        error: EngineError,
        ctx: &mut Context<Self>,
    ) {
        if culprit.is_some_and(|rank| self.may_have_been_injected(rank)) {
            // It was asked for once.
            self.options.flags.clear_fault();
            self.metrics.flags(&self.options.flags);
        }
        self.end_epoch(reason, culprit, error, ctx);
    }

    /// Whether a rank has failed where a fault was to strike: in its load, or in a step.
    fn may_have_been_injected(&self, rank: usize) -> bool {
        let loads = self.group.as_ref().is_some_and(|group| !group.ranks[rank].has_loaded());
        self.options.flags.fault().is_some_and(|fault| match fault.phase {
            FaultPhase::Load => fault.rank == rank && loads,
            FaultPhase::Prefill
            | FaultPhase::Decode
            | FaultPhase::AllReduce
            | FaultPhase::SelfTest => fault.rank == rank && self.step.is_some(),
        })
    }

    /// Ends the epoch. Its ranks are started again if that may be done; else `reason` goes to the health
    /// report and the clients, `error` to who waits for the start. Only the first failure of an epoch
    /// is told, the others follow from it.
    pub(super) fn end_epoch(
        &mut self,
        reason: String,
        culprit: Option<usize>,
        error: EngineError,
        ctx: &mut Context<Self>,
    ) {
        let dying = self.group.as_ref().is_some_and(|group| group.dying);
        if self.leaving || dying || matches!(self.state, EngineState::Failed(_)) {
            return;
        }
        tracing::error!(epoch = self.epoch, "{reason}");
        let by = culprit.map_or(Party::Coordinator, Party::Rank);
        self.rendezvous.do_send(Poison { by });
        // A start that fails is told to who waits for it; what is gone with this process stays gone.
        let may_restart = self.ready.is_none() && !matches!(error, EngineError::Crashed);
        let limit = self.options.restart_limit();
        let wait = may_restart.then(|| self.restarts.take(Instant::now(), limit)).flatten();
        match wait {
            Some(wait) => self.recover(reason, wait, ctx),
            None => self.fail_for_good(reason, error, ctx),
        }
    }

    /// The engine has failed: requests end, ranks are killed, and nothing is started again.
    pub(super) fn fail_for_good(
        &mut self,
        reason: String,
        error: EngineError,
        ctx: &mut Context<Self>,
    ) {
        self.recovery = None;
        self.state = EngineState::Failed(reason.clone());
        self.fail_requests(&RequestError::RankFailed(reason.clone()));
        self.failed.send_replace(Some(reason));
        if let Some(group) = &self.group {
            group.command(&LinkCommand::Kill);
        }
        if let Some(ready) = self.ready.take() {
            // Who waited for the start may have given up.
            let _ = ready.send(Err(error));
            self.stop_failed_start(ctx);
        }
    }
}

#[cfg(test)]
mod tests {
    use pocket_collectives::Phase;

    use super::*;

    #[test]
    fn the_want_of_memory_is_named() {
        let hinted =
            hint("killed by signal 6 (SIGABRT), saying \"memory allocation of 8 bytes failed\"");
        assert!(hinted.starts_with(" (it is out of memory"), "{hinted}");
        assert!(hint("killed by signal 9 (SIGKILL)").contains("out-of-memory killer"));
        assert_eq!(hint("killed by signal 6 (SIGABRT)"), "");
    }

    #[test]
    fn who_is_waited_for_is_at_fault() {
        let missing = |rank| Missing { rank, call: 9, phase: Phase::Decode, layer: 1, step: 1 };
        assert_eq!(culprit(0, &[missing(2)]), 2);
        assert_eq!(culprit(2, &[missing(2)]), 2);
        assert_eq!(culprit(3, &[missing(2), missing(3)]), 3);
        assert_eq!(culprit(1, &[]), 1, "nobody waits for anybody: it is stuck itself");
    }
}
