//! KV blocks, lent to sequences. Answers to one prompt share the blocks it has filled, so a block comes
//! back when its last holder gives it back.

use super::pool::Pool;

/// All KV blocks of the cache.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    pool: Pool,
    /// Holders of each block.
    holders: Vec<u32>,
}

impl Blocks {
    /// `count` blocks, all free.
    pub fn new(count: usize) -> Self {
        Self { pool: Pool::new(count as u32), holders: vec![0; count] }
    }

    /// How many are free.
    pub fn available(&self) -> usize {
        self.pool.available()
    }

    /// How many there are.
    pub fn total(&self) -> usize {
        self.holders.len()
    }

    /// Takes as many as it takes for `held` to have `count`, or none at all.
    pub fn extend(&mut self, held: &mut Vec<u32>, count: usize) -> bool {
        let before = held.len();
        let extended = self.pool.extend(held, count);
        for block in held.get(before..).unwrap_or_default() {
            self.holders[*block as usize] = 1;
        }
        extended
    }

    /// Makes one more holder of blocks that are held already.
    pub fn share(&mut self, held: &[u32]) -> Vec<u32> {
        for block in held {
            debug_assert!(self.holders[*block as usize] > 0, "a free block cannot be shared");
            self.holders[*block as usize] += 1;
        }
        held.to_vec()
    }

    /// Gives a holder's blocks back.
    pub fn give_back(&mut self, held: impl IntoIterator<Item = u32>) {
        for block in held {
            let holders = &mut self.holders[block as usize];
            debug_assert!(*holders > 0, "a block was given back twice");
            *holders -= 1;
            if *holders == 0 {
                self.pool.give_back([block]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_block_comes_back_with_its_last_holder() {
        let mut blocks = Blocks::new(3);
        let mut first = vec![];
        assert!(blocks.extend(&mut first, 2));
        let mut second = blocks.share(&first[..1]);
        assert!(blocks.extend(&mut second, 2));
        assert_eq!((blocks.available(), blocks.total()), (0, 3));
        assert!(!blocks.extend(&mut second, 3));
        blocks.give_back(first);
        assert_eq!(blocks.available(), 1, "the shared one is still held");
        blocks.give_back(second);
        assert_eq!(blocks.available(), 3);
    }
}
