//! Eight float32 lanes, written once for every instruction set.
//!
//! A kernel is one generic function over [`Lanes`]; [`Simd`] picks the instructions it is compiled to.
//! Every operation here is a single correctly rounded IEEE operation, so that a kernel gives the same
//! bits in vector registers and in plain Rust. Everything is `inline(always)`: the code has to end up
//! inside the one function per kernel that may use the instructions (see [`Simd::call`]).

use super::Simd;

/// Lanes in a vector.
pub const LANES: usize = 8;

/// Arithmetic on one number or on several side by side.
pub trait Arithmetic: Copy {
    /// The number or numbers.
    type V: Copy;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::V;
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`, rounded once.
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a < b ? a : b`: `b` when either is not a number.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a > b ? a : b`: `b` when either is not a number.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// To the nearest integer, ties to even.
    fn round(self, a: Self::V) -> Self::V;
    /// `y * 2^n` for an integer `n` in -252..=254, as two multiplications, so that the factors exist
    /// where the result is subnormal or infinite; not a number when `y` is not; otherwise unspecified.
    fn scale(self, y: Self::V, n: Self::V) -> Self::V;
}

/// [`LANES`] numbers at a time.
pub trait Lanes: Arithmetic {
    /// The first [`LANES`] numbers at `from`.
    ///
    /// # Safety
    /// They must be readable.
    unsafe fn load_at(self, from: *const f32) -> Self::V;

    /// The first [`LANES`] bf16 numbers at `from`, widened: their bits are the upper half of a float32.
    ///
    /// # Safety
    /// They must be readable.
    unsafe fn load_bf16_at(self, from: *const u16) -> Self::V;

    /// Writes [`LANES`] numbers at `to`.
    ///
    /// # Safety
    /// They must be writable.
    unsafe fn store_at(self, v: Self::V, to: *mut f32);

    /// Runs another kernel with the same instructions, as a call of its own.
    fn call<K: Kernel>(self, kernel: K) -> K::Output;

    /// Eight numbers.
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::V {
        // SAFETY: an array of eight.
        unsafe { self.load_at(from.as_ptr()) }
    }

    /// Writes eight numbers.
    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; LANES]) {
        // SAFETY: an array of eight.
        unsafe { self.store_at(v, to.as_mut_ptr()) }
    }

    /// Up to eight numbers, then zeros.
    #[inline(always)]
    fn load_part(self, from: &[f32]) -> Self::V {
        let mut all = [0.0; LANES];
        all[..from.len()].copy_from_slice(from);
        self.load(&all)
    }

    /// Writes the first `to.len()` lanes, at most eight.
    #[inline(always)]
    fn store_part(self, v: Self::V, to: &mut [f32]) {
        let all = self.to_array(v);
        to.copy_from_slice(&all[..to.len()]);
    }

    /// The lanes.
    #[inline(always)]
    fn to_array(self, v: Self::V) -> [f32; LANES] {
        let mut all = [0.0; LANES];
        self.store(v, &mut all);
        all
    }

    /// Sum of the lanes, as a tree: halves, quarters, neighbours.
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        let [a, b, c, d, e, f, g, h] = self.to_array(v);
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }

    /// Largest of the lanes, as the same tree.
    #[inline(always)]
    fn largest(self, v: Self::V) -> f32 {
        let [a, b, c, d, e, f, g, h] = self.to_array(v);
        let max = |a, b| Scalar.max(a, b);
        max(max(max(a, e), max(c, g)), max(max(b, f), max(d, h)))
    }
}

/// What [`Simd::call`] runs: a kernel with its operands.
pub trait Kernel {
    /// What the kernel returns.
    type Output;
    /// The kernel. Implementations are `#[inline(always)]`.
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

impl Simd {
    /// Runs a kernel compiled for these instructions.
    #[inline]
    pub fn call<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 | Simd::Avx2 => {
                // SAFETY: whoever holds either value has checked that the processor has AVX2 and FMA
                // (`CpuDevice::new` does), see `Simd`.
                let lanes = unsafe { avx2::Avx2::assume() };
                lanes.call(kernel)
            }
            #[cfg(not(target_arch = "x86_64"))]
            Simd::Avx512 | Simd::Avx2 => Portable.call(kernel),
            Simd::Portable => Portable.call(kernel),
        }
    }
}

/// One number at a time.
#[derive(Clone, Copy)]
pub struct Scalar;

impl Arithmetic for Scalar {
    type V = f32;

