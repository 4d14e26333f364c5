//! A slice that several tasks write at once, each its own part.

use std::marker::PhantomData;
use std::ops::Range;

/// Shares a mutable slice between tasks of a [`Pool::run`](super::Pool::run) that write disjoint parts
/// of it.
pub struct DisjointMut<'a, T> {
    start: *mut T,
    len: usize,
    _slice: PhantomData<&'a mut [T]>,
}

// SAFETY: the only access is the unsafe `slice`, whose callers promise that no two live parts overlap;
// handing a part to another thread is then handing it a `&mut [T]`, which `T: Send` allows.
unsafe impl<T: Send> Sync for DisjointMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for DisjointMut<'_, T> {}

impl<'a, T> DisjointMut<'a, T> {
    /// Shares `slice` for as long as it is borrowed.
    pub fn new(slice: &'a mut [T]) -> DisjointMut<'a, T> {
        DisjointMut { start: slice.as_mut_ptr(), len: slice.len(), _slice: PhantomData }
    }

    /// Numbers in the whole slice.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the whole slice is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One part. Panics when the range is not inside the slice.
    ///
    /// # Safety
    /// While the returned slice lives, no other part that overlaps `range` may be taken or used.
    #[expect(clippy::mut_from_ref, reason = "handing out parts of one slice is the purpose")]
    pub unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} of {} numbers",
            self.len
        );
        // SAFETY: the range is inside the slice this was made from, which stays mutably borrowed for
        // 'a, and the caller promises that no other live reference overlaps it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Pool;

    #[test]
    fn tasks_write_their_own_parts() {
        let pool = Pool::new(3, None).unwrap();
        let mut numbers = vec![0usize; 1000];
        let parts = DisjointMut::new(&mut numbers);
        pool.run(100, &|task| {
            // SAFETY: task i takes only [10 i, 10 i + 10).
            let part = unsafe { parts.slice(task * 10..task * 10 + 10) };
            part.iter_mut().enumerate().for_each(|(i, x)| *x = task * 10 + i);
        });
        assert!(numbers.iter().enumerate().all(|(i, &x)| i == x));
    }

    #[test]
    #[should_panic(expected = "3..5 of 4 numbers")]
    fn a_part_outside_is_refused() {
        let mut numbers = [0; 4];
        let parts = DisjointMut::new(&mut numbers);
        // SAFETY: the only part taken.
        unsafe { parts.slice(3..5) };
    }
}
