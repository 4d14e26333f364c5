//! A run of `bench serve` as a report.

use serde_json::{Map, Value};

use super::measured::{Measured, Metric};
use crate::record::Record;
use crate::report::number::{number, or_dash};
use crate::report::{Distribution, Plot, PlotError, Report, Side, Table};

/// Numbers and distributions of a run.
///
/// # Errors
///
/// A plot of numbers that cannot be drawn.
pub fn report(
    record: &Record<Map<String, Value>>,
    measured: &Measured,
    notes: &[String],
) -> Result<Report, PlotError> {
    let mut report = Report::of(record, "Serving benchmark");
    let asked = |name: &str| match record.result.get(name) {
        None | Some(Value::Null) => "none".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let open = match record.result.get("max_concurrency") {
        Some(Value::Number(most)) => format!("at most {most} open together"),
        _ => "any number open together".to_owned(),
    };
    report.introduce(format!(
        "{} of {} requests were answered in {} s: data set {}, {} requests a second (burstiness {}), \
         {open}, seed {}.",
        measured.completed(),
        measured.outcomes.len(),
        number(measured.duration_s),
        asked("dataset_name"),
        asked("request_rate"),
        asked("burstiness"),
        asked("seed"),
    ));
    if let Some(failure) = measured.first_failure() {
        report.introduce(format!("{} requests failed, the first: {failure}.", measured.failed()));
    }
    for note in notes {
        report.introduce(note.clone());
    }
    let section = report.section("Times");
    section.table(times(measured));
    for (metric, samples) in Metric::ALL.map(|metric| (metric, measured.samples(metric))) {
        if samples.len() > 1 {
            let x = format!("{}, ms", metric.name().to_uppercase());
            let title = metric.title();
            section.plot(Plot::distribution(&Distribution { title, x: &x, samples: &samples })?);
        }
    }
    report.section("Totals").table(Table::of_facts("", totals(&record.result)));
    Ok(report)
}

fn times(measured: &Measured) -> Table {
    let names = ["mean", "median", "std", "min", "max"];
    let summaries =
        Metric::ALL.map(|metric| (metric.name().to_uppercase(), measured.summary(metric)));
    let first = ("TTFT of the first chunk".to_owned(), measured.first_chunks());
    let percents: Vec<String> = measured.percents().iter().map(|p| format!("p{p}")).collect();
    let mut headings = vec![("milliseconds", Side::Left)];
    headings.extend(
        names.iter().copied().chain(percents.iter().map(String::as_str)).map(|n| (n, Side::Right)),
    );
    let mut table = Table::new("", &headings);
    for (name, summary) in summaries.into_iter().chain([first]) {
        let summary = summary.as_ref();
        let known = [
            summary.map(|s| s.mean),
            summary.map(|s| s.median),
            summary.map(|s| s.std),
            summary.map(|s| s.min),
            summary.map(|s| s.max),
        ];
        let percents = (0..percents.len())
            .map(|at| summary.and_then(|s| s.percentiles.get(at)).map(|(_, value)| *value));
        table.row(std::iter::once(name).chain(known.into_iter().chain(percents).map(or_dash)));
    }
    table
}

/// The counts and rates of a result.
fn totals(result: &Map<String, Value>) -> Vec<(String, String)> {
    let names = [
        ("total_input_tokens", "prompt tokens"),
        ("total_output_tokens", "generated tokens"),
        ("cached_tokens", "cached prompt tokens"),
        ("request_throughput", "requests/s"),
        ("request_goodput", "good requests/s"),
        ("output_throughput", "output tokens/s"),
        ("max_output_tokens_per_s", "output tokens in the busiest second"),
        ("total_token_throughput", "tokens/s, prompts included"),
        ("max_concurrent_requests", "most requests open together"),
    ];
    let value = |name: &str| or_dash(result.get(name).and_then(Value::as_f64));
    names.into_iter().map(|(name, about)| (about.to_owned(), value(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::measured::tests::{answered, failed, measured};
    use super::*;
    use crate::record::Kind;

    #[test]
    fn every_metric_has_its_numbers_and_its_distribution() {
        let answers = (1..6).map(|at| Some(answered(0.0, 0.1 * f64::from(at), &[0.01, 0.02])));
        let measured = measured(answers.chain([Some(failed(0.0, 0.1))]).collect(), None);
        let result = measured.members(&Metric::ALL);
        let record = Record::new(Kind::Serve, vec!["pocketd bench serve".to_owned()], result);
        let report = report(&record, &measured, &["a note".to_owned()]).unwrap();
        let text = report.text();
        for part in
            ["TTFT of the first chunk", "HTTP 503: busy", "a note", "p99.9", "5 of 6 requests"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(report.html().unwrap().matches("<svg").count(), 4);
    }

    #[test]
    fn a_run_without_answers_has_a_report_too() {
        let measured = measured(vec![Some(failed(0.0, 0.1)), None], None);
        let result = measured.members(&Metric::ALL);
        let record = Record::new(Kind::Serve, vec![], result);
        let report = report(&record, &measured, &[]).unwrap();
        assert_eq!(report.html().unwrap().matches("<svg").count(), 0);
    }
}
