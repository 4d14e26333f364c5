//! Which tokens `min_p`, `top_k` and `top_p` keep, found by selection: a row of 248,320 logits is
//! never sorted.
//!
//! Tokens rank by logit, ties by the lower id first. What is kept is therefore everything down to
//! one token, the [`Cut`], and a scan in id order can tell each token's fate by one comparison.

use std::cmp::Ordering;

use super::SamplingParams;
use super::exp::exp;

/// A token and its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub logit: f32,
    pub id: u32,
}

/// Likeliest first. Logits are never NaN here; 0 and -0 are equal.
fn rank(a: &Candidate, b: &Candidate) -> Ordering {
    let by_logit = b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal);
    by_logit.then(a.id.cmp(&b.id))
}

/// The last token kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cut(Candidate);

impl Cut {
    /// Keeps every token.
    pub const NOTHING: Cut = Cut(Candidate { logit: f32::NEG_INFINITY, id: u32::MAX });

    /// Keeps the tokens whose weight is at least `min_p` of the largest, 1.
    fn at_share(min_p: f32, max: f32, temperature: f32) -> Cut {
        if min_p == 0.0 {
            return Self::NOTHING;
        }
        let logit = f64::from(max) + f64::from(temperature) * f64::from(min_p).ln();
        Cut(Candidate { logit: logit as f32, id: u32::MAX })
    }

    /// Whether a token ranks at or above the cut.
    #[inline(always)]
    pub fn keeps(self, logit: f32, id: u32) -> bool {
        logit > self.0.logit || (logit == self.0.logit && id <= self.0.id)
    }
}

fn candidates(logits: &[f32]) -> impl Iterator<Item = Candidate> {
    logits.iter().zip(0..).map(|(&logit, id)| Candidate { logit, id })
}

/// The `k` likeliest of the tokens that `floor` keeps, in no order; fewer if it keeps fewer. `k` is
/// at least 1.
///
/// Keeps a short list, and whenever it has grown by half the best `k` of it set the bar for the
/// rest: most tokens are read once and cost a comparison.
fn likeliest(logits: &[f32], k: usize, floor: Cut) -> Vec<Candidate> {
    let capacity = k + (k / 2).max(64);
    let mut list: Vec<Candidate> = Vec::with_capacity(capacity.min(logits.len()));
    let mut bar = floor;
    for candidate in candidates(logits) {
        if !bar.keeps(candidate.logit, candidate.id) {
            continue;
        }
        list.push(candidate);
        if list.len() == capacity {
            list.select_nth_unstable_by(k - 1, rank);
            list.truncate(k);
            bar = Cut(list[k - 1]);
        }
    }
    if list.len() > k {
        list.select_nth_unstable_by(k - 1, rank);
        list.truncate(k);
    }
    list
}

/// The `k` likeliest tokens, likeliest first; all if there are fewer.
pub(super) fn ranked(logits: &[f32], k: usize) -> Vec<Candidate> {
    let k = k.min(logits.len());
    if k == 0 {
        return Vec::new();
    }
    let mut list = likeliest(logits, k, Cut::NOTHING);
    list.sort_unstable_by(rank);
    list
}

/// The place of a token of the row when the likeliest is at place 1.
pub(super) fn place(logits: &[f32], id: u32) -> u32 {
    let own = logits[id as usize];
    let (before, after) = logits.split_at(id as usize);
    let ahead = before.iter().filter(|&&logit| logit >= own).count()
        + after.iter().filter(|&&logit| logit > own).count();
    ahead as u32 + 1
}

/// The last token of the smallest set of likeliest tokens whose weight reaches `mass`. `list` has
/// at least one token and holds the one that crosses; what ranks before the list weighs `kept`.
///
/// A binary search by selection: the likelier half is either heavy enough, and the answer lies in
/// it, or is kept whole. Every step halves what is looked at.
fn crossing(
    mut list: &mut [Candidate],
    mut kept: f64,
    mass: f64,
    weight: impl Fn(f32) -> f32,
) -> Cut {
    while list.len() > 1 {
        let half = list.len() / 2;
        list.select_nth_unstable_by(half - 1, rank);
        let (likely, rest) = list.split_at_mut(half);
        let heavier: f64 = likely.iter().map(|c| f64::from(weight(c.logit))).sum();
        if kept + heavier >= mass {
            list = likely;
        } else {
            kept += heavier;
            list = rest;
        }
    }
    Cut(list[0])
}

/// Buckets of the first look at a row's weights.
const BUCKETS: usize = 1024;

