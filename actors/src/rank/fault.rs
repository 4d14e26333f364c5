//! Faults on demand: the n-th event of a kind ends or stops this rank, so that tests can see what the
//! others and the coordinator make of it.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, raise};
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

    /// What holds from now on; a fault that is new begins to count.
    pub fn update(&mut self, spec: Option<FaultSpec>, rank: usize) {
        let new = Self::new(spec, rank);
        if new.spec != self.spec {
            *self = new;
        }
    }

    /// An event of `phase` begins: commit the fault if this is the one.
    pub fn event(&self, phase: FaultPhase) {
        if let (Some(spec), Some(kind)) = (self.spec, self.due(phase)) {
            // Tests read the time from it.
            tracing::warn!(rank = spec.rank, fault = %spec, "injected fault");
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
    let done = match kind {
        FaultKind::Exit => std::process::exit(1),
        FaultKind::Abort => std::process::abort(),
        // To this thread: it does not get a step further while another one takes the signal.
        FaultKind::Kill => raise(Signal::SIGKILL).map_err(io::Error::from),
        FaultKind::Stop => raise(Signal::SIGSTOP).map_err(io::Error::from),
        FaultKind::Stall => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        FaultKind::Memory => limit_memory(),
    };
    if let Err(error) = done {
        // A test that waits for the fault is to see why it does not come.
        tracing::error!(?kind, %error, "the fault cannot be injected");
    }
}

/// Lets this process have the memory it has and no more: neither new mappings, nor data in those it has
/// reserved.
fn limit_memory() -> io::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    for (field, resource) in [("VmSize:", Resource::RLIMIT_AS), ("VmData:", Resource::RLIMIT_DATA)]
    {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        let bytes = 1024 * kib.ok_or_else(|| io::Error::other(format!("no {field} in status")))?;
        setrlimit(resource, bytes, bytes)?;
    }
    Ok(())
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
    fn a_new_fault_begins_to_count_and_the_same_one_goes_on() {
        let spec = |text: &str| Some(text.parse::<FaultSpec>().unwrap());
        let mut fault = Fault::new(None, 1);
        fault.update(spec("1:decode:2:kill"), 1);
        assert_eq!(fault.due(FaultPhase::Decode), None);
        fault.update(spec("1:decode:2:kill"), 1);
        assert_eq!(fault.due(FaultPhase::Decode), Some(FaultKind::Kill));
        fault.update(spec("1:decode:1:stop"), 1);
        assert_eq!(fault.due(FaultPhase::Decode), Some(FaultKind::Stop));
        fault.update(spec("0:decode:1:stop"), 1);
        assert_eq!(fault.due(FaultPhase::Decode), None, "another rank's");
    }

    #[test]
    fn it_is_another_ranks_business() {
        assert_eq!(due("1:decode:1:exit", 0, &[FaultPhase::Decode]), [false]);
    }
}
