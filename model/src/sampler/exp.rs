//! `exp` for a whole row of logits.
//!
//! Written out rather than taken from the C library for two reasons: the loop over a row becomes
//! vector code, and the bits do not depend on the machine's libm, so a seed gives the same answer
//! wherever it is run.

/// `e^x` for `x <= 0`, within 2 units in the last place; 0 below -87.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`, `e^r` by its Taylor series to the seventh power (the next
/// term is below 2^-27), and `2^n` by writing the exponent bits.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Adding and taking away 1.5 * 2^23 rounds to a whole number without an SSE4 instruction.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts: the product of the first, of 9 bits, with n is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x < -87.0 { -87.0 } else { x };
    let n = (clamped * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    let series = 1.0 / 5040.0;
    let series = series * r + 1.0 / 720.0;
    let series = series * r + 1.0 / 120.0;
    let series = series * r + 1.0 / 24.0;
    let series = series * r + 1.0 / 6.0;
    let series = series * r + 0.5;
    let series = series * r + 1.0;
    let series = series * r + 1.0;
    let scale = f32::from_bits(((n as i32 + 127) as u32) << 23);
    if x < -87.0 { 0.0 } else { series * scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_library_to_two_units_in_the_last_place() {
        let mut worst = 0.0_f64;
        for step in 0..=870_000 {
            let x = -(step as f32) * 1e-4;
            let (ours, exact) = (f64::from(exp(x)), f64::from(x).exp());
            worst = worst.max((ours - exact).abs() / exact);
        }
        assert!(worst < 2.0 * f64::from(f32::EPSILON), "worst relative error {worst:e}");
    }

    #[test]
    fn ends_are_exact() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(-87.1), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    }
}
