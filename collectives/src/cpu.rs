//! The shared-memory all-reduce on tensors in main memory.

use pocket_device::Device;
use pocket_device::cpu::CpuTensor;

use crate::{AllReduce, CollectiveError, Counters, SharedAllReduce};

impl<D: Device<Tensor = CpuTensor> + ?Sized> AllReduce<D> for SharedAllReduce {
    fn all_reduce(&mut self, plane: &mut CpuTensor) -> Result<(), CollectiveError> {
        self.reduce(plane.as_mut_slice())
    }

    fn counters(&self) -> Counters {
        SharedAllReduce::counters(self)
    }
}
