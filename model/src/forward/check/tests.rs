use pocket_device::KvDtype;

use super::*;

fn limits() -> ModelLimits {
    ModelLimits {
        max_model_len: 512,
        max_rows: 256,
        slots: 4,
        kv_blocks: 16,
        kv_dtype: KvDtype::Float32,
    }
}

fn segment(slot: u32, rows: usize, position: usize, blocks: &[u32]) -> StepSegment {
    StepSegment {
        slot,
        tokens: vec![1; rows],
        position,
        generated: position > 0,
        blocks: blocks.to_vec(),
    }
}

fn fork(from_slot: u32, to_slot: u32, block: Option<(u32, u32)>) -> Fork {
    Fork { from_slot, to_slot, block }
}

fn fault(segments: Vec<StepSegment>, forks: Vec<Fork>) -> Option<String> {
    let step = Step { number: 5, segments, forks, ..Step::default() };
    super::step(&step, &crate::config::small(), &limits()).err().map(|error| error.to_string())
}

#[test]
fn blocks_that_are_only_read_may_be_shared() {
    let shared = [segment(0, 1, 130, &[3, 4, 5]), segment(1, 1, 128, &[3, 4, 6])];
    assert_eq!(fault(shared.to_vec(), vec![]), None);
    // Position 128 is the first of its block, 127 the last of the one before.
    for (segments, block) in [
        ([segment(0, 1, 130, &[3, 4, 5]), segment(1, 1, 127, &[3, 4])], 4),
        ([segment(1, 1, 127, &[3, 4]), segment(0, 1, 130, &[3, 4, 5])], 4),
        ([segment(0, 64, 0, &[3]), segment(1, 1, 64, &[3, 6])], 3),
        // Reserved and not reached yet, but another's.
        ([segment(0, 1, 5, &[7]), segment(1, 1, 64, &[3, 6, 7])], 7),
        ([segment(0, 1, 5, &[7]), segment(1, 1, 6, &[7])], 7),
    ] {
        let found = fault(segments.to_vec(), vec![]).unwrap();
        let expected = format!("step 5: KV block {block} is written and belongs to two segments");
        assert_eq!(found, expected);
    }
    // Three readers, the writer last.
    let mut many: Vec<StepSegment> =
        (0..3).map(|slot| segment(slot, 1, 64, &[3, 4 + slot])).collect();
    assert_eq!(fault(many.clone(), vec![]), None);
    many.push(segment(3, 1, 7, &[3]));
    assert!(fault(many, vec![]).is_some());
    let twice = fault(vec![segment(2, 1, 130, &[3, 3, 5])], vec![]).unwrap();
    assert_eq!(twice, "step 5: slot 2 names KV block 3 twice");
}

#[test]
fn forks_go_from_a_segment_to_what_nobody_uses() {
    let segments = || vec![segment(0, 70, 0, &[2, 3]), segment(1, 1, 64, &[4, 5])];
    let good = vec![fork(0, 2, Some((3, 6))), fork(0, 3, Some((3, 7)))];
    assert_eq!(fault(segments(), good), None);
    assert_eq!(fault(segments(), vec![fork(1, 2, None), fork(1, 3, None)]), None);
    for (forks, expected) in [
        (vec![fork(2, 3, None)], "slot 2: it has no segment in the step"),
        (vec![fork(0, 4, None)], "slot 0: slot 4 of 4"),
        (vec![fork(0, 1, None)], "slot 1 is in use by the step"),
        (vec![fork(0, 0, None)], "slot 0 is in use by the step"),
        (vec![fork(0, 2, None), fork(1, 2, None)], "slot 2 is in use by the step"),
        (vec![fork(0, 2, Some((5, 6)))], "KV block 5 is not one of its blocks"),
        (vec![fork(0, 2, Some((3, 16)))], "KV block 16 of 16"),
        (vec![fork(0, 2, Some((3, 4)))], "KV block 4 is in use by the step"),
        (vec![fork(0, 2, Some((3, 3)))], "KV block 3 is in use by the step"),
        (
            vec![fork(0, 2, Some((3, 6))), fork(1, 3, Some((5, 6)))],
            "KV block 6 is in use by the step",
        ),
    ] {
        let found = fault(segments(), forks).unwrap();
        assert!(found.starts_with("step 5: fork of slot ") && found.ends_with(expected), "{found}");
    }
}
