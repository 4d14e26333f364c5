//! Recurrent and convolution state of all linear-attention layers, by slot.

use std::ops::Range;

use super::memory::Memory;
use super::strip::STRIP;
use crate::{DeviceError, LinearShape, SlotId};

/// State of `slots` sequences, its memory populated.
pub struct CpuRecurrentState {
    layout: StateLayout,
    slots: usize,
    /// The matrices `S`.
    pub(super) matrices: Memory<f32>,
    /// The last `kernel - 1` rows of pre-convolution channels, oldest first.
    pub(super) history: Memory<f32>,
    /// Runs of segments through one slot: a list that a call fills, kept for the next.
    pub(super) runs: Vec<Range<usize>>,
}

/// Where numbers are: slot by slot, layer by layer. A head's matrix `[key_dim, value_dim]` is stored
/// as strips of sixteen value columns (see [`super::strip`]), the last one filled up.
#[derive(Clone, Copy)]
pub struct StateLayout {
    shape: LinearShape,
    layers: usize,
}

impl StateLayout {
    /// Strips of a head's matrix.
    pub fn strips(self) -> usize {
        self.shape.value_dim.div_ceil(STRIP)
    }

    /// Numbers of a strip.
    pub fn strip_len(self) -> usize {
        self.shape.key_dim.saturating_mul(STRIP)
    }

    /// Numbers of a head's matrix.
    pub fn matrix_len(self) -> usize {
        self.strip_len().saturating_mul(self.strips())
    }

    /// Numbers of a slot's history in one layer.
    pub fn history_len(self) -> usize {
        self.shape.kernel.saturating_sub(1).saturating_mul(self.shape.channels())
    }

    /// The matrix of a value head.
    pub fn matrix(self, slot: SlotId, layer: usize, head: usize) -> Range<usize> {
        let index = (slot.0 as usize * self.layers + layer) * self.shape.value_heads + head;
        index * self.matrix_len()..(index + 1) * self.matrix_len()
    }

    /// The history of a slot in a layer.
    pub fn history(self, slot: SlotId, layer: usize) -> Range<usize> {
        let index = slot.0 as usize * self.layers + layer;
        index * self.history_len()..(index + 1) * self.history_len()
    }
}

impl CpuRecurrentState {
    /// Zeroed state of this shape.
    pub fn new(
        shape: LinearShape,
        layers: usize,
        slots: usize,
    ) -> Result<CpuRecurrentState, DeviceError> {
        let layout = StateLayout { shape, layers };
        let memory = |what: &str, factors: &[usize]| {
            let product = |n: usize, &factor: &usize| n.checked_mul(factor);
            let len = factors.iter().try_fold(1, product).unwrap_or(usize::MAX);
            let mut memory = Memory::zeroed(what, len)?;
            memory.populate(what)?;
            Ok(memory)
        };
        let heads = [layout.matrix_len(), shape.value_heads, layers, slots];
        Ok(CpuRecurrentState {
            layout,
            slots,
            matrices: memory("the recurrent state", &heads)?,
            history: memory("the convolution state", &[layout.history_len(), layers, slots])?,
            runs: Vec::new(),
        })
    }

    /// Copies a slot's state to another slot, all layers.
    pub fn fork(&mut self, from: SlotId, to: SlotId) -> Result<(), DeviceError> {
        if let Some(outside) = [from, to].iter().find(|slot| slot.0 as usize >= self.slots) {
            return Err(DeviceError::Shape {
                op: "fork_state",
                detail: format!("slot {} of {}", outside.0, self.slots),
            });
        }
        for memory in [&mut self.matrices, &mut self.history] {
            let numbers = memory.as_mut_slice();
            // A slot's layers lie together.
            let len = numbers.len() / self.slots;
            let start = from.0 as usize * len;
            numbers.copy_within(start..start + len, to.0 as usize * len);
        }
        Ok(())
    }

    /// The shape it was made for.
    pub fn shape(&self) -> LinearShape {
        self.layout.shape
    }

    /// Layers it was made for.
    pub fn layers(&self) -> usize {
        self.layout.layers
    }

    /// Sequences it has room for.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Where numbers are.
    pub fn layout(&self) -> StateLayout {
        self.layout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: LinearShape =
        LinearShape { key_heads: 2, value_heads: 4, key_dim: 32, value_dim: 48, kernel: 4 };

    #[test]
    fn slots_layers_and_heads_have_their_own_places() {
        let state = CpuRecurrentState::new(SHAPE, 3, 2).unwrap();
        let (layout, mut matrices, mut histories) = (state.layout(), Vec::new(), Vec::new());
        for (slot, layer) in (0..2).flat_map(|slot| (0..3).map(move |layer| (SlotId(slot), layer)))
        {
            histories.push(layout.history(slot, layer));
            matrices.extend((0..4).map(|head| layout.matrix(slot, layer, head)));
        }
        for (mut ranges, memory) in [(matrices, &state.matrices), (histories, &state.history)] {
            ranges.sort_by_key(|range| range.start);
            assert_eq!(ranges[0].start, 0);
            assert_eq!(ranges.last().unwrap().end, memory.as_slice().len());
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }

    #[test]
    fn a_state_takes_what_its_shape_says_for_heads_of_whole_strips() {
        let state = CpuRecurrentState::new(SHAPE, 3, 2).unwrap();
        let numbers = state.matrices.as_slice().len() + state.history.as_slice().len();
        assert_eq!((numbers * 4) as u64, SHAPE.state_bytes() * 6);
    }

    #[test]
    fn a_fork_copies_every_layer_of_one_slot() {
        let mut state = CpuRecurrentState::new(SHAPE, 3, 3).unwrap();
        for memory in [&mut state.matrices, &mut state.history] {
            let numbers = memory.as_mut_slice();
            let len = numbers.len() / 3;
            numbers.iter_mut().enumerate().for_each(|(i, x)| *x = (i / len) as f32);
        }
        state.fork(SlotId(2), SlotId(0)).unwrap();
        for layer in 0..3 {
            for (slot, held) in [(0, 2.0), (1, 1.0), (2, 2.0)] {
                let (layout, slot) = (state.layout(), SlotId(slot));
                let matrices = (0..4).flat_map(|head| layout.matrix(slot, layer, head));
                assert!(matrices.into_iter().all(|i| state.matrices.as_slice()[i] == held));
                let history = &state.history.as_slice()[layout.history(slot, layer)];
                assert!(history.iter().all(|&x| x == held));
            }
        }
        for (from, to) in [(3, 0), (0, 3)] {
            let error = state.fork(SlotId(from), SlotId(to)).unwrap_err();
            assert!(error.to_string().contains("slot 3 of 3"), "{error}");
        }
    }

    #[test]
    fn impossible_sizes_are_refused_by_name() {
        let error = CpuRecurrentState::new(SHAPE, 64, usize::MAX).err().unwrap();
        assert!(
            matches!(&error, DeviceError::OutOfMemory { what, .. } if what == "the recurrent state"),
            "{error}"
        );
        let shape = LinearShape { value_heads: 0, kernel: usize::MAX, ..SHAPE };
        let error = CpuRecurrentState::new(shape, 1, 1).err().unwrap();
        assert!(error.to_string().contains("the convolution state"), "{error}");
    }
}
