//! Telling a model's reasoning from its answer.
//!
//! A reasoning model writes `<think>`, what it thinks, `</think>`, and then the answer. Some chat
//! templates write the first mark themselves, at the end of the prompt, and some write a closed and
//! empty block there, to have the answer at once.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// Whether a model with this chat template reasons: the template speaks of `<think>`.
pub fn is_reasoning_template(source: &str) -> bool {
    source.contains(OPEN)
}

/// Whether a rendered prompt ends within reasoning that the model is to go on with: a `<think>` with
/// nothing but white space after it.
pub fn prompt_opens_reasoning(prompt: &str) -> bool {
    prompt.trim_end().ends_with(OPEN)
}

/// Text that has become known to be reasoning or answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// What the model thinks.
    pub reasoning: String,
    /// What it answers.
    pub content: String,
}

/// Splits one answer as it comes. What it gives in total does not depend on how the text was cut.
///
/// - Only a block at the very beginning counts, white space before it aside; marks further on are
///   content like any other text.
/// - White space around the marks is dropped: before and after `<think>`, and before and after
///   `</think>`.
/// - An answer that does not begin with a block is content as it stands.
/// - If the block is not closed, all of it is reasoning, up to the last character.
#[derive(Clone, Debug)]
pub struct ReasoningSplitter {
    state: State,
    /// White space at the end of the text so far of which it is not known whether it shows.
    space: String,
    /// The beginning of a mark, after that.
    mark: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space so far.
    Before,
    /// Within the block, and nothing but white space so far.
    Opened,
    /// Within the block.
    Reasoning,
    /// After the block, and nothing but white space so far.
    Closed,
    /// The answer.
    Content,
}

impl ReasoningSplitter {
    /// A splitter for one answer. `starts_inside` says that the prompt has opened the block: see
    /// [`prompt_opens_reasoning`].
    pub fn new(starts_inside: bool) -> Self {
        let state = if starts_inside { State::Opened } else { State::Before };
        Self { state, space: String::new(), mark: String::new() }
    }

    /// Takes the next piece of text and returns what has become known.
    pub fn push(&mut self, text: &str) -> Split {
        let mut split = Split::default();
        let mut text = std::mem::take(&mut self.mark) + text;
        while !text.is_empty() {
            text = match self.state {
                State::Before => self.before(&text, &mut split),
                State::Opened => self.skip_space(&text, State::Reasoning),
                State::Reasoning => self.inside(&text, &mut split),
                State::Closed => self.skip_space(&text, State::Content),
                State::Content => {
                    split.content += &text;
                    String::new()
                }
            };
        }
        split
    }

    /// The answer has ended: what was held back is what it looked like.
    pub fn finish(self) -> Split {
        let rest = self.space + &self.mark;
        match self.state {
            State::Before | State::Content => Split { content: rest, ..Split::default() },
            State::Opened | State::Reasoning => Split { reasoning: rest, ..Split::default() },
            State::Closed => Split::default(),
        }
    }

    /// Looks for the mark that opens the block. Like the next two, returns what is left to be looked
    /// at in another state.
    fn before(&mut self, text: &str, split: &mut Split) -> String {
        let shown = text.trim_start();
        let (space, _) = text.split_at(text.len() - shown.len());
        self.space += space;
        if let Some(rest) = shown.strip_prefix(OPEN) {
            self.space.clear();
            self.state = State::Opened;
            return rest.to_owned();
        }
        if OPEN.starts_with(shown) {
            self.mark = shown.to_owned();
        } else {
            split.content += &std::mem::take(&mut self.space);
            split.content += shown;
            self.state = State::Content;
        }
        String::new()
    }

    /// Looks for the end of white space that does not show.
    fn skip_space(&mut self, text: &str, then: State) -> String {
        let shown = text.trim_start();
        if !shown.is_empty() {
            self.state = then;
        }
        shown.to_owned()
    }

