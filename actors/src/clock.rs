//! The clock that the processes of a machine share.

use nix::time::{ClockId, clock_gettime};

/// Microseconds of the system's monotonic clock. A moment in one process can be compared with one in
/// another, which `Instant` does not allow.
pub(crate) fn monotonic_us() -> u64 {
    // The kernel refuses only clocks it does not have, and it has this one.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        // Neither part is negative.
        time.tv_sec() as u64 * 1_000_000 + time.tv_nsec() as u64 / 1000
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn it_goes_as_fast_as_other_clocks() {
        let (before, began) = (monotonic_us(), Instant::now());
        std::thread::sleep(Duration::from_millis(20));
        let (took, after) = (began.elapsed(), monotonic_us());
        assert!(before > 0);
        // Read around the other clock, so it has seen at least as much, but for a rounding each.
        assert!(after - before + 2 >= took.as_micros() as u64, "{before} {after} {took:?}");
    }
}
