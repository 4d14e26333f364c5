use proptest::prelude::*;

use super::*;

fn pack(parts: &[MatrixPart<'_>]) -> Result<PackedMatrix, DeviceError> {
    PackedMatrix::pack(&Pool::new(2, None).unwrap(), &Weights::Own(Arena::default()), parts)
}

/// A stored matrix of `count` numbers, `shift` bytes past an aligned address, and its numbers as
/// bf16 bits.
fn stored(dtype: StorageType, count: usize, shift: usize, seed: u64) -> (Vec<u8>, Vec<u16>) {
    let mut bytes = vec![0xee; shift];
    let mut bits = Vec::new();
    let mut state = seed;
    for _ in 0..count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let word = (state >> 32) as u32;
        match dtype {
            StorageType::Bf16 => {
                bytes.extend((word as u16).to_le_bytes());
                bits.push(word as u16);
            }
            StorageType::F16 => {
                // Finite: the exponent's lowest bit cleared.
                let number = f16::from_bits(word as u16 & !0x0400);
                bytes.extend(number.to_le_bytes());
                bits.push(rounded(number.to_f32()));
            }
            StorageType::F32 => {
                let number = f32::from_bits(word & !0x0080_0000);
                bytes.extend(number.to_le_bytes());
                bits.push(rounded(number));
            }
        }
    }
    (bytes, bits)
}

/// To the nearest bf16, ties to even, of a finite number: half a unit added to its bits, and one
/// less unless that makes the result even.
fn rounded(x: f32) -> u16 {
    let bits = x.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Row `output` of a packed matrix.
fn unpacked(matrix: &PackedMatrix, output: usize) -> Vec<u16> {
    let tile_len = matrix.inputs() * TILE;
    let tile = &matrix.tiles()[output / TILE * tile_len..][..tile_len];
    tile.iter().skip(output % TILE).step_by(TILE).copied().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn rectangles_of_every_type_and_alignment_are_packed(
        parts in prop::collection::vec(
            // Type, rows above, rows, rows below, columns left and right, shift.
            (0usize..3, 0usize..4, 0usize..50, 0usize..3, 0usize..5, 0usize..5, 0usize..4),
            1..4,
        ),
        inputs in 1usize..50,
        seed: u64,
    ) {
        let types = [StorageType::Bf16, StorageType::F16, StorageType::F32];
        let mut stores = Vec::new();
        let mut expected = Vec::new();
        for &(dtype, above, rows, below, left, right, shift) in &parts {
            let row_len = left + inputs + right;
            let count = (above + rows + below) * row_len;
            let (bytes, bits) = stored(types[dtype], count, shift, seed);
            for row in bits.chunks(row_len).skip(above).take(rows) {
                expected.push(row[left..left + inputs].to_vec());
            }
            stores.push(bytes);
        }
        let parts: Vec<MatrixPart<'_>> = parts
            .iter()
            .zip(&stores)
            .map(|(&(dtype, above, rows, _, left, right, shift), bytes)| MatrixPart {
                bytes: &bytes[shift..],
                dtype: types[dtype],
                row_len: left + inputs + right,
                rows: above..above + rows,
                cols: left..left + inputs,
            })
            .collect();
        let packed = pack(&parts);
        if expected.is_empty() {
            prop_assert!(packed.is_err());
            return Ok(());
        }
        let packed = packed.unwrap();
        prop_assert_eq!((packed.outputs(), packed.inputs()), (expected.len(), inputs));
        for (output, row) in expected.iter().enumerate() {
            prop_assert_eq!(&unpacked(&packed, output), row);
        }
        for padding in expected.len()..packed.tile_count() * TILE {
            prop_assert_eq!(unpacked(&packed, padding), vec![0; inputs]);
        }
        prop_assert_eq!(packed.bytes(), size_of_val(packed.tiles()) as u64);
    }
}

#[test]
fn numbers_are_rounded_to_the_nearest_even() {
    let cases = [
        (0x3f80_8000, 0x3f80), // Halfway, down to even.
        (0x3f81_8000, 0x3f82), // Halfway, up to even.
        (0x3f80_8001, 0x3f81), // Just above halfway.
        (0x7f7f_ffff, 0x7f80), // The largest float32 becomes infinite.
        (0xff80_0000, 0xff80), // Infinity.
        (0x0000_8000, 0x0000), // Half the smallest bf16.
        (0x8000_0000, 0x8000), // Minus zero.
    ];
    let bytes: Vec<u8> = cases.iter().flat_map(|(bits, _)| u32::to_le_bytes(*bits)).collect();
    let dtype = StorageType::F32;
    let part = MatrixPart { bytes: &bytes, dtype, row_len: 7, rows: 0..1, cols: 0..7 };
    let packed = pack(&[part]).unwrap();
    assert_eq!(unpacked(&packed, 0), cases.map(|(_, expected)| expected));
}

#[test]
fn what_is_not_a_number_stays_so() {
    let f16_nan = f16::NAN.to_le_bytes();
    // A payload that rounding the bits would turn into an infinity.
    let f32_nan = f32::from_bits(0x7f80_0001).to_le_bytes();
    for (bytes, dtype) in [(&f16_nan[..], StorageType::F16), (&f32_nan, StorageType::F32)] {
        let part = MatrixPart { bytes, dtype, row_len: 1, rows: 0..1, cols: 0..1 };
        let packed = pack(&[part]).unwrap();
        assert!(bf16::from_bits(packed.tiles()[0]).is_nan());
    }
}

#[test]
#[expect(clippy::reversed_empty_ranges, reason = "bad input on purpose")]
fn parts_that_do_not_fit_are_refused() {
    let bytes = [0; 6 * 4 * 2];
    let good =
        MatrixPart { bytes: &bytes, dtype: StorageType::Bf16, row_len: 4, rows: 0..6, cols: 0..4 };
    pack(&[good.clone(), good.clone()]).unwrap();
    let bad = [
        vec![],
        vec![MatrixPart { rows: 0..7, ..good.clone() }],
        vec![MatrixPart { rows: 6..5, ..good.clone() }],
        vec![MatrixPart { rows: 3..3, ..good.clone() }],
        vec![MatrixPart { rows: 0..usize::MAX, ..good.clone() }],
        vec![MatrixPart { cols: 0..5, ..good.clone() }],
        vec![MatrixPart { cols: 3..2, ..good.clone() }],
        vec![MatrixPart { cols: 2..2, ..good.clone() }],
        vec![MatrixPart { row_len: usize::MAX, ..good.clone() }],
        vec![MatrixPart { bytes: &bytes[1..], ..good.clone() }],
        vec![MatrixPart { dtype: StorageType::F32, ..good.clone() }],
        vec![good.clone(), MatrixPart { cols: 0..3, ..good }],
    ];
    for parts in bad {
        let error = pack(&parts).err().unwrap();
        assert!(matches!(error, DeviceError::Shape { op: "pack", .. }), "{error}");
    }
}

#[test]
fn sizes_count_the_padding() {
    assert_eq!(packed_bytes(32, 10), 640);
    assert_eq!(packed_bytes(33, 10), 1280);
    assert_eq!(packed_bytes(248_320, 5120), 2_542_796_800);
}
