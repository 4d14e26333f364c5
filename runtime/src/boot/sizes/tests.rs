use pocket_model::ModelConfig;
use pocket_model::checkpoint::Checkpoint;
use pocket_model::memory::HostMemory;

use super::*;
use crate::failure::BadInput;

const CONTEXT: usize = 2048;

fn model() -> ModelConfig {
    Checkpoint::demo().unwrap().config().clone()
}

fn sizing(config: &ModelConfig, bytes: u64) -> Sizing<'_> {
    Sizing {
        config,
        world: 2,
        packed_bytes: pocket_device::cpu::packed_bytes,
        shared_segment: 1 << 20,
        available: HostMemory { bytes, from: "MemAvailable".into() },
    }
}

fn wish(value: usize) -> Wish {
    Wish { value, asked: false }
}

fn ask(value: usize) -> Wish {
    Wish { value, asked: true }
}

fn wishes(context: Wish, sequences: Wish) -> Wishes {
    Wishes {
        context,
        sequences,
        prompt_rows: 512,
        budget: KvBudget::Auto,
        kv_dtype: KvDtype::Float32,
    }
}

/// Bytes of everything but keys and values, and of the keys and values of one sequence.
fn costs(config: &ModelConfig, context: usize, sequences: usize) -> (u64, u64) {
    let limits = ModelLimits {
        max_model_len: context,
        max_rows: 512 + sequences,
        slots: sequences,
        kv_blocks: kv_blocks(context, 1),
        kv_dtype: KvDtype::Float32,
    };
    let plan = sizing(config, u64::MAX).plan(limits).unwrap();
    let kv = plan.ranks.iter().map(|rank| rank.kv_cache).sum();
    (plan.total - kv, kv)
}

/// Memory for so many sequences, the keys and values of one of them, and nothing else.
fn room_for(config: &ModelConfig, context: usize, sequences: usize) -> u64 {
    let (rest, kv) = costs(config, context, sequences);
    rest + 2 * kv
}

fn chosen(config: &ModelConfig, bytes: u64, wishes: &Wishes) -> (usize, usize, usize) {
    let sizes = choose(&sizing(config, bytes), wishes).unwrap();
    assert!(sizes.refusal.is_none(), "{:?}", sizes.refusal);
    let plan = sizing(config, bytes).plan(sizes.limits).unwrap();
    plan.check().unwrap();
    (sizes.limits.max_model_len, sizes.limits.slots, sizes.limits.kv_blocks)
}

fn refusal(config: &ModelConfig, bytes: u64, wishes: &Wishes) -> String {
    let sizes = choose(&sizing(config, bytes), wishes).unwrap();
    assert_eq!(sizes.limits.max_model_len, wishes.context.value);
    assert_eq!(sizes.limits.slots, wishes.sequences.value);
    format!("{:#}", sizes.refusal.expect("a refusal"))
}

#[test]
fn where_there_is_room_all_is_as_wished() {
    let model = model();
    let all = (CONTEXT, 16, kv_blocks(CONTEXT, 16));
    assert_eq!(chosen(&model, 1 << 40, &wishes(wish(CONTEXT), wish(16))), all);
    assert_eq!(chosen(&model, 1 << 40, &wishes(ask(CONTEXT), ask(16))), all);
}

/// M1: a default is lowered, a number that was asked for is refused with the largest that fits, and
/// both before a weight is read.
#[test]
fn sequences_are_lowered_or_refused() {
    let model = model();
    let room = room_for(&model, CONTEXT, 4);
    assert_eq!(chosen(&model, room, &wishes(wish(CONTEXT), wish(16))).1, 4);
    assert_eq!(chosen(&model, room, &wishes(ask(CONTEXT), wish(16))).1, 4);
    assert_eq!(chosen(&model, room, &wishes(ask(CONTEXT), ask(4))).1, 4);
    let message = refusal(&model, room, &wishes(ask(CONTEXT), ask(5)));
    assert!(message.contains("the largest max-num-seqs that fits is 4"), "{message}");
}

