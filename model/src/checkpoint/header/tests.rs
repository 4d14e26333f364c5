use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;

/// A file with this header and so many bytes of data.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 7);
    bytes
}

fn refusal(bytes: &[u8]) -> String {
    let message = parse("dir/model.safetensors", bytes).unwrap_err().to_string();
    let rest = message.strip_prefix("dir/model.safetensors: ");
    rest.unwrap_or_else(|| panic!("no file name in {message:?}")).to_owned()
}

const GOOD: &str = r#"{"__metadata__":{"format":"pt"},
    "b":{"dtype":"BF16","shape":[3,2],"data_offsets":[4,16]},
    "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},
    "empty":{"dtype":"F32","shape":[0],"data_offsets":[16,16]}}"#;

#[test]
fn a_good_header_lists_tensors_as_they_lie() {
    let entries = parse("f", &file(GOOD, 16)).unwrap();
    let start = 8 + GOOD.len();
    let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "empty"]);
    assert_eq!(entries[1].shape, [3, 2]);
    assert_eq!(entries[1].bytes, start + 4..start + 16);
    assert_eq!(entries[1].dtype, Dtype::BF16);
}

#[test]
fn the_reference_implementation_agrees_on_good_files() {
    let bytes = std::fs::read(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/fixtures/tiny-untied/model.safetensors"
    ))
    .unwrap();
    let reference = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let entries = parse("f", &bytes).unwrap();
    assert_eq!(entries.len(), reference.len());
    for entry in entries {
        let tensor = reference.tensor(&entry.name).unwrap();
        assert_eq!(tensor.shape(), entry.shape);
        assert_eq!(tensor.dtype(), entry.dtype);
        assert_eq!(tensor.data(), &bytes[entry.bytes]);
    }
}

/// Report L7 and its kind.
#[test]
fn l7_headers_that_cannot_be_right_are_refused_with_numbers() {
    #[rustfmt::skip]
    let table: Vec<(Vec<u8>, &str)> = vec![
        (vec![], "0 bytes long, too short for a safetensors file"),
        (vec![1; 7], "7 bytes long, too short"),
        (u64::MAX.to_le_bytes().to_vec(), "its header claims 18446744073709551615 bytes, above the limit"),
        (100_000_001u64.to_le_bytes().to_vec(), "its header claims 100000001 bytes, above the limit of 100000000"),
        (99_000_000u64.to_le_bytes().to_vec(), "its header claims 99000000 bytes, but the file ends after 0 of them: it is truncated"),
        (file("", 0), "its header is not right: EOF while parsing"),
        (file("[]", 0), "its header is not right: invalid type: sequence, expected an object"),
        (file("{\"a\":", 0), "its header is not right: EOF"),
        (file(r#"{"a":{"dtype":"","shape":[],"data_offsets":[0,0]}}"#, 0), "tensor a has a bad header entry: unknown variant ``"),
        (file(r#"{"a":{"dtype":"BF17","shape":[],"data_offsets":[0,0]}}"#, 0), "tensor a has a bad header entry: unknown variant `BF17`"),
        (file(r#"{"a":{"dtype":null,"shape":null,"data_offsets":null}}"#, 0), "tensor a has a bad header entry"),
        (file(r#"{"a":{}}"#, 0), "tensor a has a bad header entry: missing field"),
        (file(r#"{"a":7}"#, 0), "tensor a has a bad header entry: invalid type"),
        (file(r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, 4), "tensor a has a bad header entry: invalid value: integer `-1`"),
        (file(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#, 8), "its header is not right: a is listed twice"),
        (file(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}"#, 6), "tensor b starts at byte 2 of the data, inside tensor a, which ends at 4"),
        (file(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 4), "tensor b starts at byte 0 of the data, inside tensor a, which ends at 4"),
        (file(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#, 8), "bytes 0 to 4 of the data, before tensor a, belong to no tensor"),
        (file(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 9), "bytes 4 to 9 of the data belong to no tensor"),
        (file(r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#, 10), "tensor a ends at byte 16 of the data, but the file holds 10: it is truncated"),
        (file(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}}"#, 8), "tensor a ends at byte 4, before its start at 8"),
        (file(r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, 8), "tensor a of type F32 and shape [3] has 8 bytes of data"),
        (file(r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}"#, 8), "tensor a of type F32 and shape [4294967296, 4294967296] has 8 bytes"),
        (file(r#"{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}}"#, 1), "tensor a of type F4 and shape [1] has 1 bytes of data"),
        (file(r#"{"__metadata__":{"format":1},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 4), "__metadata__ of its header is not right"),
        (file("{\"a\u{0}\\n\":{}}", 0), "its header is not right: control character"),
        (file("{\"a\\nb\":{}}", 0), "tensor a\\nb has a bad header entry"),
    ];
    for (bytes, expected) in table {
        let message = refusal(&bytes);
        assert!(message.contains(expected), "expected {expected:?} in {message:?}");
        assert!(!message.contains('\n'), "{message:?}");
    }
    let mut not_text = file(GOOD, 16);
    not_text[9] = 0xff;
    assert!(refusal(&not_text).contains("its header is not text"));
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let whole = file(GOOD, 16);
    for length in 0..whole.len() {
        refusal(&whole[..length]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default()
    })]

    // Whatever the bytes: an error, or entries that are inside the file and disjoint.
    #[test]
    fn mutated_files_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
        splice in prop::option::of((any::<prop::sample::Index>(), "[0-9\",:{}\\[\\]a-zA-Z_-]{0,12}")),
    ) {
        let mut bytes = file(GOOD, 16);
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some((at, text)) = splice {
            let at = at.index(bytes.len());
            bytes.splice(at..at, text.bytes());
            // Keep the length field true, so that the damage reaches the parser.
            let header = (GOOD.len() + text.len()) as u64;
            bytes[..8].copy_from_slice(&header.to_le_bytes());
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(entries) = parse("f", &bytes) {
            let mut end = 0;
            for entry in entries {
                prop_assert!(entry.bytes.start >= end && entry.bytes.end <= bytes.len());
                let numbers: usize = entry.shape.iter().product();
                prop_assert_eq!(numbers * entry.dtype.bitsize() / 8, entry.bytes.len());
                end = entry.bytes.end;
            }
        }
    }
}