    /// Looks for the mark that closes the block.
    fn inside(&mut self, text: &str, split: &mut Split) -> String {
        let (body, rest) = match text.split_once(CLOSE) {
            Some((body, rest)) => {
                self.state = State::Closed;
                (body, rest)
            }
            None => {
                // The mark has its first character nowhere else.
                let begun = text.rfind('<').filter(|&at| CLOSE.starts_with(&text[at..]));
                let (body, mark) = text.split_at(begun.unwrap_or(text.len()));
                self.mark = mark.to_owned();
                (body, "")
            }
        };
        let shown = body.trim_end();
        if !shown.is_empty() {
            split.reasoning += &std::mem::take(&mut self.space);
            split.reasoning += shown;
        }
        self.space += &body[shown.len()..];
        if self.state == State::Closed {
            self.space.clear();
        }
        rest.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    /// Reasoning and content in total.
    fn split(starts_inside: bool, pieces: &[&str]) -> (String, String) {
        let mut splitter = ReasoningSplitter::new(starts_inside);
        let mut splits: Vec<Split> = pieces.iter().map(|piece| splitter.push(piece)).collect();
        splits.push(splitter.finish());
        splits.into_iter().fold(Default::default(), |(reasoning, content), split| {
            (reasoning + &split.reasoning, content + &split.content)
        })
    }

    fn both(reasoning: &str, content: &str) -> (String, String) {
        (reasoning.to_owned(), content.to_owned())
    }

    #[test]
    fn a_block_at_the_beginning_is_reasoning() {
        let text = "<think>\nTwo and\n two.\n</think>\n\nFour.\n";
        assert_eq!(split(false, &[text]), both("Two and\n two.", "Four.\n"));
        assert_eq!(split(false, &["\n ", text]), both("Two and\n two.", "Four.\n"));
        assert_eq!(split(false, &["<think></think>"]), both("", ""));
        assert_eq!(split(false, &["<think> \n </think> a"]), both("", "a"));
    }

    #[test]
    fn the_prompt_may_have_opened_it() {
        assert_eq!(split(true, &["\nHm.\n</think>\n\nYes."]), both("Hm.", "Yes."));
        assert_eq!(split(true, &["</think>Yes."]), both("", "Yes."));
    }

    #[test]
    fn an_answer_without_a_block_is_untouched_s25() {
        for text in ["", " \n", "\n Yes. \n", "a <think>b</think> c", "a</think>b", "<thin", " <"] {
            assert_eq!(split(false, &[text]), both("", text));
        }
    }

    #[test]
    fn an_open_block_is_all_reasoning() {
        assert_eq!(split(false, &["<think> It is \n"]), both("It is \n", ""));
        assert_eq!(split(true, &["a </thi"]), both("a </thi", ""));
        assert_eq!(split(true, &["a < b \n</th", "at"]), both("a < b \n</that", ""));
        assert_eq!(split(true, &[" \n"]), both("", ""));
    }

    #[test]
    fn only_the_first_block_counts() {
        let text = "<think>a <think> b</think>c <think>d</think> e</think>";
        assert_eq!(split(false, &[text]), both("a <think> b", "c <think>d</think> e</think>"));
    }

    #[test]
    fn no_more_is_held_than_must_be() {
        let mut splitter = ReasoningSplitter::new(false);
        let mut shown = |text: &str| {
            let split = splitter.push(text);
            (split.reasoning, split.content)
        };
        assert_eq!(shown(" <th"), both("", ""));
        assert_eq!(shown("ink>\n"), both("", ""));
        assert_eq!(shown("one "), both("one", ""));
        assert_eq!(shown("two </"), both(" two", ""));
        assert_eq!(shown("b> </think"), both(" </b>", ""));
        assert_eq!(shown(">\n"), both("", ""));
        assert_eq!(shown("\nthree \n"), both("", "three \n"));
        assert_eq!(shown("<think>"), both("", "<think>"));

        let mut splitter = ReasoningSplitter::new(false);
        assert_eq!(splitter.push("\n<thin").content, "");
        assert_eq!(splitter.push("g").content, "\n<thing");
        assert_eq!(splitter.push(" <").content, " <");
    }

    #[test]
    fn prompts_that_end_within_reasoning_are_known() {
        assert!(prompt_opens_reasoning("user\nhi\nassistant\n<think>\n"));
        assert!(prompt_opens_reasoning("</think><think>"));
        for prompt in [
            "",
            "assistant\n",
            "assistant\n<think>\n\n</think>\n\n",
            "user\n<think>\nassistant\n",
            "assistant\n<think>\nSo",
        ] {
            assert!(!prompt_opens_reasoning(prompt), "{prompt:?}");
        }
        assert!(is_reasoning_template("{{ '<think>\n' }}"));
        assert!(!is_reasoning_template("{{ think }}"));
    }

    /// The rules as they are written down, for a whole answer.
    fn by_definition(starts_inside: bool, text: &str) -> (String, String) {
        let block = match starts_inside {
            true => Some(text),
            false => text.trim_start().strip_prefix(OPEN),
        };
        match block.map(|block| block.split_once(CLOSE).ok_or(block)) {
            None => both("", text),
            Some(Err(open)) => both(open.trim_start(), ""),
            Some(Ok((reasoning, content))) => both(reasoning.trim(), content.trim_start()),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default()
        })]

        #[test]
        fn same_as_by_definition_however_the_text_is_cut(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    OPEN, CLOSE, "<", "</", "<thi", "nk>", "a", "\u{4e2d}", " ", "\n", "\u{3000}",
                ]),
                0..10,
            ),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
            starts_inside in any::<bool>(),
        ) {
            let text = parts.concat();
            let mut ends: Vec<usize> = cuts
                .iter()
                .map(|cut| text.floor_char_boundary(cut.index(text.len() + 1)))
                .chain([0, text.len()])
                .collect();
            ends.sort_unstable();
            let pieces: Vec<&str> = ends.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect();
            let expected = by_definition(starts_inside, &text);
            prop_assert_eq!(split(starts_inside, &pieces), expected.clone());
            prop_assert_eq!(split(starts_inside, &[&text]), expected);
        }
    }
}
