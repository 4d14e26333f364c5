//! A rank that finds its weights packed by an earlier one: same bits, and nothing read again.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::cell::RefCell;

use pocket_collectives::SingleRank;
use pocket_device::cpu::{CpuDevice, CpuOptions, WeightMap, WeightStore, weight_store_bytes};
use pocket_model::checkpoint::Checkpoint;
use pocket_model::forward::{
    ForwardError, ModelLimits, OutputRow, RankModel, RowResult, Step, StepSegment, Want, matrices,
    weights_identity,
};
use pocket_model::shard::Shard;

const LIMITS: ModelLimits = ModelLimits {
    max_model_len: 128,
    max_rows: 128,
    slots: 1,
    kv_blocks: 2,
    kv_dtype: pocket_device::KvDtype::Float32,
};

fn load(
    weights: Option<WeightMap>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<RankModel<CpuDevice>, ForwardError> {
    let checkpoint = Checkpoint::demo().unwrap();
    let shard = Shard::new(checkpoint.config(), 0, 1).unwrap();
    let options = CpuOptions { threads: 2, weights, ..CpuOptions::default() };
    RankModel::load(CpuDevice::new(options).unwrap(), &checkpoint, &shard, LIMITS, progress)
}

/// The bits of the logits after a prompt.
fn logits(model: &mut RankModel<CpuDevice>) -> Vec<u32> {
    let tokens: Vec<u32> = (0..90).map(|at| (at * 131 + 3) % 1000).collect();
    let segment =
        StepSegment { slot: 0, tokens, position: 0, generated: false, blocks: vec![0, 1] };
    let outputs = vec![OutputRow { row: 89, want: Want::Logits }];
    let step = Step { number: 1, segments: vec![segment], outputs, ..Step::default() };
    let mut found = Vec::new();
    model
        .forward(&step, &mut SingleRank, &(), &mut |_, result| {
            let RowResult::Logits(logits) = result else { unreachable!("only logits were wanted") };
            found = logits.iter().map(|x| x.to_bits()).collect();
            Ok(())
        })
        .unwrap();
    found
}

#[test]
fn a_rank_started_again_maps_its_weights_and_has_the_same_bits() {
    let checkpoint = Checkpoint::demo().unwrap();
    let shard = Shard::new(checkpoint.config(), 0, 1).unwrap();
    let identity = weights_identity(&checkpoint, &shard);
    let bytes = weight_store_bytes(&matrices(checkpoint.config(), &shard));
    let store = WeightStore::create(bytes, identity).unwrap();
    let open = || WeightMap::open(&store.path(), identity).unwrap();
    let expected = logits(&mut load(None, &mut |_, _| ()).unwrap());

    // One that dies while it loads.
    let killed = std::panic::catch_unwind(|| {
        load(Some(open()), &mut |loaded, total| assert!(loaded < total / 2)).map(|_| ())
    });
    assert!(killed.is_err());
    assert!(!store.is_complete());
    for mapped in [false, true, true] {
        let map = open();
        assert_eq!(map.was_complete(), mapped);
        let told = RefCell::new(Vec::new());
        let mut model =
            load(Some(map), &mut |loaded, total| told.borrow_mut().push((loaded, total))).unwrap();
        assert!(store.is_complete());
        let told = told.into_inner();
        assert!(told.is_sorted() && told.len() > 10);
        assert!(told[0].0 == 0 && told.last().is_some_and(|(loaded, total)| loaded == total));
        assert_eq!(logits(&mut model), expected);
    }
}
