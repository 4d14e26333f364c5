//! The delta rule over a chunk of tokens as matrix products (arXiv 2412.06464, section 3.3, and
//! arXiv 2406.06484, section 3.2).
//!
//! With `r[i, j]` the product of what the state is multiplied by from token `j + 1` to token `i`, and
//! `r[i]` that from the chunk's start, the errors written are the rows of the solution `D` of
//!
//! ```text
//! d[i] + sum over j < i of write[i] r[i, j] (k[i] . k[j]) d[j] = write[i] (v[i] - r[i] S^T k[i])
//! ```
//!
//! and the outputs and the next state
//!
//! ```text
//! o[i] = r[i] S^T q[i] + sum over j <= i of r[i, j] (q[i] . k[j]) d[j]
//! S    = r[last] S + sum over j of r[last, j] k[j] d[j]^T
//! ```
//!
//! The products `r` are formed by multiplication, as one token after the other would: nothing is
//! divided by a decay and no exponential of a positive number occurs, however strong the decay. The
//! system is solved for `D` itself, strip by strip, because on a CPU the chunks follow one another
//! anyway; forming `W` and `U` would cost two more products.

use super::solve::Solve;
use crate::RECURRENCE_CHUNK;
use crate::cpu::lanes::{Kernel, LANES, Lanes};
use crate::cpu::math::{map, update};
use crate::cpu::strip::{Initial, Reach, STRIP, Strided, StripProduct};

const CHUNK: usize = RECURRENCE_CHUNK;

/// Pieces of [`ChunkMemory`].
pub const PIECES: usize = 10;

/// What a chunk is worked on in.
pub struct ChunkMemory<'a> {
    /// Keys as strips of sixteen tokens, each `[key_dim, 16]`.
    key_strips: &'a mut [f32],
    /// `k[i] . k[j]`, up to the strip that holds the diagonal; `[64, 64]`, as the next three.
    key_key: &'a mut [f32],
    /// `q[i] . k[j]`, likewise.
    query_key: &'a mut [f32],
    /// `-write[i] r[i, j] (k[i] . k[j])`.
    system: &'a mut [f32],
    /// `r[i, j] (q[i] . k[j])`.
    attention: &'a mut [f32],
    /// `-write[i] r[i] k[i]`, `[64, key_dim]`, as the next.
    reading_keys: &'a mut [f32],
    /// `r[i]`.
    from_start: &'a mut [f32],
    /// `r[last, j] k[j]`.
    writing_keys: &'a mut [f32],
    /// `D`, one strip.
    errors: &'a mut [f32],
    /// `r[last]`, `key_dim` times.
    kept: &'a mut [f32],
}

impl<'a> ChunkMemory<'a> {
    /// Lengths of the pieces.
    pub fn lengths(key_dim: usize) -> [usize; PIECES] {
        let (square, keys) = (CHUNK * CHUNK, CHUNK * key_dim);
        [keys, square, square, square, square, keys, CHUNK, keys, CHUNK * STRIP, key_dim]
    }

    /// From pieces of these lengths, or from empty ones when no chunk comes.
    pub fn new(pieces: [&'a mut [f32]; PIECES]) -> ChunkMemory<'a> {
        let [
            key_strips,
            key_key,
            query_key,
            system,
            attention,
            reading_keys,
            from_start,
            writing_keys,
            errors,
            kept,
        ] = pieces;
        ChunkMemory {
            key_strips,
            key_key,
            query_key,
            system,
            attention,
            reading_keys,
            from_start,
            writing_keys,
            errors,
            kept,
        }
    }
}

/// What the value heads of a key head share: products of keys with keys and queries.
pub struct KeyProducts<'a, 'm> {
    /// Queries, `[tokens, key_dim]`.
    pub q: &'a [f32],
    /// Keys, `[tokens, key_dim]`.
    pub k: &'a [f32],
    /// Numbers of a key.
    pub key_dim: usize,
    /// Where they go.
    pub memory: &'a mut ChunkMemory<'m>,
}

impl Kernel for KeyProducts<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let KeyProducts { q, k, key_dim, memory } = self;
        let ChunkMemory { key_strips, key_key, query_key, .. } = memory;
        let tokens = k.len() / key_dim;
        for (token, k) in k.chunks_exact(key_dim).enumerate() {
            let strip = &mut key_strips[token / STRIP * key_dim * STRIP..][..key_dim * STRIP];
            for (to, &x) in strip.iter_mut().skip(token % STRIP).step_by(STRIP).zip(k) {
                *to = x;
            }
        }
        for (strip, keys) in key_strips.chunks_exact(key_dim * STRIP).enumerate() {
            // Tokens before the strip's have nothing to do with it.
            let first = strip * STRIP;
            if first >= tokens {
                break;
            }
            for (x, products) in [(k, &mut *key_key), (q, &mut *query_key)] {
                l.call(StripProduct {
                    a: Strided { data: &x[first * key_dim..], row: key_dim, col: 1 },
                    rows: tokens - first,
                    reach: Reach::All(key_dim),
                    b: keys,
                    c: &mut products[first * CHUNK + first..],
                    c_row: CHUNK,
                    initial: Initial::Zero,
                });
            }
        }
    }
}

