//! Tokens a second, over the last few seconds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pocket_actors::api::TokenCounts;

/// Time between two looks at the counters.
pub const PERIOD: Duration = Duration::from_secs(1);
/// Looks that are kept: the rates are those of the time between the first and the last.
const KEPT: usize = 6;

/// The counters as they were lately.
#[derive(Debug, Default)]
pub struct Throughput(VecDeque<(Instant, TokenCounts)>);

/// Tokens a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// The time they are taken over.
    pub interval: Duration,
    /// Rows of prompts.
    pub prompt: f64,
    /// Generated tokens.
    pub generated: f64,
    /// Mean time from arrival to first token of those who had theirs in this time, if any had.
    pub first_token: Option<Duration>,
}

impl Throughput {
    /// The counters at `now`.
    pub fn observe(&mut self, now: Instant, counts: TokenCounts) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back((now, counts));
    }

    /// What they have grown by; nothing before there are two looks.
    pub fn rates(&self) -> Rates {
        let (Some((since, first)), Some((until, last))) = (self.0.front(), self.0.back()) else {
            return Rates::default();
        };
        let interval = until.duration_since(*since);
        if interval.is_zero() {
            return Rates::default();
        }
        let per_second =
            |first: u64, last: u64| last.saturating_sub(first) as f64 / interval.as_secs_f64();
        let begun = last.begun.saturating_sub(first.begun);
        let begun_us = last.begun_us.saturating_sub(first.begun_us);
        Rates {
            first_token: begun_us.checked_div(begun).map(Duration::from_micros),
            interval,
            prompt: per_second(first.prompt, last.prompt),
            generated: per_second(first.generated, last.generated),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_last_seconds() {
        let mut throughput = Throughput::default();
        assert_eq!(throughput.rates(), Rates::default());
        let start = Instant::now();
        // Ten seconds of 100 rows and 7 tokens each, then nothing.
        for second in 0..20_u64 {
            let busy = second.min(10);
            let counts = TokenCounts {
                prompt: 100 * busy,
                generated: 7 * busy,
                // Two requests a second, of 40 ms each.
                begun: 2 * busy,
                begun_us: 80_000 * busy,
            };
            throughput.observe(start + Duration::from_secs(second), counts);
            let rates = throughput.rates();
            match second {
                0 => assert_eq!(rates, Rates::default()),
                1..=10 => assert_eq!((rates.prompt, rates.generated), (100.0, 7.0)),
                11..15 => assert!(rates.prompt > 0.0 && rates.prompt < 100.0),
                _ => assert_eq!((rates.prompt, rates.generated), (0.0, 0.0)),
            }
            let first_token = (1..15).contains(&second).then_some(Duration::from_millis(40));
            assert_eq!(rates.first_token, first_token, "{second}");
            assert_eq!(rates.interval.as_secs(), second.min(5));
        }
    }
}
