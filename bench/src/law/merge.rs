//! What merging the prompts of a wave into shared calls gains.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::coefficients::{Counts, Estimate, counts};
use super::{Curvature, Law};

/// How far a bent law may be from the straight one, as a share, before the straight one is not believed.
const BENT: f64 = 0.05;

/// Prompts that come together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wave {
    /// Tokens of each prompt, in the order they are served.
    pub prompt_tokens: Vec<u64>,
    /// Most tokens of a call; `None` for calls without a limit.
    pub tokens_a_call: Option<u64>,
}

impl Wave {
    /// So many prompts with so many tokens together, as equal as possible, and calls without a limit.
    /// `None` unless every prompt gets a token.
    pub fn even(prompts: u64, tokens: u64) -> Option<Self> {
        if prompts == 0 || tokens < prompts {
            return None;
        }
        let end = |at: u64| (u128::from(tokens) * u128::from(at) / u128::from(prompts)) as u64;
        let prompt_tokens = (0..prompts).map(|at| end(at + 1) - end(at)).collect();
        Some(Self { prompt_tokens, tokens_a_call: None })
    }

    fn tokens(&self) -> u64 {
        self.prompt_tokens.iter().sum()
    }

    fn calls(&self, tokens: u64) -> u64 {
        self.tokens_a_call.map_or(1, |limit| tokens.div_ceil(limit.max(1))).max(1)
    }

    /// Calls and tokens up to the end of each prompt when prompts do not share calls.
    fn serial(&self) -> Vec<(u64, u64)> {
        let (mut calls, mut tokens) = (0, 0);
        let after = self.prompt_tokens.iter().map(|prompt| {
            calls += self.calls(*prompt);
            tokens += prompt;
            (calls, tokens)
        });
        after.collect()
    }

    /// Calls and tokens up to the end of each prompt's last call when calls are filled.
    fn merged(&self) -> Vec<(u64, u64)> {
        let all = self.tokens();
        let mut tokens = 0;
        let after = self.prompt_tokens.iter().map(|prompt| {
            tokens += prompt;
            let calls = self.calls(tokens);
            // A first token comes with the end of the call, and so after all of the call's tokens.
            (calls, self.tokens_a_call.map_or(all, |limit| (calls * limit.max(1)).min(all)))
        });
        after.collect()
    }
}

/// When an engine that makes a call for each prompt gives first tokens out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FirstTokens {
    /// At the end of each prompt's last call.
    #[default]
    AsReady,
    /// The first prompt's at the end of its calls, all others' at the end of the wave (see
    /// [`Bimodal`](super::Bimodal)).
    Bimodal,
}

/// What a law says of a wave. Intervals hold the errors of the law's numbers; single waves scatter about
/// that as single points do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MergePrediction {
    /// Prompts of the wave.
    pub prompts: usize,
    /// Their tokens together.
    pub tokens: u64,
    /// Calls when prompts do not share any.
    pub serial_calls: u64,
    /// Calls when they are filled.
    pub merged_calls: u64,
    /// Milliseconds to the last first token, prompts in calls of their own.
    pub serial_wave_ms: Estimate,
    /// Milliseconds to the last first token, calls filled.
    pub merged_wave_ms: Estimate,
    /// Serial over merged wave time: above one, merging is faster.
    pub wave_gain: Estimate,
    /// Mean milliseconds to first token, prompts in calls of their own.
    pub serial_mean_ttft_ms: Estimate,
    /// Mean milliseconds to first token, calls filled.
    pub merged_mean_ttft_ms: Estimate,
    /// Serial over merged mean time to first token: above one, merging is faster.
    pub mean_ttft_gain: Estimate,
    /// Why the law is asked for more than its points say; empty when it is not.
    pub extrapolated: Vec<Extrapolation>,
}

/// A way in which a prediction leaves what was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Extrapolation {
    /// Calls of a size that no measured call had.
    Outside {
        /// Tokens of such a call.
        tokens: f64,
        /// Fewest tokens a call measured.
        fewest: f64,
        /// Most tokens a call measured.
        most: f64,
    },
    /// The cost of a call is not a straight line of its tokens.
    NotAffine {
        /// Tokens of such a call.
        tokens: f64,
        /// Milliseconds of one by the law.
        affine_ms: f64,
        /// Milliseconds of one with a quadratic term.
        bent_ms: f64,
        /// The chance to see such a bend in points of a straight line.
        p: f64,
    },
}

