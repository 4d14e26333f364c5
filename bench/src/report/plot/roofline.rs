//! What the engine reached below what the machine can do.

use plotters::element::{EmptyElement, Text};
use plotters::series::LineSeries;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::{Axis, Scale};
use super::canvas::{Look, frame, legend, marker, picture, stroke, text_style};
use super::{Plot, PlotError};
use crate::report::number::{number, percent};

const HEIGHT: u32 = 420;

/// One measured kind of call.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark<'a> {
    /// What it is, such as `decode, 1 row`.
    pub name: &'a str,
    /// Floating-point operations for each byte it reads.
    pub flops_per_byte: f64,
    /// Operations a second it reached.
    pub flops_per_second: f64,
}

/// A machine's limits, and calls below them.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline<'a> {
    /// What it shows.
    pub title: &'a str,
    /// Bytes a second that memory gives.
    pub bandwidth: f64,
    /// Operations a second of the arithmetic peak.
    pub peak: f64,
    /// The calls.
    pub marks: &'a [Mark<'a>],
}

impl Roofline<'_> {
    /// The most operations a second that this many for each byte allow.
    fn roof(&self, flops_per_byte: f64) -> f64 {
        (self.bandwidth * flops_per_byte).min(self.peak)
    }
}

impl Plot {
    /// Draws the roof, a line that rises with the bandwidth and ends at the peak, with the calls below it.
    pub fn roofline(roofline: &Roofline<'_>) -> Result<Self, PlotError> {
        let Roofline { title, bandwidth, peak, marks } = roofline;
        if marks.is_empty() {
            return Err(PlotError::Empty { title: (*title).to_owned() });
        }
        let ridge = peak / bandwidth;
        let intensities = marks.iter().map(|mark| mark.flops_per_byte);
        // Both sides of the ridge are always there.
        let x =
            Axis::over(title, Scale::Logarithmic, intensities.chain([ridge / 3.0, ridge * 3.0]))?;
        let (low, high) = x.ends();
        let roof = [low, ridge, high].map(|at| (at, roofline.roof(at) / 1e9));
        let rates = marks.iter().map(|mark| mark.flops_per_second / 1e9);
        let y = Axis::over(title, Scale::Logarithmic, rates.chain(roof.iter().map(|(_, y)| *y)))?;
        let drawn = picture(HEIGHT, |area| {
            let roof_name =
                format!("limit: {} GB/s, {} GFLOP/s", number(bandwidth / 1e9), number(peak / 1e9));
            let named = marks.iter().enumerate();
            let named = named.map(|(at, mark)| (Look::Points(at), mark.name.to_owned()));
            let entries: Vec<_> = [(Look::Line(4), roof_name)].into_iter().chain(named).collect();
            let area = legend(area, &entries)?;
            let mut chart = frame(&area, ("FLOP a byte", x), ("GFLOP/s", y))?;
            chart.draw_series(LineSeries::new(roof, stroke(4)))?;
            for (at, mark) in marks.iter().enumerate() {
                let place = (mark.flops_per_byte, mark.flops_per_second / 1e9);
                chart.draw_series([marker(at, place)])?;
                let share = mark.flops_per_second / roofline.roof(mark.flops_per_byte);
                // Beside the marker: to its left where there is no room to its right.
                let no_room = mark.flops_per_byte > high / 4.0;
                let (side, away) = if no_room { (HPos::Right, -9) } else { (HPos::Left, 9) };
                let style = text_style().pos(Pos::new(side, VPos::Center));
                let label = Text::new(percent(share), (away, 0), style);
                chart.draw_series([EmptyElement::at(place) + label])?;
            }
            Ok(())
        })?;
        let shares = marks.iter().map(|mark| {
            let share = mark.flops_per_second / roofline.roof(mark.flops_per_byte);
            format!("{} at {} of the limit", mark.name, percent(share))
        });
        let description = format!("{}.", shares.collect::<Vec<_>>().join("; "));
        Ok(Self { title: (*title).to_owned(), description, drawn })
    }
}
