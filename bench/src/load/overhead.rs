//! What the client itself took: a load test of a busy client measures the client.

use std::fs;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use crate::stats::{mean, percentile};

/// Time between two looks at the clock.
const PERIOD: Duration = Duration::from_millis(10);

/// A client that uses more of a core than this may be what is measured.
const BUSY: f64 = 0.8;

/// A client that looks at the clock so late may be what is measured.
const LATE_MS: f64 = 5.0;

/// What the client took of the machine, and how late it was.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overhead {
    /// Processor time of this process during the run, seconds.
    pub cpu_s: Option<f64>,
    /// Cores' worth of that: processor time over the run's duration.
    pub cores: Option<f64>,
    /// Processor time for each chunk with tokens, microseconds.
    pub cpu_us_per_chunk: Option<f64>,
    /// How late a timer of the client fired, milliseconds: times of tokens are wrong by as much.
    pub timer_late_ms: Late,
    /// How late requests were sent, after the time that the arrival process gave them, milliseconds; not
    /// those that waited for `--max-concurrency`.
    pub send_late_ms: Late,
    /// What follows for the measurement, if anything.
    pub warning: Option<String>,
}

/// A distribution of delays, milliseconds; nothing where none was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Late {
    /// Mean.
    pub mean: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// Worst.
    pub max: Option<f64>,
}

impl Late {
    fn of(samples_s: &[f64]) -> Self {
        let ms: Vec<f64> = samples_s.iter().map(|seconds| seconds * 1e3).collect();
        Self { mean: mean(&ms), p99: percentile(&ms, 99.0), max: percentile(&ms, 100.0) }
    }
}

/// Looks at the clock until it is dropped; the samples are of the delay, seconds.
pub(super) async fn watch_clock(samples: &mut Vec<f64>) -> ! {
    loop {
        let due = Instant::now() + PERIOD;
        sleep_until(due).await;
        samples.push(due.elapsed().as_secs_f64());
    }
}

/// Processor time of this process so far, seconds.
pub(super) fn cpu_seconds() -> Option<f64> {
    let mut nanoseconds = 0;
    for task in fs::read_dir("/proc/self/task").ok()? {
        // A thread may end while we look.
        let Ok(text) = fs::read_to_string(task.ok()?.path().join("schedstat")) else { continue };
        nanoseconds += text.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(nanoseconds as f64 * 1e-9)
}

impl Overhead {
    pub(super) fn of(
        cpu_s: Option<f64>,
        duration_s: f64,
        chunks: u64,
        timer_late: &[f64],
        send_late: &[f64],
    ) -> Self {
        let cores = cpu_s.map(|cpu| cpu / duration_s);
        let timer_late_ms = Late::of(timer_late);
        let busy = cores.filter(|cores| *cores > BUSY).map(|cores| {
            format!("the client used {cores:.2} cores and runs on one: it may be what was measured")
        });
        let late = timer_late_ms.p99.filter(|late| *late > LATE_MS).map(|late| {
            format!(
                "the client was up to {late:.1} ms late for 99 % of its looks at the clock: short times \
                 are wrong by as much"
            )
        });
        Self {
            cpu_s,
            cores,
            cpu_us_per_chunk: cpu_s.filter(|_| chunks > 0).map(|cpu| cpu * 1e6 / chunks as f64),
            timer_late_ms,
            send_late_ms: Late::of(send_late),
            warning: busy.or(late),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_takes_processor_time() {
        let before = cpu_seconds().unwrap();
        let mut sum = 0_u64;
        while cpu_seconds().unwrap() <= before {
            sum = std::hint::black_box(sum + 1);
        }
    }

    #[test]
    fn a_client_in_its_own_way_says_so() {
        let idle = Overhead::of(Some(0.1), 10.0, 1000, &[0.0001; 100], &[]);
        assert_eq!(
            (idle.cores, idle.cpu_us_per_chunk, idle.warning),
            (Some(0.01), Some(100.0), None)
        );
        assert_eq!(idle.send_late_ms, Late::default());
        let busy = Overhead::of(Some(9.0), 10.0, 10, &[0.0001; 100], &[]);
        assert!(busy.warning.unwrap().contains("0.90 cores"));
        let late = Overhead::of(None, 10.0, 0, &[0.02; 100], &[0.001]);
        assert!(late.warning.unwrap().contains("20.0 ms late"));
        assert_eq!((late.cpu_us_per_chunk, late.send_late_ms.max), (None, Some(1.0)));
    }
}
