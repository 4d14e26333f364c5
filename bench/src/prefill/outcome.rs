//! What the measurements say.

use serde::{Deserialize, Serialize};

use super::facts::{Facts, Limits};
use super::measure::Measured;
use super::merge::Merge;
use super::plan::Purpose;
use super::rates::{Call, LengthRate};
use crate::arms::Prompt;
use crate::law::{Estimate, LawFit, Point, fit_joint, fit_length, wave_regression};
use crate::stats::{
    Coefficient, FitError, Ratio, RatioError, Weighting, least_squares, mean, median, paired_ratio,
};

/// A law by both ways of weighting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fits {
    /// Distances relative to the fitted value: what everything else here is computed from.
    pub weighted: LawFit,
    /// Distances as they are, beside it.
    pub ordinary: LawFit,
}

impl Fits {
    fn of(
        points: &[Point],
        fit: impl Fn(&[Point], Weighting) -> Result<LawFit, FitError>,
    ) -> Result<Self, FitError> {
        Ok(Self {
            weighted: fit(points, Weighting::Relative)?,
            ordinary: fit(points, Weighting::Ordinary)?,
        })
    }
}

/// One point of the law: all rounds of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointSummary {
    /// What it was measured for.
    pub purpose: Purpose,
    /// Tokens of the calls before its first token, by the engine's count.
    pub tokens: u64,
    /// Those calls.
    pub calls: u64,
    /// How often it was measured.
    pub rounds: usize,
    /// Median time to first token as the client has it, milliseconds: what is fitted.
    pub ttft_p50_ms: f64,
    /// Mean of it.
    pub ttft_mean_ms: f64,
    /// Least of it.
    pub ttft_min_ms: f64,
    /// Median time from first call to first token, as the engine has it, milliseconds.
    pub engine_prefill_p50_ms: f64,
}

impl PointSummary {
    fn point(&self) -> Point {
        Point { calls: self.calls, tokens: self.tokens, ttft_ms: self.ttft_p50_ms }
    }
}

/// The negative control: the same prompt with and without its all-reduces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NegativeControl {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Median time to first token with all-reduces, milliseconds.
    pub plain_ms: f64,
    /// Without.
    pub skipped_ms: f64,
    /// Time without over time with, in pairs of a round.
    pub ratio: Ratio,
    /// All-reduces of each rank in a call.
    pub all_reduces_per_call: u64,
}

/// How the machine changed while it was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drift {
    /// Seconds from the first measurement to the last.
    pub seconds: f64,
    /// What times grew by from beginning to end, as a share of their median; none where there are too
    /// few measurements to tell.
    pub change: Option<Coefficient>,
}

