//! The law's numbers, and what follows from them at one length.

use serde::{Deserialize, Serialize};

use super::curvature::Curvature;
use crate::stats::{CONFIDENCE, Interval, t_quantile};

/// A number with what is known of its error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The number.
    pub value: f64,
    /// Interval at [`CONFIDENCE`], from the errors of the law's numbers; `None` when these are not known.
    pub interval: Option<Interval>,
}

/// `ms a call x calls + us a token x tokens + constant`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Law {
    /// Milliseconds of a forward call, whatever is in it.
    pub per_call_ms: f64,
    /// Microseconds of a token.
    pub per_token_us: f64,
    /// Milliseconds of a request, whatever its calls and tokens.
    pub constant_ms: f64,
    /// How sure the three are, when they come from a fit.
    pub certainty: Option<Certainty>,
    /// Fewest and most tokens a call in the points behind it.
    pub tokens_a_call: Option<(f64, f64)>,
    /// What a quadratic term would change, when the points can tell.
    pub curvature: Option<Curvature>,
}

/// How sure a law's numbers are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Certainty {
    /// Covariances of (ms a call, us a token, constant in ms).
    pub covariance: [[f64; 3]; 3],
    /// Points less parameters.
    pub degrees_of_freedom: usize,
}

/// How often each of the law's three numbers counts in a time, in their order.
pub(super) type Counts = [f64; 3];

/// The counts of so many calls with so many tokens, for one request.
pub(super) fn counts(calls: f64, tokens: f64) -> Counts {
    [calls, tokens / 1e3, 1.0]
}

impl Law {
    /// One with numbers from elsewhere, of whose errors nothing is known.
    pub fn given(per_call_ms: f64, per_token_us: f64, constant_ms: f64) -> Self {
        Self {
            per_call_ms,
            per_token_us,
            constant_ms,
            certainty: None,
            tokens_a_call: None,
            curvature: None,
        }
    }

    /// Milliseconds to the first token after so many calls with so many tokens together.
    pub fn ttft_ms(&self, calls: f64, tokens: f64) -> Estimate {
        self.estimate(counts(calls, tokens))
    }

    /// Share of the time to first token, 0 to 1, that a prompt of one call does not spend on its tokens.
    pub fn fixed_share(&self, tokens: f64) -> Estimate {
        self.quotient([1.0, 0.0, 1.0], counts(1.0, tokens))
    }

    /// The arithmetic rate of further tokens, TFLOP/s, for a model of so many operations a token.
    pub fn marginal_tflops(&self, flop_per_token: f64) -> Estimate {
        let rate = |per_token_us: f64| flop_per_token / per_token_us / 1e6;
        let token = self.estimate([0.0, 1.0, 0.0]);
        // An interval of the time that reaches zero says nothing of the rate.
        let interval = token.interval.filter(|time| time.low > 0.0);
        Estimate {
            value: rate(token.value),
            interval: interval.map(|time| Interval { low: rate(time.high), high: rate(time.low) }),
        }
    }

    /// A time made of the law's numbers.
    pub(super) fn estimate(&self, counts: Counts) -> Estimate {
        let value = self.time(&counts);
        let interval =
            self.reach(&counts).map(|reach| Interval { low: value - reach, high: value + reach });
        Estimate { value, interval }
    }

    /// One time over another. The interval is of first order, on the logarithm.
    pub(super) fn quotient(&self, above: Counts, below: Counts) -> Estimate {
        let (over, under) = (self.time(&above), self.time(&below));
        let value = over / under;
        // d ln(a / b) = da / a - db / b, and both are sums of the same three numbers.
        let slope = |at: usize| above[at] / over - below[at] / under;
        let slopes = [slope(0), slope(1), slope(2)];
        let interval = self
            .reach(&slopes)
            .filter(|_| over > 0.0 && under > 0.0)
            .map(|reach| Interval { low: value * (-reach).exp(), high: value * reach.exp() });
        Estimate { value, interval }
    }

    fn time(&self, counts: &Counts) -> f64 {
        let numbers = [self.per_call_ms, self.per_token_us, self.constant_ms];
        counts.iter().zip(numbers).map(|(count, number)| count * number).sum()
    }

    /// Half the width of the interval of a sum of the law's numbers.
    fn reach(&self, counts: &Counts) -> Option<f64> {
        let Certainty { covariance, degrees_of_freedom } = self.certainty.as_ref()?;
        let row = |row: &[f64; 3]| row.iter().zip(counts).map(|(c, x)| c * x).sum::<f64>();
        let variance: f64 = covariance.iter().zip(counts).map(|(of, x)| x * row(of)).sum();
        // Rounding may leave a variance of nothing a little below zero.
        Some(t_quantile(*degrees_of_freedom as f64, CONFIDENCE)? * variance.max(0.0).sqrt())
    }
}

/// What a prefill of so many tokens in so many milliseconds delivered, TFLOP/s.
pub fn delivered_tflops(flop_per_token: f64, tokens: f64, ms: f64) -> f64 {
    flop_per_token * tokens / ms / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_and_a_rate_follow_from_the_numbers() {
        let law = Law::given(142.6, 627.4, 0.0);
        let share = law.fixed_share(421.0).value;
        assert!((share - 142.6 / (142.6 + 264.1354)).abs() < 1e-12, "{share}");
        assert!((law.ttft_ms(2.0, 1000.0).value - 912.6).abs() < 1e-9);
        let marginal = law.marginal_tflops(51.244e9);
        assert!((marginal.value - 81.677).abs() < 0.001, "{marginal:?}");
        assert_eq!(marginal.interval, None);
        let delivered = delivered_tflops(51.244e9, 3703.0, 2438.7);
        assert!((delivered - 77.81).abs() < 0.01, "{delivered}");
    }

    #[test]
    fn intervals_follow_from_the_covariances() {
        let mut law = Law::given(100.0, 1000.0, 0.0);
        law.certainty = Some(Certainty {
            covariance: [[4.0, 0.0, 0.0], [0.0, 9.0, 0.0], [0.0, 0.0, 0.0]],
            degrees_of_freedom: 14,
        });
        let t = t_quantile(14.0, CONFIDENCE).unwrap();
        let time = law.ttft_ms(3.0, 2000.0);
        let reach = t * (9.0f64 * 4.0 + 4.0 * 9.0).sqrt();
        let interval = time.interval.unwrap();
        assert!((interval.high - time.value - reach).abs() < 1e-9);
        // A quotient of a time with itself is one, and certainly so.
        let one = law.quotient(counts(3.0, 2000.0), counts(3.0, 2000.0));
        assert_eq!((one.value, one.interval), (1.0, Some(Interval { low: 1.0, high: 1.0 })));
        let rate = law.marginal_tflops(1e9);
        let interval = rate.interval.unwrap();
        assert!((interval.low - 1e3 / (1000.0 + 3.0 * t)).abs() < 1e-9);
    }
}
