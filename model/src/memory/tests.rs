use super::*;
use crate::Checkpoint;

pub const GIB: u64 = 1 << 30;

pub fn available(bytes: u64) -> HostMemory {
    HostMemory { bytes, from: "MemAvailable".to_owned() }
}

pub fn limits(max_model_len: usize, slots: usize) -> ModelLimits {
    ModelLimits {
        max_model_len,
        max_rows: 512,
        slots,
        kv_blocks: kv_blocks(max_model_len, slots),
        kv_dtype: KvDtype::Float32,
    }
}

fn plan(config: &ModelConfig, world: usize, limits: ModelLimits, bytes: u64) -> MemoryPlan {
    let packed = pocket_device::cpu::packed_bytes;
    MemoryPlan::new(config, world, limits, packed, 32 << 20, available(bytes)).unwrap()
}

/// The 27B shape, from its published numbers.
pub fn largest() -> ModelConfig {
    ModelConfig {
        hidden_size: 5120,
        intermediate_size: 17408,
        heads: 24,
        kv_heads: 4,
        linear_value_heads: 48,
        layers: [LayerKind::Linear, LayerKind::Linear, LayerKind::Linear, LayerKind::Full]
            .repeat(16),
        tie_word_embeddings: false,
        ..crate::config::small()
    }
}

/// By hand, for one rank of the demo: hidden 128, 8 value heads of 16, 352 inner, 1024 ids.
#[test]
fn a_small_model_by_hand() {
    let demo = Checkpoint::demo().unwrap();
    let plan = plan(demo.config(), 1, limits(2048, 4), GIB);
    // Its 400 rows are 12.5 tiles of 32 outputs.
    let linear = 2 * (128 * (256 + 128 + 16 + 16) + 128 * 128);
    let full = 2 * (128 * (2 * 128 + 2 * 64) + 128 * 128);
    let mlp = 2 * (128 * 704 + 352 * 128);
    let packed = 2 * 1024 * 128 + 6 * linear + 2 * full + 8 * mlp;
    let small = 4 * (128 + 8 * 256 + 6 * (256 * 4 + 16 + 16) + 2 * 32);
    let rank = plan.ranks[0];
    assert_eq!(rank.weights, packed + small);
    assert_eq!(rank.kv_cache, 2 * 2 * 4 * 16 * 4 * 2048 * 4);
    assert_eq!(rank.recurrent_state, 6 * 4 * 4 * (8 * 16 * 16 + 3 * 256));
    let columns = 3 * 128 + 384 + 128 + 8 + 400 + 128 + 3 * 352;
    assert_eq!(rank.activations, 4 * (512 * columns + 32 * (256 + 1024)));
    assert_eq!(plan.total, rank.total() + (32 << 20));
    assert!(plan.check().is_ok());
}

/// What is packed is what is stored: bf16 weights, beside padding of rows to tiles.
#[test]
fn packed_weights_of_a_checkpoint_are_its_file_size() {
    let demo = Checkpoint::demo().unwrap();
    let stored: u64 = demo.coverage().mapped.iter().map(|tensor| tensor.bytes).sum();
    let planned = plan(demo.config(), 1, limits(64, 1), GIB).ranks[0].weights;
    assert!(planned >= stored && planned < stored + stored / 50, "{planned} {stored}");
}

#[test]
fn ranks_share_the_weights_and_the_state() {
    let config = largest();
    let whole = plan(&config, 1, limits(4096, 8), 0);
    let split = plan(&config, 4, limits(4096, 8), 0);
    assert_eq!(split.ranks.len(), 4);
    let sum = |part: fn(&RankMemory) -> u64| split.ranks.iter().map(part).sum::<u64>();
    assert_eq!(sum(|rank| rank.kv_cache), whole.ranks[0].kv_cache);
    assert_eq!(sum(|rank| rank.recurrent_state), whole.ranks[0].recurrent_state);
    // 27B parameters less the vision tower, two bytes each.
    let weights = whole.ranks[0].weights;
    assert!((52_000_000_000..54_000_000_000).contains(&weights), "{weights}");
    let of_ranks = sum(|rank| rank.weights);
    assert!(of_ranks >= weights && of_ranks < weights + weights / 200, "{of_ranks} {weights}");
    // With more ranks than key/value heads, each head is held twice.
    let wide = plan(&config, 8, limits(4096, 8), 0);
    let kv: u64 = wide.ranks.iter().map(|rank| rank.kv_cache).sum();
    assert_eq!(kv, 2 * whole.ranks[0].kv_cache);
}

