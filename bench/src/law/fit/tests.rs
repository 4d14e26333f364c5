use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};

use super::*;
use crate::law::published::{CALLS, LENGTHS, length_points};

#[test]
fn the_published_length_sweep_gives_its_published_fit() {
    let ordinary = fit_length(&length_points(), Weighting::Ordinary).unwrap();
    assert_eq!(format!("{:.1}", ordinary.per_call_ms().value), "142.6");
    assert_eq!(format!("{:.1}", ordinary.per_token_us().value), "627.4");
    assert_eq!(format!("{:.1}", ordinary.fit.largest_residual()), "46.6");
    assert_eq!(ordinary.constant_ms(), None);
    assert_eq!(ordinary.law.tokens_a_call, Some((67.0, 3703.0)));
}

#[test]
fn points_of_one_call_cannot_tell_a_call_from_the_constant() {
    let error = fit_joint(&length_points(), Weighting::Relative).unwrap_err();
    assert!(matches!(&error, FitError::Collinear { name } if name == CONSTANT), "{error}");
    let several = [Point { calls: 2, tokens: 10, ttft_ms: 1.0 }];
    let error = fit_length(&several, Weighting::Relative).unwrap_err();
    assert!(error.to_string().contains("one call each"), "{error}");
}

#[test]
fn a_wave_of_equal_prompts_needs_a_second_budget() {
    let wave = |calls_each: u64| {
        (1..=8u64).map(move |at| Point {
            calls: at * calls_each,
            tokens: at * 300,
            ttft_ms: 12.0 * (at * calls_each) as f64 + 0.25 * (at * 300) as f64 + 3.0,
        })
    };
    let one: Vec<Point> = wave(1).collect();
    assert!(matches!(wave_regression(&one, Weighting::Relative), Err(FitError::Collinear { .. })));
    let two: Vec<Point> = wave(1).chain(wave(3)).collect();
    let fit = wave_regression(&two, Weighting::Relative).unwrap();
    assert!((fit.law.per_call_ms - 12.0).abs() < 1e-8);
    assert!((fit.law.per_token_us - 250.0).abs() < 1e-8);
    assert!((fit.law.constant_ms - 3.0).abs() < 1e-7);
}

/// A thousand experiments with the published points and a law that is known: an interval that says 95 %
/// must hold the truth about 95 times in a hundred.
#[test]
fn intervals_hold_a_planted_law_as_often_as_they_say() {
    const TRUTH: [f64; 3] = [204.2, 577.4, 27.7];
    const NOISE: f64 = 0.03;
    const SETS: usize = 1000;
    let lengths = LENGTHS.iter().map(|(tokens, _)| (*tokens, 1));
    let plan: Vec<(u64, u64)> = lengths.chain(CALLS).collect();
    assert_eq!(plan.len(), 17);

    let mut random = ChaCha8Rng::seed_from_u64(17);
    let mut held = [0usize; 3];
    for _ in 0..SETS {
        let points: Vec<Point> = plan
            .iter()
            .map(|(tokens, calls)| {
                let truth = TRUTH[0] * *calls as f64 + TRUTH[1] * *tokens as f64 / 1e3 + TRUTH[2];
                let noise: f64 = StandardNormal.sample(&mut random);
                Point { calls: *calls, tokens: *tokens, ttft_ms: truth * (1.0 + NOISE * noise) }
            })
            .collect();
        let fit = fit_joint(&points, Weighting::Relative).unwrap();
        for ((held, found), truth) in held.iter_mut().zip(&fit.fit.coefficients).zip(TRUTH) {
            *held += usize::from(found.interval.unwrap().contains(truth));
        }
    }
    for (held, name) in held.iter().zip([PER_CALL, PER_TOKEN, CONSTANT]) {
        let share = *held as f64 / SETS as f64;
        assert!((0.93..=0.97).contains(&share), "{name}: {:.1} %", share * 100.0);
    }
}
