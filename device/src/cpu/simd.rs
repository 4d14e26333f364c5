//! Which vector instructions the kernels use.

use std::fmt;

/// An implementation of every kernel. Both give the same bits: the portable one uses fused
/// multiply-adds in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simd {
    /// x86-64 with AVX2 and FMA. A device holds this value only on a processor that has both.
    Avx2,
    /// Plain Rust, for every processor.
    Portable,
}

impl Simd {
    /// The best one this processor can run.
    pub fn detect() -> Simd {
        if Simd::Avx2.is_supported() { Simd::Avx2 } else { Simd::Portable }
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
            #[cfg(not(target_arch = "x86_64"))]
            Simd::Avx2 => false,
        }
    }
}

impl fmt::Display for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
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