/// The cut `top_p` makes among all tokens that `floor` keeps, the largest among them.
///
/// One pass adds up the weights in buckets of equal width in `x = (logit - max) / temperature`; the
/// bucket in which `top_p` is reached is all that has to be looked at closely.
fn nucleus(logits: &[f32], max: f32, temperature: f32, top_p: f32, floor: Cut) -> Cut {
    let weight = |logit: f32| exp((logit - max) / temperature);
    // Weights end at x = -87. The conversion saturates, so that the last bucket takes the rest.
    let bucket = |logit: f32| {
        let index = (max - logit) / temperature * (BUCKETS as f32 / 87.0);
        (index as usize).min(BUCKETS - 1)
    };
    let mut weights = [0.0; BUCKETS];
    for c in candidates(logits).filter(|c| floor.keeps(c.logit, c.id)) {
        weights[bucket(c.logit)] += f64::from(weight(c.logit));
    }
    let mass = f64::from(top_p) * weights.iter().sum::<f64>();
    let mut kept = 0.0;
    let mut crossed = 0;
    for (index, &weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
        crossed = index;
        if kept + weight >= mass {
            break;
        }
        kept += weight;
    }
    let mut list: Vec<Candidate> = candidates(logits)
        .filter(|c| floor.keeps(c.logit, c.id) && bucket(c.logit) == crossed)
        .collect();
    crossing(&mut list, kept, mass, weight)
}

