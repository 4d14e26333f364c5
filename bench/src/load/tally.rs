//! What is known of a run while it runs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts that every request of a run adds to.
#[derive(Debug, Default)]
pub struct Tally {
    sent: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
    tokens: AtomicU64,
    first_tokens: AtomicU64,
    /// Sum of the times to first token, microseconds.
    ttft_us: AtomicU64,
}

/// The counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Requests sent.
    pub sent: u64,
    /// Requests answered completely.
    pub completed: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Chunks with tokens received.
    pub tokens: u64,
    /// Mean time to first token so far, milliseconds.
    pub mean_ttft_ms: Option<f64>,
}

impl Counts {
    /// Requests that wait for the rest of their answer.
    pub fn open(&self) -> u64 {
        self.sent - self.completed - self.failed
    }
}

impl Tally {
    pub(super) fn sent(&self) {
        self.sent.fetch_add(1, Relaxed);
    }

    pub(super) fn ended(&self, well: bool) {
        if well { &self.completed } else { &self.failed }.fetch_add(1, Relaxed);
    }

    pub(super) fn tokens(&self, count: usize) {
        self.tokens.fetch_add(count as u64, Relaxed);
    }

    pub(super) fn first_token(&self, after_s: f64) {
        self.first_tokens.fetch_add(1, Relaxed);
        self.ttft_us.fetch_add((after_s * 1e6) as u64, Relaxed);
    }

    /// The counts now.
    pub fn counts(&self) -> Counts {
        let first_tokens = self.first_tokens.load(Relaxed);
        Counts {
            sent: self.sent.load(Relaxed),
            completed: self.completed.load(Relaxed),
            failed: self.failed.load(Relaxed),
            tokens: self.tokens.load(Relaxed),
            mean_ttft_ms: (first_tokens > 0)
                .then(|| self.ttft_us.load(Relaxed) as f64 / first_tokens as f64 / 1e3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_requests_are_those_without_an_end() {
        let tally = Tally::default();
        assert_eq!(tally.counts(), Counts::default());
        for _ in 0..3 {
            tally.sent();
        }
        tally.ended(true);
        tally.ended(false);
        tally.first_token(0.25);
        tally.first_token(0.75);
        tally.tokens(7);
        let counts = tally.counts();
        assert_eq!((counts.open(), counts.completed, counts.failed), (1, 1, 1));
        assert_eq!((counts.tokens, counts.mean_ttft_ms), (7, Some(500.0)));
    }
}
