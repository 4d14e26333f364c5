//! Axes that know their own round numbers.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use super::PlotError;
use crate::report::number::number;

/// How values lie on an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences, equal distances; the axis holds zero.
    #[default]
    Linear,
    /// Equal differences, equal distances; the axis begins where the values do.
    Free,
    /// Equal ratios, equal distances; marks at one, two and five of each power of ten.
    Logarithmic,
    /// Equal ratios, equal distances; marks at powers of two.
    PowersOfTwo,
}

impl Scale {
    fn is_logarithmic(self) -> bool {
        matches!(self, Scale::Logarithmic | Scale::PowersOfTwo)
    }
}

/// An axis over values, with the marks that it shows.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    marks: Vec<f64>,
    /// Text for the marks; their numbers if there is none.
    names: Vec<String>,
}

impl Axis {
    /// One that has room for all values. Fails without a value, and for one that is not finite or not above
    /// zero where ratios count.
    pub(super) fn over(
        title: &str,
        scale: Scale,
        values: impl IntoIterator<Item = f64>,
    ) -> Result<Self, PlotError> {
        let mut ends: Option<(f64, f64)> = None;
        for value in values {
            if !value.is_finite() || (scale.is_logarithmic() && value <= 0.0) {
                return Err(PlotError::NoPlace { title: title.to_owned(), value });
            }
            ends =
                Some(ends.map_or((value, value), |(low, high)| (low.min(value), high.max(value))));
        }
        let (low, high) = ends.ok_or_else(|| PlotError::Empty { title: title.to_owned() })?;
        Ok(match scale {
            Scale::Linear => Self::linear(low.min(0.0), high.max(0.0)),
            Scale::Free => Self::linear(low, high),
            Scale::Logarithmic => Self::logarithmic(low, high),
            Scale::PowersOfTwo => Self::powers_of_two(low, high),
        })
    }

    /// A row of named places, at 0.5, 1.5 and so on.
    pub(super) fn of_names(names: Vec<String>) -> Self {
        let marks = (0..names.len()).map(|at| at as f64 + 0.5).collect();
        Self { low: 0.0, high: names.len() as f64, logarithmic: false, marks, names }
    }

    fn linear(low: f64, high: f64) -> Self {
        let span = if high > low { high - low } else { high.abs().max(1.0) };
        let step = round_step(span / 5.0);
        let (first, last) =
            ((low / step).floor(), (high / step).ceil().max((low / step).floor() + 1.0));
        let count = (last - first) as usize;
        let marks: Vec<f64> = (0..=count).map(|at| (first + at as f64) * step).collect();
        Self { low: first * step, high: last * step, logarithmic: false, marks, names: Vec::new() }
    }

    fn logarithmic(low: f64, high: f64) -> Self {
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let few = last - first <= 3;
        let steps: &[f64] = if few { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let all = (first..=last).flat_map(|power| steps.iter().map(move |s| s * 10f64.powi(power)));
        Self::around(low, high, all.collect())
    }

    fn powers_of_two(low: f64, high: f64) -> Self {
        let (first, last) = (low.log2().floor() as i32, high.log2().ceil() as i32);
        Self::around(low, high, (first..=last).map(|power| 2f64.powi(power)).collect())
    }

    /// From the last mark not above the values to the first not below.
    fn around(low: f64, high: f64, all: Vec<f64>) -> Self {
        let start = all.iter().copied().filter(|mark| *mark <= low).fold(f64::NAN, f64::max);
        let end = all.iter().copied().filter(|mark| *mark >= high).fold(f64::NAN, f64::min);
        let start = if start.is_nan() { low } else { start };
        let end = if end.is_nan() { high } else { end };
        // One value alone would make an axis without length.
        let (start, end) = if start < end { (start, end) } else { (start / 2.0, end * 2.0) };
        let marks = all.into_iter().filter(|mark| (start..=end).contains(mark)).collect();
        Self { low: start, high: end, logarithmic: true, marks, names: Vec::new() }
    }

    /// The ends.
    pub(super) fn ends(&self) -> (f64, f64) {
        (self.low, self.high)
    }

    /// The longest text of a mark, in characters.
    pub(super) fn widest_mark(&self) -> usize {
        self.marks.iter().map(|mark| self.format_ext(mark).chars().count()).max().unwrap_or(0)
    }
}

/// The next of 1, 2, 2.5 and 5 times a power of ten.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let rounded = [1.0, 2.0, 2.5, 5.0].into_iter().find(|round| step / power <= *round + 1e-9);
    rounded.unwrap_or(10.0) * power
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (start, end): (i32, i32)) -> i32 {
        let share = match self.logarithmic {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        start + (share * f64::from(end - start)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Fine lines between the marks are not wanted.
        if hint.weight().allow_light_points() { Vec::new() } else { self.marks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        let at = self.marks.iter().position(|mark| mark == value);
        match at.and_then(|at| self.names.get(at)) {
            Some(name) => name.clone(),
            None => number(*value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(scale: Scale, values: &[f64]) -> Axis {
        Axis::over("x", scale, values.iter().copied()).unwrap()
    }

    #[test]
    fn marks_are_round_and_enclose_the_values() {
        let linear = axis(Scale::Linear, &[158.1, 2438.7]);
        assert_eq!(linear.marks, [0.0, 500.0, 1000.0, 1500.0, 2000.0, 2500.0]);
        assert_eq!(axis(Scale::Free, &[9.0, 11.0]).ends(), (9.0, 11.0));
        assert_eq!(axis(Scale::PowersOfTwo, &[1.0, 30.0]).marks, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]);
        let logarithmic = axis(Scale::Logarithmic, &[30.0, 900.0]);
        assert_eq!(logarithmic.marks, [20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]);
        assert_eq!(axis(Scale::Linear, &[0.0]).ends(), (0.0, 0.2));
        assert_eq!(axis(Scale::PowersOfTwo, &[4.0]).ends(), (2.0, 8.0));
    }

    #[test]
    fn values_map_to_their_place() {
        let linear = axis(Scale::Linear, &[0.0, 100.0]);
        assert_eq!(linear.map(&50.0, (0, 200)), 100);
        assert_eq!(linear.map(&25.0, (200, 0)), 150);
        let powers = axis(Scale::PowersOfTwo, &[1.0, 16.0]);
        assert_eq!(powers.map(&4.0, (0, 100)), 50);
    }

    #[test]
    fn values_without_a_place_are_refused() {
        let over = |scale, values: &[f64]| Axis::over("x", scale, values.iter().copied());
        assert!(matches!(over(Scale::Linear, &[]), Err(PlotError::Empty { .. })));
        assert!(matches!(over(Scale::Linear, &[f64::NAN]), Err(PlotError::NoPlace { .. })));
        assert!(matches!(over(Scale::Logarithmic, &[0.0]), Err(PlotError::NoPlace { .. })));
    }
}
