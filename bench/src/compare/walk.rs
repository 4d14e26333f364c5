//! Finding what two results have in common.

use serde_json::{Map, Value};

use super::quantity::{Basis, Quantity, estimate, moments, samples, summary};
use crate::stats::Moments;

/// Keys of what was asked for. Ratios of these say nothing; a difference is a warning.
pub const WORKLOAD: [&str; 30] = [
    "backend",
    "burstiness",
    "calls",
    "context",
    "dataset",
    "dataset_name",
    "endpoint",
    "endpoint_type",
    "flop_per_token",
    "input_lens",
    "label",
    "lengths",
    "max_concurrency",
    "model",
    "model_id",
    "name",
    "num_prompts",
    "options",
    "prompt_tokens",
    "random_input_len",
    "random_output_len",
    "random_range_ratio",
    "repeats",
    "request_rate",
    "rounds",
    "slots",
    "tokenizer_id",
    "tokens",
    "width",
    "workload",
];

/// Keys that are no outcome of their own: parts of a fit, texts, moments.
const ASIDE: [&str; 19] = [
    "beside",
    "certainty",
    "covariance",
    "curvature",
    "date",
    "degrees_of_freedom",
    "errors",
    "extrapolated",
    "generated_texts",
    "influence",
    "leverage",
    "p",
    "percentiles",
    "r_squared",
    "residuals",
    "seed",
    "source",
    "time",
    "tokens_a_call",
];

/// What was found.
#[derive(Default)]
pub(super) struct Found {
    pub(super) quantities: Vec<Quantity>,
    pub(super) warnings: Vec<String>,
}

impl Found {
    /// Looks at a part that both results have.
    pub(super) fn walk(&mut self, path: &str, a: &Value, b: &Value) {
        match (a, b) {
            (Value::Object(a_fields), Value::Object(b_fields)) => {
                if let (Some(a), Some(b)) = (summary(a), summary(b)) {
                    let name = format!("{path}.mean");
                    self.quantities.push(Quantity::of_moments(name, a, b, Basis::Summary));
                } else if let (Some(a), Some(b)) = (estimate(a), estimate(b)) {
                    self.quantities.push(Quantity::of_estimates(path.to_owned(), a, b));
                } else {
                    self.fields(path, a_fields, b_fields);
                }
            }
            (Value::Array(a_items), Value::Array(b_items)) => {
                if let (Some(a), Some(b)) = (samples(a), samples(b)) {
                    self.samples(path, &a, &b);
                } else {
                    self.items(path, a_items, b_items);
                }
            }
            (Value::Number(a), Value::Number(b)) => {
                if let (Some(a), Some(b)) = (a.as_f64(), b.as_f64()) {
                    let (a, b) = (Moments::single(a), Moments::single(b));
                    self.quantities.push(Quantity::of_moments(
                        path.to_owned(),
                        a,
                        b,
                        Basis::Number,
                    ));
                }
            }
            _ => {}
        }
    }

    fn samples(&mut self, path: &str, a: &[f64], b: &[f64]) {
        if let (Some(a), Some(b)) = (Moments::of(a), Moments::of(b)) {
            self.quantities.push(Quantity::of_moments(path.to_owned(), a, b, Basis::Samples));
        }
    }

    fn fields(&mut self, path: &str, a: &Map<String, Value>, b: &Map<String, Value>) {
        for (key, of_a) in a {
            let Some(of_b) = b.get(key) else { continue };
            if ASIDE.contains(&key.as_str()) || is_deviation(key, a) || is_of_fit(key, a) {
                continue;
            }
            let inner = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            if WORKLOAD.contains(&key.as_str()) {
                if of_a != of_b {
                    self.warnings.push(workload(&inner, of_a, of_b));
                }
            } else if let (Some(a), Some(b)) = (named_mean(key, a), named_mean(key, b)) {
                self.quantities.push(Quantity::of_moments(inner, a, b, Basis::Summary));
            } else {
                self.walk(&inner, of_a, of_b);
            }
        }
    }

    /// Lists of parts: those at the same place belong together.
    fn items(&mut self, path: &str, a: &[Value], b: &[Value]) {
        if a.len() != b.len() {
            let lengths = format!("{} in A, {} in B", a.len(), b.len());
            self.warnings.push(format!("{path} has different lengths: {lengths}"));
        }
        for (at, (of_a, of_b)) in a.iter().zip(b).enumerate() {
            let label = of_a.get("name").and_then(Value::as_str);
            let label = label.map_or_else(|| (at + 1).to_string(), str::to_owned);
            self.walk(&format!("{path}[{label}]"), of_a, of_b);
        }
    }
}

fn workload(path: &str, a: &Value, b: &Value) -> String {
    match (a, b) {
        (Value::Array(_) | Value::Object(_), _) | (_, Value::Array(_) | Value::Object(_)) => {
            format!("the workload differs in {path}")
        }
        _ => format!("the workload differs in {path}: {a} in A, {b} in B"),
    }
}

/// Whether a key is the standard deviation of a mean beside it, and so counted there.
fn is_deviation(key: &str, fields: &Map<String, Value>) -> bool {
    key.strip_prefix("std_").is_some_and(|rest| fields.contains_key(&format!("mean_{rest}")))
}

/// Whether a key only repeats what a fit beside it says, with less of its errors: its points and its law.
fn is_of_fit(key: &str, fields: &Map<String, Value>) -> bool {
    ["points", "law"].contains(&key) && ["fit", "shape"].iter().all(|key| fields.contains_key(*key))
}

/// A mean with a standard deviation and a count beside it.
fn named_mean(key: &str, fields: &Map<String, Value>) -> Option<Moments> {
    let rest = key.strip_prefix("mean_")?;
    let number = |key: &str| fields.get(key).and_then(Value::as_f64);
    moments(number(key)?, number(&format!("std_{rest}"))?, number("completed")?)
}
