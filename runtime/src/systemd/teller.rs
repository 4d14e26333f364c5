//! What the service manager is told after a look at the daemon.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pocket_actors::api::{EngineState, EngineStatus};
use sd_notify::NotifyState;

use super::feeding::Feeding;
use super::outbox::Outbox;
use super::reporter::micros;
use crate::control::throughput::{Rates, Throughput};
use crate::http::{App, Report};

/// Time between two looks, unless the watchdog wants more.
const LOOK: Duration = Duration::from_secs(1);
/// Looks within half of the watchdog's time: a request that has just come when the watchdog is due gets
/// another chance to have moved.
const LOOKS_A_FEEDING: u32 = 4;
/// The shortest time between two status lines that differ in numbers only.
const STATUS_PERIOD: Duration = Duration::from_secs(3);
/// Time between two wishes for more time to stop.
const STOP_PERIOD: Duration = Duration::from_secs(5);
/// The time that each asks for.
pub(super) const STOP_EXTENSION: Duration = Duration::from_secs(15);
/// What a stop may take beyond the limit of its open requests: last bytes, the end of the ranks.
const STOP_REST: Duration = Duration::from_secs(10);

/// Remembers what was said.
pub(super) struct Teller {
    app: Arc<App>,
    outbox: Arc<Outbox>,
    load_timeout: Duration,
    /// Half of the watchdog's time.
    feed_every: Option<Duration>,
    feeding: Feeding,
    fed: Option<Instant>,
    throughput: Throughput,
    ready: bool,
    status: Option<(Instant, String)>,
    /// The share of the weights that was there.
    loaded: Option<f64>,
    extended: Option<Instant>,
}

impl Teller {
    pub(super) fn new(
        app: Arc<App>,
        outbox: Arc<Outbox>,
        watchdog: Option<Duration>,
        load_timeout: Duration,
    ) -> Self {
        Self {
            app,
            outbox,
            load_timeout,
            feed_every: watchdog.map(|time| time / 2),
            feeding: Feeding::new(load_timeout),
            fed: None,
            throughput: Throughput::default(),
            ready: false,
            status: None,
            loaded: None,
            extended: None,
        }
    }

    pub(super) fn app(&self) -> Arc<App> {
        Arc::clone(&self.app)
    }

    /// Time between two looks.
    pub(super) fn look(&self) -> Duration {
        // An interval must not be zero.
        let least = Duration::from_millis(1);
        self.feed_every.map_or(LOOK, |half| (half / LOOKS_A_FEEDING).clamp(least, LOOK))
    }

    /// Looks, and tells what there is to tell. A daemon that stops has until `stop`.
    pub(super) async fn look_once(&mut self, stop: Option<Instant>) {
        let report = Report::of(&self.app).await;
        let now = Instant::now();
        if let Some(serving) = self.app.serving() {
            self.throughput.observe(now, serving.engine.tokens());
        }
        if !self.ready && report.state == EngineState::Ready {
            self.ready = true;
            self.outbox.put(&[NotifyState::Ready]);
        }
        self.tell_status(&report, now);
        match stop {
            Some(deadline) => self.extend_stop(deadline, now),
            None => self.extend_start(&report),
        }
        self.feed(report.engine.as_ref(), now);
    }

    fn tell_status(&mut self, report: &Report, now: Instant) {
        let open = self.app.open_requests();
        let text = status(report, &self.throughput.rates(), open);
        let due = match &self.status {
            None => true,
            Some((_, said)) if *said == text => false,
            // The word at the beginning is the state, and a new one is news.
            Some((_, said)) if said.split(' ').next() != text.split(' ').next() => true,
            Some((when, _)) => report.loading.is_some() || now - *when >= STATUS_PERIOD,
        };
        if due {
            self.outbox.put(&[NotifyState::Status(&text)]);
            self.status = Some((now, text));
        }
    }

    /// While weights come, the start may go on, however long all of them take.
    fn extend_start(&mut self, report: &Report) {
        if !self.ready && report.loading.is_some() && self.loaded != report.loading {
            self.loaded = report.loading;
            self.outbox.put(&[NotifyState::ExtendTimeoutUsec(micros(self.load_timeout))]);
        }
    }

    /// Within its own limit, the stop may go on, whatever the unit's.
    fn extend_stop(&mut self, deadline: Instant, now: Instant) {
        let due = self.extended.is_none_or(|last| now - last >= STOP_PERIOD);
        if due && now < deadline + STOP_REST {
            self.extended = Some(now);
            self.outbox.put(&[NotifyState::ExtendTimeoutUsec(micros(STOP_EXTENSION))]);
        }
    }

    fn feed(&mut self, engine: Option<&EngineStatus>, now: Instant) {
        let Some(every) = self.feed_every else { return };
        // A look early is better than a look late.
        let due = self.fed.is_none_or(|last| now - last + self.look() > every);
        if self.ready && due && self.feeding.earned(engine, now) {
            self.fed = Some(now);
            self.outbox.put(&[NotifyState::Watchdog]);
        }
    }
}

/// One line, the state first.
fn status(report: &Report, rates: &Rates, open: usize) -> String {
    let text = match (&report.state, &report.engine, report.loading) {
        (EngineState::Starting, Some(_), Some(share)) => {
            format!("loading: {:.0} % of the weights are there", share * 100.0)
        }
        (EngineState::Starting, ..) => "starting: finding and checking the model".to_owned(),
        (EngineState::Ready, Some(engine), _) => format!(
            "serving: {} running, {} waiting, {:.1} tokens/s generated, {:.1} tokens/s of prompts",
            engine.running, engine.waiting, rates.generated, rates.prompt
        ),
        (EngineState::Ready, None, _) => "serving".to_owned(),
        (EngineState::Draining, ..) => format!("draining: {open} requests are open"),
        (EngineState::Recovering(reason), ..) => format!("recovering: {reason}"),
        (EngineState::Failed(reason), ..) => format!("failed: {reason}"),
    };
    // A line break would begin another message.
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_one_line() {
        let report = |state, loading| Report { state, loading, engine: None };
        let rates = Rates::default();
        let failed = report(EngineState::Failed("rank 1\ndied".to_owned()), None);
        assert_eq!(status(&failed, &rates, 0), "failed: rank 1 died");
        let draining = report(EngineState::Draining, None);
        assert_eq!(status(&draining, &rates, 3), "draining: 3 requests are open");
        let starting = report(EngineState::Starting, Some(0.0));
        assert_eq!(status(&starting, &rates, 0), "starting: finding and checking the model");
    }

    #[test]
    fn there_are_several_looks_within_half_of_the_watchdogs_time() {
        let app = Arc::new(App::for_tests());
        let outbox = Arc::new(Outbox::to("/no/such/socket".as_ref()).unwrap());
        let teller = |watchdog| Teller::new(Arc::clone(&app), Arc::clone(&outbox), watchdog, LOOK);
        let look = |watchdog| teller(watchdog).look();
        assert_eq!(look(None), LOOK);
        assert_eq!(look(Some(Duration::from_secs(60))), LOOK);
        assert_eq!(look(Some(Duration::from_secs(2))), Duration::from_millis(250));
        assert!(look(Some(Duration::ZERO)) > Duration::ZERO);
    }
}
