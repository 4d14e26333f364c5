use super::*;

/// Every operation on every combination of these numbers.
struct Operations<'a>(&'a [f32]);

impl Kernel for Operations<'_> {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Vec<u32> {
        let mut bits = Vec::new();
        let mut keep = |v| {
            // A result that is not a number may carry any payload.
            let word = |x: f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
            bits.extend(l.to_array(v).map(word));
        };
        for a in self.0.windows(LANES) {
            let a = l.load_part(a);
            for &b in self.0 {
                let b = l.splat(b);
                keep(l.add(a, b));
                keep(l.sub(a, b));
                keep(l.mul(a, b));
                keep(l.div(a, b));
                keep(l.min(a, b));
                keep(l.max(b, a));
                keep(l.round(a));
                for &c in self.0 {
                    keep(l.fma(a, b, l.splat(c)));
                    keep(l.fnma(a, b, l.splat(c)));
                }
            }
            keep(l.splat(l.sum(a)));
            keep(l.splat(l.largest(a)));
        }
        for n in -252..=254 {
            for y in [1.0, 0.75, -1.4, f32::NAN] {
                keep(l.scale(l.splat(y), l.splat(n as f32)));
            }
        }
        bits
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    let numbers = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        2.5,
        0.5,
        -0.5,
        1e-45,
        -1e-40,
        f32::MIN_POSITIVE,
        3.4e38,
        -3.4e38,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1.000_000_1,
        16_777_216.0,
        -8_388_609.5,
        0.1,
        1e20,
    ];
    let portable = Simd::Portable.call(Operations(&numbers));
    assert_eq!(Simd::detect().call(Operations(&numbers)), portable);
}

#[test]
fn parts_fill_with_zeros_and_write_no_more_than_asked() {
    struct Parts;
    impl Kernel for Parts {
        type Output = ();
        #[inline(always)]
        fn run<L: Lanes>(self, l: L) {
            let numbers: [f32; LANES] = std::array::from_fn(|i| i as f32 + 1.0);
            for len in 0..=LANES {
                let v = l.load_part(&numbers[..len]);
                let all = l.to_array(v);
                assert_eq!(all[..len], numbers[..len]);
                assert!(all[len..].iter().all(|&x| x == 0.0));
                let mut out = [9.0; LANES];
                l.store_part(l.load(&numbers), &mut out[..len]);
                assert_eq!(out[..len], numbers[..len]);
                assert!(out[len..].iter().all(|&x| x == 9.0));
            }
        }
    }
    Simd::Portable.call(Parts);
    Simd::detect().call(Parts);
}
