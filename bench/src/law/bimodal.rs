//! Reading the cost of a call from the mean TTFT of a wave.

use serde::{Deserialize, Serialize};

/// A wave in which the first request waits for its own calls only and all the others for the whole wave,
/// measured twice: with a large and with a small budget, so that the second has more calls.
///
/// The engines this reads prefill the first request when it comes, and the others, which come meanwhile,
/// before any of them gets a token. With `n` requests, `more` further calls in all and `first` of these in
/// the first request's prefill, mean TTFT moves by
///
/// ```text
/// k x ((n - 1) x more + first) / n
/// ```
///
/// where `k` is the cost of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bimodal {
    /// Requests of the wave.
    pub requests: u64,
    /// Calls that the whole wave has more.
    pub more_calls: u64,
    /// Calls that the first request has more.
    pub more_calls_of_first: u64,
}

impl Bimodal {
    /// Requests that all have this many calls more; `None` without a request or without a call more.
    pub fn alike(requests: u64, more_calls_each: u64) -> Option<Self> {
        let more_calls = requests.checked_mul(more_calls_each)?;
        (more_calls > 0).then_some(Self {
            requests,
            more_calls,
            more_calls_of_first: more_calls_each,
        })
    }

    /// How many calls' cost the mean TTFT moves by.
    pub fn factor(&self) -> f64 {
        let others = (self.requests.saturating_sub(1) * self.more_calls) as f64;
        (others + self.more_calls_of_first as f64) / self.requests as f64
    }

    /// Milliseconds a call, from how far the mean TTFT moved.
    pub fn per_call_ms(&self, mean_ttft_moved_ms: f64) -> f64 {
        mean_ttft_moved_ms / self.factor()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_wave_check_gives_its_published_cost() {
        let wave = Bimodal::alike(16, 2).unwrap();
        assert_eq!(wave.factor(), 32.0 * 15.0 / 16.0 + 2.0 / 16.0);
        assert_eq!(format!("{:.1}", wave.factor()), "30.1");
        assert_eq!(format!("{:.1}", wave.per_call_ms(6195.4)), "205.7");
    }

    #[test]
    fn a_wave_of_one_waits_for_its_own_calls() {
        assert_eq!(Bimodal::alike(1, 3).unwrap().factor(), 3.0);
        assert_eq!(Bimodal::alike(0, 3), None);
        assert_eq!(Bimodal::alike(16, 0), None);
        let uneven = Bimodal { requests: 4, more_calls: 10, more_calls_of_first: 1 };
        assert_eq!(uneven.factor(), 31.0 / 4.0);
    }

    #[test]
    fn a_wave_built_by_hand_moves_its_mean_as_the_formula_says() {
        // Lengths in tokens, cut by a budget of 100 and by one of 30; a call costs 7 ms.
        let lengths = [90u64, 25, 61, 100];
        let calls = |budget: u64| lengths.map(|tokens| tokens.div_ceil(budget));
        let mean = |budget: u64| {
            let calls = calls(budget);
            let (own, all) = (calls[0], calls.iter().sum::<u64>());
            7.0 * (own + 3 * all) as f64 / 4.0
        };
        let (before, after) = (calls(100), calls(30));
        let wave = Bimodal {
            requests: 4,
            more_calls: after.iter().sum::<u64>() - before.iter().sum::<u64>(),
            more_calls_of_first: after[0] - before[0],
        };
        assert!((wave.per_call_ms(mean(30) - mean(100)) - 7.0).abs() < 1e-12);
    }
}
