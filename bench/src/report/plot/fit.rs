//! Measured points, the fitted lines through them, and what is left over.

use std::collections::BTreeSet;

use plotters::element::PathElement;
use plotters::series::LineSeries;

use super::axis::{Axis, Scale};
use super::canvas::{Look, aligned_frame, hairline, legend, marker, picture, stroke};
use super::{Plot, PlotError};
use crate::law::LawFit;
use crate::report::number::{number, percent};
use crate::stats::Weighting;

const HEIGHT: u32 = 520;
/// Of which the residuals have this much.
const RESIDUALS: u32 = 180;

/// Points with their law, by tokens, one line for each number of calls.
#[derive(Clone, Copy, Debug)]
pub struct FitPlot<'a> {
    /// What it shows.
    pub title: &'a str,
    /// The law and its points.
    pub fit: &'a LawFit,
}

impl Plot {
    /// Draws the points, the lines of the law, and below them the residuals as shares of the fitted values.
    pub fn fit(plot: &FitPlot<'_>) -> Result<Self, PlotError> {
        let FitPlot { title, fit } = plot;
        let calls: Vec<u64> = fit
            .points
            .iter()
            .map(|point| point.calls)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        let residuals: Vec<f64> =
            fit.fit.residuals.iter().map(|point| point.residual / point.fitted * 100.0).collect();
        let tokens = || fit.points.iter().map(|point| point.tokens as f64);
        let x = Axis::over(title, Scale::Linear, tokens())?;
        let line = |calls: u64| {
            let of = fit.points.iter().filter(move |point| point.calls == calls);
            let of = of.map(|point| point.tokens as f64);
            let (low, high) = (of.clone().fold(f64::INFINITY, f64::min), of.fold(0.0, f64::max));
            // A line through one point shows nothing; it is drawn to the axis then.
            let low = if low < high { low } else { 0.0 };
            [low, high].map(|tokens| (tokens, fit.law.ttft_ms(calls as f64, tokens).value))
        };
        let lines: Vec<[(f64, f64); 2]> = calls.iter().map(|calls| line(*calls)).collect();
        let times = fit.points.iter().map(|point| point.ttft_ms);
        let y =
            Axis::over(title, Scale::Linear, times.chain(lines.iter().flatten().map(|at| at.1)))?;
        // Both ways, so that zero is in the middle.
        let reach = residuals.iter().map(|share| share.abs()).fold(1.0, f64::max);
        let below = Axis::over(title, Scale::Free, [-reach, reach])?;

        let characters = y.widest_mark().max(below.widest_mark());
        let drawn = picture(HEIGHT, |area| {
            let entries = calls.iter().enumerate().map(|(at, calls)| {
                let plural = if *calls == 1 { "" } else { "s" };
                (Look::Both(at), format!("{calls} call{plural}"))
            });
            let area = legend(area, &entries.collect::<Vec<_>>())?;
            let upper = area.dim_in_pixel().1 - RESIDUALS;
            let (above, under) = area.split_vertically(upper);
            let mut chart = aligned_frame(&above, ("", x.clone()), ("TTFT, ms", y), characters)?;
            let mut rest =
                aligned_frame(&under, ("tokens", x.clone()), ("residual, %", below), characters)?;
            let (start, end) = x.ends();
            rest.draw_series([PathElement::new(vec![(start, 0.0), (end, 0.0)], hairline())])?;
            for (at, calls) in calls.iter().enumerate() {
                chart.draw_series(LineSeries::new(lines[at], stroke(at)))?;
                let own = || (0..fit.points.len()).filter(|of| fit.points[*of].calls == *calls);
                let measured = own().map(|of| {
                    let point = fit.points[of];
                    marker(at, (point.tokens as f64, point.ttft_ms))
                });
                chart.draw_series(measured)?;
                let left =
                    own().map(|of| marker(at, (fit.points[of].tokens as f64, residuals[of])));
                rest.draw_series(left)?;
            }
            Ok(())
        })?;
        Ok(Self { title: (*title).to_owned(), description: description(fit), drawn })
    }
}

fn description(fit: &LawFit) -> String {
    let scatter = fit.fit.scatter.map(|scatter| match fit.fit.weighting {
        Weighting::Ordinary => format!("; points scatter by {} ms", number(scatter)),
        Weighting::Relative => format!("; points scatter by {}", percent(scatter)),
    });
    let constant = match fit.law.constant_ms {
        // It is in the call.
        0.0 => String::new(),
        ms if ms < 0.0 => format!(" - {} ms", number(-ms)),
        ms => format!(" + {} ms", number(ms)),
    };
    format!(
        "{} points with TTFT = {} ms x calls + {} us x tokens{constant}; below, what is left over, as shares \
         of the fitted times{}.",
        fit.points.len(),
        number(fit.law.per_call_ms),
        number(fit.law.per_token_us),
        scatter.unwrap_or_default()
    )
}
