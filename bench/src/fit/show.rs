//! Fits and predictions as parts of a report.

use super::{BothWays, Decomposition, Outcome};
use crate::law::{LawFit, MergePrediction};
use crate::report::number::{counted, estimate, interval, number, or_dash, percent};
use crate::report::{FitPlot, Plot, PlotError, Report, Section, Side, Table};
use crate::stats::Weighting;

impl Outcome {
    /// Adds sections for everything it holds.
    pub fn describe(&self, report: &mut Report) -> Result<(), PlotError> {
        if let Some(fits) = &self.fits {
            fits.describe(report, self.weighting.unwrap_or(Weighting::Relative))?;
        } else if let Some(law) = &self.law {
            let mut table = Table::new("", &[("given", Side::Left), ("value", Side::Right)]);
            table.row(["ms a call".to_owned(), number(law.per_call_ms)]);
            table.row(["us a token".to_owned(), number(law.per_token_us)]);
            table.row(["constant ms".to_owned(), number(law.constant_ms)]);
            report.section("The law").table(table);
        }
        if let Some(reading) = &self.bimodal {
            report.section("The wave check, read as bimodal").text(format!(
                "{} requests with {} more: the mean TTFT moves by {:.1} k and moved by {} ms, so a \
                 call costs {:.1} ms.",
                reading.wave.requests,
                counted(reading.wave.more_calls as usize, "call"),
                reading.factor,
                number(reading.mean_ttft_moved_ms),
                reading.per_call_ms
            ));
        }
        if let Some(merge) = &self.merge {
            describe_merge(merge, report.section("Merging a wave"));
        }
        if !self.fixed_shares.is_empty() {
            let headings =
                [("tokens", Side::Right), ("TTFT ms", Side::Left), ("fixed", Side::Left)];
            let known = self.fixed_shares.iter().any(|fixed| fixed.share.interval.is_some());
            let caption = format!("Prompts in one call{}", with_intervals(known));
            let mut table = Table::new(caption, &headings);
            for fixed in &self.fixed_shares {
                let share = match fixed.share.interval {
                    Some(ends) => format!(
                        "{} ({} to {})",
                        percent(fixed.share.value),
                        percent(ends.low),
                        percent(ends.high)
                    ),
                    None => percent(fixed.share.value),
                };
                table.row([fixed.tokens.to_string(), estimate(&fixed.ttft_ms), share]);
            }
            report.section("The share that is not the tokens'").table(table);
        }
        if let Some(rates) = &self.rates {
            let section = report.section("Arithmetic");
            section.text(format!(
                "At {} GFLOP a token, further tokens run at {} TFLOP/s.",
                number(rates.flop_per_token / 1e9),
                estimate(&rates.marginal_tflops)
            ));
            if !rates.delivered_tflops.is_empty() {
                let headings = [("tokens", Side::Right), ("TFLOP/s delivered", Side::Right)];
                let mut table = Table::new("Prompts in one call", &headings);
                for (tokens, rate) in &rates.delivered_tflops {
                    table.row([tokens.to_string(), number(*rate)]);
                }
                section.table(table);
            }
        }
        Ok(())
    }
}

impl Decomposition {
    /// Adds a section for each fit, `weighting` first and in the plots, the other beside it.
    pub fn describe(&self, report: &mut Report, weighting: Weighting) -> Result<(), PlotError> {
        for (heading, fits) in [
            ("A call, a token and a constant", &self.joint),
            ("A call and a token, prompts of one call", &self.length),
        ] {
            if let Some(fits) = fits {
                let plot = Plot::fit(&FitPlot { title: heading, fit: fits.weighted(weighting) })?;
                let section = report.section(heading);
                section
                    .table(fits.coefficients(weighting))
                    .text(fits.quality(weighting))
                    .plot(plot);
                section.table(fits.points());
            }
        }
        if let (Some(missing), Some(section)) = (&self.missing, report.last_section()) {
            section.text(capitalised(missing));
        }
        Ok(())
    }
}

/// For captions of estimates, which have intervals where the law has.
fn with_intervals(known: bool) -> &'static str {
    if known { ", with 95 % intervals" } else { "" }
}

/// A time, to a tenth of a millisecond where that is something.
fn largest(ms: f64) -> String {
    if ms >= 1.0 { format!("{ms:.1}") } else { number(ms) }
}

/// A difference.
fn signed(value: f64) -> String {
    let sign = if value > 0.0 { "+" } else { "" };
    format!("{sign}{}", number(value))
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn name_of(weighting: Weighting) -> &'static str {
    match weighting {
        Weighting::Relative => "relative",
        Weighting::Ordinary => "ordinary",
    }
}

