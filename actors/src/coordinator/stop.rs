//! Stopping: let the live requests finish, or not, then have the ranks leave.

use std::time::Duration;

use actix::prelude::*;
use pocket_collectives::Party;

use super::Coordinator;
use crate::api::{EngineState, RequestError};
use crate::error::EngineError;
use crate::metrics::Outcome;
use crate::rank_link::LinkCommand;
use crate::rendezvous::Poison;

/// A rank that was asked to leave has this long; then it is killed.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);
/// Killed processes are gone in no time, unless the kernel holds them (a device driver may).
const REAP_LIMIT: Duration = Duration::from_secs(5);

/// Refuses new requests, lets the live ones finish for so long, then ends everything.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Stop(pub Duration);

/// Ends everything: requests fail, ranks are killed.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct StopNow;

impl Handler<Stop> for Coordinator {
    type Result = ();

    fn handle(&mut self, Stop(limit): Stop, ctx: &mut Self::Context) {
        if self.leaving {
            return;
        }
        if !matches!(self.state, EngineState::Ready) {
            return self.stop_now(ctx);
        }
        self.state = EngineState::Draining;
        ctx.run_later(limit, |coordinator, ctx| {
            let why = "the server stopped before this answer was complete";
            for key in coordinator.requests.all() {
                coordinator.end(key, Outcome::Failed, |request, _| {
                    request.fail(RequestError::Unavailable(why.to_string()));
                });
            }
            coordinator.stop_if_drained(ctx);
        });
        self.stop_if_drained(ctx);
    }
}

impl Handler<StopNow> for Coordinator {
    type Result = ();

    fn handle(&mut self, _: StopNow, ctx: &mut Self::Context) {
        self.stop_now(ctx);
    }
}

impl Coordinator {
    /// A request has ended outside of a step: somebody who waits may go on, or nobody is left.
    pub(super) fn after_an_end(&mut self, ctx: &mut Context<Self>) {
        self.next_step(ctx);
        self.show_levels();
        self.stop_if_drained(ctx);
    }

    /// Ends the ranks when the last request of a stopping engine is served. A step that is still under
    /// way is nobody's.
    pub(super) fn stop_if_drained(&mut self, ctx: &mut Context<Self>) {
        if self.state == EngineState::Draining && self.requests.is_empty() && !self.leaving {
            self.asked_to_leave = Some(Vec::new());
            self.leave(&LinkCommand::Leave(LEAVE_LIMIT), LEAVE_LIMIT, ctx);
        }
    }

    fn stop_now(&mut self, ctx: &mut Context<Self>) {
        if self.state == EngineState::Ready {
            self.state = EngineState::Draining;
        }
        self.fail_requests(&RequestError::Unavailable("the engine was stopped".to_string()));
        self.rendezvous.do_send(Poison { by: Party::Coordinator });
        self.leave(&LinkCommand::Kill, Duration::ZERO, ctx);
    }

    /// The start has failed, and its ranks have been killed: nothing is left to wait for but their ends.
    pub(super) fn stop_failed_start(&mut self, ctx: &mut Context<Self>) {
        self.leave(&LinkCommand::Kill, Duration::ZERO, ctx);
    }

    /// Ends all ranks. It is over when they are gone, or when that takes too long.
    fn leave(&mut self, command: &LinkCommand, limit: Duration, ctx: &mut Context<Self>) {
        self.leaving = true;
        let Some(group) = &self.group else { return self.is_over(ctx) };
        group.command(command);
        if group.all_dead() {
            return self.is_over(ctx);
        }
        ctx.run_later(limit + REAP_LIMIT, |coordinator, ctx| {
            tracing::error!("rank processes do not end although they were killed");
            coordinator.is_over(ctx);
        });
    }

    /// Gives the step under way up; all clients are told that they will not be served.
    pub(super) fn fail_requests(&mut self, error: &RequestError) {
        self.step = None;
        self.scheduler.rewind();
        for key in self.requests.all() {
            self.end(key, Outcome::Failed, |request, _| request.fail(error.clone()));
        }
    }

    /// No rank is left: says how it went, and ends.
    pub(super) fn is_over(&mut self, ctx: &mut Context<Self>) {
        if let Some(ready) = self.ready.take() {
            // Who waited for the start has stopped it.
            let _ = ready.send(Err(EngineError::Stopped));
        }
        let outcome = match &self.state {
            EngineState::Failed(reason) => Err(EngineError::RankFailed(reason.clone())),
            _ => match self.asked_to_leave.take() {
                Some(ranks) if !ranks.is_empty() => {
                    Err(EngineError::Killed { ranks, limit: LEAVE_LIMIT })
                }
                _ => Ok(()),
            },
        };
        // No rank needs the segment; whoever of this process still waits in it is freed.
        self.rendezvous.do_send(Poison { by: Party::Coordinator });
        if let Some(over) = self.over.take() {
            // The thread of the engine waits for it for as long as it lives.
            let _ = over.send(outcome);
        }
        ctx.stop();
    }
}