/// The cut that `min_p`, then `top_k`, then `top_p` make in a row whose largest logit is `max`, at the
/// parameters' temperature. At least one token is kept.
pub(super) fn cut(logits: &[f32], max: f32, params: &SamplingParams) -> Cut {
    let &SamplingParams { temperature, min_p, top_k, top_p, .. } = params;
    let floor = Cut::at_share(min_p, max, temperature);
    let limited = top_k > 0 && top_k < logits.len();
    match (limited, top_p < 1.0) {
        (false, false) => floor,
        (false, true) => nucleus(logits, max, temperature, top_p, floor),
        (true, false) => {
            likeliest(logits, top_k, floor).into_iter().max_by(rank).map_or(floor, Cut)
        }
        (true, true) => {
            let mut list = likeliest(logits, top_k, floor);
            let weight = |logit: f32| exp((logit - max) / temperature);
            let total: f64 = list.iter().map(|c| f64::from(weight(c.logit))).sum();
            crossing(&mut list, 0.0, f64::from(top_p) * total, weight)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    /// Checks `kept` against the definitions, by sorting and in float64. Sums of different precision
    /// may disagree on a token at the very edge of `top_p`; such a token may be kept or not.
    fn check(logits: &[f32], with: &SamplingParams, kept: &[u32]) {
        let &SamplingParams { temperature, min_p, top_k, top_p, .. } = with;
        let mut all: Vec<Candidate> = candidates(logits).collect();
        all.sort_by(rank);
        let share =
            |c: &Candidate| (f64::from(c.logit - all[0].logit) / f64::from(temperature)).exp();
        let enough = all.iter().take_while(|c| share(c) >= f64::from(min_p)).count();
        all.truncate(enough);
        if top_k > 0 {
            all.truncate(top_k);
        }
        let weight =
            |c: &Candidate| (f64::from(c.logit - all[0].logit) / f64::from(temperature)).exp();
        let mass = |list: &[Candidate]| list.iter().map(weight).sum::<f64>();
        let count = kept.len();
        let mut likeliest: Vec<u32> = all[..count].iter().map(|c| c.id).collect();
        likeliest.sort_unstable();
        assert_eq!(kept, likeliest, "the likeliest are kept");
        if top_p == 1.0 {
            assert_eq!(count, all.len());
        } else {
            let wanted = f64::from(top_p) * mass(&all);
            assert!(mass(&all[..count]) >= wanted * (1.0 - 1e-5), "enough is kept");
            assert!(mass(&all[..count - 1]) < wanted * (1.0 + 1e-5), "not too much is kept");
        }
    }

    fn kept(logits: &[f32], temperature: f32, top_k: usize, top_p: f32) -> Vec<u32> {
        let with = SamplingParams { temperature, top_k, top_p, ..SamplingParams::default() };
        kept_with(logits, &with)
    }

    fn kept_with(logits: &[f32], with: &SamplingParams) -> Vec<u32> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let cut = cut(logits, max, with);
        candidates(logits).filter(|c| cut.keeps(c.logit, c.id)).map(|c| c.id).collect()
    }

    #[test]
    fn top_k_keeps_exactly_k_and_the_lower_ids_of_a_tie() {
        assert_eq!(kept(&[1.0, 2.0, 2.0, 2.0, 0.0], 1.0, 2, 1.0), [1, 2]);
        assert_eq!(kept(&[0.0; 9], 1.0, 4, 1.0), [0, 1, 2, 3]);
        assert_eq!(kept(&[0.0, -0.0, 0.0], 1.0, 2, 1.0), [0, 1]);
        assert_eq!(kept(&[1.0, 2.0], 1.0, 5, 1.0), [0, 1]);
    }

    #[test]
    fn top_p_counts_the_token_that_crosses() {
        let logits: Vec<f32> = [0.5_f32, 0.3, 0.15, 0.05].iter().map(|p| p.ln()).collect();
        assert_eq!(kept(&logits, 1.0, 0, 0.4), [0]);
        assert_eq!(kept(&logits, 1.0, 0, 0.6), [0, 1]);
        assert_eq!(kept(&logits, 1.0, 0, 0.9), [0, 1, 2]);
        // Of the two that top_k leaves, the first has 0.5 / 0.8.
        assert_eq!(kept(&logits, 1.0, 2, 0.6), [0]);
        assert_eq!(kept(&logits, 1.0, 0, f32::MIN_POSITIVE), [0]);
    }

    #[test]
    fn min_p_keeps_what_has_its_share_of_the_top() {
        let logits: Vec<f32> = [0.02_f32, 0.5, 0.15, 0.26, 0.07].iter().map(|p| p.ln()).collect();
        let kept = |min_p, temperature, top_k, top_p| {
            let with =
                SamplingParams { min_p, temperature, top_k, top_p, ..SamplingParams::default() };
            kept_with(&logits, &with)
        };
        assert_eq!(kept(0.29, 1.0, 0, 1.0), [1, 2, 3]);
        assert_eq!(kept(0.31, 1.0, 0, 1.0), [1, 3]);
        // The temperature comes first: at 2 the shares are square roots.
        assert_eq!(kept(0.53, 2.0, 0, 1.0), [1, 2, 3]);
        assert_eq!(kept(1.0, 1.0, 0, 1.0), [1]);
        // The stricter of the two wins.
        assert_eq!(kept(0.1, 1.0, 2, 1.0), [1, 3]);
        assert_eq!(kept(0.51, 1.0, 4, 1.0), [1, 3]);
        // Of what min_p leaves, 0.76, the first has 0.66.
        assert_eq!(kept(0.51, 1.0, 0, 0.65), [1]);
        assert_eq!(kept(0.51, 1.0, 4, 0.65), [1]);
        assert_eq!(kept(0.51, 1.0, 0, 0.67), [1, 3]);
        let tied = SamplingParams { min_p: 1.0, ..SamplingParams::default() };
        assert_eq!(kept_with(&[2.0, 1.0, 2.0, 2.0], &tied), [0, 2, 3]);
    }

    #[test]
    fn the_likeliest_come_in_order_and_every_token_has_its_place() {
        let logits = [1.0, 3.0, f32::NEG_INFINITY, 3.0, 2.0];
        let ids = |k| ranked(&logits, k).iter().map(|c| c.id).collect::<Vec<_>>();
        assert!(ids(0).is_empty());
        assert_eq!(ids(2), [1, 3]);
        assert_eq!(ids(9), [1, 3, 4, 0, 2]);
        assert_eq!([0, 1, 2, 3, 4].map(|id| place(&logits, id)), [4, 1, 5, 2, 3]);
    }

    #[test]
    fn a_long_flat_row_is_cut_at_the_right_place() {
        let logits = vec![0.25_f32; 100_000];
        assert_eq!(kept(&logits, 1.0, 0, 0.75).len(), 75_000);
        assert_eq!(kept(&logits, 1.0, 70_000, 0.5).len(), 35_000);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default()
        })]

        #[test]
        fn same_tokens_as_by_sorting(
            // Few distinct values, so that there are ties.
            logits in prop::collection::vec((-20_i32..20).prop_map(|x| x as f32 / 4.0), 1..300),
            temperature in 0.2_f32..3.0,
            top_k in 0_usize..320,
            top_p in prop_oneof![Just(1.0_f32), 0.01_f32..1.0],
            min_p in prop_oneof![Just(0.0_f32), 0.001_f32..0.999],
        ) {
            let with =
                SamplingParams { temperature, min_p, top_k, top_p, ..SamplingParams::default() };
            check(&logits, &with, &kept_with(&logits, &with));
        }
    }
}
