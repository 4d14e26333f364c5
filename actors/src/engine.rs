//! The engine as front ends hold it: started, asked, and stopped.
//!
//! It lives on a thread of its own, with a runtime of its own, so that nothing a front end does on its
//! runtime can hold it up. That thread also starts the rank processes: the kernel kills them when the
//! thread that started them ends, and this one ends with the engine.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use actix::prelude::*;
use actix_rt::ArbiterHandle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{oneshot, watch};

use crate::api::{
    ControlError, EngineOptions, EngineState, EngineStatus, Event, GenerateRequest, RequestError,
    RequestStatus, Score, ScoreRequest, TokenCounts,
};
use crate::coordinator::{
    Abandon, Cancel, Coordinator, Drain, GetStatus, Launch, ListRequests, RequestKey, RestartRank,
    Resume, SetFlag, Setup, Stop, StopNow, Submit, SubmitScore,
};
use crate::error::EngineError;
use crate::facts::Facts;
use crate::metrics::Metrics;
use crate::rank_link::{LinkOptions, RankLink};
use crate::rendezvous::Rendezvous;

/// How far a rank's weights are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// The rank.
    pub rank: usize,
    /// Bytes packed so far.
    pub loaded: u64,
    /// Bytes to pack.
    pub total: u64,
}

/// A running group of ranks and the actors that lead it. Dropping it kills the ranks, and returns when
/// they are gone.
pub struct Engine {
    handle: EngineHandle,
    thread: EngineThread,
}

impl Engine {
    /// Starts the ranks and returns when all of them have loaded their shards. `progress` hears how
    /// far they are. Dropping the returned future kills what was started.
    ///
    /// # Errors
    ///
    /// Options or a checkpoint that cannot be used, before anything is started; a machine that refuses
    /// memory or processes; a rank that ends, fails or is not ready in time, by its number and what it
    /// was doing.
    pub async fn start(
        options: EngineOptions,
        progress: UnboundedSender<LoadProgress>,
    ) -> Result<Engine, EngineError> {
        Engine::launch(options, progress).await?.ready().await
    }

    /// Starts the ranks and returns while they load, for those who want to ask how they are.
    ///
    /// # Errors
    ///
    /// As for [`Engine::start`], as far as it is known before a rank is started.
    pub async fn launch(
        options: EngineOptions,
        progress: UnboundedSender<LoadProgress>,
    ) -> Result<LoadingEngine, EngineError> {
        let (thread, started) = EngineThread::start(options, progress)?;
        let (handle, ready) = started.await.map_err(|_| EngineError::Crashed)??;
        Ok(LoadingEngine { handle, thread, ready })
    }

    /// A way to ask it things.
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }

    /// Refuses new requests, lets the live ones finish within `limit`, cancels the rest, and stops
    /// the ranks.
    ///
    /// # Errors
    ///
    /// The engine had failed before, or a rank had to be killed. No rank is left in any case.
    pub async fn shutdown(mut self, limit: Duration) -> Result<(), EngineError> {
        // A coordinator that is gone has ended, or crashed: the thread knows.
        let _ = self.handle.coordinator.send(Stop(limit)).await;
        let outcome = match self.thread.outcome.take() {
            Some(outcome) => outcome.await.unwrap_or(Err(EngineError::Crashed)),
            None => Ok(()),
        };
        self.thread.join();
        outcome
    }
}

/// An engine whose ranks are loading: its status is known, requests are refused. Dropping it kills the
/// ranks, and returns when they are gone.
pub struct LoadingEngine {
    handle: EngineHandle,
    thread: EngineThread,
    ready: Ready,
}

impl LoadingEngine {
    /// A way to ask it things.
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }

    /// Waits until all ranks have loaded. Dropping the returned future kills them.
    ///
    /// # Errors
    ///
    /// As for [`Engine::start`].
    pub async fn ready(self) -> Result<Engine, EngineError> {
        self.ready.await.unwrap_or(Err(EngineError::Crashed))?;
        Ok(Engine { handle: self.handle, thread: self.thread })
    }
}

type Ready = oneshot::Receiver<Result<(), EngineError>>;
type Started = (EngineHandle, Ready);

/// The engine's thread. Dropping it ends the engine.
struct EngineThread {
    /// Dropped to have everything killed.
    abort: Option<oneshot::Sender<()>>,
    outcome: Option<oneshot::Receiver<Result<(), EngineError>>>,
    thread: Option<JoinHandle<()>>,
}

impl EngineThread {
    fn start(
        options: EngineOptions,
        progress: UnboundedSender<LoadProgress>,
    ) -> Result<(Self, oneshot::Receiver<Result<Started, EngineError>>), EngineError> {
        let (abort, aborted) = oneshot::channel();
        let (started, starts) = oneshot::channel();
        let (ended, outcome) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("engine".to_string())
            .spawn(move || {
                let outcome = run(options, progress, started, aborted);
                // Only `shutdown` asks.
                let _ = ended.send(outcome);
            })
            .map_err(|source| EngineError::Spawn { what: "the engine's thread".into(), source })?;
        let thread = Self { abort: Some(abort), outcome: Some(outcome), thread: Some(thread) };
        Ok((thread, starts))
    }

