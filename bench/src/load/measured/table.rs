//! What came of a run, as the table that `vllm bench serve` prints.

use std::fmt;

use super::{Measured, Metric, Overhead, peaks};

/// The table that is printed, in vLLM's form.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    measured: &'a Measured,
    metrics: &'a [Metric],
}

impl Measured {
    /// The table with these metrics.
    pub fn table<'a>(&'a self, metrics: &'a [Metric]) -> Table<'a> {
        Table { measured: self, metrics }
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { measured, metrics } = self;
        measured.write_totals(f)?;
        for metric in *metrics {
            measured.write_metric(f, *metric)?;
        }
        writeln!(f, "{:=^60}", "")?;
        if let Some(failure) = measured.first_failure() {
            writeln!(f, "first failure: {failure}")?;
        }
        measured.overhead.fmt(f)
    }
}

impl Measured {
    fn write_totals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_second = |count: usize| count as f64 / self.duration_s;
        let (input, output) = (self.input_tokens(), self.output_tokens());
        writeln!(f, "{:=^60}", " Serving benchmark ")?;
        writeln!(f, "{:<44}{:>16}", "Successful requests:", self.completed())?;
        writeln!(f, "{:<44}{:>16}", "Failed requests:", self.failed())?;
        for (kind, count) in self.failures() {
            writeln!(f, "{:<44}{count:>16}", format!("  {kind}:"))?;
        }
        if self.interrupted {
            let unfinished = self.outcomes.len() - self.ended().count();
            writeln!(f, "{:<44}{unfinished:>16}", "Interrupted; requests without an end:")?;
        }
        writeln!(f, "{:<44}{:>16.2}", "Duration (s):", self.duration_s)?;
        writeln!(f, "{:<44}{input:>16}", "Total input tokens:")?;
        writeln!(f, "{:<44}{output:>16}", "Total generated tokens:")?;
        if let Some(cached) = self.cached_tokens() {
            writeln!(f, "{:<44}{cached:>16}", "Cached input tokens:")?;
        }
        let rows = [
            ("Request throughput (req/s):", Some(per_second(self.completed()))),
            ("Request goodput (req/s):", self.goodput.map(|goodput| per_second(goodput.good))),
            ("Output token throughput (tok/s):", Some(per_second(output))),
            ("Output tokens in the busiest second:", Some(peaks::tokens_per_second(self.ended()))),
            ("Total token throughput (tok/s):", Some(per_second(input + output))),
        ];
        for (name, value) in rows {
            if let Some(value) = value {
                writeln!(f, "{name:<44}{value:>16.2}")?;
            }
        }
        writeln!(f, "{:<44}{:>16}", "Peak concurrent requests:", self.peak_concurrency())
    }

    fn write_metric(&self, f: &mut fmt::Formatter<'_>, metric: Metric) -> fmt::Result {
        let Some(summary) = self.summary(metric) else { return Ok(()) };
        let name = metric.name().to_uppercase();
        writeln!(f, "{:-^60}", format!(" {} ", metric.title()))?;
        let title = |which: &str| format!("{which} {name} (ms):");
        let mut rows = vec![(title("Mean"), summary.mean), (title("Median"), summary.median)];
        rows.extend(summary.percentiles.iter().map(|(p, value)| (title(&format!("P{p}")), *value)));
        if let Some(first) = self.first_chunks().filter(|_| metric == Metric::Ttft) {
            rows.push(("Mean time to first chunk (ms):".to_owned(), first.mean));
        }
        for (title, value) in rows {
            writeln!(f, "{title:<44}{value:>16.2}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Overhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |text: &str, value: Option<f64>| {
            value.map(|value| text.replace('?', &format!("{value:.2}")))
        };
        let known = [
            part("? cores", self.cores),
            part("? us a chunk", self.cpu_us_per_chunk),
            part("timers late by ? ms (mean)", self.timer_late_ms.mean),
            part("? ms (99 %)", self.timer_late_ms.p99),
        ];
        // A run that ended at once knows little of itself.
        let known: Vec<String> = known.into_iter().flatten().collect();
        if known.is_empty() { Ok(()) } else { writeln!(f, "client: {}", known.join(", ")) }
    }
}
