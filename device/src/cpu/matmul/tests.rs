use proptest::prelude::*;

use super::super::testing::{Numbers, bits, device, every_simd};
use super::*;
use crate::{Device, MatrixPart, StorageType};

/// Numbers of both signs and of many magnitudes, so that any other order of additions shows.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut source = Numbers(seed);
    (0..count)
        .map(|_| {
            let magnitude = [0.001, 1.0, 30.0][source.below(3)];
            source.next(-magnitude, magnitude)
        })
        .collect()
}

/// A matrix with the bf16 bits of `numbers`.
fn weights(outputs: usize, inputs: usize, seed: u64) -> Vec<u16> {
    numbers(outputs * inputs, seed).iter().map(|&x| half::bf16::from_f32(x).to_bits()).collect()
}

fn pack(device: &CpuDevice, weights: &[u16], inputs: usize) -> PackedMatrix {
    let bytes: Vec<u8> = weights.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let rows = 0..weights.len() / inputs;
    let dtype = StorageType::Bf16;
    let part = MatrixPart { bytes: &bytes, dtype, row_len: inputs, rows, cols: 0..inputs };
    device.pack(&[part]).unwrap()
}

/// The bits of `x @ w.T` as the device computes it.
fn product(device: &CpuDevice, x: &[f32], weights: &[u16], inputs: usize) -> Vec<u32> {
    let w = pack(device, weights, inputs);
    let x = device.upload(x, inputs).unwrap();
    let mut out = device.tensor(x.rows(), w.outputs()).unwrap();
    out.as_mut_slice().fill(f32::NAN);
    device.matmul(&x, &w, &mut out).unwrap();
    bits(out.as_slice())
}

/// The same, one chain of fused multiply-adds after the other.
fn chains(x: &[f32], weights: &[u16], inputs: usize) -> Vec<u32> {
    let mut out = Vec::new();
    for x in x.chunks_exact(inputs) {
        for weights in weights.chunks_exact(inputs) {
            let mut sum = 0.0f32;
            for (x, &bits) in x.iter().zip(weights) {
                sum = x.mul_add(f32::from_bits((bits as u32) << 16), sum);
            }
            out.push(sum.to_bits());
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_output_is_one_chain_whatever_the_shape_threads_and_instructions(
        rows in 1usize..=40,
        inputs in 1usize..=330,
        outputs in 1usize..=150,
        threads in 1usize..=3,
        seed: u64,
    ) {
        let x = numbers(rows * inputs, seed);
        let weights = weights(outputs, inputs, !seed);
        let expected = chains(&x, &weights, inputs);
        for simd in every_simd() {
            let found = product(&device(threads, simd), &x, &weights, inputs);
            prop_assert!(found == expected, "{simd}");
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_hundreds() {
    // Three passes of rows, and inputs enough to fetch ahead and behind.
    let (inputs, outputs, rows) = (1792, 56, 200);
    let device = device(2, Simd::detect());
    let x = numbers(rows * inputs, 1);
    let weights = weights(outputs, inputs, 2);
    let together = product(&device, &x, &weights, inputs);
    for company in (1..=26).chain([64]) {
        for (i, some) in x.chunks(company * inputs).enumerate() {
            let expected = &together[i * company * outputs..][..some.len() / inputs * outputs];
            assert!(product(&device, some, &weights, inputs) == expected, "{company} rows, {i}");
        }
    }
}

#[test]
fn what_is_not_a_number_stays_in_its_row() {
    let (inputs, outputs, rows) = (96, 40, 9);
    let device = device(1, Simd::detect());
    let weights = weights(outputs, inputs, 3);
    let clean = numbers(rows * inputs, 4);
    let mut poisoned = clean.clone();
    poisoned[4 * inputs + 17] = f32::NAN;
    poisoned[5 * inputs + 18] = f32::INFINITY;
    let clean = product(&device, &clean, &weights, inputs);
    let poisoned = product(&device, &poisoned, &weights, inputs);
    for row in 0..rows {
        let at = row * outputs..(row + 1) * outputs;
        if row == 4 || row == 5 {
            assert!(poisoned[at].iter().all(|&bits| !f32::from_bits(bits).is_finite()));
        } else {
            assert_eq!(poisoned[at.clone()], clean[at]);
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let device = device(1, Simd::detect());
    let w = pack(&device, &weights(20, 8, 5), 8);
    let tensor = |rows, cols| device.tensor(rows, cols).unwrap();
    for (x, out) in [((2, 7), (2, 20)), ((2, 8), (3, 20)), ((2, 8), (2, 32))] {
        let x = tensor(x.0, x.1);
        let mut out = tensor(out.0, out.1);
        let error = device.matmul(&x, &w, &mut out).unwrap_err();
        assert!(matches!(error, DeviceError::Shape { op: "matmul", .. }), "{error}");
    }
    device.matmul(&tensor(0, 8), &w, &mut tensor(0, 20)).unwrap();
}

#[test]
fn there_are_several_tasks_a_thread_and_one_for_one_thread() {
    assert_eq!(tiles_a_task(224, 1), 224);
    assert_eq!(tiles_a_task(224, 2), 28);
    assert_eq!(tiles_a_task(3, 2), 1);
    assert_eq!(tiles_a_task(65, 3), 6);
}
