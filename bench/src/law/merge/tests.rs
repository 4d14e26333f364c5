use super::*;
use crate::law::published::length_points;
use crate::law::{Point, fit_joint, fit_length};
use crate::stats::Weighting;

/// The published wave: 16 prompts, 5162 tokens.
fn published_wave() -> Wave {
    Wave::even(16, 5162).unwrap()
}

fn gain(law: &Law) -> String {
    let prediction = law.merge(&published_wave(), FirstTokens::AsReady);
    assert_eq!((prediction.serial_calls, prediction.merged_calls), (16, 1));
    format!("{:.2}", prediction.wave_gain.value)
}

#[test]
fn published_fits_give_their_published_gains() {
    assert_eq!(gain(&Law::given(204.2, 577.4, 27.7)), "1.95");
    assert_eq!(gain(&Law::given(205.7, 599.1, 0.0)), "1.94");
    let later = fit_length(&length_points(), Weighting::Ordinary).unwrap();
    assert_eq!(gain(&later.law), "1.63");
}

#[test]
fn a_merged_call_beyond_the_measured_lengths_is_extrapolated() {
    let later = fit_length(&length_points(), Weighting::Relative).unwrap().law;
    let beyond = later.merge(&published_wave(), FirstTokens::AsReady);
    let outside = Extrapolation::Outside { tokens: 5162.0, fewest: 67.0, most: 3703.0 };
    assert!(beyond.extrapolated.contains(&outside), "{:?}", beyond.extrapolated);
    assert!(outside.to_string().contains("67 to 3703"));
    // Cut at a budget that was measured, the same wave is not.
    let cut = Wave { tokens_a_call: Some(2048), ..published_wave() };
    let inside = later.merge(&cut, FirstTokens::AsReady);
    let is_outside = |why: &Extrapolation| matches!(why, Extrapolation::Outside { .. });
    assert!(!inside.extrapolated.iter().any(is_outside), "{:?}", inside.extrapolated);
    assert_eq!((inside.serial_calls, inside.merged_calls), (16, 3));
    let given = Law::given(1.0, 1.0, 0.0).merge(&published_wave(), FirstTokens::AsReady);
    assert_eq!(given.extrapolated, []);
}

#[test]
fn a_bent_cost_is_extrapolated_inside_the_range_too() {
    let points = (1..=20u64).map(|at| {
        let tokens = at * 200;
        let ms = 50.0 + 0.1 * tokens as f64 + 1e-4 * (tokens * tokens) as f64;
        let noise = if at % 2 == 0 { 1.001 } else { 0.999 };
        Point { calls: 1, tokens, ttft_ms: ms * noise }
    });
    let law = fit_length(&points.collect::<Vec<_>>(), Weighting::Ordinary).unwrap().law;
    let prediction = law.merge(&Wave::even(4, 3600).unwrap(), FirstTokens::AsReady);
    assert!(!prediction.extrapolated.is_empty());
    let bent = |why: &Extrapolation| matches!(why, Extrapolation::NotAffine { .. });
    assert!(prediction.extrapolated.iter().all(bent), "{:?}", prediction.extrapolated);
}

fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9, "{found}, not {expected}");
}

#[test]
fn first_tokens_wait_for_their_call_their_own_calls_or_the_wave() {
    // 10 ms a call, 1 ms a token, prompts of 3 and 5 tokens.
    let law = Law::given(10.0, 1000.0, 2.0);
    let wave = Wave { prompt_tokens: vec![3, 5], tokens_a_call: None };
    let ready = law.merge(&wave, FirstTokens::AsReady);
    near(ready.serial_wave_ms.value, 20.0 + 8.0 + 2.0);
    near(ready.serial_mean_ttft_ms.value, (15.0 + 30.0) / 2.0);
    near(ready.merged_wave_ms.value, 20.0);
    near(ready.merged_mean_ttft_ms.value, 20.0);
    let bimodal = law.merge(&wave, FirstTokens::Bimodal);
    near(bimodal.serial_mean_ttft_ms.value, (15.0 + 30.0) / 2.0);
    let three = Wave { prompt_tokens: vec![3, 5, 2], tokens_a_call: None };
    let bimodal = law.merge(&three, FirstTokens::Bimodal);
    near(bimodal.serial_mean_ttft_ms.value, (15.0 + 42.0 + 42.0) / 3.0);
    // Calls of four tokens: the first prompt ends in the first, the second in the second.
    let cut = Wave { prompt_tokens: vec![3, 4], tokens_a_call: Some(4) };
    let cut = law.merge(&cut, FirstTokens::AsReady);
    assert_eq!((cut.serial_calls, cut.merged_calls), (2, 2));
    near(cut.merged_mean_ttft_ms.value, ((10.0 + 4.0) + (20.0 + 7.0)) / 2.0 + 2.0);
}

#[test]
fn waves_are_split_evenly_and_need_a_token_a_prompt() {
    let wave = published_wave();
    assert_eq!(wave.prompt_tokens.len(), 16);
    assert_eq!(wave.tokens(), 5162);
    assert!(wave.prompt_tokens.iter().all(|tokens| [322, 323].contains(tokens)));
    assert_eq!(Wave::even(0, 5), None);
    assert_eq!(Wave::even(6, 5), None);
}

#[test]
fn a_gain_has_an_interval_that_holds_the_truth() {
    let truth = Law::given(20.0, 100.0, 5.0);
    let points: Vec<Point> =
        [(1u64, 500u64), (1, 4000), (2, 4000), (4, 4000), (8, 4000), (1, 2000)]
            .iter()
            .enumerate()
            .map(|(at, (calls, tokens))| {
                let noise = if at % 2 == 0 { 1.01 } else { 0.99 };
                let ms = truth.ttft_ms(*calls as f64, *tokens as f64).value * noise;
                Point { calls: *calls, tokens: *tokens, ttft_ms: ms }
            })
            .collect();
    let law = fit_joint(&points, Weighting::Relative).unwrap().law;
    let wave = Wave::even(4, 4000).unwrap();
    let (found, true_gain) = (
        law.merge(&wave, FirstTokens::AsReady).wave_gain,
        truth.merge(&wave, FirstTokens::AsReady),
    );
    let interval = found.interval.unwrap();
    assert!(interval.contains(true_gain.wave_gain.value), "{found:?}");
    assert!(interval.high - interval.low < 0.5, "{interval:?}");
}
