//! How samples are spread.

use plotters::element::Rectangle;
use plotters::prelude::Color;
use plotters::series::LineSeries;

use super::axis::{Axis, Scale};
use super::canvas::{aligned_frame, colour, picture, stroke};
use super::{Plot, PlotError};
use crate::report::number::number;
use crate::stats::Summary;

const HEIGHT: u32 = 460;
/// Of which the shares have this much.
const SHARES: u32 = 220;
/// Most bars of the histogram.
const MOST_BARS: usize = 40;

/// Samples of one kind, such as the TTFT of a wave's requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution<'a> {
    /// What it shows.
    pub title: &'a str,
    /// What was sampled, with its unit.
    pub x: &'a str,
    /// The samples, in any order.
    pub samples: &'a [f64],
}

impl Plot {
    /// Draws a histogram, and below it the share of samples that are no larger.
    pub fn distribution(distribution: &Distribution<'_>) -> Result<Self, PlotError> {
        let Distribution { title, x, samples } = distribution;
        let empty = || PlotError::Empty { title: (*title).to_owned() };
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let axis = Axis::over(title, Scale::Free, sorted.iter().copied())?;
        let bars = histogram(&sorted, axis.ends());
        let most = bars.iter().map(|(_, _, count)| *count as f64).fold(0.0, f64::max);
        let counts = Axis::over(title, Scale::Linear, [most])?;
        let shares = Axis::over(title, Scale::Linear, [0.0, 100.0])?;
        let characters = counts.widest_mark().max(shares.widest_mark());
        let drawn = picture(HEIGHT, |area| {
            let (above, below) = area.split_vertically(HEIGHT - SHARES);
            let mut chart =
                aligned_frame(&above, ("", axis.clone()), ("samples", counts), characters)?;
            chart.draw_series(bars.iter().map(|(low, high, count)| {
                let corners = [(*low, 0.0), (*high, *count as f64)];
                let mut bar = Rectangle::new(corners, colour(0).mix(0.65).filled());
                bar.set_margin(0, 0, 1, 1);
                bar
            }))?;
            let mut chart =
                aligned_frame(&below, (x, axis.clone()), ("% no larger", shares), characters)?;
            chart.draw_series(LineSeries::new(steps(&sorted, axis.ends()), stroke(0)))?;
            Ok(())
        })?;
        let summary = Summary::of(&sorted, &[90.0, 99.0]).ok_or_else(empty)?;
        let description = format!(
            "{x}: {} samples from {} to {}, median {}, mean {}, 99th percentile {}.",
            summary.count,
            number(summary.min),
            number(summary.max),
            number(summary.median),
            number(summary.mean),
            number(summary.percentiles[1].1)
        );
        Ok(Self { title: (*title).to_owned(), description, drawn })
    }
}

/// Bars of equal width as (from, to, samples). Their number is the square root of the samples', within
/// reason.
fn histogram(sorted: &[f64], (low, high): (f64, f64)) -> Vec<(f64, f64, usize)> {
    let count = ((sorted.len() as f64).sqrt().ceil() as usize * 2).clamp(8, MOST_BARS);
    let width = (high - low) / count as f64;
    let mut counts = vec![0; count];
    for sample in sorted {
        let at = ((sample - low) / width) as usize;
        counts[at.min(count - 1)] += 1;
    }
    let edge = |at: usize| low + width * at as f64;
    counts.into_iter().enumerate().map(|(at, count)| (edge(at), edge(at + 1), count)).collect()
}

/// The stairs of the share of samples that are no larger, in percent.
fn steps(sorted: &[f64], (low, high): (f64, f64)) -> Vec<(f64, f64)> {
    let mut stairs = vec![(low, 0.0)];
    for (at, sample) in sorted.iter().enumerate() {
        let share = |count: usize| count as f64 / sorted.len() as f64 * 100.0;
        stairs.extend([(*sample, share(at)), (*sample, share(at + 1))]);
    }
    stairs.push((high, 100.0));
    stairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_every_sample_once() {
        let samples: Vec<f64> = (0..100).map(f64::from).collect();
        let bars = histogram(&samples, (0.0, 99.0));
        assert_eq!(bars.iter().map(|(_, _, count)| count).sum::<usize>(), 100);
        assert_eq!((bars[0].0, bars.len()), (0.0, 20));
        let one = histogram(&[5.0], (4.0, 6.0));
        assert_eq!(one.iter().map(|(_, _, count)| count).sum::<usize>(), 1);
    }

    #[test]
    fn the_stairs_end_at_all_samples() {
        let stairs = steps(&[1.0, 3.0], (0.0, 4.0));
        let expected =
            [(0.0, 0.0), (1.0, 0.0), (1.0, 50.0), (3.0, 50.0), (3.0, 100.0), (4.0, 100.0)];
        assert_eq!(stairs, expected);
    }
}
