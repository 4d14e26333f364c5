//! The coordinator: the one place where anything is decided. It keeps the requests, plans the steps,
//! hands them to the ranks' links, turns what comes back into answers, and ends the epoch when a rank
//! fails.
//!
//! It has a thread of its own and no handler waits: a step goes out and the handler returns; the reports
//! come in as messages like any other. That is why it answers for its state, and cancels, at any
//! moment of a step however long.

mod answer;
mod asks;
mod control;
mod deadlines;
mod failure;
mod merge;
mod plan;
mod ranks;
mod recording;
mod recovery;
mod requests;
mod sampling;
mod self_test;
mod serving;
mod steps;
mod stop;
mod validate;

use std::collections::VecDeque;
use std::ffi::CStr;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use pocket_collectives::{SegmentSpec, Watch};
use tokio::sync::{mpsc, oneshot, watch};

pub(crate) use asks::{Abandon, Cancel, GetStatus, Ping, Submit, SubmitScore};
pub(crate) use control::{Drain, ListEnded, ListRequests, RestartRank, Resume, SetFlag};
pub(crate) use plan::RequestKey;
pub(crate) use recording::{StartProfile, StopProfile};
pub(crate) use stop::{Stop, StopNow};
pub(crate) use validate::Bounds;

use crate::LoadProgress;
use crate::api::{EngineOptions, EngineState};
use crate::error::EngineError;
use crate::facts::{Facts, KeptWeights};
use crate::messages::Assignment;
use crate::metrics::Metrics;
use crate::observe::EndedRequest;
use crate::rank_link::{LinkCommand, LinkEvent};
use crate::rendezvous::{Open, Opened, Rendezvous};
use deadlines::Deadlines;
use plan::{CallCosts, Scheduler};
use ranks::{Group, RankView};
use recording::Recording;
pub(crate) use recovery::RestartLimit;
use recovery::{Recovery, Restarts};
use requests::{CallsDone, Requests};
use sampling::Sampling;
use self_test::Proofs;
use steps::StepUnderWay;

/// Messages that may wait for the coordinator; who sends more waits. Reports of the ranks are few and
/// are never refused.
const MAILBOX: usize = 256;

/// Name of the coordinator's thread.
const THREAD: &CStr = c"coordinator";

/// Makes the link of a rank, given its assignment, a reader of its progress, and whom to tell.
pub(crate) type Launch =
    Box<dyn Fn(Assignment, Watch, Recipient<LinkEvent>) -> Recipient<LinkCommand> + Send>;

/// What a coordinator is made with.
pub(crate) struct Setup {
    /// What was asked for.
    pub options: EngineOptions,
    /// What is known of the model.
    pub facts: Arc<Facts>,
    /// Identity of this run.
    pub run_id: String,
    /// Keeps the shared segment.
    pub rendezvous: Addr<Rendezvous>,
    /// Makes links.
    pub launch: Launch,
    /// Counts what happens.
    pub metrics: Arc<Metrics>,
    /// Hears how far the weights are loaded.
    pub load: mpsc::UnboundedSender<LoadProgress>,
    /// Hears once whether the engine has started.
    pub ready: oneshot::Sender<Result<(), EngineError>>,
    /// Shows which flag makes outputs wrong by request, if one does.
    pub outputs_wrong: watch::Sender<Option<String>>,
    /// Shows why the engine has failed, once it has.
    pub failed: watch::Sender<Option<String>>,
    /// Hears once how it all ended, when no rank is left.
    pub over: oneshot::Sender<Result<(), EngineError>>,
}

/// The actor.
pub(crate) struct Coordinator {
    options: EngineOptions,
    facts: Arc<Facts>,
    run_id: String,
    rendezvous: Addr<Rendezvous>,
    launch: Launch,
    metrics: Arc<Metrics>,
    load: mpsc::UnboundedSender<LoadProgress>,
    ready: Option<oneshot::Sender<Result<(), EngineError>>>,
    outputs_wrong: watch::Sender<Option<String>>,
    failed: watch::Sender<Option<String>>,
    over: Option<oneshot::Sender<Result<(), EngineError>>>,

    state: EngineState,
    epoch: u64,
    group: Option<Group>,
    sampling: Option<Sampling>,
    scheduler: Scheduler,
    costs: CallCosts,
    requests: Requests,
    /// The last of those that have ended.
    ended: VecDeque<EndedRequest>,
    deadlines: Deadlines,
    step: Option<StepUnderWay>,
    restarts: Restarts,
    recovery: Option<Recovery>,
    proofs: Proofs,
    recording: Option<Recording>,
    /// An operator has asked for no new requests.
    paused: bool,
    done: CallsDone,
    /// Ranks have been told to leave: their ends are no news.
    leaving: bool,
    /// They were asked to; those that had to be killed all the same are listed.
    asked_to_leave: Option<Vec<usize>>,
}

