//! Penalties on tokens that were seen before.

use std::sync::Arc;

use super::SamplingParams;

/// The tokens of one request so far, as the penalties need them.
///
/// A copy is made for every token that is chosen, so it is kept small: the prompt's tokens are
/// shared, and those of the answer are few.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// Distinct tokens of the prompt, ascending.
    prompt: Arc<[u32]>,
    /// Distinct tokens of the answer, ascending, and how often each is there.
    answer: Vec<(u32, u32)>,
}

impl Seen {
    /// Nothing but a prompt.
    pub fn new(prompt: &[u32]) -> Self {
        let mut prompt = prompt.to_vec();
        prompt.sort_unstable();
        prompt.dedup();
        Self { prompt: prompt.into(), answer: Vec::new() }
    }

    /// The same prompt without an answer.
    pub fn prompt_only(&self) -> Self {
        Self { prompt: Arc::clone(&self.prompt), answer: Vec::new() }
    }

    /// The answer has a token more.
    pub fn count(&mut self, token: u32) {
        match self.answer.binary_search_by_key(&token, |&(id, _)| id) {
            Ok(at) => self.answer[at].1 += 1,
            Err(at) => self.answer.insert(at, (token, 1)),
        }
    }

    /// Makes the tokens seen less likely, or more, as the parameters say: first the repetition
    /// penalty, then frequency and presence.
    pub fn penalise(&self, params: &SamplingParams, logits: &mut [f32]) {
        let factor = params.repetition_penalty;
        // A tiny factor could carry a logit to infinity, which no model computes.
        let repeat = |logit: f32| match logit > 0.0 {
            true => (logit / factor).min(f32::MAX),
            false => logit * factor,
        };
        let in_answer = |id: u32| self.answer.binary_search_by_key(&id, |&(id, _)| id).is_ok();
        for &id in self.prompt.iter().filter(|&&id| !in_answer(id)) {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = repeat(*logit);
            }
        }
        for &(id, count) in &self.answer {
            if let Some(logit) = logits.get_mut(id as usize) {
                let often = params.frequency_penalty * count as f32;
                *logit = repeat(*logit) - often - params.presence_penalty;
            }
        }
    }
}
