//! Engines for one command: started, asked, stopped, also by Ctrl-C.

use std::time::Duration;

use anyhow::anyhow;
use futures_util::future::try_join_all;
use pocket_actors::{Engine, EngineHandle};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::boot::Boot;
use crate::failure::Interrupted;

/// What ranks get to finish a step they are in before they are killed.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Starts the engine, lets `work` ask it, and stops it whatever came of that. No rank is left when
/// this returns.
pub fn with_engine<T>(
    boot: Boot,
    work: impl AsyncFnOnce(EngineHandle) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    with_engines(vec![boot], async |engines: Vec<EngineHandle>| {
        let [engine] = engines.try_into().map_err(|_| anyhow!("one engine was started"))?;
        work(engine).await
    })
}

/// The same with several engines, started one after the other.
pub fn with_engines<T>(
    boots: Vec<Boot>,
    work: impl AsyncFnOnce(Vec<EngineHandle>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    actix_web::rt::System::new().block_on(async {
        let mut signals = Signals::with_hangup()?;
        let mut engines = Vec::new();
        for boot in boots {
            tokio::select! {
                started = boot.start(|_| {}, |_| {}) => engines.push(started?),
                interrupted = signals.next() => return Err(interrupted.into()),
            }
        }
        let handles = engines.iter().map(Engine::handle).collect();
        let outcome = tokio::select! {
            outcome = work(handles) => outcome,
            interrupted = signals.next() => Err(interrupted.into()),
        };
        let stopping = engines.into_iter().map(|engine| engine.shutdown(STOP_LIMIT));
        // A second signal does not wait for ranks: dropping the engines kills them.
        tokio::select! {
            stopped = try_join_all(stopping) => match (outcome, stopped) {
                (Ok(value), Ok(_)) => Ok(value),
                (Ok(_), Err(error)) => Err(error.into()),
                // What went wrong first is what matters.
                (Err(error), _) => Err(error),
            },
            interrupted = signals.next() => Err(interrupted.into()),
        }
    })
}

/// The signals that ask a command to end.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// The terminal is gone; none where that means something else (a daemon) or nothing (`nohup`).
    hangup: Option<Signal>,
}

impl Signals {
    /// From now on they no longer end the process by themselves. A hangup is not among them.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: None,
        })
    }

    /// The same with a hangup, unless the process was started to ignore it.
    pub fn with_hangup() -> std::io::Result<Self> {
        let hangup = if hangup_is_ignored()? { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self { hangup, ..Self::listen()? })
    }

    /// The next of them.
    pub async fn next(&mut self) -> Interrupted {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Interrupted(SignalKind::interrupt().as_raw_value()),
            _ = self.terminate.recv() => Interrupted(SignalKind::terminate().as_raw_value()),
            _ = hangup => Interrupted(SignalKind::hangup().as_raw_value()),
        }
    }
}

/// Whether whoever started this process had it ignore a hangup.
fn hangup_is_ignored() -> std::io::Result<bool> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    // Signals count from 1.
    Ok(mask >> (SignalKind::hangup().as_raw_value() - 1) & 1 == 1)
}
