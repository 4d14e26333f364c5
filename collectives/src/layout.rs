//! Where everything lies in a segment.

use crate::meeting::Slot;

/// Most ranks a segment is laid out for.
pub(crate) const MAX_WORLD: usize = 16;

/// Bytes before the data: header, words, progress cells.
pub(crate) const DATA_OFFSET: usize = 64 * 1024;

/// Most bytes of all plane slots together, and of one of them: large enough that meeting costs little
/// beside moving, small enough that the slots of four ranks stay in a shared cache.
const PLANE_BYTES: usize = 16 << 20;
const PLANE_SLOT_BYTES: usize = 512 << 10;

/// The same for logits.
const LOGITS_BYTES: usize = 8 << 20;
const LOGITS_SLOT_BYTES: usize = 256 << 10;

/// Longest piece that every rank sums for itself, in bytes: below, the second meeting of a scattered
/// piece costs more than the numbers it saves (measured, see `benches/all_reduce.rs`).
const DIRECT_BYTES: usize = 32 << 10;

const NUMBER: usize = size_of::<f32>();

/// Sizes of a segment's slots. They follow from the number of ranks alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub world: usize,
    /// Numbers in a plane slot.
    pub plane_len: usize,
    /// Longest directly summed piece, in numbers.
    pub direct_len: usize,
    /// Numbers in a logits slot.
    pub logits_len: usize,
}

impl Layout {
    /// `world` of 1 to [`MAX_WORLD`].
    pub fn for_world(world: usize) -> Layout {
        let slots = 2 * world;
        let slot = |all: usize, most: usize| {
            // A whole number of pages, so that slots of different writers share no line.
            (all / slots).min(most).next_multiple_of(4096) / NUMBER
        };
        Layout {
            world,
            plane_len: slot(PLANE_BYTES, PLANE_SLOT_BYTES),
            // With two ranks scattering saves nothing: 3 numbers moved either way.
            direct_len: if world == 2 { usize::MAX } else { DIRECT_BYTES / NUMBER },
            logits_len: slot(LOGITS_BYTES, LOGITS_SLOT_BYTES),
        }
    }

    /// Bytes of the whole segment.
    pub fn bytes(&self) -> usize {
        DATA_OFFSET + 2 * self.world * (self.plane_len + self.logits_len) * NUMBER
    }

    /// Offset of a slot in bytes, and its length in numbers.
    pub fn slot(&self, slot: Slot) -> (usize, usize) {
        let planes = 2 * self.world * self.plane_len;
        let (first, index, len) = match slot {
            Slot::Plane { rank, parity } => (0, 2 * rank + parity, self.plane_len),
            Slot::Logits { rank, parity } => (planes, 2 * rank + parity, self.logits_len),
        };
        (DATA_OFFSET + (first + index * len) * NUMBER, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_stay_below_32_mib() {
        for world in 1..=MAX_WORLD {
            let layout = Layout::for_world(world);
            assert!(layout.bytes() <= 32 << 20, "{} bytes for {world} ranks", layout.bytes());
            assert_eq!(layout.bytes() % 4096, 0);
        }
    }

    #[test]
    fn slots_fill_the_segment_without_overlap() {
        for world in 1..=MAX_WORLD {
            let layout = Layout::for_world(world);
            let pairs = (0..world).flat_map(|rank| [(rank, 0), (rank, 1)]);
            let planes = pairs.clone().map(|(rank, parity)| Slot::Plane { rank, parity });
            let logits = pairs.map(|(rank, parity)| Slot::Logits { rank, parity });
            let mut end = DATA_OFFSET;
            for slot in planes.chain(logits) {
                let (offset, len) = layout.slot(slot);
                assert_eq!(offset, end, "{slot:?} of {world}");
                end = offset + len * NUMBER;
            }
            assert_eq!(end, layout.bytes());
        }
    }
}
