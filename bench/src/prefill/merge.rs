//! Merging a wave: what the law says, and what it was.

use serde::{Deserialize, Serialize};

use super::measure::Measured;
use super::outcome::OutcomeError;
use super::plan::Purpose;
use crate::arms;
use crate::law::{FirstTokens, Law, MergePrediction, Wave};
use crate::stats::{Ratio, median, paired_ratio};

/// A wave in one arm, medians of the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaveTimes {
    /// Forward calls.
    pub calls: f64,
    /// Milliseconds to the last first token.
    pub wave_ms: f64,
    /// Mean milliseconds to first token.
    pub mean_ttft_ms: f64,
}

impl WaveTimes {
    fn of(measured: &Measured, purpose: Purpose) -> Option<Self> {
        let middle = |number: fn(&arms::Wave) -> f64| median(&measured.each(purpose, number));
        Some(Self {
            calls: middle(|wave| wave.calls() as f64)?,
            wave_ms: middle(|wave| wave.wave_ms)?,
            mean_ttft_ms: middle(|wave| wave.mean_ttft_ms)?,
        })
    }
}

/// A prediction beside the measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// What the law says.
    pub prediction: MergePrediction,
    /// Predicted over measured gain in wave time, less one.
    pub wave_gain_off: f64,
    /// Predicted over measured gain in mean time to first token, less one.
    pub mean_ttft_gain_off: f64,
}

/// What merging a wave gains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Merge {
    /// Tokens of each prompt.
    pub prompt_tokens: Vec<u64>,
    /// Most tokens of a call.
    pub tokens_a_call: u64,
    /// The wave in as few calls as hold it.
    pub merged: WaveTimes,
    /// A call for each prompt.
    pub serial: WaveTimes,
    /// Serial over merged wave time, measured, in pairs of a round.
    pub wave_gain: Ratio,
    /// The same of the mean time to first token.
    pub mean_ttft_gain: Ratio,
    /// By the joint law.
    pub by_joint: Predicted,
    /// By the law of lengths.
    pub by_length: Predicted,
}

impl Merge {
    /// Of the waves that were measured, and of both laws.
    pub(super) fn of(
        measured: &Measured,
        budget: usize,
        joint: &Law,
        length: &Law,
    ) -> Result<Self, OutcomeError> {
        let what = "the waves";
        let missing = || OutcomeError::Missing(what);
        let gain = |number: fn(&arms::Wave) -> f64| {
            let of = |purpose| measured.each(purpose, number);
            paired_ratio(&of(Purpose::Merged), &of(Purpose::Serial))
                .map_err(|source| OutcomeError::Ratio { what, source })
        };
        let first = measured.of_purpose(Purpose::Merged).next().ok_or_else(missing)?;
        let tokens = first.wave.prompts.iter().map(|prompt| prompt.engine.prompt_tokens);
        let wave = Wave { prompt_tokens: tokens.collect(), tokens_a_call: Some(budget as u64) };
        let (wave_gain, mean_ttft_gain) = (gain(|wave| wave.wave_ms)?, gain(|w| w.mean_ttft_ms)?);
        let by = |law: &Law| {
            let prediction = law.merge(&wave, FirstTokens::AsReady);
            Predicted {
                wave_gain_off: prediction.wave_gain.value / wave_gain.ratio - 1.0,
                mean_ttft_gain_off: prediction.mean_ttft_gain.value / mean_ttft_gain.ratio - 1.0,
                prediction,
            }
        };
        Ok(Self {
            by_joint: by(joint),
            by_length: by(length),
            tokens_a_call: budget as u64,
            merged: WaveTimes::of(measured, Purpose::Merged).ok_or_else(missing)?,
            serial: WaveTimes::of(measured, Purpose::Serial).ok_or_else(missing)?,
            wave_gain,
            mean_ttft_gain,
            prompt_tokens: wave.prompt_tokens,
        })
    }
}
