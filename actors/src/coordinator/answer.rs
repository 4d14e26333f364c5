//! The answer of one request as its tokens come: what text they complete, and when to end.

use std::sync::Arc;

use pocket_model::detokenize::StreamDecoder;
use pocket_model::stop::StopMatcher;

use crate::api::FinishReason;

/// What a token has brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Whether it belongs to the answer; a token that ends it does not.
    pub belongs: bool,
    /// Text that can be shown.
    pub text: String,
    /// Set when the answer is complete: why, and the text held back until now.
    pub end: Option<(FinishReason, String)>,
}

/// Turns tokens to text and knows when to stop.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// None for a checkpoint without a tokenizer: its answers are token ids only.
    decoder: Option<StreamDecoder>,
    stop: StopMatcher,
    /// Tokens that end it.
    ends: Arc<[u32]>,
    /// Tokens to come before a stop text counts.
    before_stops: usize,
    left: usize,
}

impl Answer {
    /// An answer of at most `max_tokens` tokens that ends at any of `ends`; stop texts count only
    /// among those that come after the first `min_tokens`.
    pub fn new(
        decoder: Option<StreamDecoder>,
        stop: StopMatcher,
        ends: Arc<[u32]>,
        min_tokens: usize,
        max_tokens: usize,
    ) -> Self {
        Self { decoder, stop, ends, before_stops: min_tokens, left: max_tokens }
    }

    /// Takes the next token. One that ends the answer counts and shows nothing.
    pub fn take(&mut self, token: u32) -> Taken {
        self.left = self.left.saturating_sub(1);
        if self.ends.contains(&token) {
            let end = Some((FinishReason::Stop, self.rest()));
            return Taken { belongs: false, text: String::new(), end };
        }
        let piece = self.decoder.as_mut().map(|decoder| decoder.push(token)).unwrap_or_default();
        let text = if self.before_stops > 0 {
            self.before_stops -= 1;
            piece
        } else {
            self.stop.push(&piece)
        };
        let end = if self.stop.matched().is_some() {
            Some((FinishReason::Stop, String::new()))
        } else if self.left == 0 {
            Some((FinishReason::Length, self.rest()))
        } else {
            None
        };
        Taken { belongs: true, text, end }
    }

    /// Text that was held back because it might have become a stop text, when it no longer can.
    pub fn rest(&mut self) -> String {
        self.stop.clone().finish()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pocket_model::tokenizer::Tokenizer;

    use super::*;

    fn tokenizer() -> Tokenizer {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tiny-tied");
        let bytes = std::fs::read(directory.join("tokenizer.json")).unwrap();
        Tokenizer::from_bytes(&bytes, None, 640).unwrap()
    }

    fn answer(stop: &[&str], eos: &[u32], max_tokens: usize) -> Answer {
        let stop = StopMatcher::new(stop).unwrap();
        Answer::new(Some(tokenizer().stream()), stop, eos.into(), 0, max_tokens)
    }

    /// Shown texts, and the end.
    fn run(answer: &mut Answer, ids: &[u32]) -> (Vec<String>, Option<(FinishReason, String)>) {
        let mut shown = vec![];
        for id in ids {
            let taken = answer.take(*id);
            shown.push(taken.text);
            if taken.end.is_some() {
                return (shown, taken.end);
            }
        }
        (shown, None)
    }

    fn ids(text: &str) -> Vec<u32> {
        tokenizer().encode(text, false).unwrap()
    }

    #[test]
    fn the_budget_ends_an_answer_and_shows_what_was_held_back() {
        let ids = ids("ab EN");
        let mut answer = answer(&["END"], &[], ids.len());
        let (shown, end) = run(&mut answer, &ids);
        let (reason, rest) = end.unwrap();
        assert_eq!((shown.concat() + &rest, reason), ("ab EN".to_string(), FinishReason::Length));
        assert_eq!(rest, "EN");
    }

    #[test]
    fn a_stop_text_ends_an_answer_before_it_s8() {
        let ids = ids("ab END and more");
        let mut answer = answer(&["END"], &[], 500);
        let (shown, end) = run(&mut answer, &ids);
        assert_eq!(shown.concat(), "ab ");
        assert_eq!(end, Some((FinishReason::Stop, String::new())));
        assert!(shown.len() < ids.len(), "generation ends at the stop");
    }

    #[test]
    fn an_end_token_counts_and_shows_nothing() {
        let mut ids = ids("abE");
        ids.push(634);
        let (shown, end) = run(&mut answer(&["END"], &[634], 500), &ids);
        assert_eq!(shown.len(), ids.len());
        assert_eq!(shown.concat(), "ab");
        assert_eq!(end, Some((FinishReason::Stop, "E".to_string())));
        assert_eq!(run(&mut answer(&[], &[], 500), &ids).1, None, "it is to be ignored");
    }

    #[test]
    fn without_a_tokenizer_tokens_are_counted_all_the_same() {
        let stop = StopMatcher::new::<&str>(&[]).unwrap();
        let mut answer = Answer::new(None, stop, Arc::new([7]), 0, 2);
        let text = String::new();
        assert_eq!(answer.take(1), Taken { belongs: true, text: text.clone(), end: None });
        let end = Some((FinishReason::Length, String::new()));
        assert_eq!(answer.take(2), Taken { belongs: true, text, end });
    }

    #[test]
    fn a_stop_text_among_the_first_tokens_asked_for_is_text() {
        let ids = ids("ab END END");
        let stop = StopMatcher::new(&["END"]).unwrap();
        let first = ids.len() - 1;
        let mut answer =
            Answer::new(Some(tokenizer().stream()), stop, Arc::new([]), first, ids.len());
        let (shown, end) = run(&mut answer, &ids);
        let (reason, rest) = end.unwrap();
        assert_eq!((shown.concat() + &rest, reason), ("ab END END".into(), FinishReason::Length));
    }
}
