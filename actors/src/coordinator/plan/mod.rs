//! What the next step computes: a pure function of who runs and who waits, without clock or I/O.
//!
//! A sequence is admitted in order of arrival, when a slot is free and so are the KV blocks of all its
//! known tokens, and one more for each sequence that runs and will grow. It takes the blocks of tokens to
//! come as they come. When they run out, the youngest gives its slot and blocks up and waits, to be
//! computed again from its tokens: the oldest always gets on, so all do.
//!
//! A step carries one row of every sequence that only needs its next token, and beside them prompts and
//! what is computed again, in order of arrival, up to the budget. Neither keeps the other waiting. Prompt
//! tokens are cut at absolute multiples of 64, so that the budget, and with it the company, does not
//! reach their bits; generated tokens go one by one, or many at once when they are computed again.
//!
//! The verbs are `enqueue`, `schedule`, `commit`, `push`, `release`.

mod admission;
mod blocks;
mod merging;
mod pool;
mod self_test;
mod sequence;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

use pocket_device::KV_BLOCK_TOKENS;
use pocket_model::forward::{Fork, ModelLimits, Step, StepSegment};

use blocks::Blocks;
pub(crate) use merging::{CallCosts, Merging};
use pool::Pool;
pub(crate) use sequence::{Next, OfPrompt, Outputs, Purpose, RequestKey, Sequence, SequenceKey};

/// A step and whose it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Planned {
    /// What the ranks get.
    pub step: Step,
    /// One entry a segment.
    pub parts: Vec<Part>,
    /// One entry an output.
    pub purposes: Vec<Purpose>,
    /// Rows of prompts, and of generated tokens that are computed again.
    pub prefill_rows: usize,
}

/// One sequence's part in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Whose.
    pub key: SequenceKey,
    /// Positions computed.
    pub positions: Range<usize>,
    /// Whether they belong to the prompt.
    pub prompt: bool,
    /// Its outputs among the step's.
    pub outputs: Range<usize>,
    /// Whether all its known tokens are then computed, so that the next one can be chosen.
    pub completes: bool,
    /// Other answers of its request that go on from here.
    pub forked: Vec<usize>,
}

impl Part {
    /// The answers that go on from the end of this part.
    pub fn choices(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.key.choice).chain(self.forked.iter().copied())
    }
}

/// Who runs, who waits, and what they hold.
#[derive(Debug)]
pub(crate) struct Scheduler {
    /// Most prompt rows of a step.
    budget: usize,
    waiting: BTreeMap<SequenceKey, Sequence>,
    running: BTreeMap<SequenceKey, Sequence>,
    slots: Pool,
    blocks: Blocks,
    next_step: u64,
    /// Without merging, prompts and generated tokens take turns.
    prompt_was_last: bool,
    preempted: Vec<SequenceKey>,
}

impl Scheduler {
    /// Nothing runs yet. `budget` is the most prompt rows of a step, a multiple of 64.
    pub fn new(limits: &ModelLimits, budget: usize) -> Self {
        Self {
            budget,
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            slots: Pool::new(limits.slots as u32),
            blocks: Blocks::new(limits.kv_blocks),
            next_step: 1,
            prompt_was_last: false,
            preempted: Vec::new(),
        }
    }

    /// Sequences with a slot.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Sequences without one.
    pub fn waiting(&self) -> usize {
        let unborn = |sequence: &Sequence| sequence.siblings.len();
        self.waiting.values().map(|sequence| 1 + unborn(sequence)).sum::<usize>()
            + self.running.values().map(unborn).sum::<usize>()
    }

    /// Requests none of whose answers has a slot.
    pub fn waiting_requests(&self) -> usize {
        let mut requests: Vec<RequestKey> = self.waiting.keys().map(|key| key.request).collect();
        requests.dedup();
        requests.retain(|request| !self.running.keys().any(|key| key.request == *request));
        requests.len()
    }

