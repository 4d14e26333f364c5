//! Recurrent state (temporary).
use super::failed;
use crate::{DeviceError, LinearShape};

/// Recurrent and convolution state.
pub struct CpuRecurrentState;

impl CpuRecurrentState {
    /// Populated memory.
    pub fn new(
        _shape: LinearShape,
        _layers: usize,
        _slots: usize,
    ) -> Result<CpuRecurrentState, DeviceError> {
        Err(failed("the recurrent state is not written yet".to_string()))
    }
}
