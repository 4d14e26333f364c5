//! What happens to a query or key head before it meets another.

use crate::cpu::lanes::{Kernel, LANES, Lanes};
use crate::cpu::math::update;
use crate::cpu::norm::normalise;

/// `out = rotate(norm(x) * weight) * scale`.
pub struct PrepareHead<'a> {
    /// The head, as projected.
    pub x: &'a [f32],
    /// Norm weights.
    pub weight: &'a [f32],
    /// Epsilon of the norm.
    pub eps: f32,
    /// Cosines, then sines, of the row.
    pub rotary: &'a [f32],
    /// Applied last.
    pub scale: f32,
    /// The head, prepared.
    pub out: &'a mut [f32],
}

impl Kernel for PrepareHead<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let PrepareHead { x, weight, eps, rotary, scale, out } = self;
        normalise(l, x, weight, eps, out);
        let half = rotary.len() / 2;
        let (cosines, sines) = rotary.split_at(half);
        let (first, second) = out[..2 * half].split_at_mut(half);
        let pairs = first.chunks_mut(LANES).zip(second.chunks_mut(LANES));
        let angles = cosines.chunks(LANES).zip(sines.chunks(LANES));
        for ((first, second), (cosine, sine)) in pairs.zip(angles) {
            let (a, b) = (l.load_part(first), l.load_part(second));
            let (c, s) = (l.load_part(cosine), l.load_part(sine));
            l.store_part(l.fnma(b, s, l.mul(a, c)), first);
            l.store_part(l.fma(a, s, l.mul(b, c)), second);
        }
        let scale = l.splat(scale);
        update(
            l,
            out,
            [],
            #[inline(always)]
            |x, []| l.mul(x, scale),
        );
    }
}
