//! What the next step computes: a pure function of who runs and who waits, without clock or I/O.
//!
//! A sequence takes a slot when it is admitted and KV blocks as its tokens come to exist; it gives both
//! back when it is released. In a step every running sequence has at most one segment: its known
//! tokens from where it stands. Prompt tokens are cut at absolute multiples of [`RECURRENCE_CHUNK`], so
//! that the budget, and with it the company, does not reach their bits; generated tokens go one by one,
//! or many at once when they are computed a second time.
//!
//! The verbs are `enqueue`, `schedule`, `commit`, `push`, `release`.

use std::collections::VecDeque;
use std::ops::Range;

use pocket_device::{KV_BLOCK_TOKENS, RECURRENCE_CHUNK};
use pocket_model::forward::{ModelLimits, OutputRow, Step, StepSegment, Want};

use super::pool::Pool;

/// Names a request inside the coordinator. Never used twice, unlike the client's own id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RequestKey(pub u64);

/// What is wanted of a sequence's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outputs {
    /// The likeliest token after the last known one.
    Greedy,
    /// All logits after the last known token.
    Logits,
    /// The log-probability of every known token but the first.
    Score {
        /// And the last row's logits.
        last_logits: bool,
    },
}

/// A request as the scheduler sees it.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    key: RequestKey,
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Tokens whose keys, values and recurrent state exist.
    computed: usize,
    outputs: Outputs,
    /// Most rows of it in one step.
    chunk: usize,
    slot: u32,
    blocks: Vec<u32>,
    in_flight: bool,
    ending: bool,
}

impl Sequence {
    /// A prompt nothing has been computed of. `chunk` is a multiple of [`RECURRENCE_CHUNK`].
    pub fn new(key: RequestKey, prompt: Vec<u32>, outputs: Outputs, chunk: usize) -> Self {
        debug_assert!(chunk > 0 && chunk.is_multiple_of(RECURRENCE_CHUNK));
        Self {
            key,
            prompt_tokens: prompt.len(),
            tokens: prompt,
            computed: 0,
            outputs,
            chunk,
            slot: u32::MAX,
            blocks: Vec::new(),
            in_flight: false,
            ending: false,
        }
    }

    /// The tokens that can go into a step with room for `room` rows.
    fn next_rows(&self, room: usize) -> Range<usize> {
        let room = room.min(self.chunk);
        let (start, end) = if self.computed < self.prompt_tokens {
            (self.computed, self.prompt_tokens)
        } else {
            (self.computed, self.tokens.len())
        };
        let mut rows = (end - start).min(room);
        if start + rows < self.prompt_tokens {
            rows -= rows % RECURRENCE_CHUNK;
        }
        start..start + rows
    }

    /// Appends what is wanted of the rows at `positions`, which begin at row `first_row` of the step.
    fn push_outputs(&self, positions: Range<usize>, first_row: usize, out: &mut Vec<OutputRow>) {
        let last = self.tokens.len() - 1;
        for (offset, position) in positions.enumerate() {
            let want = match self.outputs {
                Outputs::Greedy if position == last => Want::Greedy,
                Outputs::Logits if position == last => Want::Logits,
                Outputs::Score { .. } if position < last => Want::Target(self.tokens[position + 1]),
                Outputs::Score { last_logits: true } => Want::Logits,
                _ => continue,
            };
            out.push(OutputRow { row: first_row + offset, want });
        }
    }
}

/// A step and whose it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Planned {
    /// What the ranks get.
    pub step: Step,
    /// One entry a segment.
    pub parts: Vec<Part>,
}

/// One sequence's part in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Whose.
    pub key: RequestKey,
    /// Positions computed.
    pub positions: Range<usize>,
    /// Whether they belong to the prompt.
    pub prompt: bool,
    /// Its outputs among the step's.
    pub outputs: Range<usize>,
    /// Whether all its known tokens are then computed, so that the next one can be chosen.
    pub completes: bool,
}

/// Who runs, who waits, and what they hold.
#[derive(Debug)]
pub(crate) struct Scheduler {
    max_rows: usize,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    slots: Pool,
    blocks: Pool,
    next_step: u64,
}

impl Scheduler {
    /// Nothing runs yet.
    pub fn new(limits: &ModelLimits) -> Self {
        Self {
            max_rows: limits.max_rows,
            waiting: VecDeque::new(),
            running: Vec::new(),
            slots: Pool::new(limits.slots as u32),
            blocks: Pool::new(limits.kv_blocks as u32),
            next_step: 1,
        }
    }