    fn join(&mut self) {
        self.abort = None;
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.join();
    }
}

/// The engine's thread from beginning to end.
fn run(
    options: EngineOptions,
    progress: UnboundedSender<LoadProgress>,
    started: oneshot::Sender<Result<Started, EngineError>>,
    aborted: oneshot::Receiver<()>,
) -> Result<(), EngineError> {
    let prepared = Facts::gather(&options).and_then(|facts| {
        let metrics = Metrics::new(&options.model_name, options.world, &options.flags)?;
        Ok((Arc::new(facts), Arc::new(metrics)))
    });
    let (facts, metrics) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            // Who waited for the start may have given up.
            let _ = started.send(Err(error));
            return Ok(());
        }
    };
    System::new().block_on(lead(options, facts, metrics, progress, started, aborted))
}

/// Runs the actors until no rank is left.
async fn lead(
    options: EngineOptions,
    facts: Arc<Facts>,
    metrics: Arc<Metrics>,
    load: UnboundedSender<LoadProgress>,
    started: oneshot::Sender<Result<Started, EngineError>>,
    aborted: oneshot::Receiver<()>,
) -> Result<(), EngineError> {
    let (ready, is_ready) = oneshot::channel();
    let (over, mut is_over) = oneshot::channel();
    let (failed, failures) = watch::channel(None);
    let (outputs_wrong, wrong) = watch::channel(None);
    let setup = Setup {
        launch: launcher(&options),
        facts,
        run_id: uuid::Uuid::new_v4().simple().to_string(),
        rendezvous: Rendezvous::default().start(),
        metrics: Arc::clone(&metrics),
        load,
        ready,
        outputs_wrong,
        failed: failed.clone(),
        over,
        options,
    };
    let arbiter = Arbiter::new();
    let coordinator =
        Coordinator::start_in_arbiter(&arbiter.handle(), move |_| Coordinator::new(setup));

    let handle = EngineHandle {
        coordinator: coordinator.clone(),
        failed: failures,
        outputs_wrong: wrong,
        metrics,
    };
    // Who waited for the start may have given up; the engine's end is then on its way.
    let _ = started.send(Ok((handle, is_ready)));
    let outcome = tokio::select! {
        outcome = &mut is_over => outcome,
        _ = aborted => {
            coordinator.do_send(StopNow);
            is_over.await
        }
    };
    let outcome = outcome.unwrap_or_else(|_| {
        // The coordinator ended without a word: a panic. Its ranks are killed with this thread.
        failed.send_replace(Some("the coordinator crashed".to_string()));
        Err(EngineError::Crashed)
    });
    arbiter.stop();
    outcome
}

/// Links run on this thread, and so do the calls that start processes.
fn launcher(options: &EngineOptions) -> Launch {
    let arbiter: ArbiterHandle = Arbiter::current();
    let link_options = LinkOptions {
        program: options.rank_program.clone(),
        environment: options.rank_environment.clone(),
        load_timeout: options.load_timeout,
        stall_timeout: options.stall_timeout,
    };
    Box::new(move |assignment, watch, coordinator| {
        let options = link_options.clone();
        RankLink::start_in_arbiter(&arbiter, move |_| {
            RankLink::new(assignment, options, watch, coordinator)
        })
        .recipient()
    })
}

/// A way to ask a running engine things, from any thread.
#[derive(Clone)]
pub struct EngineHandle {
    coordinator: Addr<Coordinator>,
    failed: watch::Receiver<Option<String>>,
    outputs_wrong: watch::Receiver<Option<String>>,
    metrics: Arc<Metrics>,
}

impl EngineHandle {
    /// Queues a request.
    ///
    /// # Errors
    ///
    /// A request that is wrong in itself, a full queue, an engine that does not serve.
    pub async fn submit(&self, request: GenerateRequest) -> Result<RequestStream, RequestError> {
        // One stream for one request.
        self.submit_all(vec![request]).await?.pop().ok_or_else(stopped)
    }

    /// Queues several requests, all of them or none; one stream for each, in their order.
    ///
    /// # Errors
    ///
    /// As for [`EngineHandle::submit`], and no room for all of them in the queue.
    pub async fn submit_all(
        &self,
        requests: Vec<GenerateRequest>,
    ) -> Result<Vec<RequestStream>, RequestError> {
        let submitted = self.coordinator.send(Submit(requests)).await.map_err(gone)??;
        let stream = |(key, events)| {
            let client = Client { coordinator: self.coordinator.clone(), key: Some(key) };
            RequestStream { events, client }
        };
        Ok(submitted.into_iter().map(stream).collect())
    }

