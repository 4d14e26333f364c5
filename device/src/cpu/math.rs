//! exp, sigmoid, silu and softplus, written once over [`Arithmetic`]: one number, eight in plain Rust
//! and eight in a vector register go through the same operations and agree in every bit.

use super::lanes::{Arithmetic, LANES, Lanes};

/// `e^x` to within one unit in the last place over the whole range, subnormal results included;
/// infinity from 88.72284 on, zero below -103.97.
///
/// Cody-Waite reduction to |r| <= ln(2)/2, a polynomial, and a scaling by `2^n`.
#[inline(always)]
pub fn exp<A: Arithmetic>(a: A, x: A::V) -> A::V {
    // ln 2 in two parts: the first has trailing zeros, so that n times it is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // (e^r - 1 - r) / r^2, best in the sense that the relative error of e^r is least: 3.1e-9. Found
    // with Remez's algorithm.
    const C: [f32; 5] = [0.499_999_94, 0.166_665_21, 0.041_668_39, 0.008_368_745, 0.001_381_454];

    // Beyond these the result is 0 or infinity anyway. The operand order lets NaN through.
    let x = a.min(a.splat(89.0), a.max(a.splat(-105.0), x));
    let n = a.round(a.mul(x, a.splat(std::f32::consts::LOG2_E)));
    let r = a.fnma(n, a.splat(LN2_HIGH), x);
    let r = a.fnma(n, a.splat(LN2_LOW), r);
    // Two short chains instead of a long one (Estrin's scheme).
    let r2 = a.mul(r, r);
    let low = a.fma(a.splat(C[1]), r, a.splat(C[0]));
    let high = a.fma(a.splat(C[3]), r, a.splat(C[2]));
    let p = a.fma(a.fma(a.splat(C[4]), r2, high), r2, low);
    // 1 + (r + r^2 p): the large term last.
    let y = a.add(a.fma(r2, p, r), a.splat(1.0));
    a.scale(y, n)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid<A: Arithmetic>(a: A, x: A::V) -> A::V {
    let one = a.splat(1.0);
    a.div(one, a.add(one, exp(a, a.sub(a.splat(0.0), x))))
}

/// `x * sigmoid(x)`. Not a number at negative infinity, as its definition says.
#[inline(always)]
pub fn silu<A: Arithmetic>(a: A, x: A::V) -> A::V {
    a.div(x, a.add(a.splat(1.0), exp(a, a.sub(a.splat(0.0), x))))
}

/// `ln(1 + e^x)` as `max(x, 0) + ln(1 + e^-|x|)`, which loses nothing at either end.
#[inline(always)]
pub fn softplus<A: Arithmetic>(a: A, x: A::V) -> A::V {
    // ln(1 + y) = 2 artanh(s) with s = y / (2 + y), at most 1/3; (artanh(s) / s - 1) / s^2 as a
    // polynomial in s^2, best in the sense that the relative error of the result is least: 4.5e-9.
    const C: [f32; 4] = [0.333_332_1, 0.200_107_66, 0.140_008_4, 0.140_063_33];

    let zero = a.splat(0.0);
    let y = exp(a, a.min(x, a.sub(zero, x)));
    let s = a.div(y, a.add(y, a.splat(2.0)));
    let (s2, twice) = (a.mul(s, s), a.add(s, s));
    let mut p = a.splat(C[3]);
    for &c in C[..3].iter().rev() {
        p = a.fma(p, s2, a.splat(c));
    }
    a.add(a.max(x, zero), a.fma(a.mul(twice, s2), p, twice))
}

/// Sum of squares. Numbers go round four vectors of eight lanes, then the vectors and the lanes are
/// added as a tree: the order depends on nothing but the length.
#[inline(always)]
pub fn sum_of_squares<L: Lanes>(l: L, x: &[f32]) -> f32 {
    let mut sums = [l.splat(0.0); 4];
    let (blocks, rest) = x.as_chunks::<{ 4 * LANES }>();
    for block in blocks {
        let (vectors, _) = block.as_chunks::<LANES>();
        for (sum, x) in sums.iter_mut().zip(vectors) {
            let x = l.load(x);
            *sum = l.fma(x, x, *sum);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest.chunks(LANES)) {
        let x = l.load_part(x);
        *sum = l.fma(x, x, *sum);
    }
    l.sum(l.add(l.add(sums[0], sums[2]), l.add(sums[1], sums[3])))
}

/// `out = f(inputs)` vector by vector, the last one filled up with zeros. All slices are equally long.
/// Mark the closure `#[inline(always)]`, as everything that works on lanes.
#[inline(always)]
pub fn map<L: Lanes, const N: usize>(
    l: L,
    out: &mut [f32],
    inputs: [&[f32]; N],
    f: impl Fn([L::V; N]) -> L::V,
) {
    update(
        l,
        out,
        inputs,
        #[inline(always)]
        |_, inputs| f(inputs),
    );
}

/// `out = f(out, inputs)`, as [`map`].
#[inline(always)]
pub fn update<L: Lanes, const N: usize>(
    l: L,
    out: &mut [f32],
    inputs: [&[f32]; N],
    f: impl Fn(L::V, [L::V; N]) -> L::V,
) {
    for input in inputs {
        assert_eq!(input.len(), out.len());
    }
    let (vectors, rest) = out.as_chunks_mut::<LANES>();
    let whole = vectors.len() * LANES;
    // Plain loops: `array::map` need not be inlined.
    let mut operands = [l.splat(0.0); N];
    for (i, out) in vectors.iter_mut().enumerate() {
        for (operand, input) in operands.iter_mut().zip(inputs) {
            // SAFETY: vector `i` is inside `out`, and the inputs are as long.
            *operand = unsafe { l.load_at(input.as_ptr().add(i * LANES)) };
        }
        l.store(f(l.load(out), operands), out);
    }
    if !rest.is_empty() {
        for (operand, input) in operands.iter_mut().zip(inputs) {
            *operand = l.load_part(&input[whole..]);
        }
        l.store_part(f(l.load_part(rest), operands), rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Simd;
    use crate::cpu::lanes::{Kernel, Scalar};

    #[derive(Clone, Copy, Debug)]
    enum Function {
        Exp,
        Sigmoid,
        Silu,
        Softplus,
    }

    /// A function over a slice, in vectors and a tail.
    struct Apply<'a>(Function, &'a [f32]);

    impl Kernel for Apply<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn run<L: Lanes>(self, l: L) -> Vec<f32> {
            let mut out = vec![0.0; self.1.len()];
            match self.0 {
                Function::Exp => map(
                    l,
                    &mut out,
                    [self.1],
                    #[inline(always)]
                    |[x]| exp(l, x),
                ),
                Function::Sigmoid => {
                    map(
                        l,
                        &mut out,
                        [self.1],
                        #[inline(always)]
                        |[x]| sigmoid(l, x),
                    );
                }
                Function::Silu => map(
                    l,
                    &mut out,
                    [self.1],
                    #[inline(always)]
                    |[x]| silu(l, x),
                ),
                Function::Softplus => {
                    map(
                        l,
                        &mut out,
                        [self.1],
                        #[inline(always)]
                        |[x]| softplus(l, x),
                    );
                }
            }
            out
        }
    }

    fn one(function: Function, x: f32) -> f32 {
        match function {
            Function::Exp => exp(Scalar, x),
            Function::Sigmoid => sigmoid(Scalar, x),
            Function::Silu => silu(Scalar, x),
            Function::Softplus => softplus(Scalar, x),
        }
    }

    const FUNCTIONS: [Function; 4] =
        [Function::Exp, Function::Sigmoid, Function::Silu, Function::Softplus];

    /// Numbers of every sign and exponent, close together where it matters, and the special ones.
    fn samples() -> Vec<f32> {
        let mut samples = vec![
            88.722_83,
            88.722_84,
            -87.336_54,
            -87.336_55,
            -103.278_93,
            -103.972_07,
            -103.972_08,
            -105.0,
            89.0,
        ];
        samples.extend((0..=u32::MAX / 65_521).map(|i| f32::from_bits(i * 65_521)));
        samples.extend((-110_000..90_000).map(|i| i as f32 / 1000.0));
        samples
    }

    fn bits(x: &f32) -> u32 {
        if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }
    }

    #[test]
    fn one_eight_and_vector_registers_agree_in_every_bit() {
        let samples = samples();
        for function in FUNCTIONS {
            let scalar: Vec<u32> = samples.iter().map(|&x| bits(&one(function, x))).collect();
            for simd in [Simd::Portable, Simd::detect()] {
                let found: Vec<u32> =
                    simd.call(Apply(function, &samples)).iter().map(bits).collect();
                assert!(found == scalar, "{function:?} on {simd}");
            }
        }
    }

    #[test]
    fn tails_agree_with_whole_vectors() {
        let samples: Vec<f32> = samples().into_iter().step_by(997).take(60).collect();
        for (function, simd) in
            FUNCTIONS.iter().flat_map(|f| [(f, Simd::Portable), (f, Simd::detect())])
        {
            for len in 0..=40 {
                for start in 0..8 {
                    let x = &samples[start..start + len];
                    let expected: Vec<u32> = x.iter().map(|&x| bits(&one(*function, x))).collect();
                    let found: Vec<u32> = simd.call(Apply(*function, x)).iter().map(bits).collect();
                    assert_eq!(found, expected, "{function:?} of {len} numbers on {simd}");
                }
            }
        }
    }

    /// Distance from the exact result in units in the last place of the float32 nearest to it.
    fn error(found: f32, exact: f64) -> f64 {
        let nearest = exact as f32;
        if found == nearest || (found.is_nan() && exact.is_nan()) {
            return 0.0;
        }
        let ulp = f64::from(nearest.abs().next_up()) - f64::from(nearest.abs());
        (f64::from(found) - exact).abs() / ulp
    }

    #[test]
    fn results_are_within_a_few_units_in_the_last_place() {
        let mut worst = [0.0f64; 4];
        for x in samples() {
            let exact = f64::from(x).exp();
            let sigmoid_of = 1.0 / (1.0 + f64::from(-x).exp());
            let errors = [
                error(exp(Scalar, x), exact),
                // Below 1e-37 the exponential is infinite before the quotient is zero.
                if x < -87.0 { 0.0 } else { error(sigmoid(Scalar, x), sigmoid_of) },
                if x < -87.0 { 0.0 } else { error(silu(Scalar, x), f64::from(x) * sigmoid_of) },
                error(softplus(Scalar, x), if x > 700.0 { f64::from(x) } else { exact.ln_1p() }),
            ];
            for (worst, error) in worst.iter_mut().zip(errors) {
                *worst = worst.max(error);
            }
        }
        let [exp, sigmoid, silu, softplus] = worst;
        assert!(exp < 1.0 && sigmoid < 2.5 && silu < 2.5 && softplus < 3.0, "{worst:?}");
    }

    #[test]
    fn special_numbers_give_what_the_definitions_say() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let bits = |x: f32| x.to_bits();
        assert_eq!(exp(Scalar, 0.0), 1.0);
        assert_eq!(exp(Scalar, -0.0), 1.0);
        assert_eq!(exp(Scalar, inf), inf);
        assert_eq!(bits(exp(Scalar, -inf)), 0);
        assert_eq!(exp(Scalar, 88.722_84), inf);
        assert!(exp(Scalar, 88.722_83) < inf);
        assert_eq!(exp(Scalar, -103.97), f32::from_bits(1));
        assert!(exp(Scalar, nan).is_nan());
        assert_eq!(
            [sigmoid(Scalar, inf), sigmoid(Scalar, 0.0), sigmoid(Scalar, -inf)],
            [1.0, 0.5, 0.0]
        );
        assert!(sigmoid(Scalar, nan).is_nan() && silu(Scalar, nan).is_nan());
        assert_eq!(bits(silu(Scalar, -0.0)), bits(-0.0));
        assert_eq!(bits(silu(Scalar, -200.0)), bits(-0.0));
        assert_eq!(silu(Scalar, 200.0), 200.0);
        assert_eq!(softplus(Scalar, 0.0), std::f32::consts::LN_2);
        assert_eq!(
            [softplus(Scalar, inf), softplus(Scalar, -inf), softplus(Scalar, 1e30)],
            [inf, 0.0, 1e30]
        );
        assert!(softplus(Scalar, nan).is_nan());
    }

    #[test]
    fn squares_are_summed_in_the_same_order_everywhere() {
        struct Squares<'a>(&'a [f32]);
        impl Kernel for Squares<'_> {
            type Output = f32;
            #[inline(always)]
            fn run<L: Lanes>(self, l: L) -> f32 {
                sum_of_squares(l, self.0)
            }
        }
        let x: Vec<f32> = (0..300).map(|i| ((i * 37 % 101) as f32 - 50.0) / 7.0).collect();
        for len in 0..x.len() {
            let x = &x[..len];
            let sum = Simd::detect().call(Squares(x));
            assert_eq!(sum.to_bits(), Simd::Portable.call(Squares(x)).to_bits());
            let exact: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
            assert!((f64::from(sum) - exact).abs() <= 1e-6 * exact);
        }
    }
}
