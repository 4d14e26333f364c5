//! A rank: a process that holds one shard of the model and runs the steps it is given.
//!
//! The actor keeps the socket. The model belongs to a thread of its own (`compute`), which sleeps
//! between plans and calls its all-reduces straight on the shared segment; the actor only passes
//! plans in and reports out, so that it answers pings and leaves on demand in the middle of a step.

mod compute;
mod fault;
mod process;

use std::sync::mpsc::{SyncSender, TrySendError};

use actix::prelude::*;
use tokio::sync::oneshot;

pub use process::rank_main;

use crate::messages::{Assignment, FromRank, StepPlan, ToRank};
use crate::socket::Outbox;
use crate::wire::WireError;

/// Exit code of a rank that was told to leave, or whose coordinator is gone.
const LEFT: i32 = 0;
/// Exit code of a rank that cannot go on.
const FAILED: i32 = 1;

/// What the compute thread is given. At most one is under way.
#[derive(Debug)]
pub(crate) enum Order {
    /// Attach and load.
    Load(Box<Assignment>),
    /// Run a step.
    Run(StepPlan),
}

/// What the compute thread has to say; goes to the coordinator as it is.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Report(pub FromRank);

/// The actor.
pub(crate) struct Rank {
    orders: SyncSender<Order>,
    outbox: Option<Outbox<FromRank>>,
    /// Takes the exit code.
    end: Option<oneshot::Sender<i32>>,
}

impl Rank {
    /// `end` hears the exit code of the process.
    pub fn new(
        orders: SyncSender<Order>,
        outbox: Outbox<FromRank>,
        end: oneshot::Sender<i32>,
    ) -> Self {
        Self { orders, outbox: Some(outbox), end: Some(end) }
    }

    fn tell(&mut self, message: FromRank, ctx: &mut Context<Self>) {
        let Some(outbox) = &self.outbox else { return };
        if let Err(error) = outbox.send(message) {
            tracing::error!("cannot report to the coordinator: {error}");
            self.leave(FAILED, ctx);
        }
    }

    fn order(&mut self, order: Order, ctx: &mut Context<Self>) {
        let refused = match self.orders.try_send(order) {
            Ok(()) => return,
            Err(TrySendError::Full(_)) => "it came before the report of the one before",
            Err(TrySendError::Disconnected(_)) => "the compute thread has ended",
        };
        tracing::error!("an order cannot be carried out: {refused}");
        self.leave(FAILED, ctx);
    }

    /// Ends the process once everything said has been written.
    fn leave(&mut self, code: i32, ctx: &mut Context<Self>) {
        let Some(end) = self.end.take() else { return };
        let outbox = self.outbox.take();
        let written = async move {
            if let Some(outbox) = outbox {
                outbox.close().await;
            }
            // Nobody to tell means that the process is ending already.
            let _ = end.send(code);
        };
        ctx.spawn(written.into_actor(self));
    }
}

impl Actor for Rank {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.tell(FromRank::Hello { pid: std::process::id() }, ctx);
    }
}

impl Handler<Report> for Rank {
    type Result = ();

    fn handle(&mut self, Report(message): Report, ctx: &mut Self::Context) {
        let last = matches!(message, FromRank::LoadFailed(_) | FromRank::StepFailed { .. });
        self.tell(message, ctx);
        if last {
            self.leave(FAILED, ctx);
        }
    }
}

impl StreamHandler<Result<ToRank, WireError>> for Rank {
    fn handle(&mut self, message: Result<ToRank, WireError>, ctx: &mut Self::Context) {
        match message {
            Ok(ToRank::Assign(assignment)) => self.order(Order::Load(assignment), ctx),
            Ok(ToRank::Plan(plan)) => self.order(Order::Run(plan), ctx),
            Ok(ToRank::Ping(number)) => self.tell(FromRank::Pong(number), ctx),
            Ok(ToRank::Exit) => self.leave(LEFT, ctx),
            Err(error) => {
                tracing::error!("the coordinator cannot be understood: {error}");
                self.leave(FAILED, ctx);
            }
        }
    }

    /// The coordinator is gone.
    fn finished(&mut self, ctx: &mut Self::Context) {
        self.leave(LEFT, ctx);
    }
}

#[cfg(test)]
mod tests;
