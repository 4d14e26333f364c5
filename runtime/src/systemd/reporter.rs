//! The thread that tells the service manager how the daemon is.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::outbox::Outbox;
use super::teller::{STOP_EXTENSION, Teller};
use crate::http::App;

/// How long the end of the daemon waits for a manager that does not listen.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Tells the manager of progress in loading, of readiness, rates and the stop, and feeds its watchdog.
/// Dropping it ends that.
#[derive(Debug)]
pub struct Reporter {
    orders: watch::Sender<Order>,
    /// What is told, and who tells it; none without a manager.
    telling: Option<(Arc<Outbox>, JoinHandle<()>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Report,
    /// The daemon stops; open requests have until then.
    Stop(Instant),
    End,
}

impl Reporter {
    /// Reports on `app` from now on, if there is a manager that listens; ranks may take `load_timeout`
    /// to load.
    pub fn start(app: Arc<App>, load_timeout: Duration) -> io::Result<Self> {
        let (orders, received) = watch::channel(Order::Report);
        let telling = if let Some(outbox) = Outbox::to_manager() {
            let outbox = Arc::new(outbox);
            let watchdog = sd_notify::watchdog_enabled();
            let teller = Teller::new(app, Arc::clone(&outbox), watchdog, load_timeout);
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let told = Arc::clone(&outbox);
            let run = move || runtime.block_on(run(teller, received, &told));
            Some((outbox, thread::Builder::new().name("systemd".into()).spawn(run)?))
        } else {
            None
        };
        Ok(Self { orders, telling })
    }

    /// The configuration is being read again.
    pub fn reloading(&self) {
        // Newer managers pair the two messages by this time; older ones do not look at it.
        let now = NotifyState::monotonic_usec_now().ok();
        let states: Vec<NotifyState<'_>> =
            [NotifyState::Reloading].into_iter().chain(now).collect();
        self.tell(&states);
    }

    /// It has been read.
    pub fn reloaded(&self) {
        self.tell(&[NotifyState::Ready]);
    }

    /// The daemon stops from now on and gives its open requests `limit`.
    pub fn stopping(&self, limit: Duration) {
        self.tell(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(micros(STOP_EXTENSION))]);
        self.orders.send_replace(Order::Stop(Instant::now() + limit));
    }

    fn tell(&self, states: &[NotifyState<'_>]) {
        if let Some((outbox, _)) = &self.telling {
            outbox.put(states);
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.orders.send_replace(Order::End);
        if let Some((_, thread)) = self.telling.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}

/// Reports until the end, and has then said what there was to say.
async fn run(teller: Teller, orders: watch::Receiver<Order>, outbox: &Outbox) {
    tokio::select! {
        () = look(teller, orders) => {}
        () = outbox.send() => {}
    }
    if timeout(LAST_WORDS, outbox.send_waiting()).await.is_err() {
        tracing::warn!("the service manager does not listen; it was not told of the end");
    }
}

/// Looks at the daemon from time to time, and when it begins to serve.
async fn look(mut teller: Teller, mut orders: watch::Receiver<Order>) {
    let mut looks = interval(teller.look());
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let app = teller.app();
    let mut served = std::pin::pin!(app.loaded());
    let mut is_served = false;
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            () = &mut served, if !is_served => is_served = true,
            _ = orders.changed() => {}
        }
        let order = *orders.borrow_and_update();
        let stop = match order {
            Order::Report => None,
            Order::Stop(deadline) => Some(deadline),
            Order::End => return,
        };
        tokio::select! {
            () = teller.look_once(stop) => {}
            // A silent coordinator must not hold up the end.
            _ = orders.wait_for(|order| *order == Order::End) => return,
        }
    }
}

/// Microseconds as the protocol's messages hold them.
pub(super) fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}
