//! Sampling as a whole: reproducible, and distributed as the parameters say.

use super::*;

mod rules;

fn params(temperature: f32, top_k: usize, top_p: f32) -> SamplingParams {
    SamplingParams { temperature, top_k, top_p, seed: Some(7), ..SamplingParams::default() }
}

/// A sampler without a prompt or an end.
fn sampler(params: &SamplingParams) -> Sampler {
    Sampler::new(params, 0, &[], &[]).unwrap()
}

/// `count` logits without ties that look like a model's: most are low, a few stand out.
fn row(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 2_654_435_761) % 1_000_003) as f32 / 1e5 - (i % 7) as f32).collect()
}

fn draws(params: &SamplingParams, logits: &[f32], count: usize) -> Vec<u32> {
    go_on(&mut sampler(params), logits, count)
}

/// The next `count` tokens when the model gives the same logits each time.
fn go_on(sampler: &mut Sampler, logits: &[f32], count: usize) -> Vec<u32> {
    let mut next = || {
        let token = sampler.sample(&mut logits.to_vec()).unwrap();
        sampler.accept(token);
        token
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn greedy_takes_the_lowest_id_of_a_tie_on_every_path_d3() {
    let mut logits = row(1000);
    logits[999] = 50.0;
    logits[500] = 50.0;
    for greedy in [SamplingParams::greedy(), params(1.0, 1, 1.0), params(0.7, 1, 0.5)] {
        assert_eq!(draws(&greedy, &logits, 3), [500; 3]);
    }
    // The likeliest token alone reaches any small top_p.
    assert_eq!(draws(&params(1.0, 0, 1e-6), &logits, 3), [500; 3]);
    let mut all_equal = vec![1.0; 300];
    assert_eq!(draws(&SamplingParams::greedy(), &all_equal, 1), [0]);
    all_equal[0] = f32::NEG_INFINITY;
    assert_eq!(draws(&SamplingParams::greedy(), &all_equal, 1), [1]);
}

#[test]
fn a_seed_gives_the_same_tokens_d24() {
    let logits = row(5000);
    let with = params(1.0, 0, 1.0);
    let first = draws(&with, &logits, 64);
    assert_eq!(draws(&with, &logits, 64), first);
    let other = SamplingParams { seed: Some(8), ..with.clone() };
    assert_ne!(draws(&other, &logits, 64), first);

    // Without a seed of its own the request's is used.
    let unseeded = SamplingParams { seed: None, ..with };
    let mut sampler = Sampler::new(&unseeded, 7, &[], &[]).unwrap();
    assert_eq!(go_on(&mut sampler, &logits, 64), first);
}

#[test]
fn a_replayed_request_goes_on_as_it_would_have_d24() {
    let logits = row(5000);
    let prompt = [4, 1, 4, 4999];
    let with = SamplingParams {
        min_p: 1e-4,
        repetition_penalty: 1.2,
        presence_penalty: -0.5,
        frequency_penalty: 0.75,
        logit_bias: [(9, 4.0), (11, -100.0)].into(),
        min_tokens: 20,
        ..params(1.3, 0, 0.95)
    };
    let start = || Sampler::new(&with, 0, &prompt, &[2, 3]).unwrap();
    let whole = go_on(&mut start(), &logits, 40);
    for cut in [0, 1, 17, 39] {
        let mut sampler = start();
        whole[..cut].iter().for_each(|&token| sampler.accept(token));
        assert_eq!(sampler.index(), cut as u64);
        assert_eq!(go_on(&mut sampler, &logits, 40 - cut), whole[cut..]);
    }
    // The tokens replayed matter, not only their number.
    let mut other = start();
    (0..17).for_each(|_| other.accept(2500));
    assert_ne!(go_on(&mut other, &logits, 23), whole[17..]);
}

#[test]
fn sampling_leaves_the_sampler_as_it_is() {
    let logits = row(5000);
    let sampler = sampler(&params(1.5, 0, 1.0));
    let once = sampler.sample(&mut logits.clone()).unwrap();
    // Another request's row in between makes no difference.
    sampler.sample(&mut row(300)).unwrap();
    assert_eq!(sampler.sample(&mut logits.clone()).unwrap(), once);
    assert_eq!(sampler.index(), 0);
}

#[test]
fn choices_have_seeds_that_count_up_from_the_first() {
    let logits = row(5000);
    let with =
        SamplingParams { seed: Some(u64::MAX), frequency_penalty: 1.0, ..params(1.0, 0, 1.0) };
    let mut first = sampler(&with);
    let tokens = go_on(&mut first, &logits, 20);
    // What the first has accepted is not in the others.
    assert_eq!(go_on(&mut first.for_choice(0), &logits, 20), tokens);
    let second = go_on(&mut first.for_choice(1), &logits, 20);
    assert_ne!(second, tokens);
    assert_eq!(second, draws(&SamplingParams { seed: Some(0), ..with }, &logits, 20));
}

#[test]
fn neighbouring_seeds_and_indices_give_unrelated_numbers() {
    // Two tokens of equal weight: 64 coin flips a seed.
    let mut words = std::collections::HashSet::new();
    for seed in 0..200 {
        let coin = SamplingParams { seed: Some(seed), ..SamplingParams::default() };
        let flips = draws(&coin, &[0.0, 0.0], 64);
        let heads = flips.iter().filter(|&&token| token == 0).count();
        // 32 expected, 4 the standard deviation.
        assert!((10..=54).contains(&heads), "seed {seed}: {heads} heads of 64");
        assert!(words.insert(flips), "seed {seed} repeats another");
    }
}

#[test]
fn bad_logits_are_errors() {
    let masked = SamplingParams { min_tokens: 1, ..params(1.0, 0, 1.0) };
    for with in [SamplingParams::greedy(), params(1.0, 0, 1.0), params(1.0, 5, 0.5), masked] {
        let sampler = Sampler::new(&with, 0, &[], &[400]).unwrap();
        let mut logits = row(600);
        logits[400] = f32::NAN;
        let error = sampler.sample(&mut logits).unwrap_err();
        assert_eq!(error, SamplingError::BadLogit { id: 400, value: "NaN".into() });
        assert_eq!(sampler.sample(&mut []), Err(SamplingError::NoCandidate { count: 0 }));
    }
    assert!(Sampler::new(&params(-1.0, 0, 1.0), 0, &[], &[]).is_err());
}

#[test]
fn extreme_temperatures_stay_finite() {
    let logits = row(3000);
    let best = Best::of(&logits, 0).unwrap().id;
    assert_eq!(draws(&params(f32::MIN_POSITIVE, 0, 1.0), &logits, 5), [best; 5]);
    assert_eq!(draws(&params(1e-42, 0, 0.9), &logits, 5), [best; 5]);
    let hot = draws(&params(100.0, 0, 1.0), &logits, 200);
    assert!(hot.iter().collect::<std::collections::HashSet<_>>().len() > 150);
}

/// Pearson's statistic of `count` draws against the probabilities the definitions give.
fn chi_square(with: &SamplingParams, logits: &[f32], expected: &[f64], count: usize) -> f64 {
    let mut seen = vec![0_usize; logits.len()];
    for token in draws(with, logits, count) {
        seen[token as usize] += 1;
    }
    let mut statistic = 0.0;
    for (&seen, &probability) in seen.iter().zip(expected) {
        let expected = probability * count as f64;
        if probability == 0.0 {
            assert_eq!(seen, 0, "a token that was cut has been drawn");
        } else {
            statistic += (seen as f64 - expected).powi(2) / expected;
        }
    }
    statistic
}

#[test]
fn draws_follow_the_distribution() {
    let probabilities = [0.30, 0.02, 0.18, 0.05, 0.25, 0.08, 0.02, 0.10];
    let logits: Vec<f32> = probabilities.iter().map(|p: &f64| p.ln() as f32 + 3.0).collect();
    let normal = |weights: [f64; 8]| {
        let total: f64 = weights.iter().sum();
        weights.map(|weight| weight / total)
    };
    // The 0.999 quantiles of chi-square with 7, 7, 3 and 2 degrees of freedom; a fixed seed makes
    // the outcome the same in every run.
    let cases = [
        (params(1.0, 0, 1.0), probabilities, 24.32),
        (params(2.0, 0, 1.0), normal(probabilities.map(f64::sqrt)), 24.32),
        (params(1.0, 4, 1.0), normal([0.30, 0.0, 0.18, 0.0, 0.25, 0.0, 0.0, 0.10]), 16.27),
        (params(1.0, 0, 0.7), normal([0.30, 0.0, 0.18, 0.0, 0.25, 0.0, 0.0, 0.0]), 13.82),
        (
            SamplingParams { min_p: 0.3, ..params(1.0, 0, 1.0) },
            normal([0.30, 0.0, 0.18, 0.0, 0.25, 0.0, 0.0, 0.10]),
            16.27,
        ),
    ];
    for (with, expected, limit) in cases {
        let statistic = chi_square(&with, &logits, &expected, 40_000);
        assert!(statistic < limit, "{with:?}: {statistic}");
        // The test can fail: uniform draws would be far outside.
        let kept = expected.iter().filter(|p| **p > 0.0).count() as f64;
        let uniform = expected.map(|p| if p > 0.0 { 1.0 / kept } else { 0.0 });
        assert!(chi_square(&with, &logits, &uniform, 40_000) > 10.0 * limit);
    }
}
