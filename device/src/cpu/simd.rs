//! Which vector instructions the kernels use.

use std::fmt;

/// An implementation of every kernel. All give the same bits: the portable one uses fused
/// multiply-adds in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simd {
    /// As [`Simd::Avx2`], with AVX-512F in matrix products. A device holds this value only on a
    /// processor that has all three.
    Avx512,
    /// x86-64 with AVX2 and FMA. A device holds this value only on a processor that has both.
    Avx2,
    /// Plain Rust, for every processor.
    Portable,
}

impl Simd {
    /// The best one this processor can run.
    pub fn detect() -> Simd {
        let best = [Simd::Avx512, Simd::Avx2].into_iter().find(|simd| simd.is_supported());
        best.unwrap_or(Simd::Portable)
    }

    /// Whether this processor can run it.
    pub fn is_supported(self) -> bool {
        match self {
            Simd::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => {
                std::arch::is_x86_feature_detected!("avx2")
                    && std::arch::is_x86_feature_detected!("fma")
            }
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => {
                Simd::Avx2.is_supported() && std::arch::is_x86_feature_detected!("avx512f")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Simd::Avx512 | Simd::Avx2 => false,
        }
    }
}

impl fmt::Display for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Simd::Avx512 => "avx512f",
            Simd::Avx2 => "avx2+fma",
            Simd::Portable => "portable",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_detected_is_supported() {
        assert!(Simd::detect().is_supported());
        assert!(Simd::Portable.is_supported());
    }
}
