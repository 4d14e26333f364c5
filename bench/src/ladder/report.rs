//! A ladder as a report.

use super::rung::{Ladder, Level, Rung};
use crate::record::Record;
use crate::report::number::{number, or_dash};
use crate::report::{Curves, Distribution, Plot, PlotError, Report, Scale, Series, Side, Table};

/// A curve: what it is of a level.
type Of = fn(&Level) -> Option<f64>;

/// Tables and curves of a ladder.
///
/// # Errors
///
/// A plot of numbers that cannot be drawn.
pub fn report(record: &Record<Ladder>) -> Result<Report, PlotError> {
    let ladder = &record.result;
    let mut report = Report::of(record, "Ladder of widths");
    report.introduce(format!(
        "Prompts of {} tokens, answers of {}. A wave sends as many prompts at once as the width; a refilled \
         load sends {} times as many and keeps the width busy. {} repeats, up and down in turn; numbers are \
         medians of the repeats.",
        ladder.input_tokens, ladder.output_tokens, ladder.refills, ladder.repeats
    ));
    report.introduce(knee(ladder));
    if let Some(drift) = ladder.drift {
        report.introduce(format!(
            "Drift: the last repeat gave {} of the first one's tokens a second.",
            number(drift)
        ));
    }
    let section = report.section("Widths");
    section.table(table_of_clients(ladder)).table(table_of_server(ladder));
    if ladder.rungs.len() > 1 {
        let plots: [(&str, (&str, Scale), Of); 4] = [
            ("Throughput by width", ("output tokens/s", Scale::Linear), |l| l.tokens_per_s),
            (
                "Time to first token by width (logarithmic)",
                ("mean TTFT, ms", Scale::Logarithmic),
                |l| l.mean_ttft_ms,
            ),
            ("Time per output token by width", ("TPOT, ms", Scale::Linear), |l| l.tpot_ms),
            ("Rows computed by width", ("row-steps/s", Scale::Linear), |l| l.row_steps_per_s),
        ];
        for (title, y, of) in plots {
            if let Some(plot) = curves(ladder, title, y, of)? {
                section.plot(plot);
            }
        }
    }
    if let Some((width, ttft_ms)) = widest_wave(ladder) {
        let title = format!("Times to first token in waves of {width}");
        report.section("The widest wave").plot(Plot::distribution(&Distribution {
            title: &title,
            x: "TTFT, ms",
            samples: &ttft_ms,
        })?);
    }
    Ok(report)
}

fn knee(ladder: &Ladder) -> String {
    let Some(knee) = &ladder.knee else { return "Nothing was measured.".to_owned() };
    let beyond = match knee.at_the_end {
        true => " It is the widest that was measured, so that the knee may lie beyond.",
        false => "",
    };
    format!(
        "Knee: width {} with {} tokens/s, of at most {} at width {}: {}.{beyond}",
        knee.width,
        number(knee.tokens_per_s),
        number(knee.best_tokens_per_s),
        knee.best_width,
        knee.method
    )
}

/// What clients see of each width.
fn table_of_clients(ladder: &Ladder) -> Table {
    let names = ["TTFT ms", "p99 TTFT ms", "TPOT ms", "tokens/s", "goodput/s"];
    table(ladder, "What clients see", &names, |level| {
        vec![
            level.mean_ttft_ms,
            level.p99_ttft_ms,
            level.tpot_ms,
            level.tokens_per_s,
            level.goodput_per_s,
        ]
    })
}

/// What the server counts at each width.
fn table_of_server(ladder: &Ladder) -> Table {
    let names = ["occupied", "rows/call", "row-steps/s"];
    table(ladder, "What the server does", &names, |level| {
        vec![level.occupancy, level.rows_per_call, level.row_steps_per_s]
    })
}

