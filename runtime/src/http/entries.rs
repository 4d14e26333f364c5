//! Which tokens' log-probabilities may be shown: those whose text is.
//!
//! The engine holds text back while a character is incomplete or a stop text may have begun, and cuts
//! what belongs to a stop text. A token's entry goes with the text the token began, so that a client
//! that puts the bytes of its entries together has the text it was shown (and, where only the
//! beginning of a token's text was shown, the rest of that token).

use std::collections::VecDeque;
use std::mem;

use pocket_model::detokenize::StreamDecoder;
use pocket_model::sampler::TokenLogprobs;

/// A token with its log-probabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Token id.
    pub id: u32,
    /// Where its text begins in the text of its choice, in characters.
    pub offset: usize,
    /// None for the first token of a prompt, which nothing precedes.
    pub logprobs: Option<TokenLogprobs>,
}

/// The entries of one answer, of which only those go out whose text does.
#[derive(Clone, Debug)]
pub struct Entries {
    /// The decoder the engine uses, so that lengths here and there are the same.
    decoder: StreamDecoder,
    /// Text of the tokens so far, shown or not.
    decoded: usize,
    /// Text shown so far. Lengths are in bytes.
    shown: usize,
    /// Characters before the text of the next token.
    offset: usize,
    /// Entries that wait, with the place in the text at which their token begins.
    held: VecDeque<(usize, Entry)>,
}

impl Entries {
    /// No entries yet; the answer's text begins after `offset` characters of its choice's text.
    pub fn new(decoder: StreamDecoder, offset: usize) -> Self {
        Self { decoder, decoded: 0, shown: 0, offset, held: VecDeque::new() }
    }

    /// Takes a token and the length of the text that was shown with it; gives what can be shown now.
    pub fn take(&mut self, id: u32, logprobs: Option<TokenLogprobs>, shown: usize) -> Vec<Entry> {
        // A token without any is not part of the answer, and neither is its text.
        if logprobs.is_some() {
            self.held.push_back((self.decoded, Entry { id, offset: self.offset, logprobs }));
            let text = self.decoder.push(id);
            self.decoded += text.len();
            self.offset += text.chars().count();
        }
        self.release(shown)
    }

    /// The answer has ended, with a last text of this length. Tokens of a stop text are dropped; those
    /// of a character that was not completed are not: no text of theirs was ever to come.
    pub fn finish(&mut self, shown: usize) -> Vec<Entry> {
        let mut entries = self.release(shown);
        let cut = self.decoded > self.shown;
        let held = mem::take(&mut self.held);
        if !cut {
            entries.extend(held.into_iter().map(|(_, entry)| entry));
        }
        entries
    }

    fn release(&mut self, shown: usize) -> Vec<Entry> {
        self.shown += shown;
        let held = self.held.iter().take_while(|(start, _)| *start < self.shown).count();
        self.held.drain(..held).map(|(_, entry)| entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::testing::tokenizer;

    fn logprobs() -> Option<TokenLogprobs> {
        Some(TokenLogprobs { logprob: -1.0, rank: 1, top: vec![] })
    }

    /// Tokens, each with the text shown with it, and then the text shown at the end; how many entries
    /// each step releases.
    fn released(tokens: &[(&str, &str)], last: &str) -> Vec<usize> {
        let tokenizer = tokenizer();
        let mut entries = Entries::new(tokenizer.stream(), 0);
        let mut counts = Vec::new();
        for (text, shown) in tokens {
            let ids = tokenizer.encode(text, false).unwrap();
            let [id] = ids.as_slice() else { panic!("{text} is {} tokens", ids.len()) };
            counts.push(entries.take(*id, logprobs(), shown.len()).len());
        }
        counts.push(entries.finish(last.len()).len());
        counts
    }

    #[test]
    fn an_entry_goes_with_the_beginning_of_its_text() {
        assert_eq!(released(&[("a", "a"), ("b", "b")], ""), [1, 1, 0]);
        // Held as a possible stop text that then was none.
        assert_eq!(released(&[("a", ""), ("b", ""), ("c", "abc")], ""), [0, 0, 3, 0]);
        assert_eq!(released(&[("a", "a"), ("b", "")], "b"), [1, 0, 1]);
        // Its first character is shown, the second held: the entry goes with the first.
        assert_eq!(released(&[("in", "i"), ("a", "na")], ""), [1, 1, 0]);
    }

    #[test]
    fn tokens_of_a_stop_text_are_dropped() {
        assert_eq!(released(&[("a", "a"), ("b", ""), ("c", "")], ""), [1, 0, 0, 0]);
        // The stop text begins within "in".
        assert_eq!(released(&[("in", "i"), ("a", "")], ""), [1, 0, 0]);
    }

    /// S9: half a character is an entry, with the character or at the end.
    #[test]
    fn parts_of_a_character_go_together() {
        let tokenizer = tokenizer();
        let ids = tokenizer.encode("🎉", false).unwrap();
        assert!(ids.len() > 1);
        let mut entries = Entries::new(tokenizer.stream(), 7);
        let (last, parts) = ids.split_last().unwrap();
        for id in parts {
            assert_eq!(entries.take(*id, logprobs(), 0), []);
        }
        let whole = entries.take(*last, logprobs(), "🎉".len());
        assert_eq!(whole.len(), ids.len());
        assert!(whole.iter().all(|entry| entry.offset == 7), "{whole:?}");
        assert_eq!(entries.take(ids[0], logprobs(), 0), []);
        let rest = entries.finish(0);
        assert_eq!(
            rest.iter().map(|entry| (entry.id, entry.offset)).collect::<Vec<_>>(),
            [(ids[0], 8)]
        );
    }

    #[test]
    fn the_token_that_ends_an_answer_has_no_entry() {
        let tokenizer = tokenizer();
        let mut entries = Entries::new(tokenizer.stream(), 0);
        let id = tokenizer.encode("a", false).unwrap()[0];
        assert_eq!(entries.take(id, logprobs(), 1).len(), 1);
        assert_eq!(entries.take(id, None, 0), []);
        assert_eq!(entries.finish(0), []);
    }
}
