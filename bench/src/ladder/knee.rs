//! Where a ladder stops being worth its climb.

use serde::{Deserialize, Serialize};

/// The part of the best throughput that is enough.
pub const SHARE: f64 = 0.9;

/// The narrowest width that gives nearly as many tokens a second as the best one.
///
/// Beyond it a request waits longer and the server gives hardly more. The rule needs no curve to be
/// fitted, and a measurement that jumps about moves it by a rung at most.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Knee {
    /// The width.
    pub width: usize,
    /// Its tokens a second.
    pub tokens_per_s: f64,
    /// The width with the most tokens a second.
    pub best_width: usize,
    /// Those.
    pub best_tokens_per_s: f64,
    /// It is the widest that was measured, so that the real knee may lie beyond.
    pub at_the_end: bool,
    /// The rule, in words.
    pub method: String,
}

impl Knee {
    /// Of widths, rising, and their tokens a second; none where nothing was measured.
    pub fn of(points: &[(usize, f64)]) -> Option<Self> {
        let (best_width, best) = points
            .iter()
            .copied()
            .reduce(|best, point| if point.1 > best.1 { point } else { best })?;
        let (width, tokens_per_s) =
            points.iter().copied().find(|(_, tokens)| *tokens >= SHARE * best)?;
        let last = points.last().map(|(width, _)| *width);
        Some(Self {
            width,
            tokens_per_s,
            best_width,
            best_tokens_per_s: best,
            at_the_end: last == Some(width),
            method: format!(
                "the narrowest width with at least {:.0} % of the most tokens a second of any width, \
                 refilled loads, medians of the repeats",
                SHARE * 100.0
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_is_where_more_width_gives_little_more() {
        let knee = Knee::of(&[(1, 10.0), (2, 19.0), (4, 35.0), (8, 38.0), (16, 37.0)]).unwrap();
        assert_eq!((knee.width, knee.best_width, knee.at_the_end), (4, 8, false));
        let rising = Knee::of(&[(1, 10.0), (2, 20.0), (4, 40.0)]).unwrap();
        assert_eq!((rising.width, rising.at_the_end), (4, true));
        let flat = Knee::of(&[(1, 10.0), (2, 10.0)]).unwrap();
        assert_eq!((flat.width, flat.best_width), (1, 1));
        assert_eq!(Knee::of(&[]), None);
    }
}
