//! Numbers that look random and are the same in every run.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream of numbers.
pub struct Random(ChaCha8Rng);

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number from 0 to below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0.next_u32() as usize % end
    }

    /// A number of `range`.
    pub fn within(&mut self, range: std::ops::RangeInclusive<usize>) -> usize {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// True in so many of a hundred cases.
    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// A text of `tokens` tokens.
    pub fn ids(&mut self, tokens: usize, vocab_size: usize) -> Vec<u32> {
        (0..tokens).map(|_| self.below(vocab_size) as u32).collect()
    }
}
