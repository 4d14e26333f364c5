//! The laws, their errors, and the points behind them.

use super::{L, R, calls};
use crate::law::LawFit;
use crate::prefill::outcome::{Fits, Prefill};
use crate::report::number::{interval, number, or_dash};
use crate::report::{FitPlot, Plot, PlotError, Section, Table};
use crate::stats::Coefficient;

pub(super) fn laws(section: &mut Section, prefill: &Prefill) -> Result<(), PlotError> {
    let mut numbers = Table::new(
        "Weighted fits make distances relative to the value small, ordinary ones distances in milliseconds",
        &[
            ("fit", L),
            ("ms a call", R),
            ("us a token", R),
            ("constant ms", R),
            ("R2", R),
            ("largest residual ms", R),
            ("points", R),
        ],
    );
    let mut errors = Table::new(
        "95 % intervals, and standard errors behind a plus and minus",
        &[("fit", L), ("ms a call", R), ("us a token", R), ("constant ms", R)],
    );
    let Prefill { joint, length, wave_check, .. } = prefill;
    for (name, Fits { weighted, ordinary }) in
        [("joint", joint), ("one call each", length), ("wave check", wave_check)]
    {
        for (how, fit) in [("weighted", weighted), ("ordinary", ordinary)] {
            let name = format!("{name}, {how}");
            numbers.row(law_row(&name, fit));
            errors.row(error_row(name, fit));
        }
    }
    section.table(numbers).table(errors);
    section.text(
        "The joint fit takes calls and tokens apart by prompts of one length in several calls. With one \
         call each, a request's constant is part of its call. The wave check regresses each request's \
         time on the calls and tokens that the engine ran before its first token, in waves under two \
         budgets; its requests wait for each other, so its intervals are too narrow.",
    );
    for (name, fits) in [("joint", joint), ("one call each", length)] {
        section.text(leave_one_out(name, &fits.weighted));
    }
    section.plot(Plot::fit(&FitPlot { title: "Joint fit, weighted", fit: &joint.weighted })?);
    section.plot(Plot::fit(&FitPlot { title: "One call each, weighted", fit: &length.weighted })?);
    Ok(())
}

/// A law's three numbers, the constant where it has one.
fn coefficients(fit: &LawFit) -> [Option<&Coefficient>; 3] {
    [Some(fit.per_call_ms()), Some(fit.per_token_us()), fit.constant_ms()]
}

fn law_row(name: &str, fit: &LawFit) -> Vec<String> {
    let value = |coefficient: Option<&Coefficient>| {
        coefficient.map_or_else(|| "in the call".to_owned(), |found| number(found.value))
    };
    let mut row = vec![name.to_owned()];
    row.extend(coefficients(fit).map(value));
    row.push(fit.fit.r_squared.map_or_else(|| "-".to_owned(), |share| format!("{share:.5}")));
    row.push(number(fit.fit.largest_residual()));
    row.push(fit.points.len().to_string());
    row
}

fn error_row(name: String, fit: &LawFit) -> Vec<String> {
    let error = |coefficient: Option<&Coefficient>| match coefficient {
        Some(found) => {
            format!("{} \u{b1} {}", interval(found.interval), or_dash(found.standard_error))
        }
        None => String::new(),
    };
    let mut row = vec![name];
    row.extend(coefficients(fit).map(error));
    row
}

/// Which point the cost of a call rests on most.
fn leave_one_out(name: &str, fit: &LawFit) -> String {
    let Some(largest) = fit.fit.largest_move(0) else {
        return format!("Leave one out ({name}): a parameter rests on a single point.");
    };
    let point = &fit.points[largest.point];
    format!(
        "Leave one out ({name}): the point of {} tokens in {} moves the cost of a call most, by {} ms; \
         without it, it would be {} ms.",
        point.tokens,
        calls(point.calls as f64),
        number(largest.by),
        number(fit.per_call_ms().value - largest.by),
    )
}

pub(super) fn points(section: &mut Section, prefill: &Prefill) {
    let headings = [
        ("for", L),
        ("tokens", R),
        ("calls", R),
        ("TTFT p50 ms", R),
        ("mean", R),
        ("engine ms", R),
        ("fitted ms", R),
        ("residual ms", R),
        ("%", R),
    ];
    let caption = "Tokens and calls are the engine's own counts, and so is its prefill; the fit is the \
                   weighted joint one";
    let mut table = Table::new(caption, &headings);
    let residuals = &prefill.joint.weighted.fit.residuals;
    for (point, residual) in prefill.points.iter().zip(residuals) {
        table.row([
            point.purpose.name().to_owned(),
            point.tokens.to_string(),
            point.calls.to_string(),
            number(point.ttft_p50_ms),
            number(point.ttft_mean_ms),
            number(point.engine_prefill_p50_ms),
            number(residual.fitted),
            number(residual.residual),
            format!("{:.1}", residual.residual / residual.fitted * 100.0),
        ]);
    }
    section.table(table);
}
