//! Faults on demand: the n-th event of a kind ends or stops this rank, so that tests can see what the
//! others and the coordinator make of it.

use std::cell::Cell;
use std::time::Duration;

use pocket_collectives::{AllReduce, CollectiveError, Counters};
use pocket_config::{FaultKind, FaultPhase, FaultSpec};
use pocket_device::Device;

/// The fault this rank is to commit, if any, and how many events of its kind there have been.
#[derive(Debug)]
pub(crate) struct Fault {
    spec: Option<FaultSpec>,
    events: Cell<u64>,
}

impl Fault {
    /// What of `spec` concerns `rank`.
    pub fn new(spec: Option<FaultSpec>, rank: usize) -> Self {
        Self { spec: spec.filter(|spec| spec.rank == rank), events: Cell::new(0) }
    }

    /// An event of `phase` begins: commit the fault if this is the one.
    pub fn event(&self, phase: FaultPhase) {
        if let Some(kind) = self.due(phase) {
            commit(kind);
        }
    }

    fn due(&self, phase: FaultPhase) -> Option<FaultKind> {
        let spec = self.spec.filter(|spec| spec.phase == phase)?;
        self.events.set(self.events.get() + 1);
        spec.fires(spec.rank, phase, self.events.get())
    }
}

fn commit(kind: FaultKind) {
    tracing::warn!(?kind, "injected fault");
    match kind {
        FaultKind::Exit => std::process::exit(1),
        FaultKind::Abort => std::process::abort(),
        FaultKind::Stall => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
    }
}

/// An all-reduce in which the fault may strike.
pub(crate) struct Faulty<'a, D: Device> {
    /// The real one.
    pub inner: &'a mut dyn AllReduce<D>,
    /// When.
    pub fault: &'a Fault,
}

impl<D: Device> AllReduce<D> for Faulty<'_, D> {
    fn all_reduce(&mut self, plane: &mut D::Tensor) -> Result<(), CollectiveError> {
        self.fault.event(FaultPhase::AllReduce);
        self.inner.all_reduce(plane)
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(spec: &str, rank: usize, events: &[FaultPhase]) -> Vec<bool> {
        let fault = Fault::new(Some(spec.parse().unwrap()), rank);
        events.iter().map(|phase| fault.due(*phase).is_some()).collect()
    }

    #[test]
    fn only_the_nth_event_of_the_phase_counts() {
        use FaultPhase::{Decode, Prefill};
        let events = [Prefill, Decode, Prefill, Decode, Decode];
        assert_eq!(due("1:decode:2:exit", 1, &events), [false, false, false, true, false]);
        assert_eq!(due("1:prefill:1:abort", 1, &events), [true, false, false, false, false]);
        assert_eq!(due("1:allreduce:1:stall", 1, &events), [false; 5]);
    }

    #[test]
    fn it_is_another_ranks_business() {
        assert_eq!(due("1:decode:1:exit", 0, &[FaultPhase::Decode]), [false]);
    }
}