impl Coordinator {
    /// A coordinator that starts its ranks when the actor starts.
    pub fn new(setup: Setup) -> Self {
        Self {
            scheduler: Scheduler::new(&setup.facts.limits, setup.facts.bounds.max_rows),
            costs: CallCosts::default(),
            proofs: Proofs::new(setup.options.self_test_interval),
            options: setup.options,
            facts: setup.facts,
            run_id: setup.run_id,
            rendezvous: setup.rendezvous,
            launch: setup.launch,
            metrics: setup.metrics,
            load: setup.load,
            ready: Some(setup.ready),
            outputs_wrong: setup.outputs_wrong,
            failed: setup.failed,
            over: Some(setup.over),
            state: EngineState::Starting,
            epoch: 0,
            group: None,
            sampling: None,
            requests: Requests::default(),
            ended: VecDeque::new(),
            deadlines: Deadlines::default(),
            step: None,
            restarts: Restarts::default(),
            recovery: None,
            recording: None,
            paused: false,
            done: CallsDone::default(),
            leaving: false,
            asked_to_leave: None,
        }
    }

    /// Starts a group of ranks: a segment of its own, then a process each. A group that is to replace
    /// a failed one starts the same way.
    fn begin_epoch(&mut self, ctx: &mut Context<Self>) {
        self.epoch += 1;
        // The last group is gone; what happens from here on is no news of it.
        self.group = None;
        let spec = SegmentSpec {
            world: self.options.world,
            epoch: self.epoch,
            run_id: self.run_id.clone(),
        };
        let opened = self.rendezvous.send(Open { spec }).into_actor(self);
        ctx.spawn(opened.map(|opened, coordinator, ctx| match opened {
            Ok(Ok(opened)) => coordinator.launch_ranks(opened, ctx),
            Ok(Err(error)) => coordinator.fail(error.to_string(), None, error.into(), ctx),
            Err(_) => {
                let reason = "the actor that keeps the shared segment is gone".to_string();
                coordinator.fail(reason, None, EngineError::Crashed, ctx);
            }
        }));
    }

    fn launch_ranks(&mut self, opened: Opened, ctx: &mut Context<Self>) {
        if self.leaving {
            return;
        }
        let begun = self.sampling.as_ref().is_some_and(|sampling| {
            let shards = self.facts.shards.iter().map(|shard| shard.vocab.clone()).collect();
            let vocab_size = self.facts.bounds.vocab_size;
            let epoch = sampling::Epoch { receiver: opened.receiver, shards, vocab_size };
            sampling.begin_epoch(epoch).is_ok()
        });
        if !begun {
            return self.sampling_gone(ctx);
        }
        let me = ctx.address().recipient();
        let ranks = (0..self.options.world)
            .map(|rank| {
                let assignment = self.assignment(rank, &opened.name);
                RankView::new((self.launch)(assignment, opened.watch.clone(), me.clone()))
            })
            .collect();
        self.group = Some(Group {
            epoch: self.epoch,
            watch: opened.watch,
            ranks,
            attached: false,
            dying: false,
        });
    }

    /// What a flag says it does wrong it can do only where there is something to act on.
    fn outputs_wrong(&self) -> Option<String> {
        self.options.flags.outputs_wrong().filter(|_| self.options.world > 1)
    }

    fn assignment(&self, rank: usize, segment: &str) -> Assignment {
        let Self { options, facts, .. } = self;
        // Twice the limit after which the coordinator itself finds a stall and says whose.
        let peer_deadline = 2 * options.stall_timeout + Duration::from_secs(5);
        Assignment {
            rank,
            world: options.world,
            model: options.model.clone(),
            shard: facts.shards[rank].clone(),
            limits: facts.limits,
            threads: options.threads_per_rank,
            cpus: facts.cpus[rank].clone(),
            weights: facts.weights.get(rank).map(KeptWeights::place),
            segment: segment.to_string(),
            epoch: self.epoch,
            peer_deadline_ms: peer_deadline.as_millis() as u64,
            flags: options.flags.clone(),
        }
    }
}

impl Actor for Coordinator {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        // For people who look at threads; it works without.
        let _ = nix::sys::prctl::set_name(THREAD);
        self.outputs_wrong.send_replace(self.outputs_wrong());
        match Sampling::start(ctx.address().recipient()) {
            Ok(sampling) => self.sampling = Some(sampling),
            Err(source) => {
                let error = EngineError::Spawn { what: "the sampling thread".into(), source };
                return self.fail(error.to_string(), None, error, ctx);
            }
        }
        self.begin_epoch(ctx);
    }
}

#[cfg(test)]
mod tests;
