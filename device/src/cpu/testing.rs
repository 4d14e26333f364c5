//! What the tests of several kernels share.

use super::{CpuDevice, CpuOptions, CpuTensor, Simd};

/// A source of made-up numbers, always the same from the same seed.
pub struct Numbers(pub u64);

impl Numbers {
    /// The next number, 24 bits fine.
    pub fn next(&mut self, from: f32, to: f32) -> f32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        from + (to - from) * (self.0 >> 40) as f32 / (1u64 << 24) as f32
    }

    /// The next `count` numbers.
    pub fn take(&mut self, count: usize, from: f32, to: f32) -> Vec<f32> {
        (0..count).map(|_| self.next(from, to)).collect()
    }

    /// A tensor of the next numbers.
    pub fn tensor(&mut self, rows: usize, cols: usize, from: f32, to: f32) -> CpuTensor {
        CpuTensor::from_slice(&self.take(rows * cols, from, to), cols).unwrap()
    }

    /// A whole number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.next(0.0, end as f32) as usize % end
    }
}

/// A device with so many threads.
pub fn device(threads: usize, simd: Simd) -> CpuDevice {
    CpuDevice::new(CpuOptions { threads, simd: Some(simd), ..CpuOptions::default() }).unwrap()
}

/// All instructions that this processor has.
pub fn every_simd() -> Vec<Simd> {
    let all = [Simd::Avx512, Simd::Avx2, Simd::Portable];
    all.into_iter().filter(|simd| simd.is_supported()).collect()
}

/// Devices that must all give the same bits.
pub fn devices() -> Vec<CpuDevice> {
    let spread = [2, 5].map(|threads| device(threads, Simd::detect()));
    every_simd().into_iter().map(|simd| device(1, simd)).chain(spread).collect()
}

/// The bits, for exact comparison.
pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Largest difference, relative to the largest expected number.
pub fn relative_error(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let scale = expected.iter().fold(0.0f64, |max, x| max.max(x.abs()));
    let worst = found.iter().zip(expected).map(|(&f, e)| (f64::from(f) - e).abs());
    // Written so that a difference that is not a number counts as the worst.
    worst.fold(0.0, |max, x| if x <= max { max } else { x }) / scale.max(f64::MIN_POSITIVE)
}
