//! Putting the ranks' shards of a row's logits together.
//!
//! Shards are taken in rank order, which is the order of the token ids, and sums are float64: the same
//! reports give the same bits, whichever rank reported first.

use crate::messages::ShardStats;

/// Why a row has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MergeError {
    /// A rank computed a logit that is not a number.
    #[error("rank {rank} computed logits that are not numbers")]
    NotANumber {
        /// The rank.
        rank: usize,
    },
    /// No rank holds the token asked for, or none has any token.
    #[error("no rank holds the logit asked for")]
    Missing,
}

/// The likeliest token of a row and its natural-log probability. Equal logits go to the lowest id:
/// within a shard the rank has seen to it, between shards the earlier rank keeps the place.
pub(crate) fn greedy(shards: &[ShardStats]) -> Result<(u32, f64), MergeError> {
    let mut best: Option<&ShardStats> = None;
    for (rank, shard) in shards.iter().enumerate() {
        check(rank, shard)?;
        if !is_empty(shard) && best.is_none_or(|best| shard.max > best.max) {
            best = Some(shard);
        }
    }
    let best = best.ok_or(MergeError::Missing)?;
    Ok((best.argmax, -log_sum(shards, best.max)))
}

/// Natural-log probability of the row's target: `target - (m + ln(sum of exp(logit - m)))`, with `m` the
/// largest logit of all ranks.
pub(crate) fn log_probability(shards: &[ShardStats]) -> Result<f64, MergeError> {
    for (rank, shard) in shards.iter().enumerate() {
        check(rank, shard)?;
    }
    let target = shards.iter().find_map(|shard| shard.target).ok_or(MergeError::Missing)?;
    let max = shards.iter().map(|shard| shard.max).fold(f32::NEG_INFINITY, f32::max);
    Ok(f64::from(target) - (f64::from(max) + log_sum(shards, max)))
}

/// `ln(sum of exp(logit - max))` over all ranks.
fn log_sum(shards: &[ShardStats], max: f32) -> f64 {
    let sum: f64 = shards
        .iter()
        .filter(|shard| !is_empty(shard))
        .map(|shard| shard.sum_exp * (f64::from(shard.max) - f64::from(max)).exp())
        .sum();
    sum.ln()
}

/// With more ranks than token ids a rank has none.
fn is_empty(shard: &ShardStats) -> bool {
    shard.sum_exp == 0.0
}

fn check(rank: usize, shard: &ShardStats) -> Result<(), MergeError> {
    let bad = shard.max.is_nan()
        || shard.max == f32::INFINITY
        || !shard.sum_exp.is_finite()
        || shard.target.is_some_and(f32::is_nan);
    if bad { Err(MergeError::NotANumber { rank }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a rank reports of a shard that starts at token id `first`.
    fn shard(first: u32, logits: &[f32], target: Option<usize>) -> ShardStats {
        let mut argmax = 0;
        for (column, logit) in logits.iter().enumerate() {
            if *logit > logits[argmax] {
                argmax = column;
            }
        }
        let max = logits.get(argmax).copied().unwrap_or(f32::NEG_INFINITY);
        ShardStats {
            argmax: first + argmax as u32,
            max,
            sum_exp: logits.iter().map(|logit| f64::from(logit - max).exp()).sum(),
            target: target.map(|column| logits[column]),
        }
    }

    fn token(shards: &[ShardStats]) -> Result<u32, MergeError> {
        greedy(shards).map(|(token, _)| token)
    }

    #[test]
    fn the_largest_logit_wins_and_ties_take_the_lowest_id() {
        let shards =
            [shard(0, &[1.0, 3.0], None), shard(2, &[7.0, 7.0], None), shard(4, &[7.0, 2.0], None)];
        assert_eq!(token(&shards), Ok(2));
        // Zeros of either sign are equal.
        assert_eq!(token(&[shard(0, &[-0.0], None), shard(1, &[0.0], None)]), Ok(0));
    }

    #[test]
    fn a_rank_without_tokens_changes_nothing() {
        let with = [shard(0, &[], None), shard(0, &[-9.0, -2.0], Some(0)), shard(2, &[], None)];
        assert_eq!(token(&with), Ok(1));
        assert_eq!(log_probability(&with), log_probability(&with[1..2]));
        assert_eq!(token(&with[..1]), Err(MergeError::Missing));
    }

    #[test]
    fn log_probability_is_that_of_the_whole_row() {
        let row = [0.5_f32, -1.25, 90.0, 88.5, 3.0, 89.75];
        let exact = |target: usize| {
            let sum: f64 = row.iter().map(|logit| f64::from(logit - 90.0).exp()).sum();
            f64::from(row[target]) - 90.0 - sum.ln()
        };
        for target in 0..row.len() {
            let shards: Vec<ShardStats> = (0..3)
                .map(|rank| {
                    let at = 2 * rank;
                    let here = target.checked_sub(at).filter(|column| *column < 2);
                    shard(at as u32, &row[at..at + 2], here)
                })
                .collect();
            let found = log_probability(&shards).unwrap();
            assert!((found - exact(target)).abs() < 1e-12, "{target}: {found} {}", exact(target));
            let (best, likely) = greedy(&shards).unwrap();
            assert_eq!(best, 2);
            assert!((likely - exact(2)).abs() < 1e-12);
        }
    }

    #[test]
    fn a_target_no_rank_holds_is_an_error() {
        assert_eq!(log_probability(&[shard(0, &[1.0], None)]), Err(MergeError::Missing));
    }

    #[test]
    fn logits_that_are_not_numbers_name_the_rank() {
        let bad = ShardStats { argmax: 3, max: f32::NAN, sum_exp: f64::NAN, target: None };
        let shards = [shard(0, &[1.0], Some(0)), bad];
        let error = MergeError::NotANumber { rank: 1 };
        assert_eq!(token(&shards), Err(error.clone()));
        assert_eq!(log_probability(&shards), Err(error));
    }
}
