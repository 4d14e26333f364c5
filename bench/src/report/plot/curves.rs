//! Curves: several series over one axis.

use plotters::series::LineSeries;

use super::axis::{Axis, Scale};
use super::canvas::{Look, frame, legend, marker, picture, stroke};
use super::{Plot, PlotError};

const HEIGHT: u32 = 380;

/// Points that belong together, in the order of the line through them.
#[derive(Clone, Debug, PartialEq)]
pub struct Series<'a> {
    /// What it is, for the legend.
    pub name: &'a str,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

/// One or several lines with markers, such as a ladder's measures by width.
#[derive(Clone, Debug, PartialEq)]
pub struct Curves<'a> {
    /// What it shows.
    pub title: &'a str,
    /// What counts to the right, with its unit.
    pub x: (&'a str, Scale),
    /// What counts upwards, with its unit.
    pub y: (&'a str, Scale),
    /// The lines.
    pub series: &'a [Series<'a>],
}

impl Plot {
    /// Draws lines with markers.
    pub fn curves(curves: &Curves<'_>) -> Result<Self, PlotError> {
        let Curves { title, x, y, series } = curves;
        let points = || series.iter().flat_map(|series| series.points.iter().copied());
        let x_axis = Axis::over(title, x.1, points().map(|(x, _)| x))?;
        let y_axis = Axis::over(title, y.1, points().map(|(_, y)| y))?;
        let drawn = picture(HEIGHT, |area| {
            let entries = series.iter().enumerate();
            let entries = entries.map(|(at, series)| (Look::Both(at), series.name.to_owned()));
            let area = legend(area, &entries.collect::<Vec<_>>())?;
            let mut chart = frame(&area, (x.0, x_axis), (y.0, y_axis))?;
            for (at, series) in series.iter().enumerate() {
                chart.draw_series(LineSeries::new(series.points.iter().copied(), stroke(at)))?;
                chart.draw_series(series.points.iter().map(|point| marker(at, *point)))?;
            }
            Ok(())
        })?;
        let names: Vec<&str> = series.iter().map(|series| series.name).collect();
        let description = format!("{} over {}: {}.", y.0, x.0, names.join("; "));
        Ok(Self { title: (*title).to_owned(), description, drawn })
    }
}
