//! The collective a forward pass calls, whatever carries it.

use pocket_device::Device;
use serde::{Deserialize, Serialize};

use crate::CollectiveError;

/// What one rank's all-reduces have done since it started. A control that skips them must show here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Calls that summed.
    pub run: u64,
    /// Calls that returned at once because the skip flag was on.
    pub skipped: u64,
    /// Bytes of the planes summed (skipped calls count nothing).
    pub bytes: u64,
    /// Microseconds spent waiting for peers.
    pub wait_us: u64,
}

/// A sum over ranks.
pub trait AllReduce<D: Device + ?Sized> {
    /// Replaces every element of `plane` by its sum over the ranks, added in rank order, so that all
    /// ranks hold the same bits. All ranks call in the same order with the same shape.
    fn all_reduce(&mut self, plane: &mut D::Tensor) -> Result<(), CollectiveError>;

    /// What was done so far.
    fn counters(&self) -> Counters;
}

/// A world of one: there is nothing to reduce, and nothing is counted.
#[derive(Debug, Default)]
pub struct SingleRank;

impl<D: Device + ?Sized> AllReduce<D> for SingleRank {
    fn all_reduce(&mut self, _plane: &mut D::Tensor) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}
