//! Chains of dependent fused multiply-adds, enough of them side by side to hide their latency.

use std::hint::black_box;

/// One way to compute.
pub struct Way {
    pub name: &'static str,
    /// Does this many rounds and returns something that depends on all of them.
    pub run: fn(u64) -> f32,
    /// Rounds of a sample: a few milliseconds.
    pub rounds: u64,
    pub flops_a_round: u64,
}

/// `x -> x * SHRINK + GROW` settles at 1, far from overflow and from subnormal numbers.
const SHRINK: f32 = 0.5;
const GROW: f32 = 0.5;

/// What this processor can run.
pub fn available() -> Vec<Way> {
    let mut ways = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            let flops_a_round = (x86::CHAINS_512 * 16 * 2) as u64;
            // SAFETY: the processor has AVX-512F.
            let run = |rounds| unsafe { x86::avx512(rounds) };
            ways.push(Way { name: "avx512f", run, rounds: 500_000, flops_a_round });
        }
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
        {
            let flops_a_round = (x86::CHAINS_256 * 8 * 2) as u64;
            // SAFETY: the processor has AVX2 and FMA.
            let run = |rounds| unsafe { x86::avx2(rounds) };
            ways.push(Way { name: "avx2+fma", run, rounds: 1_000_000, flops_a_round });
        }
    }
    if ways.is_empty() {
        let flops_a_round = (CHAINS * LANES * 2) as u64;
        ways.push(Way { name: "portable", run: portable, rounds: 50_000, flops_a_round });
    }
    ways
}

const CHAINS: usize = 16;
const LANES: usize = 4;

fn portable(rounds: u64) -> f32 {
    let (shrink, grow) = (black_box(SHRINK), black_box(GROW));
    let mut chains = [[black_box(2.0f32); LANES]; CHAINS];
    for _ in 0..rounds {
        for x in chains.as_flattened_mut() {
            *x = x.mul_add(shrink, grow);
        }
    }
    chains.as_flattened().iter().sum()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::{GROW, SHRINK};

    /// Of 16 registers, two hold the constants.
    pub const CHAINS_256: usize = 12;
    /// Of 32 registers.
    pub const CHAINS_512: usize = 16;

    #[target_feature(enable = "avx2,fma")]
    pub fn avx2(rounds: u64) -> f32 {
        let shrink = _mm256_set1_ps(black_box(SHRINK));
        let grow = _mm256_set1_ps(black_box(GROW));
        let mut chains = [_mm256_set1_ps(black_box(2.0)); CHAINS_256];
        for _ in 0..rounds {
            for x in &mut chains {
                *x = _mm256_fmadd_ps(*x, shrink, grow);
            }
        }
        let sum = chains.into_iter().reduce(|a, b| _mm256_add_ps(a, b));
        sum.map_or(0.0, |sum| _mm256_cvtss_f32(sum))
    }

    #[target_feature(enable = "avx512f")]
    pub fn avx512(rounds: u64) -> f32 {
        let shrink = _mm512_set1_ps(black_box(SHRINK));
        let grow = _mm512_set1_ps(black_box(GROW));
        let mut chains = [_mm512_set1_ps(black_box(2.0)); CHAINS_512];
        for _ in 0..rounds {
            for x in &mut chains {
                *x = _mm512_fmadd_ps(*x, shrink, grow);
            }
        }
        let sum = chains.into_iter().reduce(|a, b| _mm512_add_ps(a, b));
        sum.map_or(0.0, |sum| _mm512_cvtss_f32(sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chain_does_its_rounds() {
        for way in available() {
            // The chains close in on 1 by halves: after 3 rounds each stands at 1.125.
            let chains = way.flops_a_round / 2;
            let after = |rounds| (way.run)(rounds);
            assert!(after(3) > after(30), "{}", way.name);
            assert_eq!(after(3) / after(200), 1.125, "{} {chains}", way.name);
        }
    }
}
