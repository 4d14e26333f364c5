//! Waiting for a condition instead of for a time.

use std::thread;
use std::time::{Duration, Instant};

/// Longest wait for what takes milliseconds on an idle machine. A test machine is loaded; only a fault
/// makes anyone wait this long.
pub const PATIENCE: Duration = Duration::from_secs(60);

const PERIOD: Duration = Duration::from_millis(10);

/// Asks `condition` until it has an answer.
///
/// # Errors
///
/// `limit` has passed; names `what` was waited for.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Option<T>,
) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        if let Some(answer) = condition() {
            return Ok(answer);
        }
        anyhow::ensure!(start.elapsed() < limit, "{what}: not within {limit:?}");
        thread::sleep(PERIOD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_when_the_condition_holds_and_names_what_never_came() {
        let mut asked = 0;
        let third = until("three", PATIENCE, || {
            asked += 1;
            (asked == 3).then_some("third")
        });
        assert_eq!(third.unwrap(), "third");
        let never = until("godot", Duration::ZERO, || None::<()>).unwrap_err();
        assert_eq!(never.to_string(), "godot: not within 0ns");
    }
}
