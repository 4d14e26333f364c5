//! Numbers as kernels find them in memory.

use half::bf16;

use super::lanes::Lanes;

/// A number that is widened to float32 as it is loaded.
pub trait Number: bytemuck::Pod + Send + Sync {
    /// The nearest to `x`, ties to even.
    fn round(x: f32) -> Self;

    /// The first [`LANES`](super::lanes::LANES) numbers at `from`.
    ///
    /// # Safety
    /// They must be readable.
    unsafe fn load_at<L: Lanes>(l: L, from: *const Self) -> L::V;
}

impl Number for f32 {
    #[inline(always)]
    fn round(x: f32) -> f32 {
        x
    }

    #[inline(always)]
    unsafe fn load_at<L: Lanes>(l: L, from: *const f32) -> L::V {
        // SAFETY: the caller's promise.
        unsafe { l.load_at(from) }
    }
}

impl Number for bf16 {
    #[inline(always)]
    fn round(x: f32) -> bf16 {
        bf16::from_f32(x)
    }

    #[inline(always)]
    unsafe fn load_at<L: Lanes>(l: L, from: *const bf16) -> L::V {
        // SAFETY: the caller's promise; a bf16 is its sixteen bits.
        unsafe { l.load_bf16_at(from.cast()) }
    }
}
