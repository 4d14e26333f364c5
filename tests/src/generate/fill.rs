//! Filling tensors with numbers, fast: the smallest published model has 750 million.

use std::sync::OnceLock;

use half::bf16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use safetensors::Dtype;

use super::tensors::Tensor;

/// What the numbers of a tensor are.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fill {
    /// Normally distributed.
    Normal { mean: f32, deviation: f32 },
    /// The logarithm of a number evenly distributed between two.
    LogOfUniform { from: f32, to: f32 },
    /// What softplus turns into a number whose logarithm is evenly distributed.
    InverseSoftplus { from: f32, to: f32 },
    /// All zero.
    Zero,
    /// Zero, but for some numbers at `(row, column)` of a matrix.
    Sparse(Vec<(usize, usize, f32)>),
}

/// Little-endian bytes of a tensor. Its numbers depend on its seed and its name, not on what is made
/// before it.
pub(super) fn bytes(tensor: &Tensor) -> Vec<u8> {
    let count = tensor.shape.iter().product();
    let mut random = ChaCha8Rng::seed_from_u64(tensor.seed ^ hash(&tensor.name));
    match &tensor.fill {
        &Fill::Normal { mean, deviation } if tensor.dtype == Dtype::BF16 => {
            let table: Vec<u16> = normals()
                .iter()
                .map(|&normal| bf16::from_f32(mean + deviation * normal).to_bits())
                .collect();
            from_table(&table, count, &mut random)
        }
        &Fill::Normal { mean, deviation } => {
            numbers(tensor.dtype, count, || mean + deviation * normals()[index(&mut random)])
        }
        &Fill::LogOfUniform { from, to } => {
            numbers(tensor.dtype, count, || (from + (to - from) * uniform(&mut random)).ln())
        }
        &Fill::InverseSoftplus { from, to } => numbers(tensor.dtype, count, || {
            let value = from * (to / from).powf(uniform(&mut random));
            // softplus(x) = ln(1 + e^x)
            value.exp_m1().ln()
        }),
        Fill::Zero => vec![0; tensor.bytes()],
        Fill::Sparse(entries) => sparse(tensor, entries),
    }
}

fn numbers(dtype: Dtype, count: usize, mut next: impl FnMut() -> f32) -> Vec<u8> {
    if dtype == Dtype::F32 {
        (0..count).flat_map(|_| next().to_le_bytes()).collect()
    } else {
        (0..count).flat_map(|_| bf16::from_f32(next()).to_le_bytes()).collect()
    }
}

/// Draws from a table of bf16 numbers with one entry for every value of 16 random bits.
fn from_table(table: &[u16], count: usize, random: &mut ChaCha8Rng) -> Vec<u8> {
    let mut bytes = vec![0; 2 * count];
    for chunk in bytes.chunks_mut(1 << 16) {
        random.fill_bytes(chunk);
        for pair in chunk.chunks_exact_mut(2) {
            let entry = table[usize::from(u16::from_le_bytes([pair[0], pair[1]]))];
            pair.copy_from_slice(&entry.to_le_bytes());
        }
    }
    bytes
}

fn sparse(tensor: &Tensor, entries: &[(usize, usize, f32)]) -> Vec<u8> {
    let columns = tensor.shape.last().copied().unwrap_or(1);
    let mut bytes = vec![0; tensor.bytes()];
    for &(row, column, value) in entries {
        let at = 2 * (row * columns + column);
        bytes[at..at + 2].copy_from_slice(&bf16::from_f32(value).to_le_bytes());
    }
    bytes
}

/// 65,536 numbers of the standard normal distribution, by Box and Muller.
fn normals() -> &'static [f32] {
    static TABLE: OnceLock<Vec<f32>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let pair = || {
            let radius = (-2.0 * (1.0 - uniform(&mut random)).ln()).sqrt();
            let angle = std::f32::consts::TAU * uniform(&mut random);
            [radius * angle.cos(), radius * angle.sin()]
        };
        std::iter::repeat_with(pair).take(1 << 15).flatten().collect()
    })
}

fn index(random: &mut ChaCha8Rng) -> usize {
    (random.next_u32() >> 16) as usize
}

/// From 0 to below 1.
fn uniform(random: &mut ChaCha8Rng) -> f32 {
    (random.next_u32() >> 8) as f32 / (1 << 24) as f32
}

/// FNV-1a.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(fill: Fill, dtype: Dtype) -> Tensor {
        Tensor { name: "t".into(), shape: vec![100, 1000], dtype, fill, seed: 1 }
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        let bytes = bytes(tensor);
        match tensor.dtype {
            Dtype::F32 => {
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
            }
            _ => bytes
                .chunks_exact(2)
                .map(|b| bf16::from_le_bytes(b.try_into().unwrap()).to_f32())
                .collect(),
        }
    }

    #[test]
    fn normal_numbers_have_their_mean_and_deviation() {
        for dtype in [Dtype::BF16, Dtype::F32] {
            let values = values(&tensor(Fill::Normal { mean: 1.0, deviation: 0.5 }, dtype));
            let count = values.len() as f32;
            let mean = values.iter().sum::<f32>() / count;
            let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / count;
            assert!((mean - 1.0).abs() < 0.01, "{mean}");
            assert!((variance.sqrt() - 0.5).abs() < 0.01, "{variance}");
        }
    }

    #[test]
    fn other_numbers_stay_in_their_ranges() {
        let decay = values(&tensor(Fill::LogOfUniform { from: 1.0, to: 16.0 }, Dtype::F32));
        assert!(decay.iter().all(|&v| (0.0..=16_f32.ln()).contains(&v)));
        let bias = values(&tensor(Fill::InverseSoftplus { from: 1e-3, to: 0.1 }, Dtype::BF16));
        assert!(bias.iter().all(|&v| (9e-4..0.11).contains(&v.exp().ln_1p())));
        assert!(values(&tensor(Fill::Zero, Dtype::BF16)).iter().all(|&v| v == 0.0));
        let sparse = values(&tensor(Fill::Sparse(vec![(2, 3, 1.5)]), Dtype::BF16));
        assert_eq!(sparse.iter().position(|&v| v != 0.0), Some(2003));
        assert_eq!(sparse[2003], 1.5);
    }

    #[test]
    fn numbers_depend_on_seed_and_name() {
        let one = tensor(Fill::Normal { mean: 0.0, deviation: 1.0 }, Dtype::BF16);
        assert_eq!(bytes(&one), bytes(&one.clone()));
        assert_ne!(bytes(&one), bytes(&Tensor { seed: 2, ..one.clone() }));
        assert_ne!(bytes(&one), bytes(&Tensor { name: "u".into(), ..one.clone() }));
    }
}