fn table(
    ladder: &Ladder,
    caption: &str,
    names: &[&str],
    numbers: fn(&Level) -> Vec<Option<f64>>,
) -> Table {
    let mut headings = vec![("width", Side::Right), ("load", Side::Left)];
    headings.extend(names.iter().map(|name| (*name, Side::Right)));
    let mut table = Table::new(caption, &headings);
    for Rung { width, wave, refilled } in &ladder.rungs {
        for (name, level) in [("wave", wave), ("refilled", refilled)] {
            let cells = [width.to_string(), name.to_owned()];
            table.row(cells.into_iter().chain(numbers(level).into_iter().map(or_dash)));
        }
    }
    table
}

/// A measure of both loads by width; none where it was not measured.
fn curves(
    ladder: &Ladder,
    title: &str,
    y: (&str, Scale),
    of: Of,
) -> Result<Option<Plot>, PlotError> {
    let points = |level: fn(&Rung) -> &Level| -> Vec<(f64, f64)> {
        let point = |rung: &Rung| Some((rung.width as f64, of(level(rung))?));
        ladder.rungs.iter().filter_map(point).collect()
    };
    let series = [
        Series { name: "wave", points: points(|rung| &rung.wave) },
        Series { name: "refilled", points: points(|rung| &rung.refilled) },
    ];
    if series.iter().any(|series| series.points.len() < 2) {
        return Ok(None);
    }
    let x = ("width", Scale::PowersOfTwo);
    Plot::curves(&Curves { title, x, y, series: &series }).map(Some)
}

/// The widest wave with several prompts, and the times to first token of all its repeats.
fn widest_wave(ladder: &Ladder) -> Option<(usize, Vec<f64>)> {
    let times = |rung: &Rung| -> Vec<f64> {
        rung.wave.samples.iter().flat_map(|sample| sample.ttft_ms.iter().copied()).collect()
    };
    let rung = ladder.rungs.iter().rev().find(|rung| times(rung).len() > 1)?;
    Some((rung.width, times(rung)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::{Knee, Sample};
    use crate::record::Kind;

    fn level(width: usize, factor: f64) -> Level {
        let tokens_per_s = factor * width as f64;
        let sample = Sample {
            repeat: 0,
            order: 0,
            completed: width,
            failed: 0,
            duration_s: 1.0,
            ttft_ms: (1..=width).map(|at| at as f64).collect(),
            mean_ttft_ms: Some(1.0),
            p99_ttft_ms: Some(1.0),
            tpot_ms: Some(2.0),
            tokens_per_s,
            goodput_per_s: None,
            occupancy: 1.0,
            calls: Some(3.0),
            rows_per_call: Some(4.0),
            row_steps_per_s: Some(12.0),
        };
        Level::of(vec![sample])
    }

    fn record(widths: &[usize]) -> Record<Ladder> {
        let rungs = widths
            .iter()
            .map(|&width| Rung { width, wave: level(width, 9.0), refilled: level(width, 10.0) })
            .collect();
        let points: Vec<(usize, f64)> = widths.iter().map(|w| (*w, 10.0 * *w as f64)).collect();
        let ladder = Ladder {
            input_tokens: 8,
            output_tokens: 4,
            refills: 3,
            repeats: 1,
            seed: 1,
            slo: None,
            rungs,
            knee: Knee::of(&points),
            drift: None,
        };
        Record::new(Kind::Ladder, vec!["pocketd bench ladder".to_owned()], ladder)
    }

    #[test]
    fn every_width_has_its_rows_and_curves() {
        let report = report(&record(&[1, 2, 4])).unwrap();
        let text = report.text();
        for part in ["refilled", "knee may lie beyond", "Knee: width 4 with 40 tokens/s"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("The widest wave"), "a terminal has no plots: {text}");
        assert_eq!(report.html().unwrap().matches("<svg").count(), 5);
    }

    #[test]
    fn a_ladder_of_one_width_or_none_has_no_curves() {
        let one = report(&record(&[1])).unwrap();
        assert_eq!(one.html().unwrap().matches("<svg").count(), 0);
        assert!(report(&record(&[])).unwrap().text().contains("Nothing was measured"));
    }
}
