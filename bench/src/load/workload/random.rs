//! Random prompts of exact lengths.

use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Uniform};

use super::words::WORDS;
use crate::load::{Backend, LoadError, Planned, Prompt, Tokens};

/// How often a text is mended before its length is given up. Each round comes nearer; two or three do.
const ROUNDS: usize = 64;

/// A length and how far single ones are from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lengths {
    middle: usize,
    ratio: f64,
    least: usize,
    most: usize,
}

impl Lengths {
    /// Lengths spread evenly from `length x (1 - ratio)` to `length x (1 + ratio)`, at least 1.
    ///
    /// # Errors
    ///
    /// No length, or a ratio that is not from 0 to below 1.
    pub fn around(length: usize, ratio: f64) -> Result<Self, LoadError> {
        if !(0.0..1.0).contains(&ratio) {
            let reason =
                format!("the range ratio is {ratio}; a number from 0 to below 1 is needed");
            return Err(LoadError::Lengths(reason));
        }
        if length == 0 {
            return Err(LoadError::Lengths("a length of 0 tokens cannot be asked for".to_owned()));
        }
        let least = (length as f64 * (1.0 - ratio)).floor() as usize;
        let most = (length as f64 * (1.0 + ratio)).ceil() as usize;
        Ok(Self { middle: length, ratio, least: least.max(1), most })
    }

    /// The length that single ones are around.
    pub fn middle(&self) -> usize {
        self.middle
    }

    /// How far single ones may be from it, as a share of it.
    pub fn ratio(&self) -> f64 {
        self.ratio
    }

    fn draw(&self, rng: &mut ChaCha8Rng) -> usize {
        below(rng, self.most - self.least + 1) + self.least
    }
}

/// Random prompts: so many tokens of a prefix that all share, then so many of their own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomSet {
    /// Tokens that all prompts begin with.
    pub prefix: usize,
    /// Tokens of each prompt after them.
    pub input: Lengths,
    /// Tokens of each answer.
    pub output: Lengths,
}

impl RandomSet {
    pub(super) async fn make(
        &self,
        count: usize,
        backend: Backend,
        tokens: Option<&Tokens>,
        rng: &mut ChaCha8Rng,
    ) -> Result<Vec<Planned>, LoadError> {
        match tokens {
            Some(tokens) if backend == Backend::Completions => self.ids(count, tokens, rng).await,
            _ => self.texts(count, tokens, rng).await,
        }
    }

    async fn ids(
        &self,
        count: usize,
        tokens: &Tokens,
        rng: &mut ChaCha8Rng,
    ) -> Result<Vec<Planned>, LoadError> {
        let ordinary = tokens.ordinary().await?;
        let draw = |count: usize, rng: &mut ChaCha8Rng| -> Vec<u32> {
            (0..count).map(|_| ordinary[below(rng, ordinary.len())]).collect()
        };
        let prefix = draw(self.prefix, rng);
        let mut requests = Vec::with_capacity(count);
        for _ in 0..count {
            let (input, output_tokens) = (self.input.draw(rng), self.output.draw(rng));
            let mut ids = prefix.clone();
            ids.extend(draw(input, rng));
            let prompt_tokens = Some(ids.len());
            requests.push(Planned { prompt: Prompt::Ids(ids), prompt_tokens, output_tokens });
        }
        Ok(requests)
    }

    /// Words; exact in tokens if there is a tokenizer to count them, else as many words as tokens.
    async fn texts(
        &self,
        count: usize,
        tokens: Option<&Tokens>,
        rng: &mut ChaCha8Rng,
    ) -> Result<Vec<Planned>, LoadError> {
        let prefix = words(self.prefix, rng);
        let mut requests = Vec::with_capacity(count);
        for _ in 0..count {
            let (input, output) = (self.input.draw(rng), self.output.draw(rng));
            let length = self.prefix + input;
            let mut text = prefix.clone();
            text.extend(words(input, rng));
            let (text, exact) = match tokens {
                Some(tokens) => (fitted(text, length, tokens, rng).await?, Some(length)),
                None => (text.join(" "), None),
            };
            requests.push(super::planned(text, exact, output));
        }
        Ok(requests)
    }
}

/// A text of exactly `length` tokens that begins with some of these words.
async fn fitted(
    mut words: Vec<&str>,
    length: usize,
    tokens: &Tokens,
    rng: &mut ChaCha8Rng,
) -> Result<String, LoadError> {
    for round in 0..ROUNDS {
        let text = words.join(" ");
        let count = tokens.encode(&text).await?.len();
        if count == length {
            return Ok(text);
        }
        if count > length {
            // A word has a token at least, so that so many words are too many at most.
            let share = (words.len() * (count - length)).div_ceil(count);
            words.truncate(words.len().saturating_sub(share.max(1)));
        } else if round < ROUNDS / 2 && length - count > 8 {
            words.extend(self::words((length - count) / 4, rng));
        } else {
            // Words of one letter have a token each, in most vocabularies.
            words.extend((0..length - count).map(|_| LETTERS[below(rng, LETTERS.len())]));
        }
    }
    Err(LoadError::Lengths(format!(
        "no text of exactly {length} tokens was found; this tokenizer cuts words in an odd way: use \
         --backend openai, which sends token ids"
    )))
}

