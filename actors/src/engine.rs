//! The engine as front ends hold it: started, asked, and stopped.

use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use crate::api::{
    EngineOptions, EngineStatus, Event, GenerateRequest, RequestError, Score, ScoreRequest,
};
use crate::error::EngineError;

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

/// A running group of ranks and the actors that lead it. Dropping it kills the ranks.
pub struct Engine {}

impl Engine {
    /// Starts the ranks and returns when all of them have loaded their shards. `progress` hears how
    /// far they are. Dropping the returned future kills what was started.
    pub async fn start(
        options: EngineOptions,
        progress: UnboundedSender<LoadProgress>,
    ) -> Result<Engine, EngineError> {
        let _ = (options, progress);
        unimplemented!()
    }

    /// A way to ask it things.
    pub fn handle(&self) -> EngineHandle {
        unimplemented!()
    }

    /// Refuses new requests, lets the live ones finish within `limit`, cancels the rest, and stops
    /// the ranks.
    pub async fn shutdown(self, limit: Duration) -> Result<(), EngineError> {
        let _ = limit;
        unimplemented!()
    }
}

/// A way to ask a running engine things, from any thread.
#[derive(Clone)]
pub struct EngineHandle {}

impl EngineHandle {
    /// Queues a request.
    pub async fn submit(&self, request: GenerateRequest) -> Result<RequestStream, RequestError> {
        let _ = request;
        unimplemented!()
    }

    /// Scores a text; dropping the future cancels it.
    pub async fn score(&self, request: ScoreRequest) -> Result<Score, RequestError> {
        let _ = request;
        unimplemented!()
    }

    /// Ends a request by its id; false when there is no such request.
    pub async fn cancel(&self, id: &str) -> bool {
        let _ = id;
        unimplemented!()
    }

    /// The state of the engine; answered at once, also while a step runs.
    pub async fn status(&self) -> EngineStatus {
        unimplemented!()
    }

    /// Waits until the engine has failed and says why.
    pub async fn failed(&self) -> String {
        unimplemented!()
    }
}

/// What a request answers. Dropping it cancels the request.
pub struct RequestStream {}

impl RequestStream {
    /// The next event; none after `Finished` or `Failed`.
    pub async fn next(&mut self) -> Option<Event> {
        unimplemented!()
    }
}
