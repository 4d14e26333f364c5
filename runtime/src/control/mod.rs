//! The control plane: what operators ask of a running daemon, over gRPC.
//!
//! `proto/pocket/control/v1/control.proto` says what can be asked. Beside it the server answers gRPC's
//! own health and reflection services. It has a thread and a runtime of its own, so that neither HTTP
//! nor the engine can keep operators out.
//!
//! - `listen` takes the Unix socket and the TCP address of the settings; `socket` is the socket's file.
//! - `access` decides who may ask.
//! - `server` is the thread.
//! - `service` answers; `status`, `throughput`, `health`, `profile` and `trace` are parts of its answers.

mod access;
mod health;
mod listen;
mod profile;
mod server;
mod service;
pub mod socket;
mod status;
#[cfg(test)]
mod tests;
pub mod throughput;
mod trace;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pocket_actors::EngineHandle;
use pocket_config::Settings;
use tokio::sync::{mpsc, watch};

use crate::http::App;
use crate::logging::FilterHandle;
use throughput::{Rates, Throughput};

pub use access::Token;
pub use listen::Listeners;
pub use server::ControlServer;

/// The messages and the service, from the protocol.
pub mod proto {
    // Documented in the protocol, but for what the generator adds.
    #![allow(missing_docs, clippy::unwrap_used, clippy::large_enum_variant)]

    tonic::include_proto!("pocket.control.v1");

    /// The protocol itself, for reflection.
    pub const DESCRIPTORS: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/control_descriptors.bin"));
}

/// The daemon as the control plane knows it.
pub struct Daemon {
    app: Arc<App>,
    settings: Settings,
    log: FilterHandle,
    /// Takes the limit of an orderly stop.
    stop: mpsc::Sender<Duration>,
    started: Instant,
    throughput: Mutex<Throughput>,
    /// True when the server is about to end: endless answers end too.
    ending: watch::Sender<bool>,
}

impl Daemon {
    /// One that is stopped by what `stop` receives.
    pub fn new(
        app: Arc<App>,
        settings: Settings,
        log: FilterHandle,
        stop: mpsc::Sender<Duration>,
    ) -> Self {
        Self {
            app,
            settings,
            log,
            stop,
            started: Instant::now(),
            throughput: Mutex::default(),
            ending: watch::Sender::new(false),
        }
    }

    fn engine(&self) -> Option<EngineHandle> {
        self.app.serving().map(|serving| serving.engine.clone())
    }

    /// Notes how many tokens there have been by now.
    fn observe(&self) {
        if let Some(engine) = self.engine() {
            self.throughput().observe(Instant::now(), engine.tokens());
        }
    }

    fn rates(&self) -> Rates {
        self.throughput().rates()
    }

    fn throughput(&self) -> std::sync::MutexGuard<'_, Throughput> {
        self.throughput.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the server is about to end.
    async fn ending(&self) {
        // The sender lives in self, so waiting cannot fail.
        let _ = self.ending.subscribe().wait_for(|ending| *ending).await;
    }
}