#[test]
fn what_does_not_fit_is_refused_with_the_largest_context_that_does() {
    let config = largest();
    let asked = plan(&config, 4, limits(262_144, 1), 60 * GIB);
    let message = asked.check().unwrap_err().to_string();
    let longest = asked.largest_max_model_len.unwrap();
    assert!(longest < 262_144 && longest.is_multiple_of(64));
    assert_eq!(
        message,
        format!(
            "not enough memory for max-num-seqs 1 and max-model-len 262144: {} needed, 60.0 GiB \
             available (MemAvailable): the largest max-model-len that fits is {longest}",
            Bytes(asked.total)
        )
    );
    // It does fit, and one block more does not.
    assert!(plan(&config, 4, limits(longest, 1), 60 * GIB).check().is_ok());
    assert!(plan(&config, 4, limits(longest + 1, 1), 60 * GIB).check().is_err());
    // Half the bytes a number hold twice the context.
    let half = ModelLimits { kv_dtype: KvDtype::Bf16, ..limits(64, 1) };
    let half = plan(&config, 4, half, 60 * GIB).largest_max_model_len.unwrap();
    assert!(half.abs_diff(2 * longest) <= 128, "{half} {longest}");
}

#[test]
fn too_many_blocks_for_a_context_that_fits_are_refused_by_their_budget() {
    let config = largest();
    let refused = plan(&config, 4, limits(65_536, 8), 80 * GIB).check().unwrap_err().to_string();
    assert!(refused.contains("for max-num-seqs 8 and max-model-len 65536"), "{refused}");
    assert!(refused.contains("keys and values take 64.0 GiB, "), "{refused}");
    assert!(refused.ends_with(" is left for them; lower the KV budget"), "{refused}");
}

#[test]
fn bf16_keys_and_values_take_half() {
    let config = largest();
    let kv = |kv_dtype| {
        let limits = ModelLimits { kv_dtype, ..limits(4096, 8) };
        plan(&config, 2, limits, 0).ranks[0].kv_cache
    };
    assert_eq!(kv(KvDtype::Float32), 2 * kv(KvDtype::Bf16));
}

/// M16: what a step works in grows with its rows, not with the sequences the server has room for.
#[test]
fn activations_depend_on_rows_only() {
    let config = largest();
    let activations = |limits| plan(&config, 2, limits, 0).ranks[0].activations;
    let one = activations(limits(64, 1));
    assert_eq!(activations(limits(262_144, 1024)), one);
    let rows = ModelLimits { max_rows: 1024, ..limits(64, 1) };
    assert!(activations(rows) > one + one / 2);
}

#[test]
fn when_no_context_fits_the_refusal_says_what_is_too_large() {
    let config = largest();
    let message = |slots, bytes| plan(&config, 4, limits(64, slots), bytes).check().unwrap_err();
    let weights = message(8, 20 * GIB).to_string();
    assert!(weights.contains("the weights alone take 50.1 GiB; use a smaller model"), "{weights}");
    let slots = message(1024, 80 * GIB).to_string();
    assert!(slots.contains("the state of 1024 sequences "), "{slots}");
    assert!(slots.contains("lower max-num-seqs (the largest that fits is "), "{slots}");
    assert!(slots.ends_with(") or max-num-batched-tokens"), "{slots}");
}

#[test]
fn a_context_the_model_does_not_have_is_refused() {
    let config = crate::config::small();
    for asked in [0, 262_145, usize::MAX] {
        let packed = pocket_device::cpu::packed_bytes;
        let refusal =
            MemoryPlan::new(&config, 1, limits(asked, 1), packed, 0, available(GIB)).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            format!("max-model-len is {asked}: expected 1 to {}", config.max_position_embeddings)
        );
    }
}

#[test]
fn absurd_settings_saturate_instead_of_wrapping() {
    let config = largest();
    let huge = ModelLimits {
        max_model_len: 262_144,
        max_rows: usize::MAX,
        slots: usize::MAX,
        kv_blocks: usize::MAX,
        kv_dtype: KvDtype::Float32,
    };
    let plan = plan(&config, 2, huge, GIB);
    assert_eq!(plan.total, u64::MAX);
    assert!(plan.check().is_err());
}

#[test]
fn the_table_lists_every_rank() {
    let config = crate::config::small();
    let text = plan(&config, 2, limits(4096, 4), GIB).to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        "memory plan: 2 ranks, 4 sequences of up to 4096 tokens, 256 KV blocks of float32, 512 rows a \
         step"
    );
    assert!(lines[2].starts_with("rank 0 ") && lines[3].starts_with("rank 1 "), "{text}");
    assert!(lines[4].starts_with("shared segment ") && lines[4].ends_with("32.0 MiB"), "{text}");
    assert!(lines[6].ends_with("1.0 GiB (MemAvailable)"), "{text}");
    let value = serde_json::to_value(plan(&config, 2, limits(4096, 4), GIB)).unwrap();
    assert_eq!(value["ranks"].as_array().unwrap().len(), 2);
    assert_eq!(value["limits"]["kv_blocks"], 256);
}

#[test]
fn bytes_are_shown_with_one_digit() {
    let shown = |bytes| Bytes(bytes).to_string();
    assert_eq!(shown(0), "0 B");
    assert_eq!(shown(1023), "1023 B");
    assert_eq!(shown(1536), "1.5 KiB");
    assert_eq!(shown(3 << 40), "3.0 TiB");
    assert_eq!(shown(u64::MAX), "16.0 EiB");
}
