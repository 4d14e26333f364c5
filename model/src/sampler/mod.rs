//! Choosing the next token from a row of logits.
//!
//! The coordinator samples, once, for all ranks: the same seed then gives the same text at any
//! number of ranks and in any company. A token's random number depends on the request's seed and
//! on how many tokens came before it, on nothing else, so that a request that is replayed from its
//! tokens goes on as it would have.

mod draw;
mod exp;
mod params;
mod row;
mod select;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

pub use params::{SamplingError, SamplingParams};
pub use row::{Best, LogSumExp};

/// Chooses the tokens of one request.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    random: ChaCha8Rng,
    index: u64,
}

impl Sampler {
    /// A sampler for a request's first token. `request_seed` is used when the parameters name no
    /// seed.
    ///
    /// # Errors
    ///
    /// A parameter out of its range.
    pub fn new(params: &SamplingParams, request_seed: u64) -> Result<Self, SamplingError> {
        params.validate()?;
        let random = ChaCha8Rng::seed_from_u64(params.seed.unwrap_or(request_seed));
        Ok(Self { params: params.clone(), random, index: 0 })
    }

    /// Number of tokens chosen so far.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Goes on as if `index` tokens had been chosen: a request replayed from its tokens needs no
    /// logits for those it already has.
    pub fn skip_to(&mut self, index: u64) {
        self.index = index;
    }

    /// Chooses the next token from the logits of the whole vocabulary, in id order.
    ///
    /// As in vLLM and transformers the logits are divided by the temperature, then the `top_k`
    /// likeliest are kept, then the smallest set of those that holds `top_p` of what is left.
    /// Greedy choice takes the largest logit. The lowest id wins every tie.
    ///
    /// # Errors
    ///
    /// A logit that is NaN or plus infinity, or no logit above minus infinity; no token is counted
    /// as chosen then.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SamplingError> {
        let token = if self.params.is_greedy() {
            Best::of(logits, 0)?.id
        } else {
            let SamplingParams { temperature, top_p, top_k, .. } = self.params;
            let max = row::maximum(logits, 0)?;
            let cut = select::cut(logits, max, temperature, top_k, top_p);
            draw::draw(logits, max, temperature, cut, self.uniform())
        };
        self.index += 1;
        Ok(token)
    }

    /// The request's `index`-th random number, from 0 to below 1: the first of ChaCha's stream of
    /// that number.
    fn uniform(&mut self) -> f64 {
        self.random.set_stream(self.index);
        self.random.set_word_pos(0);
        // 53 bits fill a float64's significand.
        (self.random.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests;