    /// Sequences of a request with a slot, and without.
    pub fn sequences(&self, request: RequestKey) -> (usize, usize) {
        let of = |all: &BTreeMap<SequenceKey, Sequence>| -> (usize, usize) {
            let its = all.values().filter(|sequence| sequence.key.request == request);
            its.fold((0, 0), |(count, unborn), its| (count + 1, unborn + its.siblings.len()))
        };
        let ((running, unborn), (waiting, unborn_waiting)) = (of(&self.running), of(&self.waiting));
        (running, waiting + unborn + unborn_waiting)
    }

    /// Slots nobody has: so many of those that wait may get one at the next step.
    pub fn free_slots(&self) -> usize {
        self.slots.available()
    }

    /// Slots there are.
    pub fn slots(&self) -> usize {
        self.slots.total()
    }

    /// KV blocks held, and how many there are.
    pub fn blocks(&self) -> (usize, usize) {
        (self.blocks.total() - self.blocks.available(), self.blocks.total())
    }

    /// Puts a sequence at its place in the queue.
    pub fn enqueue(&mut self, sequence: Sequence) {
        self.waiting.insert(sequence.key, sequence);
    }

    /// Those that have given their memory up since this was last asked.
    pub fn take_preempted(&mut self) -> Vec<SequenceKey> {
        std::mem::take(&mut self.preempted)
    }

    /// Admits who can be, makes room for who grows, and fills a step. None when there is nothing to
    /// compute. One step is in flight at a time: `commit` it before the next.
    pub fn schedule(&mut self, merging: Merging) -> Option<Planned> {
        debug_assert!(self.running.values().all(|sequence| !sequence.in_flight));
        self.admit();
        self.make_room();
        let (decoding, missing): (Vec<SequenceKey>, Vec<SequenceKey>) =
            self.running.keys().copied().partition(|key| self.running[key].decodes());
        let mut planned = Planned::default();
        if merging == Merging::Serial {
            let prompt = !missing.is_empty() && (decoding.is_empty() || !self.prompt_was_last);
            self.prompt_was_last = prompt;
            let turn = if prompt { &missing[..1] } else { &decoding[..] };
            for key in turn {
                self.add(*key, self.budget, &mut planned);
            }
        } else {
            for key in decoding {
                self.add(key, 1, &mut planned);
            }
            let most = match missing.is_empty() {
                true => 0,
                false => merging.prompts(&self.rows_missing(), self.budget),
            };
            for (index, key) in missing.into_iter().enumerate().take(most) {
                let rows = if index == 0 { self.budget } else { merging.rows(self.budget) };
                self.add(key, rows.saturating_sub(planned.prefill_rows), &mut planned);
            }
        }
        if planned.parts.is_empty() {
            return None;
        }
        planned.step.number = self.next_step;
        self.next_step += 1;
        Some(planned)
    }

    /// What each sequence that waits for its next token still has to have computed, the oldest first;
    /// those in the queue wait too.
    fn rows_missing(&self) -> Vec<usize> {
        let running = self.running.values().filter(|sequence| !sequence.decodes());
        running.chain(self.waiting.values()).map(Sequence::missing).collect()
    }

    /// Puts a sequence's next rows into a step, as far as `room` goes.
    fn add(&mut self, key: SequenceKey, room: usize, planned: &mut Planned) {
        let Some(sequence) = self.running.get_mut(&key) else { return };
        let positions = sequence.next_rows(room);
        if positions.is_empty() {
            return;
        }
        sequence.in_flight = true;
        let first_row = planned.step.rows();
        let first_output = planned.step.outputs.len();
        for (output, purpose) in sequence.outputs(positions.clone(), first_row) {
            planned.step.outputs.push(output);
            planned.purposes.push(purpose);
        }
        let prompt = positions.start < sequence.prompt_tokens;
        if !sequence.decodes() {
            planned.prefill_rows += positions.len();
        }
        let blocks = positions.end.div_ceil(KV_BLOCK_TOKENS);
        planned.step.segments.push(StepSegment {
            slot: sequence.slot,
            tokens: sequence.tokens[positions.clone()].to_vec(),
            position: positions.start,
            generated: !prompt,
            blocks: sequence.blocks[..blocks].to_vec(),
        });
        let completes = positions.end == sequence.tokens.len();
        let forked = if completes { self.fork(key, &mut planned.step) } else { Vec::new() };
        planned.parts.push(Part {
            key,
            completes,
            positions,
            prompt,
            outputs: first_output..planned.step.outputs.len(),
            forked,
        });
    }

