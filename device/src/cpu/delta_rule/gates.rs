//! The two gates of a value head: how much is written and how much is kept.

use crate::cpu::lanes::Scalar;
use crate::cpu::math::{exp, sigmoid, softplus};

/// `sigmoid(b)`: the share of the error that is written.
#[inline(always)]
pub fn write_gate(b: f32) -> f32 {
    sigmoid(Scalar, b)
}

/// `exp(decay * softplus(a + dt_bias))`: what the state is multiplied by. `decay` is `-exp(A_log)`, so
/// this lies between 0 and 1.
#[inline(always)]
pub fn keep_gate(a: f32, dt_bias: f32, decay: f32) -> f32 {
    exp(Scalar, decay * softplus(a + dt_bias))
}
