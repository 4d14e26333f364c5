//! Prompts for measurements.

/// Token ids spread over the vocabulary, others in each round.
pub fn spread(tokens: usize, vocabulary: usize, round: usize) -> Vec<u32> {
    (0..tokens).map(|at| ((at * 7919 + round * 104_729 + 17) % vocabulary) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_stay_inside_the_vocabulary_and_differ_by_round() {
        let prompts: Vec<_> = (0..3).map(|round| spread(600, 640, round)).collect();
        assert!(prompts.iter().flatten().all(|id| *id < 640));
        assert_ne!(prompts[0], prompts[1]);
        assert_ne!(prompts[1], prompts[2]);
    }
}