    #[inline(always)]
    fn splat(self, x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn add(self, a: f32, b: f32) -> f32 {
        a + b
    }
    #[inline(always)]
    fn sub(self, a: f32, b: f32) -> f32 {
        a - b
    }
    #[inline(always)]
    fn mul(self, a: f32, b: f32) -> f32 {
        a * b
    }
    #[inline(always)]
    fn div(self, a: f32, b: f32) -> f32 {
        a / b
    }
    #[inline(always)]
    fn fma(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    #[inline(always)]
    fn fnma(self, a: f32, b: f32, c: f32) -> f32 {
        (-a).mul_add(b, c)
    }
    #[inline(always)]
    fn min(self, a: f32, b: f32) -> f32 {
        if a < b { a } else { b }
    }
    #[inline(always)]
    fn max(self, a: f32, b: f32) -> f32 {
        if a > b { a } else { b }
    }
    #[inline(always)]
    fn round(self, a: f32) -> f32 {
        a.round_ties_even()
    }
    #[inline(always)]
    fn scale(self, y: f32, n: f32) -> f32 {
        // Adding to the exponent field of 1.0; wraps where the result is unspecified.
        let power = |n: i32| f32::from_bits(((n as u32) << 23).wrapping_add(1.0f32.to_bits()));
        let n = n as i32;
        let half = n >> 1;
        y * power(half) * power(n.wrapping_sub(half))
    }
}

/// Eight lanes in plain Rust.
#[derive(Clone, Copy)]
pub struct Portable;

/// Applies a scalar operation lane by lane.
macro_rules! lane_by_lane {
    ($($name:ident($($operand:ident),+);)+) => {
        $(
            #[inline(always)]
            fn $name(self, $($operand: Self::V),+) -> Self::V {
                std::array::from_fn(|lane| Scalar.$name($($operand[lane]),+))
            }
        )+
    };
}

impl Arithmetic for Portable {
    type V = [f32; LANES];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }

    lane_by_lane! {
        add(a, b);
        sub(a, b);
        mul(a, b);
        div(a, b);
        fma(a, b, c);
        fnma(a, b, c);
        min(a, b);
        max(a, b);
        round(a);
        scale(y, n);
    }
}

impl Lanes for Portable {
    #[inline(always)]
    unsafe fn load_at(self, from: *const f32) -> Self::V {
        // SAFETY: the caller vouches for eight numbers; an array of f32 is aligned like one.
        unsafe { *from.cast::<[f32; LANES]>() }
    }
    #[inline(always)]
    unsafe fn load_bf16_at(self, from: *const u16) -> Self::V {
        // SAFETY: as above.
        let bits = unsafe { *from.cast::<[u16; LANES]>() };
        std::array::from_fn(|lane| f32::from_bits((bits[lane] as u32) << 16))
    }
    #[inline(always)]
    unsafe fn store_at(self, v: Self::V, to: *mut f32) {
        // SAFETY: as above.
        unsafe { *to.cast::<[f32; LANES]>() = v }
    }
    #[inline(never)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{Arithmetic, Kernel, Lanes};

    /// Eight lanes in an AVX register. A value of this type is the proof that the processor has AVX2
    /// and FMA: there is no other way to one than [`Avx2::assume`].
    #[derive(Clone, Copy)]
    pub struct Avx2(());

    impl Avx2 {
        /// # Safety
        /// The processor must have AVX2 and FMA.
        #[inline(always)]
        pub unsafe fn assume() -> Avx2 {
            Avx2(())
        }
    }

    /// Methods that are one intrinsic each.
    macro_rules! intrinsics {
        ($($name:ident($($operand:ident),+) = $intrinsic:expr;)+) => {
            $(
                #[inline(always)]
                fn $name(self, $($operand: __m256),+) -> __m256 {
                    // SAFETY: `self` proves that the processor has AVX2 and FMA.
                    unsafe { $intrinsic }
                }
            )+
        };
    }

    impl Arithmetic for Avx2 {
        type V = __m256;

        #[inline(always)]
        fn splat(self, x: f32) -> __m256 {
            // SAFETY: as in `intrinsics`.
            unsafe { _mm256_set1_ps(x) }
        }

        intrinsics! {
            add(a, b) = _mm256_add_ps(a, b);
            sub(a, b) = _mm256_sub_ps(a, b);
            mul(a, b) = _mm256_mul_ps(a, b);
            div(a, b) = _mm256_div_ps(a, b);
            fma(a, b, c) = _mm256_fmadd_ps(a, b, c);
            fnma(a, b, c) = _mm256_fnmadd_ps(a, b, c);
            min(a, b) = _mm256_min_ps(a, b);
            max(a, b) = _mm256_max_ps(a, b);
            round(a) = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
            scale(y, n) = {
                let power = |n| {
                    let one = _mm256_castps_si256(_mm256_set1_ps(1.0));
                    _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32::<23>(n), one))
                };
                let n = _mm256_cvtps_epi32(n);
                let half = _mm256_srai_epi32::<1>(n);
                let rest = _mm256_sub_epi32(n, half);
                _mm256_mul_ps(_mm256_mul_ps(y, power(half)), power(rest))
            };
        }
    }

    impl Lanes for Avx2 {
        #[inline(always)]
        unsafe fn load_at(self, from: *const f32) -> __m256 {
            // SAFETY: the caller vouches for the numbers, `self` for the instructions.
            unsafe { _mm256_loadu_ps(from) }
        }
        #[inline(always)]
        unsafe fn load_bf16_at(self, from: *const u16) -> __m256 {
            // SAFETY: as above; the load takes any address.
            unsafe {
                // All eight to both halves, then each half's four to the upper bytes of its lanes: the
                // shuffle leaves the ports that multiply alone, which a shift does not.
                let both = _mm256_broadcastsi128_si256(_mm_loadu_si128(from.cast()));
                let upper = _mm256_setr_epi8(
                    -1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7, //
                    -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15,
                );
                _mm256_castsi256_ps(_mm256_shuffle_epi8(both, upper))
            }
        }
        #[inline(always)]
        unsafe fn store_at(self, v: __m256, to: *mut f32) {
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(to, v) }
        }
        #[inline(always)]
        fn call<K: Kernel>(self, kernel: K) -> K::Output {
            // SAFETY: `self` proves that the processor has what `run` is compiled for.
            unsafe { run(kernel) }
        }
    }

    /// The one place where kernels are compiled to these instructions.
    #[target_feature(enable = "avx2,fma")]
    #[inline(never)]
    fn run<K: Kernel>(kernel: K) -> K::Output {
        kernel.run(Avx2(()))
    }
}

#[cfg(test)]
mod tests;
