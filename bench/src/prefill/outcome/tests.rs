use std::time::Duration;

use super::*;
use crate::arms::counters::Counts;
use crate::arms::wave::EngineTimes;
use crate::arms::{ArmCounts, Launch, Wave};
use crate::prefill::measure::Sample;
use crate::prefill::plan::{Plan, Task, Wish};

const CALL_MS: f64 = 50.0;
const TOKEN_MS: f64 = 0.2;
const CONSTANT_MS: f64 = 3.0;

fn plan() -> Plan {
    let wish = Wish {
        lengths: vec![16, 32, 64, 96, 128, 192, 256, 384, 512],
        wave: 16,
        repeats: 4,
        decode_tokens: 8,
        control: true,
    };
    let base = Launch {
        arm: "base".to_owned(),
        program: "pocketd".into(),
        settings: vec![],
        flags: vec![],
        load_limit: Duration::from_secs(1),
    };
    Plan::new(&wish, &base).unwrap()
}

fn facts() -> Facts {
    Facts {
        model: "planted".to_owned(),
        vocab_size: 640,
        tensor_parallel_size: 2,
        threads_per_rank: 1,
        flops_per_row: 1e9,
        flops_per_output: 1e8,
        bytes_per_call: 1e9,
    }
}

fn limits() -> Limits {
    Limits { bandwidth: 4e10, peak: 1e13, peak_instructions: "by hand".to_owned() }
}

/// What an engine of exactly the planted law does with a task: `budget` tokens a call, prompts merged or
/// one after the other. `slow` stretches all times.
fn wave(task: &Task, budget: u64, merged: bool, slow: f64) -> Wave {
    let all: u64 = task.prompts.iter().map(|tokens| *tokens as u64).sum();
    let (mut calls, mut rows) = (0, 0);
    let prompts: Vec<_> = task
        .prompts
        .iter()
        .map(|tokens| {
            let tokens = *tokens as u64;
            if merged {
                (calls, rows) = (all.div_ceil(budget), all);
            } else {
                calls += tokens.div_ceil(budget);
                rows += tokens;
            }
            let ms = slow * (calls as f64 * CALL_MS + rows as f64 * TOKEN_MS + CONSTANT_MS);
            let engine = EngineTimes {
                prefill_ms: ms - CONSTANT_MS,
                decode_ms: 8.0 * CALL_MS,
                calls_before_first_token: calls,
                rows_before_first_token: rows,
                prompt_tokens: tokens,
                completion_tokens: task.tokens as u64,
                ..EngineTimes::default()
            };
            Prompt { ttft_ms: ms, engine }
        })
        .collect();
    let times = prompts.iter().map(|prompt| prompt.ttft_ms);
    Wave {
        wave_ms: times.clone().fold(0.0, f64::max),
        mean_ttft_ms: times.sum::<f64>() / prompts.len() as f64,
        total_ms: 0.0,
        prompts,
    }
}

/// Times are multiplied by `1 + drift` from the first round to the last.
fn measured(plan: &Plan, drift: f64) -> Measured {
    let mut samples = Vec::new();
    for round in 0..plan.repeats {
        for (number, task) in plan.tasks.iter().enumerate() {
            let arm = &plan.arms[task.arm];
            let budget = arm.settings.iter().find(|(key, _)| key == "max_num_batched_tokens");
            let merged = !arm.flags.iter().any(|(name, _)| name == "POCKET_PREFILL_MERGE");
            let share = samples.len() as f64 / (plan.repeats * plan.tasks.len() - 1) as f64;
            let budget = budget.unwrap().1.parse().unwrap();
            let wave = wave(task, budget, merged, 1.0 + drift * share);
            samples.push(Sample { task: number, round, at_s: 10.0 * share, wave });
        }
    }
    let counts = |launch: &Launch| ArmCounts {
        arm: launch.arm.clone(),
        after: Counts { all_reduces_per_pass: 17, ..Counts::default() },
        run: vec![17, 17],
        skipped: vec![0, 0],
        ..ArmCounts::default()
    };
    Measured {
        tasks: plan.tasks.clone(),
        samples,
        counts: plan.arms.iter().map(counts).collect(),
        invalid: vec![],
        one_at_a_time: false,
    }
}

fn outcome(drift: f64) -> Prefill {
    let plan = plan();
    Prefill::of(measured(&plan, drift), plan.budget, facts(), limits()).unwrap()
}

