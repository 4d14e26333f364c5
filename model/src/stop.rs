//! Stop texts: they end an answer and are not part of it.
//!
//! Text comes in pieces that need not match anybody's idea of a word, so a stop may begin in one
//! piece and end in another. The matcher shows what can no longer be part of a stop and holds back
//! the rest. What it shows in total does not depend on how the text was cut.

/// Why a list of stop texts is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stop text {index} is empty: it would end every answer before it begins")]
pub struct EmptyStop {
    /// Its place in the list, from 0.
    pub index: usize,
}

/// Looks for stop texts in one answer.
///
/// The answer ends where a stop is first complete. If several are complete at the same place the
/// longest counts, so that no part of any of them is shown.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    held: String,
    matched: Option<usize>,
}

impl StopMatcher {
    /// A matcher for `stops`; with none all text is shown at once.
    ///
    /// # Errors
    ///
    /// A stop that is empty.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, EmptyStop> {
        if let Some(index) = stops.iter().position(|stop| stop.as_ref().is_empty()) {
            return Err(EmptyStop { index });
        }
        let stops = stops.iter().map(|stop| Stop::new(stop.as_ref())).collect();
        Ok(Self { stops, held: String::new(), matched: None })
    }

    /// Takes the next piece of text and returns what can be shown. After a match nothing is.
    pub fn push(&mut self, piece: &str) -> String {
        if self.matched.is_some() {
            return String::new();
        }
        let before = self.held.len();
        self.held.push_str(piece);
        for (offset, &byte) in piece.as_bytes().iter().enumerate() {
            for stop in &mut self.stops {
                stop.advance(byte);
            }
            let complete = self.stops.iter().enumerate().filter(|(_, stop)| stop.is_complete());
            if let Some((index, stop)) = complete.max_by_key(|(_, stop)| stop.text.len()) {
                let start = before + offset + 1 - stop.text.len();
                self.matched = Some(index);
                self.held.truncate(start);
                return std::mem::take(&mut self.held);
            }
        }
        // A stop's first byte begins a character, so this is never within one.
        let open = self.stops.iter().map(|stop| stop.seen).max().unwrap_or_default();
        let rest = self.held.split_off(self.held.len() - open);
        std::mem::replace(&mut self.held, rest)
    }

    /// The stop that ended the answer, by its place in the list.
    pub fn matched(&self) -> Option<usize> {
        self.matched
    }

    /// The answer has ended without a match: what was held back is text after all.
    pub fn finish(self) -> String {
        self.held
    }
}

/// One stop and how much of it the text so far ends with (Knuth, Morris and Pratt's automaton, so
/// that no text is looked at twice).
#[derive(Clone, Debug)]
struct Stop {
    text: Vec<u8>,
    /// For each length, the next shorter beginning of the stop that such a beginning ends with.
    shorter: Vec<usize>,
    seen: usize,
}

impl Stop {
    fn new(text: &str) -> Self {
        let text = text.as_bytes().to_vec();
        let mut shorter = vec![0; text.len() + 1];
        for end in 1..text.len() {
            let mut length = shorter[end];
            while length > 0 && text[length] != text[end] {
                length = shorter[length];
            }
            shorter[end + 1] = if text[length] == text[end] { length + 1 } else { 0 };
        }
        Self { text, shorter, seen: 0 }
    }

    fn advance(&mut self, byte: u8) {
        while self.seen > 0 && self.text.get(self.seen) != Some(&byte) {
            self.seen = self.shorter[self.seen];
        }
        if self.text.get(self.seen) == Some(&byte) {
            self.seen += 1;
        }
    }

    fn is_complete(&self) -> bool {
        self.seen == self.text.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    /// What is shown after each piece and, last, at the end.
    fn shown(stops: &[&str], pieces: &[&str]) -> Vec<String> {
        let mut matcher = StopMatcher::new(stops).unwrap();
        let mut shown: Vec<String> = pieces.iter().map(|piece| matcher.push(piece)).collect();
        shown.push(matcher.finish());
        shown
    }

    #[test]
    fn a_stop_across_pieces_is_never_shown_s7() {
        assert_eq!(shown(&["END"], &["one E", "N", "D two"]), ["one ", "", "", ""]);
        assert_eq!(shown(&["END"], &["one E", "N", "d two"]), ["one ", "", "ENd two", ""]);
        assert_eq!(shown(&["\n\n"], &["a\n", "b\n", "\nc"]), ["a", "\nb", "", ""]);
        assert_eq!(shown(&["中文"], &["x中", "y"]), ["x", "中y", ""]);
    }

    #[test]
    fn only_what_may_begin_a_stop_is_held() {
        assert_eq!(shown(&["abcd"], &["xxabc"]), ["xx", "abc"]);
        assert_eq!(shown(&["aab"], &["a", "a", "a", "b"]), ["", "", "a", "", ""]);
        assert_eq!(shown(&[], &["any", "thing"]), ["any", "thing", ""]);
    }

    #[test]
    fn the_first_to_be_complete_wins_and_then_the_longest() {
        assert_eq!(shown(&["bcd", "c"], &["abcd"]), ["ab", ""]);
        assert_eq!(shown(&["c", "abc"], &["xabc"]), ["x", ""]);
        let mut matcher = StopMatcher::new(&["c", "abc"]).unwrap();
        assert_eq!(matcher.push("ab"), "");
        assert_eq!(matcher.matched(), None);
        assert_eq!(matcher.push("c and more"), "");
        assert_eq!(matcher.matched(), Some(1));
        assert_eq!(matcher.push("and more"), "");
    }

    #[test]
    fn empty_stops_are_refused() {
        let error = StopMatcher::new(&["a", ""]).unwrap_err();
        assert_eq!(error, EmptyStop { index: 1 });
    }

    /// By the definition: the shortest beginning of the text that ends with a stop, less the
    /// longest stop it ends with.
    fn by_definition(stops: &[String], text: &str) -> Option<String> {
        let ends = text.char_indices().map(|(at, character)| at + character.len_utf8());
        ends.map(|end| &text[..end]).find_map(|head| {
            let complete = stops.iter().filter(|stop| head.ends_with(stop.as_str()));
            complete
                .max_by_key(|stop| stop.len())
                .map(|stop| head[..head.len() - stop.len()].into())
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default()
        })]

        #[test]
        fn same_as_by_definition_however_the_text_is_cut(
            stops in prop::collection::vec("[ab\u{e9}\u{4e2d}]{1,4}", 0..4),
            pieces in prop::collection::vec("[abc\u{e9}\u{4e2d}\u{e8}]{0,5}", 0..12),
        ) {
            let mut matcher = StopMatcher::new(&stops).unwrap();
            let mut seen = String::new();
            for piece in &pieces {
                seen.push_str(&matcher.push(piece));
            }
            let text = pieces.concat();
            match by_definition(&stops, &text) {
                Some(expected) => {
                    prop_assert_eq!(seen, expected);
                    prop_assert!(matcher.matched().is_some());
                }
                None => {
                    // Held is only what a stop could begin with.
                    let open = (0..=text.len()).find(|&at| {
                        text.is_char_boundary(at)
                            && stops.iter().any(|stop| stop.starts_with(&text[at..]))
                    });
                    let open = open.unwrap_or(text.len());
                    prop_assert_eq!(&seen, &text[..open]);
                    prop_assert_eq!(matcher.matched(), None);
                    prop_assert_eq!(seen + &matcher.finish(), text);
                }
            }
        }
    }
}
