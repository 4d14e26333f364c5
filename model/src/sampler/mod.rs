//! Choosing the next token from a row of logits.
//!
//! The coordinator samples, once, for all ranks: the same seed then gives the same text at any
//! number of ranks and in any company. A token's random number depends on the request's seed and
//! on how many tokens came before it, on nothing else, so that a request that is replayed from its
//! tokens goes on as it would have.

mod draw;
mod error;
mod exp;
mod logprobs;
mod params;
mod row;
mod seen;
mod select;

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

pub use error::SamplingError;
pub use logprobs::TokenLogprobs;
pub use params::{MAX_REPETITION_PENALTY, MAX_TEMPERATURE, SamplingParams};
pub use row::{Best, LogSumExp};

use seen::Seen;

/// Chooses the tokens of one answer. A copy is cheap.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: Arc<SamplingParams>,
    /// Tokens that end the answer.
    ends: Arc<[u32]>,
    /// Only if there is a penalty.
    seen: Option<Seen>,
    seed: u64,
    index: u64,
}

impl Sampler {
    /// A sampler for an answer's first token. `request_seed` is used when the parameters name no
    /// seed. `prompt` is what the repetition penalty counts besides the answer; `ends` are the tokens
    /// that end the answer, which `min_tokens` puts off.
    ///
    /// # Errors
    ///
    /// A parameter out of its range.
    pub fn new(
        params: &SamplingParams,
        request_seed: u64,
        prompt: &[u32],
        ends: &[u32],
    ) -> Result<Self, SamplingError> {
        params.validate()?;
        let prompt = if params.repeats() { prompt } else { &[] };
        Ok(Self {
            params: Arc::new(params.clone()),
            ends: if params.min_tokens > 0 { ends.into() } else { Arc::new([]) },
            seen: params.has_penalty().then(|| Seen::new(prompt)),
            seed: params.seed.unwrap_or(request_seed),
            index: 0,
        })
    }

    /// A sampler for the first token of one of several answers to the same request. Answer 0 is the
    /// one this sampler gives; the others have seeds that count up from its own.
    pub fn for_choice(&self, choice: u32) -> Self {
        Self {
            params: Arc::clone(&self.params),
            ends: Arc::clone(&self.ends),
            seen: self.seen.as_ref().map(Seen::prompt_only),
            seed: self.seed.wrapping_add(u64::from(choice)),
            index: 0,
        }
    }

    /// Number of tokens the answer has so far.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The answer has this token next. A request is replayed by accepting its tokens again.
    pub fn accept(&mut self, token: u32) {
        if let Some(seen) = &mut self.seen {
            seen.count(token);
        }
        self.index += 1;
    }

    /// Whether the next token depends on more than which logit is the largest. If not, a rank's
    /// [`Best`] is all that has to be known of its part of the row.
    pub fn needs_logits(&self) -> bool {
        !self.params.is_greedy() || self.changes_logits()
    }

    /// Whether the next token is not chosen from the model's own logits.
    fn changes_logits(&self) -> bool {
        !self.params.logit_bias.is_empty() || self.seen.is_some() || self.puts_off_ends()
    }

    fn puts_off_ends(&self) -> bool {
        self.index < self.params.min_tokens as u64 && !self.ends.is_empty()
    }

    /// Chooses the next token from the logits of the whole vocabulary, in id order, and leaves them
    /// as bias and penalties make them. The sampler stays as it is until the token is
    /// [accepted](Self::accept).
    ///
    /// The order of the rules is vLLM's: bias and `min_tokens`, the penalties, temperature, `min_p`,
    /// the `top_k` likeliest, and the smallest set of those that holds `top_p` of what is left.
    /// Greedy choice takes the largest logit after the penalties. The lowest id wins every tie. A
    /// bias on a token that the row does not have changes nothing.
    ///
    /// # Errors
    ///
    /// A logit that is NaN or plus infinity; no logit above minus infinity, as the model made them
    /// or as the rules leave them.
    pub fn sample(&self, logits: &mut [f32]) -> Result<u32, SamplingError> {
        let params = &*self.params;
        if self.changes_logits() {
            // First of all, since a mask would hide a wrong logit.
            row::maximum(logits, 0)?;
            self.change(logits);
        }
        if params.is_greedy() {
            return Ok(Best::of(logits, 0)?.id);
        }
        let max = row::maximum(logits, 0)?;
        let cut = select::cut(logits, max, params);
        Ok(draw::draw(logits, max, params.temperature, cut, self.uniform()))
    }

    /// Bias, `min_tokens` and penalties.
    fn change(&self, logits: &mut [f32]) {
        for (&id, bias) in &self.params.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
        if self.puts_off_ends() {
            for &id in &*self.ends {
                if let Some(logit) = logits.get_mut(id as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        if let Some(seen) = &self.seen {
            seen.penalise(&self.params, logits);
        }
    }

    /// The random number of the next token, from 0 to below 1: the first of ChaCha's stream of the
    /// token's index.
    fn uniform(&self) -> f64 {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(self.index);
        // 53 bits fill a float64's significand.
        (random.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests;