impl BothWays {
    /// Parameters with their errors, both ways.
    pub fn coefficients(&self, first: Weighting) -> Table {
        let second = match first {
            Weighting::Relative => Weighting::Ordinary,
            Weighting::Ordinary => Weighting::Relative,
        };
        let mut table = Table::new(
            "",
            &[
                ("least squares", Side::Left),
                ("", Side::Left),
                ("value", Side::Right),
                ("standard error", Side::Right),
                ("95 % interval", Side::Left),
            ],
        );
        for weighting in [first, second] {
            for found in &self.weighted(weighting).fit.coefficients {
                table.row([
                    name_of(weighting).to_owned(),
                    found.name.clone(),
                    number(found.value),
                    or_dash(found.standard_error),
                    interval(found.interval),
                ]);
            }
        }
        table
    }

    /// How good the fits are, and which point they lean on.
    pub fn quality(&self, first: Weighting) -> String {
        let second = match first {
            Weighting::Relative => Weighting::Ordinary,
            Weighting::Ordinary => Weighting::Relative,
        };
        [first, second].map(|weighting| quality(self.weighted(weighting))).join(" ")
    }

    /// Every point with what the fits leave over.
    pub fn points(&self) -> Table {
        let right = Side::Right;
        let mut table = Table::new(
            "Points, and what the fits leave over",
            &[
                ("calls", right),
                ("tokens", right),
                ("TTFT ms", right),
                ("relative ms", right),
                ("%", right),
                ("ordinary ms", right),
                ("leverage", right),
            ],
        );
        let both = self.relative.fit.residuals.iter().zip(&self.ordinary.fit.residuals);
        for (at, (relative, ordinary)) in both.enumerate() {
            let point = &self.relative.points[at];
            table.row([
                point.calls.to_string(),
                point.tokens.to_string(),
                number(point.ttft_ms),
                signed(relative.residual),
                format!("{:+.1}", relative.residual / relative.fitted * 100.0),
                signed(ordinary.residual),
                format!("{:.2}", self.relative.fit.influence[at].leverage),
            ]);
        }
        table
    }
}

fn quality(fit: &LawFit) -> String {
    let numbers = &fit.fit;
    let scatter = numbers.scatter.map(|scatter| match numbers.weighting {
        Weighting::Relative => format!(", points scatter by {}", percent(scatter)),
        Weighting::Ordinary => format!(", points scatter by {} ms", number(scatter)),
    });
    let r_squared = numbers.r_squared.map(|share| format!(", R2 {share:.5}"));
    let leaning = match numbers.largest_move(0) {
        Some(largest) => {
            let point = fit.points[largest.point];
            format!(
                "; leaving one point out moves ms a call by {} at most (the point of {}, {} tokens)",
                number(largest.by.abs()),
                counted(point.calls as usize, "call"),
                point.tokens
            )
        }
        None => "; a parameter rests on a single point".to_owned(),
    };
    let bend = match &fit.law.curvature {
        Some(bend) if bend.is_significant() => format!(
            "; the cost of a call bends by {} ns for each token squared (p = {:.3})",
            number(bend.per_token_squared_ns),
            bend.p
        ),
        Some(bend) => format!("; no bend can be seen (p = {:.2})", bend.p),
        None => "; whether the cost of a call bends, the points cannot tell".to_owned(),
    };
    format!(
        "{}: largest residual {} ms{}{}{leaning}{bend}.",
        capitalised(name_of(numbers.weighting)),
        largest(numbers.largest_residual()),
        scatter.unwrap_or_default(),
        r_squared.unwrap_or_default()
    )
}

/// Adds what merging gains, and whether the law says it or only continues to it.
pub fn describe_merge(merge: &MergePrediction, section: &mut Section) {
    let mut table = Table::new(
        format!(
            "{} prompts with {} tokens{}",
            merge.prompts,
            merge.tokens,
            with_intervals(merge.wave_gain.interval.is_some())
        ),
        &[
            ("", Side::Left),
            ("calls", Side::Right),
            ("wave ms", Side::Left),
            ("mean TTFT ms", Side::Left),
        ],
    );
    table.row([
        "prompts in calls of their own".to_owned(),
        merge.serial_calls.to_string(),
        estimate(&merge.serial_wave_ms),
        estimate(&merge.serial_mean_ttft_ms),
    ]);
    table.row([
        "merged".to_owned(),
        merge.merged_calls.to_string(),
        estimate(&merge.merged_wave_ms),
        estimate(&merge.merged_mean_ttft_ms),
    ]);
    let gain = |gain: &crate::law::Estimate| match gain.interval {
        Some(ends) => format!("{:.2}x ({:.2} to {:.2})", gain.value, ends.low, ends.high),
        None => format!("{:.2}x", gain.value),
    };
    table.row([
        "gain".to_owned(),
        String::new(),
        gain(&merge.wave_gain),
        gain(&merge.mean_ttft_gain),
    ]);
    section.table(table);
    for why in &merge.extrapolated {
        section.text(format!("Extrapolated: {why}."));
    }
}