/// One value head's chunk.
pub struct Chunk<'a, 'm> {
    /// Queries, `[tokens, key_dim]`, at most 64 tokens.
    pub q: &'a [f32],
    /// Keys, `[tokens, key_dim]`.
    pub k: &'a [f32],
    /// Numbers of a key.
    pub key_dim: usize,
    /// What the state is multiplied by, by token.
    pub keep: &'a [f32],
    /// Share of the error that is written, by token.
    pub write: &'a [f32],
    /// Values of token `i` are at `i * distance`; its outputs take their place.
    pub values: &'a mut [f32],
    /// Distance between tokens: the strips' columns.
    pub distance: usize,
    /// The head's matrix, as strips.
    pub matrix: &'a mut [f32],
    /// What [`KeyProducts`] left, and more.
    pub memory: &'a mut ChunkMemory<'m>,
}

impl Kernel for Chunk<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        self.scale(l);
        let Chunk { q, key_dim, keep, values, distance, matrix, memory, .. } = self;
        let tokens = keep.len();
        for (i, strip) in matrix.chunks_exact_mut(key_dim * STRIP).enumerate() {
            let values = &mut values[i * STRIP..];
            let errors = &mut memory.errors[..tokens * STRIP];
            l.call(StripProduct {
                a: Strided { data: memory.reading_keys, row: key_dim, col: 1 },
                rows: tokens,
                reach: Reach::All(key_dim),
                b: strip,
                c: errors,
                c_row: STRIP,
                initial: Initial::From { data: values, row: distance },
            });
            l.call(Solve { a: memory.system, rows: tokens, d: errors });
            l.call(StripProduct {
                a: Strided { data: q, row: key_dim, col: 1 },
                rows: tokens,
                reach: Reach::All(key_dim),
                b: strip,
                c: values,
                c_row: distance,
                initial: Initial::Zero,
            });
            l.call(StripProduct {
                a: Strided { data: memory.attention, row: CHUNK, col: 1 },
                rows: tokens,
                reach: Reach::Stair { first: 1, rows_per_step: 1, limit: tokens },
                b: errors,
                c: values,
                c_row: distance,
                initial: Initial::Scaled(memory.from_start),
            });
            l.call(StripProduct {
                a: Strided { data: memory.writing_keys, row: 1, col: key_dim },
                rows: key_dim,
                reach: Reach::All(tokens),
                b: errors,
                c: strip,
                c_row: STRIP,
                initial: Initial::Scaled(memory.kept),
            });
        }
    }
}

impl Chunk<'_, '_> {
    /// Multiplies the shared products, keys and values by the gates.
    #[inline(always)]
    fn scale<L: Lanes>(&mut self, l: L) {
        let (key_dim, tokens) = (self.key_dim, self.keep.len());
        let memory = &mut *self.memory;
        // r[i, j] for the token at hand and each j: one on the diagonal, nothing beyond.
        let mut ratios = [0.0f32; CHUNK];
        // r[i].
        let mut from_start = 1.0f32;
        for i in 0..tokens {
            let (keep, minus_write) = (l.splat(self.keep[i]), l.splat(-self.write[i]));
            // Entries beyond the diagonal's strip are not there, and none is read.
            let row = i * CHUNK..i * CHUNK + (i + 1).next_multiple_of(LANES);
            let ratios = &mut ratios[..row.len()];
            update(
                l,
                ratios,
                [],
                #[inline(always)]
                |r, []| l.mul(r, keep),
            );
            ratios[i] = 1.0;
            from_start *= self.keep[i];
            memory.from_start[i] = from_start;
            let products = &memory.key_key[row.clone()];
            map(
                l,
                &mut memory.system[row.clone()],
                [&*ratios, products],
                #[inline(always)]
                |[r, p]| l.mul(l.mul(r, minus_write), p),
            );
            let products = &memory.query_key[row.clone()];
            map(
                l,
                &mut memory.attention[row],
                [&*ratios, products],
                #[inline(always)]
                |[r, p]| l.mul(r, p),
            );
            let row = i * key_dim..(i + 1) * key_dim;
            let scale = l.splat(-(self.write[i] * from_start));
            let out = &mut memory.reading_keys[row.clone()];
            map(
                l,
                out,
                [&self.k[row]],
                #[inline(always)]
                |[k]| l.mul(k, scale),
            );
            let (value, write) = (&mut self.values[i * self.distance..], l.splat(self.write[i]));
            let len = self.distance.min(value.len());
            update(
                l,
                &mut value[..len],
                [],
                #[inline(always)]
                |v, []| l.mul(v, write),
            );
        }
        for (j, &ratio) in ratios[..tokens].iter().enumerate() {
            let row = j * key_dim..(j + 1) * key_dim;
            let scale = l.splat(ratio);
            let out = &mut memory.writing_keys[row.clone()];
            map(
                l,
                out,
                [&self.k[row]],
                #[inline(always)]
                |[k]| l.mul(k, scale),
            );
        }
        memory.kept.fill(from_start);
    }
}
