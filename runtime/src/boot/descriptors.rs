//! The number of files and sockets the process may have open.
//!
//! A limit of 1024 is usual for shells and services although most systems allow far more to whoever
//! asks. A server that runs into it while it serves can neither accept clients nor start a rank again;
//! so it asks at the start, and refuses a limit it could not even start with.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::failure::bad_input;

/// What the process needs for itself: runtimes, ranks, their sockets and shared memory.
const OWN: u64 = 128;

/// Below this, serving is not worth the start.
const LEAST: u64 = 256;

/// A connection's socket, and a second descriptor of it that tells when the client hangs up.
const A_CONNECTION: u64 = 2;

/// More connections than anybody has.
const MOST_CONNECTIONS: u64 = 50_000;

/// Raises the limit as far as the system lets us, and returns it. Ranks inherit it.
pub fn raise() -> anyhow::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let limit = match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        // Some systems have a lower limit of their own; what there was is still there.
        Err(_) => soft,
    };
    check(limit, hard)?;
    Ok(limit)
}

/// Connections that may be open at a time under this limit.
pub fn connections(limit: u64) -> usize {
    // At most 50,000, so it fits.
    (limit.saturating_sub(OWN) / A_CONNECTION).clamp(1, MOST_CONNECTIONS) as usize
}

fn check(limit: u64, hard: u64) -> anyhow::Result<()> {
    if limit >= LEAST {
        return Ok(());
    }
    Err(bad_input(format!(
        "at most {limit} files and sockets may be open (hard limit {hard}), and at least {LEAST} are \
         needed; raise it with `ulimit -n` or LimitNOFILE="
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let limit = raise().unwrap();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap().0, limit);
        assert_eq!(raise().unwrap(), limit);
    }

    #[test]
    fn a_limit_that_is_too_low_is_refused_with_the_numbers() {
        check(256, 256).unwrap();
        let message = check(64, 100).unwrap_err().to_string();
        for part in ["at most 64 ", "hard limit 100", "at least 256 "] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn connections_leave_room_for_the_rest() {
        assert_eq!(connections(256), 64);
        assert_eq!(connections(1024), 448);
        assert_eq!(connections(u64::MAX), 50_000);
        assert_eq!(connections(0), 1);
    }
}
