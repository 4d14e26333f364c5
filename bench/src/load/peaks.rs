//! The busiest moments of a run.

use super::client::Outcome;

/// Most requests that were open at one time: sent, and their answers not complete.
///
/// `vllm bench serve` counts under this name the requests that were open at any time of a second, which is
/// more than were ever open together.
pub fn concurrency<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> usize {
    let mut changes: Vec<(f64, i64)> = outcomes
        .flat_map(|outcome| [(outcome.started, 1), (outcome.started + outcome.took, -1)])
        .collect();
    // At the same time, ends go before beginnings.
    changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let (mut open, mut most) = (0_i64, 0_i64);
    for (_, change) in changes {
        open += change;
        most = most.max(open);
    }
    usize::try_from(most).unwrap_or(0)
}

/// Most tokens that came in one second, seconds being counted from the first request on.
pub fn tokens_per_second<'a>(outcomes: impl Iterator<Item = &'a Outcome> + Clone) -> f64 {
    let began = outcomes.clone().map(|outcome| outcome.started).fold(f64::INFINITY, f64::min);
    let mut seconds: Vec<u64> = Vec::new();
    for outcome in outcomes {
        let Ok(answer) = &outcome.answer else { continue };
        let mut at = outcome.started - began + answer.ttft;
        let mut count = |at: f64| {
            let second = at as usize;
            if seconds.len() <= second {
                seconds.resize(second + 1, 0);
            }
            seconds[second] += 1;
        };
        count(at);
        for itl in &answer.itls {
            at += itl;
            count(at);
        }
    }
    seconds.into_iter().max().unwrap_or(0) as f64
}

#[cfg(test)]
mod tests {
    use super::super::measured::tests::{answered, failed};
    use super::*;

    #[test]
    fn only_what_is_open_together_is_counted_together() {
        // Two in a second, one after the other, and one that fails beside the second.
        let outcomes =
            [answered(0.0, 0.25, &[0.25]), answered(0.5, 0.25, &[0.25]), failed(0.75, 0.125)];
        assert_eq!(concurrency(outcomes.iter()), 2);
        assert_eq!(concurrency(outcomes[..2].iter()), 1, "one ends as the other begins");
        assert_eq!(concurrency([].iter()), 0);
    }

    #[test]
    fn tokens_are_counted_by_the_second() {
        // At 0.9; at 1.4, 1.9 and 2.4; the first request begins at 10.
        let outcomes = [answered(10.0, 0.9, &[]), answered(10.9, 0.5, &[0.5, 0.5])];
        assert_eq!(tokens_per_second(outcomes.iter()), 2.0);
        assert_eq!(tokens_per_second([].iter()), 0.0);
    }
}
