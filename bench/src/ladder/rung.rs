//! What was measured at each width.

use serde::{Deserialize, Serialize};

use super::knee::Knee;
use crate::load::{Measured, Metric, Slo};
use crate::record::Counters;
use crate::stats::{mean, median, percentile};

/// Rows of all forward calls.
const ROWS: &str = "pocket_rows_per_call_sum";
/// Forward calls.
const CALLS: &str = "pocket_rows_per_call_count";

/// Which load at a width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// As many prompts as the width, all at once.
    Wave,
    /// Several times as many, so many open at a time.
    Refilled,
}

/// One load at one width, once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Which repeat, from 0.
    pub repeat: usize,
    /// Place among all loads that were measured, from 0.
    pub order: usize,
    /// Complete answers.
    pub completed: usize,
    /// Requests that failed.
    pub failed: usize,
    /// From the first request to the end of the last answer, seconds.
    pub duration_s: f64,
    /// Times to first token, milliseconds.
    pub ttft_ms: Vec<f64>,
    /// Mean of those.
    pub mean_ttft_ms: Option<f64>,
    /// Their 99th percentile.
    pub p99_ttft_ms: Option<f64>,
    /// Mean time of a token after the first, milliseconds.
    pub tpot_ms: Option<f64>,
    /// Tokens generated a second, of all answers together.
    pub tokens_per_s: f64,
    /// Answers a second that kept the objectives, where there are some.
    pub goodput_per_s: Option<f64>,
    /// Requests open on average, as a share of the width.
    pub occupancy: f64,
    /// Forward calls, by the server's count.
    pub calls: Option<f64>,
    /// Rows of a forward call on average, by the server's count.
    pub rows_per_call: Option<f64>,
    /// Rows computed a second (rows of a call x calls a second), by the server's count.
    pub row_steps_per_s: Option<f64>,
}

impl Sample {
    pub(super) fn of(
        place: (usize, usize),
        width: usize,
        measured: &Measured,
        before: &Counters,
        after: &Counters,
    ) -> Self {
        let (repeat, order) = place;
        let duration_s = measured.duration_s;
        let open: f64 = measured.ended().map(|outcome| outcome.took).sum();
        let rise = |name: &str| Some(after.get(name)? - before.get(name)?);
        let (rows, calls) = (rise(ROWS), rise(CALLS));
        let ttft_ms = measured.samples(Metric::Ttft);
        Self {
            repeat,
            order,
            completed: measured.completed(),
            failed: measured.failed(),
            duration_s,
            mean_ttft_ms: mean(&ttft_ms),
            p99_ttft_ms: percentile(&ttft_ms, 99.0),
            ttft_ms,
            tpot_ms: mean(&measured.samples(Metric::Tpot)),
            tokens_per_s: measured.output_throughput(),
            goodput_per_s: measured.goodput.map(|goodput| goodput.good as f64 / duration_s),
            occupancy: open / (duration_s * width as f64),
            calls,
            rows_per_call: rows
                .zip(calls)
                .and_then(|(rows, calls)| (calls > 0.0).then_some(rows / calls)),
            row_steps_per_s: rows.map(|rows| rows / duration_s),
        }
    }
}

/// One load at one width: all repeats, and their medians.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// Median of the repeats' mean times to first token, milliseconds.
    pub mean_ttft_ms: Option<f64>,
    /// Median of the repeats' 99th percentiles, milliseconds.
    pub p99_ttft_ms: Option<f64>,
    /// Median, milliseconds.
    pub tpot_ms: Option<f64>,
    /// Median.
    pub tokens_per_s: Option<f64>,
    /// Median.
    pub goodput_per_s: Option<f64>,
    /// Median.
    pub occupancy: Option<f64>,
    /// Median.
    pub rows_per_call: Option<f64>,
    /// Median.
    pub row_steps_per_s: Option<f64>,
    /// Every repeat.
    pub samples: Vec<Sample>,
}

