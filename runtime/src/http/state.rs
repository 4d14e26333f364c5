//! What the server is doing, shared by all handlers: loading, serving, draining or failed, and how many
//! requests are open.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pocket_actors::EngineHandle;
use tokio::sync::watch;

use super::auth::Keys;
use super::error::ApiError;
use super::limits::Limits;
use super::prompt::TextSide;
use super::pulse::Pulse;
use super::sampling::SamplingDefaults;
use super::tls::Certificates;

/// The model as the API shows it.
pub struct ServedModel {
    /// Its name in requests and answers.
    pub name: String,
    /// When this server started to serve it, seconds since 1970.
    pub created: u64,
    /// Positions of a sequence, prompt and answer together.
    pub context: usize,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// What a request that says nothing about sampling gets.
    pub defaults: SamplingDefaults,
    /// Tokenizer and chat template.
    pub text: TextSide,
}

/// A loaded model and the engine that runs it.
pub struct Serving {
    /// The model.
    pub model: ServedModel,
    /// The engine.
    pub engine: EngineHandle,
}

#[derive(Clone)]
enum Phase {
    Starting(Option<EngineHandle>),
    Ready(Arc<Serving>),
    Draining(Option<Arc<Serving>>),
    Failed(String, Arc<Serving>),
}

/// The shared state.
pub struct App {
    phase: watch::Sender<Phase>,
    /// Share of the weights loaded, in thousandths.
    loaded: AtomicU32,
    open: watch::Sender<usize>,
    /// How long a request waits for the model; none for one that does not.
    hold: OnceLock<Duration>,
    /// What each request may take up.
    pub limits: Limits,
    /// Who may ask.
    pub keys: Keys,
    /// Who this is, with TLS.
    pub certificates: Option<Arc<Certificates>>,
    /// Whether the coordinator answers.
    pub pulse: Pulse,
}

/// Where the server stands, for `/health`.
pub enum Stage {
    /// The model is loading: the share of it that is there, and the engine once it has ranks.
    Starting(f64, Option<EngineHandle>),
    /// Requests are served.
    Ready(Arc<Serving>),
    /// Requests are refused, those that are open finish.
    Draining(Option<Arc<Serving>>),
    /// The engine failed, for this reason.
    Failed(String, Arc<Serving>),
}

/// Counts one open request for as long as it lives.
pub struct OpenRequest {
    app: Arc<App>,
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.app.open.send_modify(|open| *open -= 1);
    }
}

impl App {
    /// A server whose model is not loaded yet.
    pub fn new(limits: Limits, keys: Keys, certificates: Option<Arc<Certificates>>) -> Self {
        Self {
            phase: watch::Sender::new(Phase::Starting(None)),
            loaded: AtomicU32::new(0),
            open: watch::Sender::new(0),
            hold: OnceLock::new(),
            limits,
            keys,
            certificates,
            pulse: Pulse::default(),
        }
    }

    /// Limits as they are by default, and no keys.
    #[cfg(test)]
    pub fn for_tests() -> Self {
        Self::new(Limits::of(&Default::default()), Keys::none(), None)
    }

    /// The engine has ranks, which load.
    pub fn set_loading(&self, engine: EngineHandle) {
        self.set(Phase::Starting(Some(engine)));
    }

    /// Notes how much of the weights is loaded, 0 to 1.
    pub fn set_loaded(&self, share: f64) {
        self.loaded.store((share.clamp(0.0, 1.0) * 1000.0) as u32, Ordering::Relaxed);
    }

    /// From now on requests are served.
    pub fn set_ready(&self, serving: Serving) {
        self.set(Phase::Ready(Arc::new(serving)));
    }

    /// From now on requests are refused; those that are open finish.
    pub fn set_draining(&self) {
        let serving = self.serving();
        self.set(Phase::Draining(serving));
    }

    /// The engine failed: requests are refused and `/health` says why.
    pub fn set_failed(&self, reason: &str) {
        if let Some(serving) = self.serving() {
            self.set(Phase::Failed(reason.to_string(), serving));
        }
    }

    /// Where the server stands.
    pub fn stage(&self) -> Stage {
        match self.phase() {
            Phase::Starting(engine) => Stage::Starting(self.loaded_share(), engine),
            Phase::Ready(serving) => Stage::Ready(serving),
            Phase::Draining(serving) => Stage::Draining(serving),
            Phase::Failed(reason, serving) => Stage::Failed(reason, serving),
        }
    }

    /// Whether the server is on its way down.
    pub fn is_draining(&self) -> bool {
        matches!(self.phase(), Phase::Draining(_) | Phase::Failed(..))
    }

