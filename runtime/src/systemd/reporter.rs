//! The thread that tells the service manager how the daemon is.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::tell;
use super::teller::{STOP_EXTENSION, Teller};
use crate::http::App;

/// Tells the manager of progress in loading, of readiness, rates and the stop, and feeds its watchdog.
/// Dropping it ends that.
#[derive(Debug)]
pub struct Reporter {
    orders: watch::Sender<Order>,
    thread: Option<JoinHandle<()>>,
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
        let thread = if std::env::var_os("NOTIFY_SOCKET").is_some() {
            let watchdog = sd_notify::watchdog_enabled();
            let teller = Teller::new(app, watchdog, load_timeout);
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let run = move || runtime.block_on(run(teller, received));
            Some(thread::Builder::new().name("systemd".into()).spawn(run)?)
        } else {
            None
        };
        Ok(Self { orders, thread })
    }

    /// The daemon stops from now on and gives its open requests `limit`.
    pub fn stopping(&self, limit: Duration) {
        // From here: the process may end before the thread comes to it.
        tell(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(micros(STOP_EXTENSION))]);
        self.orders.send_replace(Order::Stop(Instant::now() + limit));
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.orders.send_replace(Order::End);
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}

/// Looks at the daemon from time to time, and when it begins to serve.
async fn run(mut teller: Teller, mut orders: watch::Receiver<Order>) {
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
