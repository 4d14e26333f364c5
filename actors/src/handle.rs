//! The way front ends ask a running engine things: requests and their events, status, and what operators
//! want.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;

use crate::api::{
    ControlError, EngineState, EngineStatus, Event, GenerateRequest, MissingRank, RequestError,
    RequestStatus, Score, ScoreRequest, TokenCounts,
};
use crate::coordinator::{
    Abandon, Cancel, Coordinator, Drain, GetStatus, ListEnded, ListRequests, Ping, RequestKey,
    RestartRank, Resume, SetFlag, StartProfile, StopProfile, Submit, SubmitScore,
};
use crate::metrics::Metrics;
use crate::observe::EndedRequest;
use crate::profile::Profile;
use crate::rendezvous::{Rendezvous, TakeCensus};

/// The keeper of the segment answers from memory; who asks does not wait for one that does not.
const CENSUS_LIMIT: Duration = Duration::from_secs(1);

/// A way to ask a running engine things, from any thread.
#[derive(Clone)]
pub struct EngineHandle {
    pub(crate) coordinator: Addr<Coordinator>,
    pub(crate) rendezvous: Addr<Rendezvous>,
    pub(crate) failed: watch::Receiver<Option<String>>,
    pub(crate) outputs_wrong: watch::Receiver<Option<String>>,
    pub(crate) metrics: Arc<Metrics>,
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

    /// Begins to record where the time of forward calls goes. The recording ends by itself after `limit`.
    /// Calls take longer meanwhile, and answers stay the same.
    ///
    /// # Errors
    ///
    /// A recording that runs already, an engine that does not serve.
    pub async fn start_profile(&self, limit: Duration) -> Result<(), ControlError> {
        self.coordinator.send(StartProfile(limit)).await.map_err(not_serving)?
    }

    /// Ends the recording and gives it, also one that has ended at its limit.
    ///
    /// # Errors
    ///
    /// There is none, or the engine has stopped.
    pub async fn stop_profile(&self) -> Result<Box<Profile>, ControlError> {
        self.coordinator.send(StopProfile).await.map_err(not_serving)?
    }

    /// The live requests, the oldest first.
    pub async fn requests(&self) -> Vec<RequestStatus> {
        // An engine that is gone has none.
        self.coordinator.send(ListRequests).await.unwrap_or_default()
    }

    /// The last requests that have ended, the latest first.
    pub async fn ended_requests(&self) -> Vec<EndedRequest> {
        // An engine that is gone has none.
        self.coordinator.send(ListEnded).await.unwrap_or_default()
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

    /// Waits for the coordinator to say that it is there; false once it has ended.
    pub async fn answers(&self) -> bool {
        self.coordinator.send(Ping).await.is_ok()
    }

    /// The state of the engine; answered at once, also while a step runs.
    pub async fn status(&self) -> EngineStatus {
        match self.coordinator.send(GetStatus).await {
            Ok(status) => EngineStatus { missing: self.missing(status.epoch).await, ..status },
            Err(_) => {
                let reason = self.failed.borrow().clone();
                EngineStatus {
                    state: EngineState::Failed(
                        reason.unwrap_or_else(|| "the engine has stopped".to_string()),
                    ),
                    epoch: 0,
                    restarts: 0,
                    forward_passes: 0,
                    all_reduces_per_pass: 0,
                    last_step_age_s: None,
                    last_self_test: None,
                    running: 0,
                    waiting: 0,
                    kv_blocks_used: 0,
                    kv_blocks: 0,
                    call_cost: None,
                    settings: None,
                    ranks: Vec::new(),
                    missing: Vec::new(),
                    flags: Vec::new(),
                    outputs_wrong: None,
                    notes: Vec::new(),
                }
            }
        }
    }

    /// Who has not arrived where others wait; nobody in an epoch that is not this one or is given up.
    async fn missing(&self, epoch: u64) -> Vec<MissingRank> {
        let census = tokio::time::timeout(CENSUS_LIMIT, self.rendezvous.send(TakeCensus)).await;
        let census = census.ok().and_then(Result::ok).flatten();
        let census = census.filter(|census| census.epoch == epoch && census.poisoned.is_none());
        census.map_or_else(Vec::new, |census| census.missing.iter().map(Into::into).collect())
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
    events: Receiver<Event>,
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
