//! Who gets a slot and blocks, and who gives them up.

use super::{Scheduler, SequenceKey};

impl Scheduler {
    /// Gives slots and the blocks of their known tokens to the first of the queue, as long as there are
    /// any. The first one that does not fit keeps its place, and those behind it wait: a stream of
    /// small requests cannot keep a large one out for ever.
    pub(super) fn admit(&mut self) {
        while let Some(entry) = self.waiting.first_entry() {
            let needed = entry.get().blocks_needed();
            // Those that run grow; without a block for each, who is admitted now would soon give way.
            let spare = self.running.len();
            if needed + spare > self.blocks.available() && !self.running.is_empty() {
                return;
            }
            let Some(slot) = self.slots.take() else { return };
            let mut sequence = entry.remove();
            if !self.blocks.extend(&mut sequence.blocks, needed) {
                // Larger than the whole cache, which is refused before it gets here.
                self.slots.give_back([slot]);
                self.waiting.insert(sequence.key, sequence);
                return;
            }
            sequence.slot = slot;
            self.running.insert(sequence.key, sequence);
        }
    }

    /// Gives every running sequence, the oldest first, the blocks of its known tokens. Where there are
    /// none left the youngest gives way, if need be the one that asks.
    pub(super) fn make_room(&mut self) {
        let keys: Vec<SequenceKey> = self.running.keys().copied().collect();
        for key in keys {
            while let Some(sequence) = self.running.get_mut(&key) {
                let needed = sequence.blocks_needed();
                if self.blocks.extend(&mut sequence.blocks, needed) {
                    break;
                }
                let Some((&youngest, _)) = self.running.last_key_value() else { break };
                self.preempt(youngest);
            }
        }
    }

    /// Takes slot and blocks from a sequence; it waits to be computed again.
    fn preempt(&mut self, key: SequenceKey) {
        let Some(mut sequence) = self.running.remove(&key) else { return };
        self.slots.give_back([sequence.slot]);
        self.blocks.give_back(sequence.blocks.drain(..));
        sequence.slot = u32::MAX;
        sequence.computed = 0;
        self.preempted.push(key);
        self.waiting.insert(key, sequence);
    }

    /// The step that is out will not be done, and the ranks' state is gone: who was released is gone,
    /// and everybody else waits to be computed again.
    pub fn rewind(&mut self) {
        let keys: Vec<SequenceKey> = self.running.keys().copied().collect();
        for key in keys {
            self.preempt(key);
            if let Some(sequence) = self.waiting.get_mut(&key) {
                sequence.in_flight = false;
                if sequence.ending {
                    self.waiting.remove(&key);
                }
            }
        }
        self.preempted.clear();
    }
}