/// What the planted law becomes, for tests of what is made of it.
pub(in crate::prefill) fn planted() -> Prefill {
    outcome(0.0)
}

fn near(found: f64, planted: f64) {
    assert!((found / planted - 1.0).abs() < 1e-6, "{found}, planted {planted}");
}

#[test]
fn a_planted_law_is_found_by_every_reading() {
    let prefill = outcome(0.0);
    assert_eq!(prefill.points.len(), 12, "nine lengths and three cuts");
    for fits in [&prefill.joint, &prefill.wave_check] {
        for fit in [&fits.weighted, &fits.ordinary] {
            near(fit.law.per_call_ms, CALL_MS);
            near(fit.law.per_token_us, TOKEN_MS * 1e3);
            near(fit.law.constant_ms, CONSTANT_MS);
        }
    }
    // With one call each the constant is inside the call.
    near(prefill.length.weighted.law.per_call_ms, CALL_MS + CONSTANT_MS);
    near(prefill.marginal_tflops.value, 1e9 / (TOKEN_MS / 1e3) / 1e12);
    let first = &prefill.lengths[0];
    near(first.fixed_share.value, 53.0 / (53.0 + 16.0 * TOKEN_MS));
    near(first.delivered_tflops, 16.0 * 1e9 / (53.0 + 16.0 * TOKEN_MS) / 1e9);
}

#[test]
fn the_merged_gain_is_predicted_as_it_is_measured() {
    let Merge { merged, serial, wave_gain, by_joint, by_length, .. } = outcome(0.0).merge;
    assert_eq!((merged.calls, serial.calls), (1.0, 16.0));
    let planted = (16.0 * CALL_MS + 512.0 * TOKEN_MS + CONSTANT_MS)
        / (CALL_MS + 512.0 * TOKEN_MS + CONSTANT_MS);
    near(wave_gain.ratio, planted);
    near(by_joint.prediction.wave_gain.value, planted);
    assert!(by_joint.wave_gain_off.abs() < 1e-6 && by_joint.mean_ttft_gain_off.abs() < 1e-6);
    assert_eq!(by_joint.prediction.extrapolated, []);
    // It counts the constant with every call.
    assert!((0.0..0.06).contains(&by_length.wave_gain_off), "{by_length:?}");
}

#[test]
fn drift_is_stated_and_cancels_in_pairs() {
    let still = outcome(0.0).drift;
    assert_eq!(still.seconds, 10.0);
    assert!(still.change.unwrap().value.abs() < 1e-9);
    let prefill = outcome(0.2);
    let change = prefill.drift.change.unwrap();
    assert!((change.value - 0.18).abs() < 0.03, "{change:?}");
    let gain = prefill.merge.wave_gain.ratio;
    assert!((gain / outcome(0.0).merge.wave_gain.ratio - 1.0).abs() < 0.01, "{gain}");
}

#[test]
fn calls_stand_below_the_machines_limits() {
    let calls = outcome(0.0).calls;
    assert_eq!(
        (calls[0].name.as_str(), calls[1].name.as_str()),
        ("decode, 1 row", "decode, 16 rows")
    );
    // 1.1 GFLOP and 1 GB in 50 ms, where 40 GB/s allow 44 GFLOP/s.
    near(calls[0].flops_per_second, 1.1e9 / 0.05);
    near(calls[0].share_of_limit, 0.5);
    assert!(calls[2].name.starts_with("prefill, 16 rows"));
}

#[test]
fn the_control_compares_pairs_and_can_be_left_out() {
    let control = outcome(0.0).control.unwrap();
    assert_eq!((control.tokens, control.all_reduces_per_call), (512, 17));
    near(control.ratio.ratio, 1.0);
    let plan = plan();
    let mut measured = measured(&plan, 0.0);
    let skipped = measured.tasks.iter().position(|t| t.purpose == Purpose::Skipped).unwrap();
    measured.tasks.remove(skipped);
    measured.samples.retain(|sample| sample.task != skipped);
    for sample in &mut measured.samples {
        sample.task -= usize::from(sample.task > skipped);
    }
    let prefill = Prefill::of(measured, plan.budget, facts(), limits()).unwrap();
    assert_eq!(prefill.control, None);
}

#[test]
fn what_was_not_measured_is_named() {
    let plan = plan();
    let mut none = measured(&plan, 0.0);
    none.samples.clear();
    let error = Prefill::of(none, plan.budget, facts(), limits()).unwrap_err().to_string();
    assert!(error.contains("fitting calls and tokens"), "{error}");
}