    /// Scores a text; dropping the future cancels it.
    ///
    /// # Errors
    ///
    /// As for [`EngineHandle::submit`], and whatever ends the request before its end.
    pub async fn score(&self, request: ScoreRequest) -> Result<Score, RequestError> {
        let (key, reply) = self.coordinator.send(SubmitScore(request)).await.map_err(gone)??;
        let mut client = Client { coordinator: self.coordinator.clone(), key: Some(key) };
        let score = reply.await.unwrap_or_else(|_| Err(stopped()));
        client.key = None;
        score
    }

    /// Ends the requests of this id or label; answers how many there were.
    pub async fn cancel(&self, name: &str) -> usize {
        // An engine that is gone has no requests.
        self.coordinator.send(Cancel(name.to_string())).await.unwrap_or(0)
    }

    /// Refuses new requests; those that are live finish, and the ranks stay.
    ///
    /// # Errors
    ///
    /// An engine that does not serve.
    pub async fn drain(&self) -> Result<(), ControlError> {
        self.coordinator.send(Drain).await.map_err(not_serving)?
    }

    /// Takes requests again.
    ///
    /// # Errors
    ///
    /// An engine that does not serve.
    pub async fn resume(&self) -> Result<(), ControlError> {
        self.coordinator.send(Resume).await.map_err(not_serving)?
    }

    /// Ends a rank; the group is then started again, and the requests go on.
    ///
    /// # Errors
    ///
    /// A rank that does not exist, an engine that does not serve.
    pub async fn restart_rank(&self, rank: usize) -> Result<(), ControlError> {
        self.coordinator.send(RestartRank(rank)).await.map_err(not_serving)?
    }

    /// Sets an experiment flag, as if its variable had been in the environment, from the next step on.
    ///
    /// # Errors
    ///
    /// A flag or value there is not, a flag that is read at the start only, an engine that does not
    /// serve.
    pub async fn set_flag(&self, name: &str, value: &str) -> Result<(), ControlError> {
        let flag = SetFlag { name: name.to_string(), value: value.to_string() };
        self.coordinator.send(flag).await.map_err(not_serving)?
    }

    /// The live requests, the oldest first.
    pub async fn requests(&self) -> Vec<RequestStatus> {
        // An engine that is gone has none.
        self.coordinator.send(ListRequests).await.unwrap_or_default()
    }

    /// Which flag makes outputs wrong by request, if one does; known without asking anybody.
    pub fn outputs_wrong(&self) -> Option<String> {
        self.outputs_wrong.borrow().clone()
    }

    /// Everything that is counted, in Prometheus' text format.
    pub fn metrics(&self) -> String {
        self.metrics.text()
    }

    /// Tokens worked on so far; known without asking anybody.
    pub fn tokens(&self) -> TokenCounts {
        self.metrics.tokens()
    }

    /// The state of the engine; answered at once, also while a step runs.
    pub async fn status(&self) -> EngineStatus {
        match self.coordinator.send(GetStatus).await {
            Ok(status) => status,
            Err(_) => {
                let reason = self.failed.borrow().clone();
                EngineStatus {
                    state: EngineState::Failed(
                        reason.unwrap_or_else(|| "the engine has stopped".to_string()),
                    ),
                    epoch: 0,
                    restarts: 0,
                    forward_passes: 0,
                    running: 0,
                    waiting: 0,
                    kv_blocks_used: 0,
                    kv_blocks: 0,
                    call_cost: None,
                    ranks: Vec::new(),
                    flags: Vec::new(),
                    outputs_wrong: None,
                    notes: Vec::new(),
                }
            }
        }
    }

    /// Waits until the engine has failed and says why. Never returns for one that was shut down.
    pub async fn failed(&self) -> String {
        let mut failed = self.failed.clone();
        match failed.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }
}

fn stopped() -> RequestError {
    RequestError::Unavailable("the engine has stopped".to_string())
}

fn not_serving(_: MailboxError) -> ControlError {
    ControlError::NotServing("the engine has stopped".to_string())
}

fn gone(_: MailboxError) -> RequestError {
    stopped()
}

/// Tells the coordinator when the client of a live request goes away.
struct Client {
    coordinator: Addr<Coordinator>,
    /// None once the request has ended.
    key: Option<RequestKey>,
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.coordinator.do_send(Abandon(key));
        }
    }
}

/// What a request answers. Dropping it cancels the request within one step.
pub struct RequestStream {
    events: UnboundedReceiver<Event>,
    client: Client,
}

impl RequestStream {
    /// The next event; none after `Finished` or `Failed`.
    pub async fn next(&mut self) -> Option<Event> {
        self.client.key?;
        // The coordinator always says how a request ends, unless it is no more.
        let event = self.events.recv().await.unwrap_or_else(|| Event::Failed(stopped()));
        if matches!(event, Event::Finished { .. } | Event::Failed(_)) {
            self.client.key = None;
        }
        Some(event)
    }
}
