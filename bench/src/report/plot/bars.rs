//! Bars, with intervals.

use plotters::element::{PathElement, Rectangle};
use plotters::prelude::Color;

use super::axis::{Axis, Scale};
use super::canvas::{colour, frame, hairline, picture};
use super::{Plot, PlotError};
use crate::report::number::{interval, number};
use crate::stats::Interval;

/// Height of a bar with the space around it.
const ROW: u32 = 38;
/// Height of everything else.
const REST: u32 = 70;
/// Share of a row above and below its bar.
const SPACE: f64 = 0.22;

/// One bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// What it is.
    pub name: String,
    /// Its length.
    pub value: f64,
    /// Where the true length may be.
    pub interval: Option<Interval>,
}

/// Values side by side, such as ratios of the arms of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars<'a> {
    /// What it shows.
    pub title: &'a str,
    /// What the length counts, with its unit.
    pub x: &'a str,
    /// A value to compare with, such as 1 for ratios; drawn across.
    pub reference: Option<f64>,
    /// The bars, from top to bottom.
    pub bars: &'a [Bar],
}

impl Plot {
    /// Draws bars from zero with whiskers for intervals.
    pub fn bars(bars: &Bars<'_>) -> Result<Self, PlotError> {
        let Bars { title, x, reference, bars } = bars;
        if bars.is_empty() {
            return Err(PlotError::Empty { title: (*title).to_owned() });
        }
        let ends =
            bars.iter().filter_map(|bar| bar.interval).flat_map(|ends| [ends.low, ends.high]);
        let values = bars.iter().map(|bar| bar.value).chain(ends).chain(*reference);
        let lengths = Axis::over(title, Scale::Linear, values)?;
        // Upwards, so the first name is the last place.
        let names = Axis::of_names(bars.iter().rev().map(|bar| bar.name.clone()).collect());
        let top = bars.len() as f64;
        let drawn = picture(REST + ROW * bars.len() as u32, |area| {
            let mut chart = frame(area, (x, lengths), ("", names))?;
            for (at, bar) in bars.iter().enumerate() {
                let middle = top - at as f64 - 0.5;
                let (low, high) = (middle - 0.5 + SPACE, middle + 0.5 - SPACE);
                let corners = [(0.0, low), (bar.value, high)];
                chart.draw_series([Rectangle::new(corners, colour(0).mix(0.65).filled())])?;
                if let Some(Interval { low, high }) = bar.interval {
                    let mut whisker = |from, to| {
                        chart
                            .draw_series([PathElement::new(vec![from, to], hairline())])
                            .map(|_| ())
                    };
                    whisker((low, middle), (high, middle))?;
                    whisker((low, middle - 0.12), (low, middle + 0.12))?;
                    whisker((high, middle - 0.12), (high, middle + 0.12))?;
                }
            }
            if let Some(reference) = *reference {
                let across = vec![(reference, 0.0), (reference, top)];
                chart.draw_series([PathElement::new(across, colour(1).stroke_width(2))])?;
            }
            Ok(())
        })?;
        let listed = bars.iter().map(|bar| match bar.interval {
            Some(_) => format!("{} {} ({})", bar.name, number(bar.value), interval(bar.interval)),
            None => format!("{} {}", bar.name, number(bar.value)),
        });
        let description = format!("{x}: {}.", listed.collect::<Vec<_>>().join("; "));
        Ok(Self { title: (*title).to_owned(), description, drawn })
    }
}
