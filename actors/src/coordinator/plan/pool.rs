//! Numbered things that are taken and given back: recurrent-state slots, KV blocks.

/// The numbers `0..size`, lowest first while none has been given back.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    free: Vec<u32>,
    size: usize,
}

impl Pool {
    /// All of `0..size`, free.
    pub fn new(size: u32) -> Self {
        Self { free: (0..size).rev().collect(), size: size as usize }
    }

    /// How many are free.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// How many there are.
    pub fn total(&self) -> usize {
        self.size
    }

    /// Takes one.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Takes as many as it takes for `held` to have `count`, or none at all.
    pub fn extend(&mut self, held: &mut Vec<u32>, count: usize) -> bool {
        let missing = count.saturating_sub(held.len());
        let Some(kept) = self.free.len().checked_sub(missing) else { return false };
        held.extend(self.free.drain(kept..).rev());
        true
    }

    /// Gives numbers back.
    pub fn give_back(&mut self, numbers: impl IntoIterator<Item = u32>) {
        self.free.extend(numbers);
        debug_assert!(self.free.len() <= self.size, "a number was given back twice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_lent_once_and_come_back() {
        let mut pool = Pool::new(4);
        assert_eq!(pool.take(), Some(0));
        let mut held = vec![];
        assert!(pool.extend(&mut held, 2));
        assert_eq!(held, [1, 2]);
        assert!(!pool.extend(&mut held, 4), "one is free, two are missing");
        assert_eq!((held.len(), pool.available()), (2, 1));
        assert!(pool.extend(&mut held, 1), "it already holds more");
        pool.give_back(held);
        assert_eq!(pool.available(), 3);
        pool.give_back([0]);
        assert_eq!(pool.available(), 4);
    }
}
