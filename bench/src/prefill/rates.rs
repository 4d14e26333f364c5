//! What prefill and decode deliver, beside what the machine can do.

use serde::{Deserialize, Serialize};

use super::facts::{Facts, Limits};
use super::measure::Measured;
use super::outcome::PointSummary;
use super::plan::Purpose;
use crate::law::{Estimate, Law, delivered_tflops};
use crate::stats::median;

/// A prompt length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LengthRate {
    /// Tokens of the prompt, in one call.
    pub tokens: u64,
    /// Share of its time to first token that its tokens do not account for, 0 to 1.
    pub fixed_share: Estimate,
    /// What it delivers, TFLOP/s.
    pub delivered_tflops: f64,
}

impl LengthRate {
    pub(super) fn of(point: &PointSummary, law: &Law, facts: &Facts) -> Self {
        let tokens = point.tokens as f64;
        Self {
            tokens: point.tokens,
            fixed_share: law.fixed_share(tokens),
            delivered_tflops: delivered_tflops(facts.flops_per_row, tokens, point.ttft_p50_ms),
        }
    }
}

/// A kind of call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// What it is.
    pub name: String,
    /// Its rows.
    pub rows: u64,
    /// Milliseconds of one, the median.
    pub ms: f64,
    /// Floating-point operations for each byte of weights it reads.
    pub flops_per_byte: f64,
    /// Operations a second.
    pub flops_per_second: f64,
    /// Bytes of weights a second.
    pub bytes_per_second: f64,
    /// Share of what the machine allows such a call, 0 to 1.
    pub share_of_limit: f64,
}

impl Call {
    fn new(name: String, rows: u64, outputs: u64, ms: f64, facts: &Facts, limits: &Limits) -> Self {
        let (flops, bytes) = (facts.flops(rows as f64, outputs as f64), facts.bytes_per_call);
        let (flops_per_second, flops_per_byte) = (flops / ms * 1e3, flops / bytes);
        Self {
            name,
            rows,
            ms,
            flops_per_byte,
            flops_per_second,
            bytes_per_second: bytes / ms * 1e3,
            share_of_limit: flops_per_second / limits.peak.min(limits.bandwidth * flops_per_byte),
        }
    }

    /// Decode calls, and a prefill call of each length.
    pub(super) fn all(
        points: &[PointSummary],
        measured: &Measured,
        facts: &Facts,
        limits: &Limits,
    ) -> Vec<Self> {
        let mut all = Vec::new();
        for purpose in [Purpose::Decode, Purpose::DecodeCrowd] {
            let waves = measured.of_purpose(purpose);
            let prompts: Vec<_> = waves.flat_map(|sample| &sample.wave.prompts).collect();
            let times: Vec<f64> = prompts.iter().filter_map(|p| p.engine.tpot_ms()).collect();
            let task = measured.tasks.iter().find(|task| task.purpose == purpose);
            if let (Some(ms), Some(task)) = (median(&times), task) {
                let rows = task.prompts.len() as u64;
                let name = format!("decode, {rows} rows").replace("1 rows", "1 row");
                all.push(Self::new(name, rows, rows, ms, facts, limits));
            }
        }
        for point in points.iter().filter(|point| point.calls == 1) {
            let name = format!("prefill, {} rows", point.tokens);
            let ms = point.engine_prefill_p50_ms;
            all.push(Self::new(name, point.tokens, 1, ms, facts, limits));
        }
        all
    }
}
