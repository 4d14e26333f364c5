//! Prompts that no server has seen.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Makes prompts of random tokens, others each time.
#[derive(Clone, Debug)]
pub struct RandomPrompts {
    random: ChaCha8Rng,
    vocab_size: usize,
}

impl RandomPrompts {
    /// Of a vocabulary of so many ids, from a seed.
    pub fn new(vocab_size: usize, seed: u64) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed), vocab_size }
    }

    /// Prompts of so many tokens.
    pub fn of(&mut self, lengths: &[usize]) -> Vec<Vec<u32>> {
        let vocabulary = self.vocab_size;
        let prompt = |length: &usize| (0..*length).map(|_| self.below(vocabulary) as u32).collect();
        lengths.iter().map(prompt).collect()
    }

    /// A number below `count`; 0 below 0.
    pub fn below(&mut self, count: usize) -> usize {
        // The bias of a remainder of 64 bits is nothing beside any count here.
        (self.random.next_u64() % count.max(1) as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_have_their_lengths_stay_in_the_vocabulary_and_never_come_again() {
        let mut prompts = RandomPrompts::new(640, 7);
        let first = prompts.of(&[3, 600]);
        assert_eq!((first[0].len(), first[1].len()), (3, 600));
        assert!(first[1].iter().all(|id| *id < 640));
        assert_ne!(prompts.of(&[3, 600]), first);
        assert_eq!(RandomPrompts::new(640, 7).of(&[3, 600]), first, "a seed is one sequence");
        assert_eq!(prompts.below(1), 0);
    }
}