    /// Begins the other answers of a request whose prompt the step completes. Those there is no slot or
    /// block for wait, and compute the prompt themselves.
    fn fork(&mut self, key: SequenceKey, step: &mut Step) -> Vec<usize> {
        let Some(parent) = self.running.get_mut(&key) else { return Vec::new() };
        let (siblings, from_slot) = (std::mem::take(&mut parent.siblings), parent.slot);
        let parent = parent.clone();
        let whole = parent.prompt_tokens / KV_BLOCK_TOKENS;
        let mut forked = Vec::new();
        for choice in siblings {
            let mut sibling = parent.sibling(choice);
            let partial = sibling.blocks_needed() - whole;
            if self.slots.available() == 0 || self.blocks.available() < partial {
                self.waiting.insert(sibling.key, sibling);
                continue;
            }
            let Some(slot) = self.slots.take() else { continue };
            sibling.slot = slot;
            sibling.blocks = self.blocks.share(&parent.blocks[..whole]);
            let needed = sibling.blocks_needed();
            self.blocks.extend(&mut sibling.blocks, needed);
            let copied = |at: usize| Some((*parent.blocks.get(at)?, *sibling.blocks.get(at)?));
            step.forks.push(Fork { from_slot, to_slot: slot, block: copied(whole) });
            sibling.in_flight = true;
            self.running.insert(sibling.key, sibling);
            forked.push(choice);
        }
        forked
    }

    /// A step is done: its tokens are computed, and who was released meanwhile is gone.
    pub fn commit(&mut self, planned: &Planned) {
        for part in &planned.parts {
            for choice in part.choices() {
                self.computed(SequenceKey { choice, ..part.key }, part.positions.end);
            }
        }
    }

    fn computed(&mut self, key: SequenceKey, end: usize) {
        let Some(sequence) = self.running.get_mut(&key) else { return };
        sequence.computed = end;
        sequence.delivered = sequence.delivered.max(end);
        sequence.in_flight = false;
        if sequence.ending {
            self.remove(key);
        }
    }

    /// Appends a generated token to a sequence all of whose tokens are computed; `next` is wanted of it.
    pub fn push(&mut self, key: SequenceKey, token: u32, next: Next) {
        if let Some(sequence) = self.running.get_mut(&key) {
            sequence.tokens.push(token);
            sequence.outputs.next = next;
        }
    }

    /// Ends a sequence. While a step holds it, its slot and blocks stay taken until the step's commit:
    /// the ranks write there.
    pub fn release(&mut self, key: SequenceKey) {
        self.waiting.remove(&key);
        match self.running.get_mut(&key) {
            Some(sequence) if sequence.in_flight => sequence.ending = true,
            Some(_) => self.remove(key),
            None => {}
        }
    }

    /// Ends all answers of a request, also those that have not begun.
    pub fn release_request(&mut self, request: RequestKey) {
        let all = self.waiting.keys().chain(self.running.keys());
        let keys: Vec<_> = all.filter(|key| key.request == request).copied().collect();
        for key in keys {
            self.release(key);
        }
    }

    fn remove(&mut self, key: SequenceKey) {
        if let Some(sequence) = self.running.remove(&key) {
            self.slots.give_back([sequence.slot]);
            self.blocks.give_back(sequence.blocks);
        }
    }
}
