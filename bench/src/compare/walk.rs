//! Finding what two results have in common.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::quantity::{Basis, Quantity, estimate, moments, summary};
use crate::stats::Moments;

/// Keys of what was asked for. Ratios of these say nothing; a difference is a warning.
pub const WORKLOAD: [&str; 33] = [
    "backend",
    "burstiness",
    "calls",
    "custom_output_len",
    "dataset_name",
    "dataset_path",
    "endpoint_type",
    "extra_body",
    "facts",
    "flop_per_token",
    "ignore_eos",
    "input_lens",
    "input_tokens",
    "max_concurrency",
    "model_id",
    "num_prompts",
    "num_warmups",
    "output_tokens",
    "prompt_tokens",
    "random_input_len",
    "random_output_len",
    "random_prefix_len",
    "random_range_ratio",
    "refills",
    "repeats",
    "request_rate",
    "sharegpt_output_len",
    "slo",
    "slo_ms",
    "tokens",
    "tokens_a_call",
    "weighting",
    "workload",
];

/// Keys that are no outcome of their own: single measurements behind their medians, the same in other units,
/// parts of a fit, texts, moments.
const ASIDE: [&str; 56] = [
    "above",
    "at_s",
    "beside",
    "bytes_per_second",
    "cached_lens",
    "certainty",
    "client",
    "counted_by",
    "counts",
    "covariance",
    "curvature",
    "date",
    "degrees_of_freedom",
    "drift",
    "e2els",
    "engine_prefill_p50_ms",
    "errors",
    "exit_code",
    "extrapolated",
    "finish_reasons",
    "flops_per_byte",
    "flops_per_second",
    "generated_reasoning",
    "generated_texts",
    "influence",
    "itls",
    "label",
    "largest",
    "leverage",
    "measured",
    "merged_calls",
    "name",
    "notes",
    "output_lens",
    "p",
    "percentiles",
    "planned",
    "plans",
    "prompts",
    "r_squared",
    "residuals",
    "rounds",
    "rows",
    "samples",
    "scatter",
    "seed",
    "serial_calls",
    "source",
    "start_times",
    "time",
    "timings",
    "tokenizer_id",
    "ttft_mean_ms",
    "ttft_min_ms",
    "ttfts",
    "ttfts_first_chunk",
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
                if are_parts(a) && are_parts(b) {
                    self.parts(path, a_items, b_items);
                } else if a != b && [a_items, b_items].iter().all(|items| are_texts(items)) {
                    self.differ(path, a, b);
                }
            }
            (Value::Number(a), Value::Number(b)) => {
                if let (Some(a), Some(b)) = (a.as_f64(), b.as_f64()) {
                    let (a, b) = (Moments::single(a), Moments::single(b));
                    self.moments(path, a, b, Basis::Number);
                }
            }
            _ => {}
        }
    }

    fn moments(&mut self, path: &str, a: Moments, b: Moments, basis: Basis) {
        self.quantities.push(Quantity::of_moments(path.to_owned(), a, b, basis));
    }

    fn fields(&mut self, path: &str, a: &Map<String, Value>, b: &Map<String, Value>) {
        for (key, of_a) in a {
            let Some(of_b) = b.get(key) else { continue };
            let told = is_deviation(key, a) || is_of_fit(key, a) || is_label(path, key, of_a);
            if told || ASIDE.contains(&key.as_str()) {
                continue;
            }
            let inner = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            if WORKLOAD.contains(&key.as_str()) && !are_parts(of_a) {
                self.differ(&inner, of_a, of_b);
            } else if let (Some(a), Some(b)) = (named_mean(key, a), named_mean(key, b)) {
                self.moments(&inner, a, b, Basis::Summary);
            } else if let (Some(a), Some(b)) = (repeats(key, a), repeats(key, b)) {
                self.moments(&inner, a, b, Basis::Samples);
            } else {
                self.walk(&inner, of_a, of_b);
            }
        }
    }

    /// Parts of a list: those of the same label belong together.
    fn parts(&mut self, path: &str, a: &[Value], b: &[Value]) {
        let (of_a, of_b) = (labelled(a), labelled(b));
        let mut alone = |mine: &[(String, &Value)], others: &[(String, &Value)], whose: &str| {
            let is_known = |label: &String| others.iter().any(|(other, _)| other == label);
            let labels = mine.iter().map(|(label, _)| label).filter(|label| !is_known(label));
            let labels: Vec<&str> = labels.map(String::as_str).collect();
            if !labels.is_empty() {
                self.warnings.push(format!("only {whose} has {path} of {}", labels.join(", ")));
            }
        };
        alone(&of_a, &of_b, "A");
        alone(&of_b, &of_a, "B");
        for (label, part) in of_a {
            if let Some((_, other)) = of_b.iter().find(|(known, _)| *known == label) {
                self.walk(&format!("{path}[{label}]"), part, other);
            }
        }
    }

    /// Warns of each difference in what was asked for.
    fn differ(&mut self, path: &str, a: &Value, b: &Value) {
        match (a, b) {
            (a, b) if a == b => {}
            (Value::Object(a), Value::Object(b)) => {
                let more = b.keys().filter(|key| !a.contains_key(*key));
                for key in a.keys().chain(more) {
                    let of = |fields: &Map<String, Value>| fields.get(key).cloned();
                    let (a, b) = (of(a).unwrap_or_default(), of(b).unwrap_or_default());
                    self.differ(&format!("{path}.{key}"), &a, &b);
                }
            }
            (Value::Array(a), Value::Array(b)) if !are_texts(a) || !are_texts(b) => {
                self.warnings.push(format!("the workload differs in {path}"));
            }
            (a, b) => {
                let line =
                    format!("the workload differs in {path}: {} in A, {} in B", shown(a), shown(b));
                self.warnings.push(line);
            }
        }
    }
}