    /// Sequences with a slot.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Sequences without one.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Slots nobody has: so many of those that wait get one at the next step.
    pub fn free_slots(&self) -> usize {
        self.slots.available()
    }

    /// Puts a sequence at the end of the queue.
    pub fn enqueue(&mut self, sequence: Sequence) {
        self.waiting.push_back(sequence);
    }

    /// Gives slots to the first of the queue, then fills a step: first the sequences that only need
    /// their next token, then prompts in order of arrival until the step is full. None when there is
    /// nothing to compute. One step is in flight at a time: `commit` it before the next.
    pub fn schedule(&mut self) -> Option<Planned> {
        debug_assert!(self.running.iter().all(|sequence| !sequence.in_flight));
        self.admit();
        let (decoding, prompts): (Vec<usize>, Vec<usize>) = (0..self.running.len())
            .partition(|index| self.running[*index].computed >= self.running[*index].prompt_tokens);
        let mut planned = Planned::default();
        for index in decoding.into_iter().chain(prompts) {
            self.add(index, &mut planned);
        }
        if planned.parts.is_empty() {
            return None;
        }
        planned.step.number = self.next_step;
        self.next_step += 1;
        Some(planned)
    }

    fn admit(&mut self) {
        while !self.waiting.is_empty() {
            let Some(slot) = self.slots.take() else { return };
            // The loop's condition: there is one.
            let Some(sequence) = self.waiting.pop_front() else { return };
            self.running.push(Sequence { slot, ..sequence });
        }
    }

    fn add(&mut self, index: usize, planned: &mut Planned) {
        let first_row = planned.step.rows();
        let sequence = &mut self.running[index];
        let positions = sequence.next_rows(self.max_rows - first_row);
        let blocks = positions.end.div_ceil(KV_BLOCK_TOKENS);
        if positions.is_empty() || !self.blocks.extend(&mut sequence.blocks, blocks) {
            return;
        }
        sequence.in_flight = true;
        let first_output = planned.step.outputs.len();
        sequence.push_outputs(positions.clone(), first_row, &mut planned.step.outputs);
        let prompt = positions.start < sequence.prompt_tokens;
        planned.step.segments.push(StepSegment {
            slot: sequence.slot,
            tokens: sequence.tokens[positions.clone()].to_vec(),
            position: positions.start,
            generated: !prompt,
            blocks: sequence.blocks.clone(),
        });
        planned.parts.push(Part {
            key: sequence.key,
            completes: positions.end == sequence.tokens.len(),
            positions,
            prompt,
            outputs: first_output..planned.step.outputs.len(),
        });
    }

    /// A step is done: its tokens are computed, and who was released meanwhile is gone.
    pub fn commit(&mut self, planned: &Planned) {
        for part in &planned.parts {
            let Some(index) = self.position(part.key) else { continue };
            let sequence = &mut self.running[index];
            sequence.computed = part.positions.end;
            sequence.in_flight = false;
            if sequence.ending {
                self.remove(index);
            }
        }
    }

    /// The step that is out will not be done: nothing of it is computed.
    pub fn abandon(&mut self) {
        for sequence in &mut self.running {
            sequence.in_flight = false;
        }
        while let Some(index) = self.running.iter().position(|sequence| sequence.ending) {
            self.remove(index);
        }
    }

    /// Appends a generated token to a sequence all of whose tokens are computed.
    pub fn push(&mut self, key: RequestKey, token: u32) {
        if let Some(index) = self.position(key) {
            self.running[index].tokens.push(token);
        }
    }

    /// Ends a sequence. While a step holds it, its slot and blocks stay taken until the step's commit:
    /// the ranks write there.
    pub fn release(&mut self, key: RequestKey) {
        self.waiting.retain(|sequence| sequence.key != key);
        if let Some(index) = self.position(key) {
            if self.running[index].in_flight {
                self.running[index].ending = true;
            } else {
                self.remove(index);
            }
        }
    }

    fn position(&self, key: RequestKey) -> Option<usize> {
        self.running.iter().position(|sequence| sequence.key == key)
    }

    fn remove(&mut self, index: usize) {
        let sequence = self.running.remove(index);
        self.slots.give_back([sequence.slot]);
        self.blocks.give_back(sequence.blocks);
    }
}

#[cfg(test)]
mod tests;
