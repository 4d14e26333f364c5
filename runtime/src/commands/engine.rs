//! An engine for one request: started, asked, stopped, also by Ctrl-C.

use std::time::Duration;

use pocket_actors::EngineHandle;
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
    actix_web::rt::System::new().block_on(async {
        let mut signals = Signals::listen()?;
        let engine = tokio::select! {
            started = boot.start(|_| {}, |_| {}) => started?,
            interrupted = signals.next() => return Err(interrupted.into()),
        };
        let outcome = tokio::select! {
            outcome = work(engine.handle()) => outcome,
            interrupted = signals.next() => Err(interrupted.into()),
        };
        // A second signal does not wait for ranks: dropping the engine kills them.
        tokio::select! {
            stopped = engine.shutdown(STOP_LIMIT) => match (outcome, stopped) {
                (Ok(value), Ok(())) => Ok(value),
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
}

impl Signals {
    /// From now on they no longer end the process by themselves.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The next of them.
    pub async fn next(&mut self) -> Interrupted {
        tokio::select! {
            _ = self.interrupt.recv() => Interrupted(SignalKind::interrupt().as_raw_value()),
            _ = self.terminate.recv() => Interrupted(SignalKind::terminate().as_raw_value()),
        }
    }
}