/// A value in a warning.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::Array(items) => {
            let words: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            words.join(" ")
        }
        other => other.to_string(),
    }
}

fn are_parts(value: &Value) -> bool {
    let items = value.as_array().filter(|items| !items.is_empty());
    items.is_some_and(|items| items.iter().all(Value::is_object))
}

fn are_texts(items: &[Value]) -> bool {
    items.iter().all(Value::is_string)
}

/// Each part with what tells it from the others.
fn labelled(parts: &[Value]) -> Vec<(String, &Value)> {
    let mut known = HashSet::new();
    let each = parts.iter().enumerate().map(|(at, part)| {
        let label = label(part).filter(|label| known.insert(label.clone()));
        (label.unwrap_or_else(|| (at + 1).to_string()), part)
    });
    each.collect()
}

/// What a part is of: its name, or what was asked for in it.
fn label(part: &Value) -> Option<String> {
    let number = |key: &str| part.get(key).and_then(Value::as_u64);
    let text = |key: &str| part.get(key).and_then(Value::as_str);
    if let Some(name) = text("name").or_else(|| text("what")) {
        return Some(name.to_owned());
    }
    if let Some(width) = number("width") {
        return Some(format!("width {width}"));
    }
    match text("axis") {
        Some("context") => return Some(format!("slots {}", number("slots")?)),
        Some(_) => return Some(format!("context {}", number("context")?)),
        None => {}
    }
    let tokens = number("tokens")?;
    match number("calls") {
        Some(calls) => Some(format!("{tokens} tokens in {calls}")),
        None => Some(format!("{tokens} tokens")),
    }
}

/// Whether a member is what its part is called by.
fn is_label(path: &str, key: &str, value: &Value) -> bool {
    path.ends_with(&format!("[{key} {value}]"))
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

/// The repeats behind a median: the members of the same name of `samples` beside it.
fn repeats(key: &str, fields: &Map<String, Value>) -> Option<Moments> {
    let samples = fields.get("samples")?.as_array()?;
    let each: Option<Vec<f64>> =
        samples.iter().map(|sample| sample.get(key).and_then(Value::as_f64)).collect();
    Moments::of(&each?)
}
