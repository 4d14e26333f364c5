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
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{oneshot, watch};

use crate::api::EngineOptions;
use crate::coordinator::{Coordinator, Launch, Setup, Stop, StopNow};
use crate::error::EngineError;
use crate::facts::Facts;
use crate::handle::EngineHandle;
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
        let EngineOptions { model_name, world, flags, request_timeout, .. } = &options;
        let metrics = Metrics::new(model_name, *world, flags, *request_timeout)?;
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
    let rendezvous = Rendezvous::default().start();
    let setup = Setup {
        launch: launcher(&options),
        facts,
        run_id: uuid::Uuid::new_v4().simple().to_string(),
        rendezvous: rendezvous.clone(),
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
        rendezvous,
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
        tick: options.look_interval(),
    };
    Box::new(move |assignment, watch, coordinator| {
        let options = link_options.clone();
        RankLink::start_in_arbiter(&arbiter, move |_| {
            RankLink::new(assignment, options, watch, coordinator)
        })
        .recipient()
    })
}