    /// The engine, once it has ranks, whatever became of it.
    pub fn engine(&self) -> Option<EngineHandle> {
        match self.phase() {
            Phase::Starting(engine) => engine,
            _ => self.serving().map(|serving| serving.engine.clone()),
        }
    }

    /// The model and engine, once there, whatever became of them.
    pub fn serving(&self) -> Option<Arc<Serving>> {
        match self.phase() {
            Phase::Starting(_) => None,
            Phase::Ready(serving) | Phase::Failed(_, serving) => Some(serving),
            Phase::Draining(serving) => serving,
        }
    }

    /// Admits a request, or says why none is taken now. The request counts as open from before it was
    /// asked whether requests are taken: whoever stops admission and then waits for the open ones
    /// misses none.
    pub fn admit(self: &Arc<Self>) -> Result<(Arc<Serving>, OpenRequest), ApiError> {
        self.open.send_modify(|open| *open += 1);
        let open = OpenRequest { app: Arc::clone(self) };
        match self.phase() {
            Phase::Ready(serving) => Ok((serving, open)),
            Phase::Starting(_) => Err(ApiError::unavailable(format!(
                "the model is loading, {:.0} % of its weights are there",
                self.loaded_share() * 100.0
            ))),
            Phase::Draining(_) => Err(ApiError::unavailable("the server is shutting down")),
            Phase::Failed(reason, _) => {
                Err(ApiError::unavailable(format!("the engine failed: {reason}")))
            }
        }
    }

    /// Requests admitted and not answered to the end.
    pub fn open_requests(&self) -> usize {
        *self.open.borrow()
    }

    /// Waits until no request is open.
    pub async fn idle(&self) {
        let mut open = self.open.subscribe();
        // The sender lives in self, so waiting cannot fail.
        let _ = open.wait_for(|open| *open == 0).await;
    }

    /// Waits until the model is loaded, or the server gives up on that.
    pub async fn loaded(&self) {
        let mut phase = self.phase.subscribe();
        // The sender lives in self, so waiting cannot fail.
        let _ = phase.wait_for(|phase| !matches!(phase, Phase::Starting(_))).await;
    }

    /// Lets requests that come while the model loads wait this long for it, instead of refusing them at
    /// once. Does nothing when called again.
    pub fn hold_while_loading(&self, limit: Duration) {
        // A second call would be another start of the same server.
        let _ = self.hold.set(limit);
    }

    /// Waits for the model as long as requests may.
    pub async fn held(&self) {
        if let Some(limit) = self.hold.get() {
            // Whether it came or not, admission says.
            let _ = tokio::time::timeout(*limit, self.loaded()).await;
        }
    }

    fn loaded_share(&self) -> f64 {
        f64::from(self.loaded.load(Ordering::Relaxed)) / 1000.0
    }

    fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    fn set(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn no_request_is_admitted_before_the_model_is_there_nor_while_draining() {
        let app = Arc::new(App::for_tests());
        app.set_loaded(0.424);
        let refusal = app.admit().map(|_| ()).unwrap_err();
        assert_eq!(refusal.to_string(), "the model is loading, 42 % of its weights are there");
        app.set_draining();
        let refusal = app.admit().map(|_| ()).unwrap_err();
        assert_eq!(refusal.to_string(), "the server is shutting down");
        assert_eq!(app.open_requests(), 0);
        assert!(matches!(app.stage(), Stage::Draining(None)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_held_request_waits_for_the_model_within_its_limit() {
        let app = Arc::new(App::for_tests());
        let mut context = Context::from_waker(Waker::noop());
        assert!(std::pin::pin!(app.held()).poll(&mut context).is_ready(), "nobody said to hold");
        app.hold_while_loading(Duration::from_secs(9));
        app.held().await;
        assert!(matches!(app.stage(), Stage::Starting(..)), "its limit has passed");
        let mut held = std::pin::pin!(app.held());
        assert!(held.as_mut().poll(&mut context).is_pending());
        app.set_draining();
        held.await;
        app.loaded().await;
    }

    #[actix_web::test]
    async fn idle_waits_for_the_last_open_request() {
        let app = Arc::new(App::for_tests());
        app.idle().await;
        app.open.send_modify(|open| *open += 1);
        let request = OpenRequest { app: Arc::clone(&app) };
        let mut idle = std::pin::pin!(app.idle());
        let mut context = Context::from_waker(Waker::noop());
        assert!(idle.as_mut().poll(&mut context).is_pending());
        drop(request);
        idle.await;
        assert_eq!(app.open_requests(), 0);
    }
}
