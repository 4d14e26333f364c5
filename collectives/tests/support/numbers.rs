//! Numbers to add, and how to compare sums.

/// Well mixed bits of `x` (the finalizer of MurmurHash3).
pub fn mix(mut x: u64) -> u64 {
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        x = (x ^ (x >> 33)).wrapping_mul(factor);
    }
    x ^ (x >> 33)
}

/// Element `i` of what `rank` brings: of varied size, so that the order of additions shows.
pub fn number(rank: usize, i: usize) -> f32 {
    let bits = mix((rank as u64) << 40 | i as u64);
    let scale = f32::from_bits(((bits >> 32) as u32 % 24 + 115) << 23);
    (bits as i32 as f32 / i32::MAX as f32) * scale
}

/// What `rank` brings.
pub fn plane(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| number(rank, i)).collect()
}

/// The sum over the ranks in the order given, one after the other.
pub fn serial_sum(ranks: impl IntoIterator<Item = usize>, len: usize) -> Vec<f32> {
    let mut ranks = ranks.into_iter();
    let mut sum = plane(ranks.next().unwrap(), len);
    for rank in ranks {
        sum.iter_mut().enumerate().for_each(|(i, sum)| *sum += number(rank, i));
    }
    sum
}

/// Panics at the first number whose bits differ.
pub fn assert_same_bits(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            found.to_bits() == expected.to_bits(),
            "{what}: number {i} is {found:e}, expected {expected:e}"
        );
    }
}
