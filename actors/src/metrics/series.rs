//! Series that carry two names.

use prometheus::core::Collector;
use prometheus::{HistogramOpts, IntGauge, IntGaugeVec, Opts, Registry};

/// A series cannot be made: its name is wrong or taken.
#[derive(Debug, thiserror::Error)]
#[error("metrics: {0}")]
pub struct MetricsError(#[from] prometheus::Error);

/// A number that goes up and down.
pub(super) struct Gauge(Vec<prometheus::Gauge>);

impl Gauge {
    pub fn set(&self, value: f64) {
        self.0.iter().for_each(|gauge| gauge.set(value));
    }
}

/// A number that goes up.
pub(super) struct Counter(Vec<prometheus::Counter>);

impl Counter {
    pub fn add(&self, value: f64) {
        self.0.iter().for_each(|counter| counter.inc_by(value));
    }

    /// What has been counted; all names have the same, and a series has at least one.
    pub fn get(&self) -> f64 {
        self.0.first().map_or(0.0, prometheus::Counter::get)
    }
}

/// Counters told apart by one label.
pub(super) struct Family(Vec<prometheus::CounterVec>);

impl Family {
    pub fn add(&self, label: &str, value: f64) {
        self.0.iter().for_each(|family| family.with_label_values(&[label]).inc_by(value));
    }
}

/// A distribution.
pub(super) struct Histogram(Vec<prometheus::Histogram>);

impl Histogram {
    pub fn observe(&self, value: f64) {
        self.0.iter().for_each(|histogram| histogram.observe(value));
    }

    /// How many were observed, and their sum; the same under all names, of which there is at least one.
    pub fn totals(&self) -> (u64, f64) {
        let of = |histogram: &prometheus::Histogram| {
            (histogram.get_sample_count(), histogram.get_sample_sum())
        };
        self.0.first().map_or((0, 0.0), of)
    }
}

/// Makes series. `also` is the name after vLLM's prefix, if it has the series too.
pub(super) struct Series<'a> {
    pub registry: &'a Registry,
    pub model: &'a str,
}

impl Series<'_> {
    /// The options of each of the names.
    fn names(&self, name: &str, help: &str, also: &str) -> Vec<Opts> {
        let mut all = vec![Opts::new(name, help)];
        if !also.is_empty() {
            let theirs = Opts::new(format!("vllm:{also}"), help);
            all.push(theirs.const_label("model_name", self.model));
        }
        all
    }

    /// Makes and registers a series of each of the names.
    fn each<C: Collector + Clone + 'static>(
        &self,
        names: Vec<Opts>,
        make: impl Fn(Opts) -> prometheus::Result<C>,
    ) -> Result<Vec<C>, MetricsError> {
        let make = |opts| {
            let series = make(opts)?;
            self.registry.register(Box::new(series.clone()))?;
            Ok(series)
        };
        names.into_iter().map(make).collect()
    }

    pub fn gauge(&self, name: &str, help: &str, also: &str) -> Result<Gauge, MetricsError> {
        self.each(self.names(name, help, also), prometheus::Gauge::with_opts).map(Gauge)
    }

    pub fn counter(&self, name: &str, help: &str, also: &str) -> Result<Counter, MetricsError> {
        self.each(self.names(name, help, also), prometheus::Counter::with_opts).map(Counter)
    }

    pub fn histogram(
        &self,
        name: &str,
        help: &str,
        bounds: &[f64],
        also: &str,
    ) -> Result<Histogram, MetricsError> {
        let make = |opts: Opts| {
            prometheus::Histogram::with_opts(HistogramOpts::from(opts).buckets(bounds.to_vec()))
        };
        self.each(self.names(name, help, also), make).map(Histogram)
    }

    /// Counters for each of the values of a label, there from the start.
    pub fn family(
        &self,
        name: &str,
        help: &str,
        label: &str,
        values: &[&str],
        also: &str,
    ) -> Result<Family, MetricsError> {
        let make = |opts| {
            let family = prometheus::CounterVec::new(opts, &[label])?;
            for value in values {
                family.with_label_values(&[*value]);
            }
            Ok(family)
        };
        self.each(self.names(name, help, also), make).map(Family)
    }

    /// A series that is always 1 and says something by its labels.
    pub fn info(
        &self,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
    ) -> Result<(), MetricsError> {
        let opts = labels
            .iter()
            .fold(Opts::new(name, help), |opts, (label, value)| opts.const_label(*label, *value));
        let info = IntGauge::with_opts(opts)?;
        info.set(1);
        Ok(self.registry.register(Box::new(info))?)
    }

    /// A series for each combination of labels it is given.
    pub fn labels(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntGaugeVec, MetricsError> {
        let family = IntGaugeVec::new(Opts::new(name, help), labels)?;
        self.registry.register(Box::new(family.clone()))?;
        Ok(family)
    }
}
