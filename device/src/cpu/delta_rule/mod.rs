//! Gated delta rule (temporary).
use super::{CpuDevice, CpuRecurrentState, CpuTensor, failed};
use crate::{DeviceError, LinearAttention, Segment};

/// See [`Device::linear_attention`](crate::Device::linear_attention).
pub fn linear_attention(
    _device: &CpuDevice,
    _op: &LinearAttention<'_, CpuDevice>,
    _projection: &CpuTensor,
    _segments: &[Segment<'_>],
    _state: &mut CpuRecurrentState,
    _out: &mut CpuTensor,
) -> Result<(), DeviceError> {
    Err(failed("linear_attention is not written yet".to_string()))
}
