//! What operators ask of a running engine: stop taking requests and take them again, end a rank, set a
//! flag, and see who is being served.

use std::time::Instant;

use actix::prelude::*;
use pocket_config::{ConfigError, FLAGS, FlagSet};

use super::Coordinator;
use crate::api::{ControlError, EngineState, RequestStatus};
use crate::error::EngineError;
use crate::observe::EndedRequest;

/// Refuses new requests; those that are live finish, and the ranks stay.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), ControlError>")]
pub(crate) struct Drain;

/// Takes requests again.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), ControlError>")]
pub(crate) struct Resume;

/// Ends a rank, and with it the group, which is then started again.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), ControlError>")]
pub(crate) struct RestartRank(pub usize);

/// Sets an experiment flag from the next step on.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), ControlError>")]
pub(crate) struct SetFlag {
    /// Its name.
    pub name: String,
    /// Its value, as in the environment.
    pub value: String,
}

/// Asks for the live requests.
#[derive(Debug, Message)]
#[rtype(result = "Vec<RequestStatus>")]
pub(crate) struct ListRequests;

/// Asks for the last requests that have ended.
#[derive(Debug, Message)]
#[rtype(result = "Vec<EndedRequest>")]
pub(crate) struct ListEnded;

impl Coordinator {
    /// A fault is for tests, and for a rank there is: on another it would never strike.
    fn check_fault(&self, flags: &FlagSet) -> Result<(), ControlError> {
        let Some(fault) = flags.fault() else { return Ok(()) };
        if !self.options.allow_faults {
            let error = ConfigError::FaultsNotAllowed { fault: format!("POCKET_FAULT={fault}") };
            return Err(ControlError::Invalid(error.to_string()));
        }
        self.check_rank(fault.rank)
            .map_err(|error| ControlError::Invalid(format!("POCKET_FAULT={fault}: {error}")))
    }

    fn check_rank(&self, rank: usize) -> Result<(), ControlError> {
        let last = self.options.world - 1;
        match rank {
            rank if rank <= last => Ok(()),
            rank => Err(ControlError::Invalid(format!(
                "there is no rank {rank}; ranks go from 0 to {last}"
            ))),
        }
    }

    /// Whether the engine is one that can be steered.
    pub(super) fn steerable(&self) -> Result<(), ControlError> {
        let reason = match &self.state {
            EngineState::Ready | EngineState::Recovering(_) => return Ok(()),
            EngineState::Starting => "the engine is starting".to_string(),
            EngineState::Draining => "the engine is shutting down".to_string(),
            EngineState::Failed(reason) => format!("the engine has failed: {reason}"),
        };
        Err(ControlError::NotServing(reason))
    }
}

impl Handler<Drain> for Coordinator {
    type Result = Result<(), ControlError>;

    fn handle(&mut self, _: Drain, _: &mut Self::Context) -> Self::Result {
        self.steerable()?;
        if !std::mem::replace(&mut self.paused, true) {
            tracing::info!(live = self.requests.all().len(), "draining: no new requests are taken");
        }
        Ok(())
    }
}

impl Handler<Resume> for Coordinator {
    type Result = Result<(), ControlError>;

    fn handle(&mut self, _: Resume, _: &mut Self::Context) -> Self::Result {
        self.steerable()?;
        if std::mem::replace(&mut self.paused, false) {
            tracing::info!("requests are taken again");
        }
        Ok(())
    }
}

impl Handler<RestartRank> for Coordinator {
    type Result = Result<(), ControlError>;

    fn handle(&mut self, RestartRank(rank): RestartRank, ctx: &mut Self::Context) -> Self::Result {
        self.steerable()?;
        self.check_rank(rank)?;
        if self.recovery.is_some() {
            return Err(ControlError::NotServing("the ranks are being started again".to_string()));
        }
        let limit = self.options.restart_limit();
        if !self.restarts.left(Instant::now(), limit) {
            return Err(ControlError::NotServing(format!(
                "no restart is left of the {} within {:?} (--max-restarts), and the failure of a rank \
                 would end the server",
                limit.restarts, limit.window
            )));
        }
        let reason = format!("rank {rank} was restarted by an operator {}", self.place(rank));
        let error = EngineError::RankFailed(reason.clone());
        self.end_epoch(reason, Some(rank), error, ctx);
        Ok(())
    }
}

impl Handler<SetFlag> for Coordinator {
    type Result = Result<(), ControlError>;

    fn handle(&mut self, SetFlag { name, value }: SetFlag, _: &mut Self::Context) -> Self::Result {
        self.steerable()?;
        let invalid = |error: ConfigError| ControlError::Invalid(error.to_string());
        if let Some(flag) = FLAGS.iter().find(|flag| flag.name == name && !flag.runtime) {
            return Err(ControlError::Invalid(format!(
                "{} is read at the start only and cannot be changed while the server runs",
                flag.name
            )));
        }
        let before = self.options.flags.clone();
        let mut flags = before.clone();
        flags.set(&name, &value).map_err(invalid)?;
        self.check_fault(&flags)?;
        if flags == before {
            return Ok(());
        }
        self.options.flags = flags;
        tracing::info!(flag = name, value, "flag set");
        self.metrics.flags(&self.options.flags);
        let wrong = self.outputs_wrong();
        if let Some(reason) = &wrong {
            tracing::warn!(reason, "OUTPUTS ARE WRONG BY REQUEST");
        }
        self.outputs_wrong.send_replace(wrong);
        Ok(())
    }
}

impl Handler<ListRequests> for Coordinator {
    type Result = MessageResult<ListRequests>;

    fn handle(&mut self, _: ListRequests, _: &mut Self::Context) -> Self::Result {
        let now = Instant::now();
        let of = |key| {
            let (running, waiting) = self.scheduler.sequences(key);
            self.requests.get(key).map(|request| request.status(running, waiting, now))
        };
        MessageResult(self.requests.all().into_iter().filter_map(of).collect())
    }
}

impl Handler<ListEnded> for Coordinator {
    type Result = MessageResult<ListEnded>;

    fn handle(&mut self, _: ListEnded, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.ended.iter().rev().cloned().collect())
    }
}
