//! When requests are sent.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Gamma};

use super::LoadError;

/// An arrival process: so many requests a second, evenly or in bursts.
///
/// Times between requests follow a gamma distribution, as `vllm bench serve` has it: `burstiness` is its
/// shape, so that 1 is a Poisson process, less is burstier and more is more even.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrivals {
    rate: f64,
    burstiness: f64,
}

impl Arrivals {
    /// All requests at once.
    pub const AT_ONCE: Arrivals = Arrivals { rate: f64::INFINITY, burstiness: 1.0 };

    /// `rate` requests a second, infinity for all at once; an infinite `burstiness` is a metronome.
    ///
    /// # Errors
    ///
    /// A number that is not above 0.
    pub fn new(rate: f64, burstiness: f64) -> Result<Self, LoadError> {
        for (what, value, infinite) in
            [("request rate", rate, "all at once"), ("burstiness", burstiness, "evenly spaced")]
        {
            // Also catches what is no number.
            if value.partial_cmp(&0.0) != Some(std::cmp::Ordering::Greater) {
                return Err(LoadError::Arrivals { what, value, infinite });
            }
        }
        Ok(Self { rate, burstiness })
    }

    /// Requests a second.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Shape of the times between requests.
    pub fn burstiness(&self) -> f64 {
        self.burstiness
    }

    /// When each of `count` requests is sent, after the beginning. The last one is at `count / rate`
    /// exactly, whatever was drawn: the rate of a short run is then the one asked for.
    pub fn offsets(&self, count: usize, rng: &mut ChaCha8Rng) -> Vec<Duration> {
        if self.rate.is_infinite() {
            return vec![Duration::ZERO; count];
        }
        let mut at = 0.0;
        let offsets: Vec<f64> = (0..count)
            .map(|_| {
                at += self.gap(rng);
                at
            })
            .collect();
        let end = count as f64 / self.rate;
        // Very bursty gaps may all be too small for a number; then they are all at the end.
        let scale = |offset: f64| if at > 0.0 { offset / at * end } else { end };
        offsets.into_iter().map(|offset| Duration::from_secs_f64(scale(offset))).collect()
    }

    /// A time between two requests, of mean 1; what it is measured in does not matter.
    fn gap(&self, rng: &mut ChaCha8Rng) -> f64 {
        if self.burstiness.is_infinite() {
            return 1.0;
        }
        match Gamma::new(self.burstiness, 1.0 / self.burstiness) {
            Ok(gamma) => gamma.sample(rng),
            // The constructor has seen that the shape is above 0; only its inverse can overflow.
            Err(_) => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    fn offsets(rate: f64, burstiness: f64, count: usize, seed: u64) -> Vec<f64> {
        let arrivals = Arrivals::new(rate, burstiness).unwrap();
        let offsets = arrivals.offsets(count, &mut ChaCha8Rng::seed_from_u64(seed));
        offsets.iter().map(Duration::as_secs_f64).collect()
    }

    fn gaps(offsets: &[f64]) -> Vec<f64> {
        let before = std::iter::once(&0.0).chain(offsets);
        offsets.iter().zip(before).map(|(at, before)| at - before).collect()
    }

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    proptest! {
        #[test]
        fn the_rate_is_the_one_asked_for(
            rate in 0.01..1e4_f64, burstiness in 0.05..50.0_f64, count in 1..300_usize, seed: u64,
        ) {
            let offsets = offsets(rate, burstiness, count, seed);
            prop_assert_eq!(offsets.len(), count);
            let end = count as f64 / rate;
            prop_assert!((offsets[count - 1] - end).abs() <= 1e-6 * end + 2e-9);
            prop_assert!(offsets.is_sorted());
        }
    }

    /// Of a gamma distribution of shape k and mean m, the variance is m^2 / k and the skewness
    /// 2 / sqrt(k).
    #[test]
    fn gaps_have_the_shape_of_a_gamma_distribution() {
        for (burstiness, rate) in [(0.5, 3.0), (1.0, 10.0), (4.0, 100.0)] {
            let gaps = gaps(&offsets(rate, burstiness, 200_000, 7));
            let mean_gap = mean(&gaps);
            assert!((mean_gap * rate - 1.0).abs() < 1e-9);
            let moment = |power: i32| {
                mean(&gaps.iter().map(|gap| (gap - mean_gap).powi(power)).collect::<Vec<_>>())
            };
            let (variance, expected) = (moment(2), mean_gap.powi(2) / burstiness);
            assert!(
                (variance / expected - 1.0).abs() < 0.03,
                "{burstiness}: {variance} {expected}"
            );
            let (skew, expected) = (moment(3) / variance.powf(1.5), 2.0 / burstiness.sqrt());
            assert!((skew / expected - 1.0).abs() < 0.08, "{burstiness}: {skew} {expected}");
        }
    }

    #[test]
    fn the_extremes_are_a_metronome_and_a_thunderclap() {
        assert_eq!(offsets(2.0, f64::INFINITY, 4, 1), [0.5, 1.0, 1.5, 2.0]);
        assert_eq!(offsets(f64::INFINITY, 1.0, 3, 1), [0.0; 3]);
        // So bursty that nearly everything comes together; still in order, and at the right time.
        let bursty = offsets(10.0, 1e-4, 50, 1);
        assert!(bursty.is_sorted() && (bursty[49] - 5.0).abs() < 1e-6);
    }

    #[test]
    fn a_seed_is_one_schedule() {
        assert_eq!(offsets(5.0, 1.0, 20, 3), offsets(5.0, 1.0, 20, 3));
        assert_ne!(offsets(5.0, 1.0, 20, 3), offsets(5.0, 1.0, 20, 4));
    }

    #[test]
    fn nothing_comes_at_no_rate() {
        for rate in [0.0, -1.0, f64::NAN] {
            assert!(Arrivals::new(rate, 1.0).unwrap_err().to_string().contains("request rate"));
        }
        assert!(Arrivals::new(1.0, 0.0).unwrap_err().to_string().contains("burstiness"));
    }
}
