//! A cache in bf16 changes what is stored, and nothing about how it is attended to.

use half::bf16;

use super::*;
use crate::cpu::attention::{Call, plan};
use crate::cpu::kv_cache::{KvLayout, Lists};

#[test]
fn attention_over_bf16_is_that_over_rounded_numbers_bit_for_bit() {
    for (shape, rows) in [(SMALL, 150), (TRAINED, 70)] {
        let layer = Layer::new(shape, 21);
        let qkv = CpuTensor::from_slice(&layer.sequence(rows, 22), shape.projection()).unwrap();
        let own = blocks([2, 0, 1]);
        let segments = [segment(0, 0, rows, 0, &own)];
        let layout = KvLayout::new(layer.cache(3).shape());
        let numbers = 3 * shape.kv_heads * layout.numbers();
        for device in devices() {
            let mut table = CpuTensor::zeroed(rows, shape.rotary_dim).unwrap();
            rotary(&device, &segments, &layer.frequencies, &mut table).unwrap();
            let (q_norm, k_norm) = (&layer.q_norm, &layer.k_norm);
            let op = FullAttention { shape, layer: 0, q_norm, k_norm, rotary: &table };
            let mut lists = Lists::default();
            plan(&shape, &segments, 3, device.pool().threads(), &mut lists).unwrap();
            let (device, lists) = (&device, &lists);
            let call = Call { device, op: &op, qkv: &qkv, segments: &segments, layout, lists };

            let mut exact = vec![0.0f32; numbers];
            call.append(&mut exact);
            let rounded: Vec<bf16> = exact.iter().map(|&x| bf16::from_f32(x)).collect();
            let mut stored = vec![bf16::ZERO; numbers];
            call.append(&mut stored);
            assert!(stored == rounded, "{shape:?}");

            let out = || CpuTensor::zeroed(rows, layer.width()).unwrap();
            let (mut found, mut expected, mut unrounded) = (out(), out(), out());
            call.attend(&stored, &mut found);
            let widened: Vec<f32> = rounded.iter().map(|x| x.to_f32()).collect();
            call.attend(&widened, &mut expected);
            assert!(bits(found.as_slice()) == bits(expected.as_slice()), "{shape:?}");
            call.attend(&exact, &mut unrounded);
            assert!(bits(found.as_slice()) != bits(unrounded.as_slice()), "nothing was rounded");
        }
    }
}

#[test]
fn rounding_keys_and_values_costs_little_accuracy() {
    let layer = Layer { dtype: KvDtype::Bf16, ..Layer::new(TRAINED, 23) };
    let qkv = layer.sequence(130, 24);
    let error =
        relative_error(&layer.alone(&device(2, Simd::detect()), &qkv), &layer.expected(&qkv));
    assert!((1e-6..2e-2).contains(&error), "{error:e}");
}