const LETTERS: [&str; 8] = ["a", "b", "c", "d", "e", "i", "o", "s"];

fn words(count: usize, rng: &mut ChaCha8Rng) -> Vec<&'static str> {
    (0..count).map(|_| WORDS[below(rng, WORDS.len())]).collect()
}

/// A number below `end`, which is not 0.
pub(super) fn below(rng: &mut ChaCha8Rng, end: usize) -> usize {
    // A range with a number in it is always good.
    Uniform::new(0, end.max(1)).map_or(0, |uniform| uniform.sample(rng))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use proptest::prelude::*;
    use rand_chacha::rand_core::SeedableRng;

    use super::*;
    use crate::load::TextCodec;

    /// A token for each two characters of a word, and marks above 100.
    struct Pairs;

    impl TextCodec for Pairs {
        fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
            Ok(text.split(' ').flat_map(|word| vec![7; word.len().div_ceil(2)]).collect())
        }

        fn ordinary(&self) -> Vec<u32> {
            (0..100).collect()
        }
    }

    fn make(
        set: RandomSet,
        count: usize,
        backend: Backend,
        exact: bool,
        seed: u64,
    ) -> Vec<Planned> {
        let tokens = Tokens::Local(Arc::new(Pairs));
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let made = set.make(count, backend, exact.then_some(&tokens), &mut rng);
        runtime.block_on(made).unwrap()
    }

    fn set(prefix: usize, input: usize, output: usize, ratio: f64) -> RandomSet {
        let around = |length| Lengths::around(length, ratio).unwrap();
        RandomSet { prefix, input: around(input), output: around(output) }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn prompts_are_exact(prefix in 0..20_usize, input in 1..300_usize, ratio in 0.0..0.9_f64, seed: u64) {
            let set = set(prefix, input, 10, ratio);
            for request in make(set, 5, Backend::Completions, true, seed) {
                let Prompt::Ids(ids) = request.prompt else { panic!("not ids") };
                prop_assert_eq!(Some(ids.len()), request.prompt_tokens);
                let (least, most) = (set.input.least + prefix, set.input.most + prefix);
                prop_assert!((least..=most).contains(&ids.len()));
                prop_assert!((set.output.least..=set.output.most).contains(&request.output_tokens));
            }
            for request in make(set, 5, Backend::Chat, true, seed) {
                let Prompt::Text(text) = request.prompt else { panic!("not a text") };
                prop_assert_eq!(Some(Pairs.encode(&text).unwrap().len()), request.prompt_tokens);
            }
        }
    }

    #[test]
    fn prompts_differ_but_for_the_prefix_and_repeat_with_the_seed() {
        let ids = |seed| -> Vec<Vec<u32>> {
            make(set(6, 20, 4, 0.0), 8, Backend::Completions, true, seed)
                .into_iter()
                .map(|request| match request.prompt {
                    Prompt::Ids(ids) => ids,
                    Prompt::Text(text) => panic!("{text}"),
                })
                .collect()
        };
        let (first, again, other) = (ids(1), ids(1), ids(2));
        assert_eq!(first, again);
        assert_ne!(first, other);
        let prefixes: BTreeSet<_> = first.iter().map(|ids| ids[..6].to_vec()).collect();
        let prompts: BTreeSet<_> = first.iter().collect();
        assert_eq!((prefixes.len(), prompts.len()), (1, 8));
    }

    #[test]
    fn without_a_tokenizer_lengths_are_those_of_words() {
        for request in make(set(0, 12, 3, 0.0), 3, Backend::Completions, false, 1) {
            let Prompt::Text(text) = request.prompt else { panic!("not a text") };
            assert_eq!((text.split(' ').count(), request.prompt_tokens), (12, None));
        }
    }

    #[test]
    fn lengths_are_around_the_one_asked_for() {
        let ends = |length, ratio| {
            let lengths = Lengths::around(length, ratio).unwrap();
            assert_eq!((lengths.middle(), lengths.ratio()), (length, ratio));
            (lengths.least, lengths.most)
        };
        assert_eq!(ends(100, 0.0), (100, 100));
        assert_eq!(ends(10, 0.25), (7, 13));
        assert_eq!(ends(1, 0.9), (1, 2));
        for (length, ratio) in [(0, 0.0), (5, 1.0), (5, -0.1), (5, f64::NAN)] {
            assert!(Lengths::around(length, ratio).is_err(), "{length} {ratio}");
        }
    }
}
