//! The delta rule, one token after the other.

use crate::cpu::lanes::{Kernel, LANES, Lanes};
use crate::cpu::strip::STRIP;

/// One head's tokens, in order of time, through one strip of its matrix:
/// `S *= keep; d = write * (v - S^T k); S += k d^T; o = S^T q`.
pub struct Steps<'a> {
    /// Queries, `[tokens, key_dim]`.
    pub q: &'a [f32],
    /// Keys, `[tokens, key_dim]`.
    pub k: &'a [f32],
    /// Numbers of a key.
    pub key_dim: usize,
    /// What the state is multiplied by, by token.
    pub keep: &'a [f32],
    /// Share of the error that is written, by token.
    pub write: &'a [f32],
    /// The strip's sixteen values of token `i` are at `i * distance`; its outputs take their place.
    pub values: &'a mut [f32],
    /// Distance between tokens.
    pub distance: usize,
    /// The strip, `[key_dim, 16]`.
    pub strip: &'a mut [f32],
}

/// Sums over the rows of the matrix that run side by side, each over every fourth row.
const CHAINS: usize = 4;

impl Kernel for Steps<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Steps { q, k, key_dim, keep, write, values, distance, strip } = self;
        let rows = strip.as_chunks_mut::<STRIP>().0;
        for (token, (&keep, &write)) in keep.iter().zip(write).enumerate() {
            let q = &q[token * key_dim..(token + 1) * key_dim];
            let k = &k[token * key_dim..(token + 1) * key_dim];
            let value: &mut [f32] = &mut values[token * distance..][..STRIP];
            step(l, q, k, keep, write, value, rows);
        }
    }
}

#[inline(always)]
fn step<L: Lanes>(
    l: L,
    q: &[f32],
    k: &[f32],
    keep: f32,
    write: f32,
    value: &mut [f32],
    rows: &mut [[f32; STRIP]],
) {
    let zero = [l.splat(0.0); 2];
    // What the decayed state holds for k: the decay is applied to the sum.
    let mut held = [zero; CHAINS];
    let (fours, rest) = rows.as_chunks::<CHAINS>();
    let (k_fours, k_rest) = k.as_chunks::<CHAINS>();
    for (rows, k) in fours.iter().zip(k_fours) {
        for ((row, &k), held) in rows.iter().zip(k).zip(&mut held) {
            add_row(l, row, k, held);
        }
    }
    for ((row, &k), held) in rest.iter().zip(k_rest).zip(&mut held) {
        add_row(l, row, k, held);
    }
    let held = tree(l, held);
    let keep = l.splat(keep);
    let mut d = zero;
    let (halves, _) = value.as_chunks_mut::<LANES>();
    for ((d, held), value) in d.iter_mut().zip(held).zip(halves.iter()) {
        *d = l.mul(l.splat(write), l.fnma(held, keep, l.load(value)));
    }
    let mut o = [zero; CHAINS];
    let (fours, rest) = rows.as_chunks_mut::<CHAINS>();
    let (q_fours, q_rest) = q.as_chunks::<CHAINS>();
    for ((rows, k), q) in fours.iter_mut().zip(k_fours).zip(q_fours) {
        for (((row, &k), &q), o) in rows.iter_mut().zip(k).zip(q).zip(&mut o) {
            update_row(l, row, keep, k, d);
            add_row(l, row, q, o);
        }
    }
    for (((row, &k), &q), o) in rest.iter_mut().zip(k_rest).zip(q_rest).zip(&mut o) {
        update_row(l, row, keep, k, d);
        add_row(l, row, q, o);
    }
    for (o, value) in tree(l, o).into_iter().zip(halves) {
        l.store(o, value);
    }
}

/// `sum += row * x`.
#[inline(always)]
fn add_row<L: Lanes>(l: L, row: &[f32; STRIP], x: f32, sum: &mut [L::V; 2]) {
    let (halves, _) = row.as_chunks::<LANES>();
    let x = l.splat(x);
    for (sum, half) in sum.iter_mut().zip(halves) {
        *sum = l.fma(l.load(half), x, *sum);
    }
}

/// `row = row * keep + k d`.
#[inline(always)]
fn update_row<L: Lanes>(l: L, row: &mut [f32; STRIP], keep: L::V, k: f32, d: [L::V; 2]) {
    let (halves, _) = row.as_chunks_mut::<LANES>();
    let k = l.splat(k);
    for (half, d) in halves.iter_mut().zip(d) {
        let kept = l.mul(l.load(half), keep);
        l.store(l.fma(k, d, kept), half);
    }
}

/// Sum of the chains.
#[inline(always)]
fn tree<L: Lanes>(l: L, sums: [[L::V; 2]; CHAINS]) -> [L::V; 2] {
    let [a, b, c, d] = sums;
    [0, 1].map(
        #[inline(always)]
        |i| l.add(l.add(a[i], c[i]), l.add(b[i], d[i])),
    )
}
