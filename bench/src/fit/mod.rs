//! What a set of points says of the cost of prefill: `pocketd fit`, and the same of measurements made here.

mod show;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::law::{
    Bimodal, Estimate, FirstTokens, Law, LawFit, MergePrediction, Point, Wave, delivered_tflops,
    fit_joint, fit_length,
};
use crate::stats::{FitError, Weighting};

/// The same points fitted both ways.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BothWays {
    /// With errors relative to the values.
    pub relative: LawFit,
    /// With errors as they are.
    pub ordinary: LawFit,
}

impl BothWays {
    fn of(
        points: &[Point],
        fit: fn(&[Point], Weighting) -> Result<LawFit, FitError>,
    ) -> Result<Self, FitError> {
        Ok(Self {
            relative: fit(points, Weighting::Relative)?,
            ordinary: fit(points, Weighting::Ordinary)?,
        })
    }

    /// One of the two.
    pub fn weighted(&self, weighting: Weighting) -> &LawFit {
        match weighting {
            Weighting::Relative => &self.relative,
            Weighting::Ordinary => &self.ordinary,
        }
    }
}

/// The fits that points allow; there is at least one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decomposition {
    /// A call, a token and a constant, from all points.
    pub joint: Option<BothWays>,
    /// A call and a token, from the points of one call.
    pub length: Option<BothWays>,
    /// Why one of the two is missing.
    pub missing: Option<String>,
}

impl Decomposition {
    /// Fits the points jointly and by length, as far as they allow it. Fails when they allow neither.
    pub fn of(points: &[Point]) -> Result<Self, FitError> {
        let single: Vec<Point> = points.iter().copied().filter(|point| point.calls == 1).collect();
        let joint = BothWays::of(points, fit_joint);
        let length = BothWays::of(&single, fit_length);
        match (joint, length) {
            (Ok(joint), Ok(length)) => {
                Ok(Self { joint: Some(joint), length: Some(length), missing: None })
            }
            (Ok(joint), Err(error)) => {
                let missing = Some(format!("no fit by length: {error}"));
                Ok(Self { joint: Some(joint), length: None, missing })
            }
            (Err(error), Ok(length)) => {
                let missing = Some(format!("no joint fit: {error}"));
                Ok(Self { joint: None, length: Some(length), missing })
            }
            (Err(error), Err(_)) => Err(error),
        }
    }

    /// The fit that predictions come from: the joint one where there is one.
    pub fn main(&self, weighting: Weighting) -> Option<&LawFit> {
        self.joint.as_ref().or(self.length.as_ref()).map(|fits| fits.weighted(weighting))
    }
}

/// A wave check read as bimodal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BimodalReading {
    /// The wave.
    pub wave: Bimodal,
    /// How many calls' cost the mean moves by.
    pub factor: f64,
    /// How far the mean TTFT moved, milliseconds.
    pub mean_ttft_moved_ms: f64,
    /// Milliseconds a call.
    pub per_call_ms: f64,
}

impl BimodalReading {
    /// Reads how far the mean moved.
    pub fn of(wave: Bimodal, mean_ttft_moved_ms: f64) -> Self {
        Self {
            wave,
            factor: wave.factor(),
            mean_ttft_moved_ms,
            per_call_ms: wave.per_call_ms(mean_ttft_moved_ms),
        }
    }
}

/// What does not belong to the tokens of a prompt in one call.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FixedShare {
    /// Length of the prompt.
    pub tokens: u64,
    /// Milliseconds to the first token.
    pub ttft_ms: Estimate,
    /// Share of that, 0 to 1.
    pub share: Estimate,
}

/// Arithmetic rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Floating-point operations of the model for a token.
    pub flop_per_token: f64,
    /// TFLOP/s of further tokens, by the law.
    pub marginal_tflops: Estimate,
    /// The points in one call, as (tokens, TFLOP/s delivered).
    pub delivered_tflops: Vec<(u64, f64)>,
}

/// What is asked of a law.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Questions {
    /// Prompts to tell the fixed share of.
    pub lengths: Vec<u64>,
    /// A wave to merge, and when its first tokens come if it is not.
    pub wave: Option<(Wave, FirstTokens)>,
    /// A wave check: the wave, and how far its mean TTFT moved.
    pub bimodal: Option<(Bimodal, f64)>,
    /// Floating-point operations of the model for a token.
    pub flop_per_token: Option<f64>,
}

/// What points, or given numbers, say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Where the points are from; empty for given numbers.
    pub source: String,
    /// The fits; `None` for given numbers or where only a wave check was read.
    pub fits: Option<Decomposition>,
    /// Which fit the law is from.
    pub weighting: Option<Weighting>,
    /// The law that the rest follows from; `None` where only a wave check was read.
    pub law: Option<Law>,
    /// The wave check.
    pub bimodal: Option<BimodalReading>,
    /// What merging the wave gains.
    pub merge: Option<MergePrediction>,
    /// The fixed share of each prompt that was asked for.
    pub fixed_shares: Vec<FixedShare>,
    /// Arithmetic rates.
    pub rates: Option<Rates>,
}

/// Why there is no outcome.
#[derive(Debug, Error)]
pub enum OutcomeError {
    /// No law goes through the points.
    #[error("no law can be fitted")]
    Fit(#[from] FitError),
}

impl Outcome {
    /// Of points.
    pub fn of_points(
        source: String,
        points: &[Point],
        weighting: Weighting,
        questions: &Questions,
    ) -> Result<Self, OutcomeError> {
        let fits = Decomposition::of(points)?;
        let law = fits.main(weighting).map(|fit| fit.law.clone());
        let mut outcome = Self::answer(law, points, questions);
        (outcome.source, outcome.fits, outcome.weighting) = (source, Some(fits), Some(weighting));
        Ok(outcome)
    }

    /// Of numbers from elsewhere, or of a wave check alone.
    pub fn of_law(law: Option<Law>, questions: &Questions) -> Self {
        Self::answer(law, &[], questions)
    }

    fn answer(law: Option<Law>, points: &[Point], questions: &Questions) -> Self {
        let fixed = |law: &Law, tokens: u64| FixedShare {
            tokens,
            ttft_ms: law.ttft_ms(1.0, tokens as f64),
            share: law.fixed_share(tokens as f64),
        };
        let rates = |law: &Law, flop_per_token: f64| Rates {
            flop_per_token,
            marginal_tflops: law.marginal_tflops(flop_per_token),
            delivered_tflops: points
                .iter()
                .filter(|point| point.calls == 1)
                .map(|point| {
                    let tokens = point.tokens as f64;
                    (point.tokens, delivered_tflops(flop_per_token, tokens, point.ttft_ms))
                })
                .collect(),
        };
        let known = law.as_ref();
        Self {
            source: String::new(),
            fits: None,
            weighting: None,
            bimodal: questions.bimodal.map(|(wave, moved)| BimodalReading::of(wave, moved)),
            merge: known
                .zip(questions.wave.as_ref())
                .map(|(law, (wave, first))| law.merge(wave, *first)),
            fixed_shares: known.map_or_else(Vec::new, |law| {
                questions.lengths.iter().map(|tokens| fixed(law, *tokens)).collect()
            }),
            rates: known.zip(questions.flop_per_token).map(|(law, flop)| rates(law, flop)),
            law,
        }
    }
}

#[cfg(test)]
mod tests;