impl Level {
    pub(super) fn of(samples: Vec<Sample>) -> Self {
        let middle = |of: &dyn Fn(&Sample) -> Option<f64>| {
            median(&samples.iter().filter_map(of).collect::<Vec<_>>())
        };
        Self {
            mean_ttft_ms: middle(&|sample| sample.mean_ttft_ms),
            p99_ttft_ms: middle(&|sample| sample.p99_ttft_ms),
            tpot_ms: middle(&|sample| sample.tpot_ms),
            // A load without an answer has no throughput to speak of.
            tokens_per_s: middle(&|s| (s.completed > 0).then_some(s.tokens_per_s)),
            goodput_per_s: middle(&|sample| sample.goodput_per_s),
            occupancy: middle(&|sample| Some(sample.occupancy)),
            rows_per_call: middle(&|sample| sample.rows_per_call),
            row_steps_per_s: middle(&|sample| sample.row_steps_per_s),
            samples,
        }
    }
}

/// A width.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rung {
    /// Requests open at a time.
    pub width: usize,
    /// One wave.
    pub wave: Level,
    /// A load that keeps the width busy.
    pub refilled: Level,
}

/// All widths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ladder {
    /// Tokens of each prompt.
    pub input_tokens: usize,
    /// Tokens of each answer.
    pub output_tokens: usize,
    /// Requests of a refilled load, as a multiple of the width.
    pub refills: usize,
    /// How often every width was measured.
    pub repeats: usize,
    /// What prompts were drawn from.
    pub seed: u64,
    /// What answers had to keep to be good, milliseconds.
    pub slo: Option<Slo>,
    /// The widths, rising.
    pub rungs: Vec<Rung>,
    /// Where it stops being worth its climb.
    pub knee: Option<Knee>,
    /// Tokens a second of the last repeat over those of the first, the mean over all widths and loads: how
    /// far the machine drifted meanwhile.
    pub drift: Option<f64>,
}

impl Ladder {
    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        let mut levels = self.rungs.iter().flat_map(|rung| [&rung.wave, &rung.refilled]);
        levels.all(|level| level.samples.is_empty())
    }

    /// Tokens a second of the last repeat over those of the first.
    pub(super) fn drift(rungs: &[Rung]) -> Option<f64> {
        let levels = rungs.iter().flat_map(|rung| [&rung.wave, &rung.refilled]);
        let ratios: Vec<f64> = levels
            .filter_map(|level| {
                let (first, last) = (level.samples.first()?, level.samples.last()?);
                (first.repeat != last.repeat && first.tokens_per_s > 0.0)
                    .then(|| last.tokens_per_s / first.tokens_per_s)
            })
            .collect();
        mean(&ratios)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(repeat: usize, tokens_per_s: f64) -> Sample {
        Sample {
            repeat,
            order: repeat,
            completed: 1,
            failed: 0,
            duration_s: 1.0,
            ttft_ms: vec![tokens_per_s, 3.0 * tokens_per_s],
            mean_ttft_ms: Some(2.0 * tokens_per_s),
            p99_ttft_ms: Some(3.0 * tokens_per_s),
            tpot_ms: None,
            tokens_per_s,
            goodput_per_s: None,
            occupancy: 0.5,
            calls: Some(4.0),
            rows_per_call: Some(2.0),
            row_steps_per_s: Some(8.0),
        }
    }

    #[test]
    fn levels_are_medians_of_their_repeats() {
        let level = Level::of(vec![sample(0, 1.0), sample(1, 9.0), sample(2, 2.0)]);
        assert_eq!((level.tokens_per_s, level.mean_ttft_ms), (Some(2.0), Some(4.0)));
        assert_eq!((level.tpot_ms, level.occupancy), (None, Some(0.5)));
        assert_eq!(Level::of(vec![]), Level::default());
    }

    #[test]
    fn drift_is_between_the_first_and_the_last_repeat() {
        let level = |a, b| Level::of(vec![sample(0, a), sample(1, 5.0), sample(2, b)]);
        let rung = Rung { width: 1, wave: level(1.0, 0.5), refilled: level(2.0, 2.0) };
        assert_eq!(Ladder::drift(&[rung]), Some(0.75));
        let once = Level::of(vec![sample(0, 1.0)]);
        let rung = Rung { width: 1, wave: once.clone(), refilled: once };
        assert_eq!(Ladder::drift(&[rung]), None);
    }
}
