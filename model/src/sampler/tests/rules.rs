//! Bias, `min_tokens` and the penalties.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::{go_on, row, sampler};
use crate::sampler::{Best, Sampler, SamplingError, SamplingParams};

fn greedy() -> SamplingParams {
    SamplingParams::greedy()
}

fn with_prompt(params: &SamplingParams, prompt: &[u32]) -> Sampler {
    Sampler::new(params, 0, prompt, &[]).unwrap()
}

/// What the rules make of a row.
fn changed(sampler: &Sampler, logits: &[f32]) -> Vec<f32> {
    let mut row = logits.to_vec();
    sampler.sample(&mut row).unwrap();
    row
}

#[test]
fn a_bias_forbids_and_forces() {
    let logits = row(1000);
    let best = Best::of(&logits, 0).unwrap().id;
    let biased = |bias: &[(u32, f32)]| {
        let logit_bias = bias.iter().copied().collect();
        let greedy = SamplingParams { logit_bias, ..greedy() };
        let random = SamplingParams { temperature: 1.0, seed: Some(3), ..greedy.clone() };
        [greedy, random].map(|with| go_on(&mut sampler(&with), &logits, 50))
    };
    for tokens in biased(&[(best, -100.0)]) {
        assert!(!tokens.contains(&best));
    }
    for tokens in biased(&[(999, 100.0), (5, 0.0)]) {
        assert_eq!(tokens, [999; 50]);
    }
    // Equal after the bias: the lowest id wins.
    let [tokens, _] = biased(&[(5, 50.0 - logits[5]), (4, 50.0 - logits[4])]);
    assert_eq!(tokens, [4; 50]);
    // A token that is not there.
    let [tokens, _] = biased(&[(1000, 100.0)]);
    assert_eq!(tokens, [best; 50]);
}

#[test]
fn no_end_comes_before_min_tokens() {
    let mut logits = row(300);
    (logits[7], logits[40]) = (60.0, 50.0);
    for with in [greedy(), SamplingParams { seed: Some(1), ..SamplingParams::default() }] {
        let with = SamplingParams { min_tokens: 3, ..with };
        // The last is no token of the row.
        let mut sampler = Sampler::new(&with, 0, &[], &[40, 7, 5000]).unwrap();
        let tokens = go_on(&mut sampler, &logits, 5);
        assert!(tokens[..3].iter().all(|token| ![7, 40].contains(token)), "{tokens:?}");
        assert_eq!(tokens[3..], [7, 7]);
    }
}

#[test]
fn a_mask_beats_a_bias() {
    let with = SamplingParams { min_tokens: 1, logit_bias: [(2, 100.0)].into(), ..greedy() };
    let sampler = Sampler::new(&with, 0, &[], &[2]).unwrap();
    assert_eq!(sampler.sample(&mut [0.0, 1.0, 2.0]), Ok(1));
}

#[test]
fn masks_that_leave_nothing_are_an_error() {
    for with in [greedy(), SamplingParams::default()] {
        let with = SamplingParams { min_tokens: 1, ..with };
        let mut sampler = Sampler::new(&with, 0, &[], &[0, 2]).unwrap();
        let logits = [1.0, f32::NEG_INFINITY, 3.0];
        let nothing = Err(SamplingError::NoCandidate { count: 3 });
        assert_eq!(sampler.sample(&mut logits.clone()), nothing);
        sampler.accept(0);
        assert!(sampler.sample(&mut logits.clone()).is_ok());
    }
}

#[test]
fn repetition_counts_prompt_and_answer_once_each() {
    let with = SamplingParams { repetition_penalty: 2.0, ..greedy() };
    let mut sampler = with_prompt(&with, &[1, 1, 2, 3, 900]);
    [3, 4, 4].into_iter().for_each(|token| sampler.accept(token));
    let logits = [8.0, 8.0, -8.0, 0.0, f32::NEG_INFINITY, -1.0];
    assert_eq!(changed(&sampler, &logits), [8.0, 4.0, -16.0, 0.0, f32::NEG_INFINITY, -1.0]);
    // Below 1 it makes them likelier.
    let with = SamplingParams { repetition_penalty: 0.5, ..greedy() };
    assert_eq!(changed(&with_prompt(&with, &[1, 2]), &[1.0, 1.0, -1.0]), [1.0, 2.0, -0.5]);
    let with =
        SamplingParams { repetition_penalty: f32::MIN_POSITIVE, ..SamplingParams::default() };
    assert_eq!(with_prompt(&with, &[1]).sample(&mut [5.0, 5.0]), Ok(1));
}

