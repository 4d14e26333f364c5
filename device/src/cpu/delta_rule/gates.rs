//! The two gates of a value head: how much is written and how much is kept.

use crate::cpu::lanes::Lanes;
use crate::cpu::math::{exp, sigmoid, softplus, update};

/// `sigmoid(b)`, in place: the share of the error that is written.
#[inline(always)]
pub fn write_gates<L: Lanes>(l: L, b: &mut [f32]) {
    update(
        l,
        b,
        [],
        #[inline(always)]
        |b, []| sigmoid(l, b),
    );
}

/// `exp(decay * softplus(a + dt_bias))`, in place: what the state is multiplied by. `decay` is
/// `-exp(A_log)`, so this lies between 0 and 1.
#[inline(always)]
pub fn keep_gates<L: Lanes>(l: L, a: &mut [f32], dt_bias: f32, decay: f32) {
    let (dt_bias, decay) = (l.splat(dt_bias), l.splat(decay));
    update(
        l,
        a,
        [],
        #[inline(always)]
        |a, []| exp(l, l.mul(decay, softplus(l, l.add(a, dt_bias)))),
    );
}