impl fmt::Display for Extrapolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outside { tokens, fewest, most } => write!(
                f,
                "calls of {tokens:.0} tokens, where {fewest:.0} to {most:.0} were measured"
            ),
            Self::NotAffine { tokens, affine_ms, bent_ms, p } => write!(
                f,
                "a call of {tokens:.0} tokens costs {affine_ms:.1} ms by the straight line and \
                 {bent_ms:.1} ms by the bend in the points (p = {p:.3})"
            ),
        }
    }
}

impl Law {
    /// Compares a wave whose prompts have calls of their own with the same wave in filled calls.
    pub fn merge(&self, wave: &Wave, first_tokens: FirstTokens) -> MergePrediction {
        let (serial, merged) = (wave.serial(), wave.merged());
        let of_last = |after: &[(u64, u64)]| after.last().copied().map_or([0.0; 3], each);
        let (serial_wave, merged_wave) = (of_last(&serial), of_last(&merged));
        let serial_mean = match first_tokens {
            FirstTokens::AsReady => mean(&serial),
            FirstTokens::Bimodal => {
                let waits = |(at, own): (usize, &(u64, u64))| match at {
                    0 => *own,
                    _ => serial.last().copied().unwrap_or(*own),
                };
                mean(&serial.iter().enumerate().map(waits).collect::<Vec<_>>())
            }
        };
        let merged_mean = mean(&merged);
        MergePrediction {
            prompts: wave.prompt_tokens.len(),
            tokens: wave.tokens(),
            serial_calls: serial.last().map_or(0, |(calls, _)| *calls),
            merged_calls: merged.last().map_or(0, |(calls, _)| *calls),
            serial_wave_ms: self.estimate(serial_wave),
            merged_wave_ms: self.estimate(merged_wave),
            wave_gain: self.quotient(serial_wave, merged_wave),
            serial_mean_ttft_ms: self.estimate(serial_mean),
            merged_mean_ttft_ms: self.estimate(merged_mean),
            mean_ttft_gain: self.quotient(serial_mean, merged_mean),
            extrapolated: self.extrapolations(wave),
        }
    }

    fn extrapolations(&self, wave: &Wave) -> Vec<Extrapolation> {
        let limit = wave.tokens_a_call.unwrap_or(u64::MAX);
        let merged = wave.tokens().min(limit) as f64;
        let mut sizes: Vec<f64> = vec![merged];
        let own = wave.prompt_tokens.iter().map(|tokens| (*tokens).min(limit) as f64);
        sizes.extend(own.clone().reduce(f64::min));
        sizes.extend(own.reduce(f64::max));
        sizes.sort_by(f64::total_cmp);
        sizes.dedup();
        let outside = sizes.iter().filter_map(|tokens| self.outside(*tokens));
        let bent = self.curvature.iter().flat_map(|curvature| {
            sizes.iter().filter_map(|tokens| self.not_affine(curvature, *tokens))
        });
        outside.chain(bent).collect()
    }

    fn outside(&self, tokens: f64) -> Option<Extrapolation> {
        let (fewest, most) = self.tokens_a_call?;
        let inside = (fewest..=most).contains(&tokens);
        (!inside).then_some(Extrapolation::Outside { tokens, fewest, most })
    }

    fn not_affine(&self, curvature: &Curvature, tokens: f64) -> Option<Extrapolation> {
        let affine_ms = self.ttft_ms(1.0, tokens).value;
        let bent_ms = curvature.ttft_ms(1.0, tokens);
        let apart = (bent_ms / affine_ms - 1.0).abs() > BENT;
        (curvature.is_significant() && apart).then_some(Extrapolation::NotAffine {
            tokens,
            affine_ms,
            bent_ms,
            p: curvature.p,
        })
    }
}

fn each((calls, tokens): (u64, u64)) -> Counts {
    counts(calls as f64, tokens as f64)
}

fn mean(after: &[(u64, u64)]) -> Counts {
    let share = 1.0 / after.len().max(1) as f64;
    after
        .iter()
        .copied()
        .map(each)
        .fold([0.0; 3], |sum, counts| std::array::from_fn(|at| sum[at] + counts[at] * share))
}

#[cfg(test)]
mod tests;