/// Everything `bench prefill` finds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prefill {
    /// The model and its split.
    pub facts: Facts,
    /// The points of the law.
    pub points: Vec<PointSummary>,
    /// A call, a token and a constant, from all points.
    pub joint: Fits,
    /// A call and a token, from the points of one call.
    pub length: Fits,
    /// A call, a token and a constant, from each request of a wave under two budgets.
    pub wave_check: Fits,
    /// What merging a wave gains, predicted and measured.
    pub merge: Merge,
    /// The negative control, unless it was left out.
    pub control: Option<NegativeControl>,
    /// What each length delivers.
    pub lengths: Vec<LengthRate>,
    /// The arithmetic rate of further tokens, TFLOP/s.
    pub marginal_tflops: Estimate,
    /// The machine's limits.
    pub limits: Limits,
    /// Calls below them.
    pub calls: Vec<Call>,
    /// How the machine changed meanwhile.
    pub drift: Drift,
    /// Every measurement and every counter.
    pub measured: Measured,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum OutcomeError {
    /// No law goes through the points.
    #[error("fitting {what}: {source}")]
    Fit {
        /// Which.
        what: &'static str,
        /// Why not.
        source: FitError,
    },
    /// Two arms cannot be compared.
    #[error("comparing {what}: {source}")]
    Ratio {
        /// Which.
        what: &'static str,
        /// Why not.
        source: RatioError,
    },
    /// Something was not measured.
    #[error("nothing was measured of {0}")]
    Missing(&'static str),
}

impl Prefill {
    /// Of these measurements, made with calls of `budget` tokens at most.
    pub fn of(
        measured: Measured,
        budget: usize,
        facts: Facts,
        limits: Limits,
    ) -> Result<Self, OutcomeError> {
        let fitting = |what| move |source| OutcomeError::Fit { what, source };
        let points = measured.points(&[Purpose::Length, Purpose::Calls]);
        let all: Vec<Point> = points.iter().map(PointSummary::point).collect();
        let joint = Fits::of(&all, fit_joint).map_err(fitting("calls and tokens"))?;
        let single: Vec<Point> = all.iter().filter(|point| point.calls == 1).copied().collect();
        let length = Fits::of(&single, fit_length).map_err(fitting("lengths"))?;
        let check = measured.points(&[Purpose::CheckWhole, Purpose::CheckCut]);
        let check: Vec<Point> = check.iter().map(PointSummary::point).collect();
        let wave_check = Fits::of(&check, wave_regression).map_err(fitting("the wave check"))?;
        let merge = Merge::of(&measured, budget, &joint.weighted.law, &length.weighted.law)?;
        let law = &length.weighted.law;
        let lengths = points.iter().filter(|point| point.calls == 1);
        let lengths = lengths.map(|point| LengthRate::of(point, law, &facts)).collect();
        let marginal_tflops = law.marginal_tflops(facts.flops_per_row);
        Ok(Self {
            calls: Call::all(&points, &measured, &facts, &limits),
            control: measured.control()?,
            drift: measured.drift(),
            joint,
            length,
            wave_check,
            merge,
            lengths,
            marginal_tflops,
            facts,
            limits,
            points,
            measured,
        })
    }
}

impl Measured {
    /// The prompts of every measurement with this purpose, in order of time.
    pub(super) fn of_purpose(
        &self,
        purpose: Purpose,
    ) -> impl Iterator<Item = &super::measure::Sample> {
        self.samples.iter().filter(move |sample| self.tasks[sample.task].purpose == purpose)
    }

    /// Prompts of these purposes, those of equal calls and tokens of one task together.
    pub(super) fn points(&self, purposes: &[Purpose]) -> Vec<PointSummary> {
        let mut groups: Vec<((usize, u64, u64), Vec<Prompt>)> = Vec::new();
        for sample in &self.samples {
            if !purposes.contains(&self.tasks[sample.task].purpose) {
                continue;
            }
            for prompt in &sample.wave.prompts {
                let engine = &prompt.engine;
                let (calls, rows) =
                    (engine.calls_before_first_token, engine.rows_before_first_token);
                let key = (sample.task, calls, rows);
                match groups.iter_mut().find(|(known, _)| *known == key) {
                    Some((_, prompts)) => prompts.push(*prompt),
                    None => groups.push((key, vec![*prompt])),
                }
            }
        }
        groups.sort_by_key(|(key, _)| *key);
        let summary = |((task, calls, tokens), prompts): ((usize, u64, u64), Vec<Prompt>)| {
            let ttft: Vec<f64> = prompts.iter().map(|prompt| prompt.ttft_ms).collect();
            let engine: Vec<f64> = prompts.iter().map(|prompt| prompt.engine.prefill_ms).collect();
            Some(PointSummary {
                purpose: self.tasks[task].purpose,
                tokens,
                calls,
                rounds: prompts.len(),
                ttft_p50_ms: median(&ttft)?,
                ttft_mean_ms: mean(&ttft)?,
                ttft_min_ms: ttft.iter().copied().fold(f64::INFINITY, f64::min),
                engine_prefill_p50_ms: median(&engine)?,
            })
        };
        groups.into_iter().filter_map(summary).collect()
    }

    /// One number of each measurement with this purpose, in order of rounds.
    pub(super) fn each(
        &self,
        purpose: Purpose,
        number: impl Fn(&crate::arms::Wave) -> f64,
    ) -> Vec<f64> {
        self.of_purpose(purpose).map(|sample| number(&sample.wave)).collect()
    }

    fn control(&self) -> Result<Option<NegativeControl>, OutcomeError> {
        let what = "the negative control";
        let task = self.tasks.iter().find(|task| task.purpose == Purpose::Skipped);
        let Some(task) = task else { return Ok(None) };
        let of = |purpose| self.each(purpose, |wave| wave.wave_ms);
        let (plain, skipped) = (of(Purpose::Plain), of(Purpose::Skipped));
        let missing = || OutcomeError::Missing(what);
        Ok(Some(NegativeControl {
            tokens: task.prompts.iter().sum(),
            plain_ms: median(&plain).ok_or_else(missing)?,
            skipped_ms: median(&skipped).ok_or_else(missing)?,
            ratio: paired_ratio(&plain, &skipped)
                .map_err(|source| OutcomeError::Ratio { what, source })?,
            all_reduces_per_call: self.counts[task.arm].after.all_reduces_per_pass,
        }))
    }

    /// Every measurement over the median of its kind, by time.
    fn drift(&self) -> Drift {
        let last = self.samples.iter().map(|sample| sample.at_s).fold(0.0, f64::max);
        let mut rows = Vec::new();
        let mut relative = Vec::new();
        for task in 0..self.tasks.len() {
            let of_task: Vec<_> = self.samples.iter().filter(|s| s.task == task).collect();
            let times: Vec<f64> = of_task.iter().map(|sample| sample.wave.wave_ms).collect();
            let Some(middle) = median(&times).filter(|middle| *middle > 0.0) else { continue };
            for sample in of_task {
                rows.push(vec![1.0, sample.at_s / last.max(f64::MIN_POSITIVE)]);
                relative.push(sample.wave.wave_ms / middle);
            }
        }
        let names = ["at the beginning", "change to the end"];
        let fit = least_squares(&names, &rows, &relative, Weighting::Ordinary).ok();
        Drift { seconds: last, change: fit.and_then(|fit| fit.coefficients.into_iter().nth(1)) }
    }
}

#[cfg(test)]
pub(super) mod tests;
