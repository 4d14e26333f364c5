//! The report of a comparison.

use super::{Ab, Workload};
use crate::record::Record;
use crate::report::number::{number, ratio};
use crate::report::{Bar, Bars, Plot, PlotError, Report, Side, Table};

const L: Side = Side::Left;
const R: Side = Side::Right;

/// The whole of it.
pub fn report(record: &Record<Ab>) -> Result<Report, PlotError> {
    let Ab { a, b, workload, measures, counts, .. } = &record.result;
    let Workload { prompts, prompt_tokens, output_tokens, pairs } = workload;
    let mut report = Report::of(record, "A against B");
    report.introduce(format!(
        "{pairs} pairs of waves of {prompts} prompts of {prompt_tokens} tokens, {output_tokens} tokens \
         generated for each. A: {}. B: {}. The arms take turns in being first.",
        named(a),
        named(b),
    ));
    let section = report.section("Comparison");
    let headings = [("", L), ("A, median", R), ("B, median", R), ("B / A (95 %)", R)];
    let caption = "Times to first token and after it are the engine's, the last line the client's. B / A is the \
                   geometric mean of the pairs' ratios, not the quotient of the medians";
    let mut table = Table::new(caption, &headings);
    for measure in measures {
        table.row([
            measure.name.clone(),
            number(measure.a),
            number(measure.b),
            ratio(&measure.ratio),
        ]);
    }
    section.table(table);
    let bars: Vec<Bar> = measures
        .iter()
        .map(|measure| Bar {
            name: measure.name.clone(),
            value: measure.ratio.ratio,
            interval: measure.ratio.interval,
        })
        .collect();
    let title = "B over A";
    section.plot(Plot::bars(&Bars { title, x: "ratio", reference: Some(1.0), bars: &bars })?);
    let section = report.section("What the servers counted");
    let headings =
        [("server", L), ("rank", R), ("calls", R), ("all-reduces run", R), ("skipped", R)];
    let mut table = Table::new("In the measured waves", &headings);
    for arm in counts {
        for (rank, (run, skipped)) in arm.run.iter().zip(&arm.skipped).enumerate() {
            table.row([
                arm.arm.clone(),
                rank.to_string(),
                arm.calls.to_string(),
                run.to_string(),
                skipped.to_string(),
            ]);
        }
    }
    section.table(table);
    section.commands(counts.iter().map(|arm| arm.command.clone()).collect());
    Ok(report)
}

fn named(what: &[String]) -> String {
    if what.is_empty() { "as both".to_owned() } else { what.join(" ") }
}
