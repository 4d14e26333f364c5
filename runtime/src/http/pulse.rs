//! Whether the daemon's event loops turn: HTTP's, by which this is told; the main one, which asks; and the
//! coordinator's, which answers. It says nothing of the ranks: see [`super::info`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::state::App;

/// Time between two questions.
const PERIOD: Duration = Duration::from_secs(1);

/// A coordinator that has not answered for this long is stuck: it answers at once, whatever the ranks do.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(10);

/// When the coordinator last answered.
#[derive(Debug, Default)]
pub struct Pulse(Mutex<Option<Instant>>);

impl Pulse {
    fn note(&self, now: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// How long it has been silent; none while there is no coordinator to ask.
    pub fn silence(&self, now: Instant) -> Option<Duration> {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.map(|last| now.saturating_duration_since(last))
    }
}

/// Asks the coordinator from time to time, once there is one, for as long as the daemon lives.
pub async fn watch(app: Arc<App>) {
    let mut asked_before = false;
    loop {
        if let Some(engine) = app.engine() {
            if !asked_before {
                // Its silence counts from the first question.
                app.pulse.note(Instant::now());
                asked_before = true;
            }
            // A coordinator that has ended answers nobody; on the way down that is as it should be.
            if engine.answers().await || app.is_draining() {
                app.pulse.note(Instant::now());
            }
        }
        sleep(PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_from_the_last_answer() {
        let (pulse, start) = (Pulse::default(), Instant::now());
        assert_eq!(pulse.silence(start), None);
        pulse.note(start);
        let later = start + Duration::from_secs(3);
        assert_eq!(pulse.silence(later), Some(Duration::from_secs(3)));
        pulse.note(later);
        assert_eq!(pulse.silence(later), Some(Duration::ZERO));
        assert_eq!(pulse.silence(start), Some(Duration::ZERO), "answered meanwhile");
    }
}
