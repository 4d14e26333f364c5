//! From token ids back to text, a token at a time, without ever splitting a character.
//!
//! A token is a piece of bytes, not of characters: an emoji may take four tokens. Text is shown up
//! to the last complete character; the rest is held until it is complete. Two rules make a stream
//! and a finished answer the same text, wherever `max_tokens` cuts: bytes that can no longer become
//! a character turn into U+FFFD at once, and an incomplete character at the very end is dropped.

use std::sync::Arc;

/// The bytes every token stands for.
#[derive(Debug, Default)]
pub(crate) struct TokenTable {
    bytes: Vec<u8>,
    /// End of each token's bytes.
    ends: Vec<u32>,
    /// Ids of tokens that are control marks, not text; sorted.
    special: Vec<u32>,
    /// Spaces taken off the beginning of a text.
    leading_spaces: usize,
}

impl TokenTable {
    /// A table of `tokens`, in id order; `special` lists control tokens.
    pub fn new(tokens: &[Vec<u8>], mut special: Vec<u32>, leading_spaces: usize) -> Self {
        special.sort_unstable();
        let mut ends = Vec::with_capacity(tokens.len());
        let mut end = 0;
        for token in tokens {
            end += token.len() as u32;
            ends.push(end);
        }
        Self { bytes: tokens.concat(), ends, special, leading_spaces }
    }

    /// Bytes of a token; none for an id that has no token (models pad their vocabulary).
    pub fn bytes(&self, id: u32) -> &[u8] {
        let index = id as usize;
        let Some(&end) = self.ends.get(index) else { return &[] };
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// Whether a token is a control mark.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.binary_search(&id).is_ok()
    }
}

/// Turns the tokens of one answer into text as they come. Control tokens such as `<|im_end|>` show
/// nothing unless asked for.
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    table: Arc<TokenTable>,
    /// Beginning of a character that is not complete yet: three bytes at most.
    pending: Vec<u8>,
    spaces_to_strip: usize,
    show_special: bool,
}

impl StreamDecoder {
    pub(crate) fn new(table: Arc<TokenTable>, show_special: bool) -> Self {
        let spaces_to_strip = table.leading_spaces;
        Self { table, pending: Vec::new(), spaces_to_strip, show_special }
    }

    /// Takes the next token and returns the text that has become complete, often none.
    pub fn push(&mut self, id: u32) -> String {
        if !self.show_special && self.table.is_special(id) {
            return String::new();
        }
        self.pending.extend_from_slice(self.table.bytes(id));
        let mut text = take_complete(&mut self.pending);
        if self.spaces_to_strip > 0 && !text.is_empty() {
            let spaces = text.bytes().take_while(|&byte| byte == b' ').count();
            let stripped = spaces.min(self.spaces_to_strip);
            text.drain(..stripped);
            let only_spaces = text.is_empty();
            self.spaces_to_strip = if only_spaces { self.spaces_to_strip - stripped } else { 0 };
        }
        text
    }

    /// Whether the tokens so far end within a character. If no token follows, its bytes are
    /// dropped.
    pub fn is_inside_character(&self) -> bool {
        !self.pending.is_empty()
    }
}

/// Takes everything off `bytes` but an incomplete character at its end. Bytes that cannot be part
/// of a character become U+FFFD, one for each longest beginning of a character, as everywhere in
/// Unicode.
fn take_complete(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut rest = bytes.as_slice();
    loop {
        let error = match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                bytes.clear();
                return text;
            }
            Err(error) => error,
        };
        let (valid, after) = rest.split_at(error.valid_up_to());
        text.push_str(&String::from_utf8_lossy(valid));
        match error.error_len() {
            Some(length) => {
                text.push(char::REPLACEMENT_CHARACTER);
                rest = &after[length..];
            }
            None => {
                let incomplete = after.len();
                bytes.drain(..bytes.len() - incomplete);
                return text;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One token a byte value, then the control token 256 and a token of two halves of characters.
    fn decoder() -> StreamDecoder {
        let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        tokens.push(b"<|end|>".to_vec());
        tokens.push(vec![0x98, 0x80, 0xe4, 0xb8]);
        StreamDecoder::new(Arc::new(TokenTable::new(&tokens, vec![256], 0)), false)
    }

    fn pieces(ids: &[u32]) -> Vec<String> {
        let mut decoder = decoder();
        ids.iter().map(|&id| decoder.push(id)).collect()
    }

    #[test]
    fn a_character_is_held_until_it_is_complete_s5() {
        assert_eq!(pieces(&[0xf0, 0x9f, 0x98, 0x80]), ["", "", "", "😀"]);
        // A token that ends one character and begins the next.
        assert_eq!(pieces(&[0xf0, 0x9f, 257, 0xad]), ["", "", "😀", "中"]);
        assert_eq!(pieces(&[97, 0xc3, 0xa9, 98]), ["a", "", "é", "b"]);
    }

    #[test]
    fn bytes_that_cannot_become_a_character_show_at_once() {
        assert_eq!(pieces(&[0xff, 97]), ["\u{fffd}", "a"]);
        assert_eq!(pieces(&[0xe4, 97]), ["", "\u{fffd}a"]);
        assert_eq!(pieces(&[0x80, 0x80]), ["\u{fffd}", "\u{fffd}"]);
        // A surrogate half is not a character.
        assert_eq!(pieces(&[0xed, 0xa0, 0x80]).concat(), "\u{fffd}\u{fffd}\u{fffd}");
    }

    #[test]
    fn control_tokens_and_unused_ids_show_nothing() {
        assert_eq!(pieces(&[97, 256, 98, 99_999]), ["a", "", "b", ""]);
        let mut decoder = StreamDecoder { show_special: true, ..decoder() };
        assert_eq!(decoder.push(256), "<|end|>");
    }

    #[test]
    fn an_incomplete_end_is_known_and_dropped_s6() {
        let mut decoder = decoder();
        assert!(!decoder.is_inside_character());
        assert_eq!(decoder.push(0xe4), "");
        assert!(decoder.is_inside_character());
        assert_eq!(decoder.push(0xff), "\u{fffd}\u{fffd}");
        assert!(!decoder.is_inside_character());
    }

    #[test]
    fn leading_spaces_are_stripped_once_across_tokens() {
        let tokens = vec![b" ".to_vec(), b"  a".to_vec(), b" b".to_vec()];
        let table = Arc::new(TokenTable::new(&tokens, Vec::new(), 2));
        let text = |ids: &[u32]| {
            let mut decoder = StreamDecoder::new(table.clone(), false);
            ids.iter().map(|&id| decoder.push(id)).collect::<String>()
        };
        assert_eq!(text(&[0, 0, 0, 1]), "   a");
        assert_eq!(text(&[0, 1, 2]), " a b");
        assert_eq!(text(&[2, 2]), "b b");
    }
}
