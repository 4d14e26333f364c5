//! Blocks that are used again, copied, and read by several sequences.

use super::*;

const DTYPES: [KvDtype; 2] = [KvDtype::Float32, KvDtype::Bf16];

fn tensor(rows: &[f32]) -> CpuTensor {
    CpuTensor::from_slice(rows, SMALL.projection()).unwrap()
}

/// D21: what an earlier sequence left in a block reaches no later one, not even as a number that is
/// none.
#[test]
fn used_blocks_give_the_bits_of_fresh_ones() {
    for dtype in DTYPES {
        let layer = Layer { dtype, ..Layer::new(SMALL, 31) };
        let (device, cols) = (device(2, Simd::detect()), SMALL.projection());
        let qkv = layer.sequence(100, 32);
        let fresh = layer.alone(&device, &qkv);
        for dirt in [f32::NAN, f32::INFINITY, 1e30] {
            let mut cache = layer.cache(2);
            cache.fill(None, dirt);
            let own = blocks([1, 0]);
            // A prompt, then one token after the other.
            let mut found = Vec::new();
            for rows in std::iter::once(0..70).chain((70..100).map(|row| row..row + 1)) {
                let segments = [segment(0, 0, rows.len(), rows.start, &own)];
                let rows = tensor(&qkv[rows.start * cols..rows.end * cols]);
                found.extend_from_slice(
                    layer.step(&device, &rows, &segments, &mut cache).as_slice(),
                );
            }
            assert!(bits(&found) == bits(&fresh), "{dtype}, {dirt}");
        }
    }
}

/// D21: two answers share the full blocks of their prompt and go on in copies of the last one, each
/// with the bits it has alone.
#[test]
fn sequences_that_share_a_prompt_have_the_bits_they_have_alone() {
    for dtype in DTYPES {
        let layer = Layer { dtype, ..Layer::new(SMALL, 33) };
        let (device, cols) = (device(2, Simd::detect()), SMALL.projection());
        let prompt = layer.sequence(140, 34);
        let answers = [layer.sequence(60, 35), layer.sequence(60, 36)];
        let mut cache = layer.cache(7);
        cache.fill(None, f32::NAN);
        let first = blocks([4, 0, 6, 2]);
        let second = blocks([4, 0, 1, 3]);
        let segments = [segment(0, 0, 140, 0, &first)];
        let start = layer.step(&device, &tensor(&prompt), &segments, &mut cache);
        cache.copy_block(BlockId(6), BlockId(1)).unwrap();
        let mut found = [start.as_slice().to_vec(), start.as_slice().to_vec()];
        for row in 0..60 {
            let rows = answers.each_ref().map(|answer| &answer[row * cols..(row + 1) * cols]);
            let segments =
                [segment(0, 0, 1, 140 + row, &first), segment(1, 1, 1, 140 + row, &second)];
            let out = layer.step(&device, &tensor(&rows.concat()), &segments, &mut cache);
            for (i, found) in found.iter_mut().enumerate() {
                found.extend_from_slice(out.row(i));
            }
        }
        for (found, answer) in found.iter().zip(&answers) {
            let alone = layer.alone(&device, &[prompt.clone(), answer.clone()].concat());
            assert!(bits(found) == bits(&alone), "{dtype}");
        }
    }
}

#[test]
fn work_is_that_of_the_rows_and_their_positions() {
    use crate::{Device, WorkDone};

    let layer = Layer::new(SMALL, 37);
    let device = device(1, Simd::detect());
    let own = blocks([0, 1]);
    let mut cache = layer.cache(2);
    layer.step(&device, &tensor(&layer.sequence(5, 1)), &[segment(0, 0, 5, 0, &own)], &mut cache);
    let prompt = device.work();
    assert_eq!(prompt, WorkDone { query_key_pairs: 1 + 2 + 3 + 4 + 5, ..WorkDone::default() });
    layer.step(&device, &tensor(&layer.sequence(1, 2)), &[segment(0, 0, 1, 5, &own)], &mut cache);
    assert_eq!(device.work() - prompt, WorkDone { query_key_pairs: 6, ..WorkDone::default() });
}