/// M1: the same of the context.
#[test]
fn the_context_is_lowered_or_refused() {
    let model = model();
    let room = room_for(&model, 512, 16);
    assert_eq!(chosen(&model, room, &wishes(wish(CONTEXT), ask(16))), (512, 16, 8));
    let message = refusal(&model, room, &wishes(ask(CONTEXT), ask(16)));
    assert!(message.contains("the largest max-model-len that fits is 512"), "{message}");
    chosen(&model, room, &wishes(ask(512), ask(16)));

    // Nobody asked for anything: less of both rather than no start.
    let little = room_for(&model, 64, 2);
    let (context, sequences, _) = chosen(&model, little, &wishes(wish(CONTEXT), wish(16)));
    assert!(context < CONTEXT && (1..=2).contains(&sequences), "{context} {sequences}");

    // As many sequences as were asked for do not fit with any context.
    let message = refusal(&model, little, &wishes(wish(CONTEXT), ask(16)));
    assert!(message.contains("the largest max-num-seqs that fits is 2"), "{message}");
}

#[test]
fn a_budget_bounds_the_context() {
    let model = model();
    let (_, kv) = costs(&model, 1024, 1);
    let budget = |context, sequences| Wishes {
        budget: KvBudget::Bytes(kv + 1),
        ..wishes(context, sequences)
    };
    assert_eq!(chosen(&model, 1 << 40, &budget(wish(CONTEXT), wish(16))), (1024, 16, 16));
    let message = refusal(&model, 1 << 40, &budget(ask(CONTEXT), wish(16)));
    assert!(message.contains("the largest max-model-len that fits is 1024"), "{message}");
    assert_eq!(message.matches("largest").count(), 1, "{message}");

    // Half the bytes a number, twice the tokens.
    let half = Wishes { kv_dtype: KvDtype::Bf16, ..budget(wish(CONTEXT), wish(16)) };
    assert_eq!(chosen(&model, 1 << 40, &half), (CONTEXT, 16, 32));
}

#[test]
fn a_budget_beyond_memory_is_refused() {
    let model = model();
    let beyond = Wishes { budget: KvBudget::Bytes(1 << 50), ..wishes(wish(CONTEXT), wish(16)) };
    let message = refusal(&model, 1 << 30, &beyond);
    assert!(message.contains("lower the KV budget"), "{message}");
}

#[test]
fn a_model_that_does_not_fit_at_all_is_refused_by_its_weights() {
    let model = model();
    let message = refusal(&model, 1 << 20, &wishes(wish(CONTEXT), wish(16)));
    assert!(message.contains("the weights alone take"), "{message}");
    // A matter of the machine, not of what was asked.
    let sizes = choose(&sizing(&model, 1 << 20), &wishes(wish(CONTEXT), wish(16))).unwrap();
    assert!(sizes.refusal.unwrap().downcast_ref::<BadInput>().is_none());
}

/// Whatever the memory, the number a refusal names fits, and no larger one does.
#[test]
fn the_largest_number_named_is_the_largest() {
    let model = model();
    let (least, most) = (room_for(&model, 64, 1), room_for(&model, CONTEXT, 16));
    for step in 0..200 {
        let bytes = least + (most - least) * step / 200;
        for (asked, unit, name) in [
            (wishes(ask(CONTEXT), ask(16)), 64, "max-model-len"),
            (wishes(ask(64), ask(16)), 1, "max-num-seqs"),
        ] {
            let sizes = choose(&sizing(&model, bytes), &asked).unwrap();
            let Some(refusal) = sizes.refusal else { continue };
            let message = format!("{refusal:#}");
            let Some((_, rest)) = message.split_once(&format!("largest {name} that fits is "))
            else {
                continue;
            };
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            let largest: usize = digits.parse().unwrap();
            let with = |value: usize| match name {
                "max-model-len" => Wishes { context: ask(value), ..asked },
                _ => Wishes { sequences: ask(value), ..asked },
            };
            chosen(&model, bytes, &with(largest));
            let more = choose(&sizing(&model, bytes), &with(largest + unit)).unwrap();
            assert!(more.refusal.is_some(), "{bytes}: {name} {largest}");
        }
    }
}
