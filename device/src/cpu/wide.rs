//! The widest registers a processor has, for matrix products.
//!
//! Elsewhere a vector has [`LANES`] numbers, because the order of some sums depends on it. In a product
//! with packed weights each output is a chain of its own, so vectors of any width give the same bits:
//! there AVX-512 doubles the arithmetic a cycle, and its 32 registers the rows that a weight serves once
//! it is widened.

use super::Simd;
use super::lanes::{Arithmetic, Kernel, LANES, Lanes};

/// Vectors of a matrix product.
pub trait Wide: Copy {
    /// Some numbers side by side.
    type V: Copy;
    /// How many.
    const WIDTH: usize;
    /// The most rows for which two vectors of sums each stay in registers.
    const ROWS: usize;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The first `WIDTH` bf16 numbers at `from`, widened.
    ///
    /// # Safety
    /// They must be readable.
    unsafe fn load_bf16_at(self, from: *const u16) -> Self::V;
    /// Writes the first `to.len()` lanes, at most `WIDTH`.
    fn store_part(self, v: Self::V, to: &mut [f32]);
}

impl<L: Lanes> Wide for L {
    type V = L::V;
    const WIDTH: usize = LANES;
    const ROWS: usize = 6;

    #[inline(always)]
    fn splat(self, x: f32) -> L::V {
        Arithmetic::splat(self, x)
    }
    #[inline(always)]
    fn fma(self, a: L::V, b: L::V, c: L::V) -> L::V {
        Arithmetic::fma(self, a, b, c)
    }
    #[inline(always)]
    unsafe fn load_bf16_at(self, from: *const u16) -> L::V {
        // SAFETY: the caller's promise.
        unsafe { Lanes::load_bf16_at(self, from) }
    }
    #[inline(always)]
    fn store_part(self, v: L::V, to: &mut [f32]) {
        match to.as_mut_array() {
            Some(all) => self.store(v, all),
            None => Lanes::store_part(self, v, to),
        }
    }
}

/// What [`Simd::call_wide`] runs.
pub trait WideKernel {
    /// The kernel. Implementations are `#[inline(always)]`.
    fn run<W: Wide>(self, wide: W);
}

/// A wide kernel on ordinary vectors.
struct Narrow<K>(K);

impl<K: WideKernel> Kernel for Narrow<K> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        self.0.run(l);
    }
}

impl Simd {
    /// Runs a kernel on the widest vectors of these instructions.
    #[inline]
    pub fn call_wide<K: WideKernel>(self, kernel: K) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => {
                // SAFETY: whoever holds this value has checked that the processor has AVX-512F
                // (`CpuDevice::new` does), see `Simd::Avx512`.
                unsafe { avx512::run(kernel) }
            }
            _ => self.call(Narrow(kernel)),
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use super::{Wide, WideKernel};

    /// Sixteen lanes in an AVX-512 register. Only [`run`] makes one: a value is the proof that the
    /// processor has AVX-512F.
    #[derive(Clone, Copy)]
    struct Avx512(());

    /// The one place where kernels are compiled to these instructions.
    #[target_feature(enable = "avx512f,avx2,fma")]
    #[inline(never)]
    pub fn run<K: WideKernel>(kernel: K) {
        kernel.run(Avx512(()));
    }

    impl Wide for Avx512 {
        type V = __m512;
        const WIDTH: usize = 16;
        // Of 32 registers, 24 hold sums.
        const ROWS: usize = 12;

        #[inline(always)]
        fn splat(self, x: f32) -> __m512 {
            // SAFETY: `self` proves that the processor has AVX-512F, here and below.
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn load_bf16_at(self, from: *const u16) -> __m512 {
            // SAFETY: as above, and the caller vouches for the numbers; the load takes any address.
            unsafe {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
        }
        #[inline(always)]
        fn store_part(self, v: __m512, to: &mut [f32]) {
            assert!(to.len() <= Self::WIDTH);
            // As many ones as there is room for numbers.
            let lanes = ((1u32 << to.len()) - 1) as u16;
            // SAFETY: as above; lanes without a one are not written.
            unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr(), lanes, v) }
        }
    }
}
