//! A sequence of tokens as the scheduler sees it: what is known, what is computed, what is wanted.

use std::ops::Range;

use pocket_device::{KV_BLOCK_TOKENS, RECURRENCE_CHUNK};
use pocket_model::forward::{OutputRow, Want};

/// Names a request inside the coordinator. Never used twice, unlike the client's own id; the older of
/// two requests has the lower key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RequestKey(pub u64);

/// Names one answer of a request. Ordered by age: requests by their arrival, answers by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SequenceKey {
    /// The request.
    pub request: RequestKey,
    /// Which of its answers.
    pub choice: usize,
}

/// What is wanted of the row of the last known token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing: no token is to be chosen.
    Nothing,
    /// The likeliest token.
    Greedy,
    /// All logits.
    Logits,
}

/// What is wanted of the rows of the prompt, each of which tells the next token's probability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfPrompt {
    /// Nothing.
    Nothing,
    /// The next token's log-probability.
    Targets,
    /// All logits.
    Logits,
}

/// What is wanted of a sequence's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outputs {
    /// Of those of the prompt but the last.
    pub prompt: OfPrompt,
    /// Of that of the last known token.
    pub next: Next,
}

/// What an output of a step is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The next token is chosen from it.
    Next,
    /// It tells how likely this token of the prompt is.
    Rate(u32),
}

/// A sequence.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    /// Whose.
    pub key: SequenceKey,
    /// Prompt, then generated tokens.
    pub tokens: Vec<u32>,
    /// How many of them are the prompt.
    pub prompt_tokens: usize,
    /// Tokens whose keys, values and recurrent state exist.
    pub computed: usize,
    /// What is wanted.
    pub outputs: Outputs,
    /// Prompt positions whose outputs have been delivered: they are not wanted again when the
    /// sequence is computed a second time.
    pub delivered: usize,
    /// Most prompt rows of it in one step.
    pub chunk: usize,
    /// Other answers that are to begin with the prompt's state.
    pub siblings: Vec<usize>,
    /// Recurrent state; set while it runs.
    pub slot: u32,
    /// KV blocks from position 0.
    pub blocks: Vec<u32>,
    /// A step that is out computes some of it.
    pub in_flight: bool,
    /// It was released while a step was out, and goes with the step's end.
    pub ending: bool,
}

impl Sequence {
    /// A prompt nothing has been computed of. `chunk` is a multiple of [`RECURRENCE_CHUNK`].
    pub fn new(request: RequestKey, prompt: Vec<u32>, outputs: Outputs, chunk: usize) -> Self {
        debug_assert!(chunk > 0 && chunk.is_multiple_of(RECURRENCE_CHUNK));
        Self {
            key: SequenceKey { request, choice: 0 },
            prompt_tokens: prompt.len(),
            tokens: prompt,
            computed: 0,
            outputs,
            delivered: 0,
            chunk,
            siblings: Vec::new(),
            slot: u32::MAX,
            blocks: Vec::new(),
            in_flight: false,
            ending: false,
        }
    }

    /// The same prompt is answered `n` times.
    pub fn answers(mut self, n: usize) -> Self {
        self.siblings = (1..n).collect();
        self
    }

    /// Another answer to the same prompt, of which nothing is computed.
    pub fn sibling(&self, choice: usize) -> Self {
        let prompt = self.tokens[..self.prompt_tokens].to_vec();
        let outputs = Outputs { prompt: OfPrompt::Nothing, next: self.outputs.next };
        let mut sibling = Self::new(self.key.request, prompt, outputs, self.chunk);
        sibling.key.choice = choice;
        sibling
    }

    /// Blocks its known tokens take.
    pub fn blocks_needed(&self) -> usize {
        self.tokens.len().div_ceil(KV_BLOCK_TOKENS)
    }

    /// Whether all that is missing is the last token's row, a generated one.
    pub fn decodes(&self) -> bool {
        self.computed >= self.prompt_tokens && self.computed + 1 == self.tokens.len()
    }

    /// Tokens to compute before the next one can be chosen.
    pub fn missing(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// The tokens that can go into a step with room for `room` rows: of the prompt a piece that ends at
    /// an absolute multiple of [`RECURRENCE_CHUNK`] or with the prompt, so that neither room nor
    /// company reaches the bits; of generated tokens, which are computed one by one, any number.
    pub fn next_rows(&self, room: usize) -> Range<usize> {
        let start = self.computed;
        if start >= self.prompt_tokens {
            return start..self.tokens.len().min(start + room);
        }
        let mut rows = (self.prompt_tokens - start).min(room).min(self.chunk);
        if start + rows < self.prompt_tokens {
            rows -= rows % RECURRENCE_CHUNK;
        }
        start..start + rows
    }

    /// What is wanted of the rows at `positions`, which begin at row `first_row` of the step.
    pub fn outputs(
        &self,
        positions: Range<usize>,
        first_row: usize,
    ) -> impl Iterator<Item = (OutputRow, Purpose)> {
        let last = self.tokens.len() - 1;
        let of_prompt = |position: usize| {
            let wanted = position + 1 < self.prompt_tokens && position >= self.delivered;
            let token = *self.tokens.get(position + 1).filter(|_| wanted)?;
            let want = match self.outputs.prompt {
                OfPrompt::Nothing => return None,
                OfPrompt::Targets => Want::Target(token),
                OfPrompt::Logits => Want::Logits,
            };
            Some((want, Purpose::Rate(token)))
        };
        let next = match self.outputs.next {
            Next::Nothing => None,
            Next::Greedy => Some((Want::Greedy, Purpose::Next)),
            Next::Logits => Some((Want::Logits, Purpose::Next)),
        };
        positions.enumerate().filter_map(move |(offset, position)| {
            let (want, purpose) = if position == last { next? } else { of_prompt(position)? };
            Some((OutputRow { row: first_row + offset, want }, purpose))
        })
    }
}