#[test]
fn presence_and_frequency_count_the_answer_only() {
    let with = SamplingParams { presence_penalty: 0.5, frequency_penalty: 0.25, ..greedy() };
    let mut sampler = with_prompt(&with, &[0, 1]);
    [2, 1, 2, 2].into_iter().for_each(|token| sampler.accept(token));
    assert_eq!(changed(&sampler, &[4.0; 4]), [4.0, 3.25, 2.75, 4.0]);
    // The same choice starts anew for another answer.
    assert_eq!(changed(&sampler.for_choice(1), &[4.0; 4]), [4.0; 4]);
}

#[test]
fn a_penalty_that_evens_two_tokens_leaves_the_lower_id_d3() {
    let with = SamplingParams { frequency_penalty: 1.0, ..greedy() };
    let mut sampler = sampler(&with);
    assert_eq!(go_on(&mut sampler, &[1.0, 2.0, 0.5], 5), [1, 0, 1, 2, 0]);
}

#[test]
fn the_bare_maximum_is_enough_only_without_rules() {
    let needs = |with: &SamplingParams, ends: &[u32]| {
        Sampler::new(with, 0, &[1], ends).unwrap().needs_logits()
    };
    assert!(!needs(&greedy(), &[2]));
    assert!(!needs(&SamplingParams { top_k: 1, ..SamplingParams::default() }, &[2]));
    assert!(needs(&SamplingParams::default(), &[2]));
    assert!(needs(&SamplingParams { logit_bias: [(1, -1.0)].into(), ..greedy() }, &[2]));
    assert!(needs(&SamplingParams { repetition_penalty: 1.1, ..greedy() }, &[2]));
    assert!(needs(&SamplingParams { presence_penalty: 0.1, ..greedy() }, &[2]));
    assert!(needs(&SamplingParams { frequency_penalty: -0.1, ..greedy() }, &[2]));
    // Rules of a random choice do not matter to a greedy one.
    assert!(!needs(&SamplingParams { min_p: 0.5, top_p: 0.5, ..greedy() }, &[2]));

    let least = SamplingParams { min_tokens: 2, ..greedy() };
    assert!(!needs(&least, &[]));
    let mut sampler = Sampler::new(&least, 0, &[], &[2]).unwrap();
    for expected in [true, true, false, false] {
        assert_eq!(sampler.needs_logits(), expected);
        sampler.accept(7);
    }
}

/// The rules as they are written down, in float64.
fn by_definition(
    with: &SamplingParams,
    prompt: &[u32],
    answer: &[u32],
    logits: &[f32],
) -> Vec<f64> {
    let logit = |(id, &logit): (u32, &f32)| {
        let mut logit = f64::from(logit);
        logit += with.logit_bias.get(&id).map_or(0.0, |&bias| f64::from(bias));
        let count = answer.iter().filter(|&&token| token == id).count();
        if count > 0 || prompt.contains(&id) {
            let factor = f64::from(with.repetition_penalty);
            logit = if logit > 0.0 { logit / factor } else { logit * factor };
        }
        if count > 0 {
            logit -= count as f64 * f64::from(with.frequency_penalty);
            logit -= f64::from(with.presence_penalty);
        }
        logit
    };
    (0..).zip(logits).map(logit).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn same_logits_as_by_definition(
        logits in prop::collection::vec(-20.0_f32..20.0, 30),
        prompt in prop::collection::vec(0_u32..40, 0..40),
        answer in prop::collection::vec(0_u32..30, 0..60),
        repetition_penalty in prop_oneof![Just(1.0_f32), 0.1_f32..10.0],
        presence_penalty in prop_oneof![Just(0.0_f32), -2.0_f32..2.0],
        frequency_penalty in prop_oneof![Just(0.0_f32), -2.0_f32..2.0],
        bias in prop::collection::vec((0_u32..40, -100.0_f32..100.0), 0..5),
    ) {
        let logit_bias: BTreeMap<u32, f32> = bias.into_iter().collect();
        let with = SamplingParams {
            repetition_penalty, presence_penalty, frequency_penalty, logit_bias, ..greedy()
        };
        let mut sampler = with_prompt(&with, &prompt);
        answer.iter().for_each(|&token| sampler.accept(token));
        let mut row = logits.clone();
        let token = sampler.sample(&mut row).unwrap();
        let expected = by_definition(&with, &prompt, &answer, &logits);
        for (&got, expected) in row.iter().zip(expected) {
            let tolerance = 1e-5 * (1.0 + expected.abs().max(100.0));
            prop_assert!((f64::from(got) - expected).abs() < tolerance, "{} {}", got, expected);
        }
        prop_assert_eq!(token, Best::of(&row, 0).unwrap().id);
    }
}
