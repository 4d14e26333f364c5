//! What came of a run, under the names of `vllm bench serve`.

mod table;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::client::Outcome;
use super::reading::Answer;
use super::run::Ran;
use super::{Overhead, peaks};
use crate::stats::Summary;

/// A time that is measured for every answer, or for every token of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Time to first token.
    Ttft,
    /// Time per output token after the first, a mean for each answer.
    Tpot,
    /// Inter-token latency.
    Itl,
    /// End-to-end latency.
    E2el,
}

impl Metric {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Metric; 4] = [Metric::Ttft, Metric::Tpot, Metric::Itl, Metric::E2el];

    /// Its name in options and results.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Ttft => "ttft",
            Metric::Tpot => "tpot",
            Metric::Itl => "itl",
            Metric::E2el => "e2el",
        }
    }

    /// Its name in full.
    pub fn title(self) -> &'static str {
        match self {
            Metric::Ttft => "Time to first token",
            Metric::Tpot => "Time per output token after the first",
            Metric::Itl => "Inter-token latency",
            Metric::E2el => "End-to-end latency",
        }
    }
}

/// What an answer must keep to be a good one, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slo {
    /// Time to first token.
    pub ttft: Option<f64>,
    /// Time per output token; an answer of one token has none and keeps it.
    pub tpot: Option<f64>,
    /// End-to-end latency.
    pub e2el: Option<f64>,
}

impl Slo {
    fn kept_by(&self, answer: &Answer) -> bool {
        let within = |limit: Option<f64>, seconds: f64| limit.is_none_or(|ms| seconds * 1e3 <= ms);
        within(self.ttft, answer.ttft)
            && within(self.tpot, answer.tpot().unwrap_or(0.0))
            && within(self.e2el, answer.latency)
    }
}

/// Answers that kept what they must.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goodput {
    /// What they must keep.
    pub slo: Slo,
    /// How many did.
    pub good: usize,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Every request, in the plan's order; none of those that the interruption met.
    pub outcomes: Vec<Option<Outcome>>,
    /// Of the run, seconds.
    pub duration_s: f64,
    /// It was ended before its time.
    pub interrupted: bool,
    /// What the client took.
    pub overhead: Overhead,
    /// Answers that kept their objectives, where there are some.
    pub goodput: Option<Goodput>,
    percents: Vec<f64>,
}

impl Measured {
    /// Of a run; with these percentiles, and objectives if there are any.
    pub fn of(ran: Ran, slo: Option<Slo>, percents: &[f64]) -> Self {
        let Ran { outcomes, duration_s, interrupted, overhead } = ran;
        let mut measured = Self {
            outcomes,
            duration_s,
            interrupted,
            overhead,
            goodput: None,
            percents: percents.to_vec(),
        };
        measured.goodput = slo.map(|slo| {
            let good = measured.answers().filter(|(_, answer)| slo.kept_by(answer)).count();
            Goodput { slo, good }
        });
        measured
    }

    /// The percentiles that are taken of every metric.
    pub fn percents(&self) -> &[f64] {
        &self.percents
    }

    /// Requests that came to an end.
    pub fn ended(&self) -> impl Iterator<Item = &Outcome> + Clone {
        self.outcomes.iter().flatten()
    }

    /// Complete answers.
    pub fn answers(&self) -> impl Iterator<Item = (&Outcome, &Answer)> + Clone {
        self.ended().filter_map(|outcome| Some((outcome, outcome.answer.as_ref().ok()?)))
    }

    /// Complete answers, counted.
    pub fn completed(&self) -> usize {
        self.answers().count()
    }

    /// Requests that failed, counted.
    pub fn failed(&self) -> usize {
        self.ended().count() - self.completed()
    }

    /// Failures by kind.
    pub fn failures(&self) -> BTreeMap<&'static str, usize> {
        let mut kinds = BTreeMap::new();
        for outcome in self.ended() {
            if let Err(failure) = &outcome.answer {
                *kinds.entry(failure.kind()).or_insert(0) += 1;
            }
        }
        kinds
    }

    /// What the first failed request met.
    pub fn first_failure(&self) -> Option<String> {
        self.ended().find_map(|outcome| Some(outcome.answer.as_ref().err()?.to_string()))
    }

    /// Tokens of the prompts that were answered.
    pub fn input_tokens(&self) -> usize {
        self.answers().filter_map(|(outcome, _)| outcome.prompt_tokens()).sum()
    }

    /// Tokens generated for them.
    pub fn output_tokens(&self) -> usize {
        self.answers().map(|(_, answer)| answer.output_tokens).sum()
    }

    /// Tokens generated a second, of all answers together.
    pub fn output_throughput(&self) -> f64 {
        self.output_tokens() as f64 / self.duration_s
    }

    /// Prompt tokens that the server took from a cache; none if it never says.
    pub fn cached_tokens(&self) -> Option<u64> {
        let said = self.answers().filter_map(|(_, answer)| answer.cached_tokens);
        said.map(|tokens| tokens as u64).reduce(|a, b| a + b)
    }

    /// Cached tokens of all answers together, beyond those that all prompts have in common: a prefix on
    /// purpose, and what the server's chat template adds to each.
    pub fn cached_beyond(&self, shared_prefix: usize) -> u64 {
        let beyond = |(outcome, answer): (&Outcome, &Answer)| {
            let counted = answer.prompt_tokens.zip(outcome.planned_prompt);
            let added = counted.map_or(0, |(counted, planned)| counted.saturating_sub(planned));
            answer.cached_tokens.unwrap_or(0).saturating_sub(shared_prefix + added) as u64
        };
        self.answers().map(beyond).sum()
    }

    /// Requests that were sent a second time.
    pub fn resent(&self) -> usize {
        self.ended().filter(|outcome| outcome.resent).count()
    }

    /// Answers for which a cache had something; none if the server never says.
    pub fn cache_hits(&self) -> Option<u64> {
        let said = self.answers().filter_map(|(_, answer)| answer.cached_tokens);
        said.map(|tokens| u64::from(tokens > 0)).reduce(|a, b| a + b)
    }

    /// Whether the server counted as many prompt tokens as were sent; none where either is not known.
    pub fn prompts_as_planned(&self) -> Option<bool> {
        let pairs = self
            .answers()
            .filter_map(|(outcome, answer)| Some(outcome.planned_prompt? == answer.prompt_tokens?));
        pairs.reduce(|a, b| a && b)
    }

    /// The samples of a metric, milliseconds.
    pub fn samples(&self, metric: Metric) -> Vec<f64> {
        let ms = |seconds: f64| seconds * 1e3;
        let answers = self.answers().map(|(_, answer)| answer);
        match metric {
            Metric::Ttft => answers.map(|answer| ms(answer.ttft)).collect(),
            Metric::Tpot => answers.filter_map(|answer| answer.tpot().map(ms)).collect(),
            Metric::Itl => answers.flat_map(|a| a.itls.iter().copied().map(ms)).collect(),
            Metric::E2el => answers.map(|answer| ms(answer.latency)).collect(),
        }
    }

    /// A metric in numbers; none without samples.
    pub fn summary(&self, metric: Metric) -> Option<Summary> {
        Summary::of(&self.samples(metric), &self.percents)
    }

    /// Times to the first chunk, whatever it had in it.
    pub fn first_chunks(&self) -> Option<Summary> {
        let first: Vec<f64> = self.answers().map(|(_, a)| a.ttft_first_chunk * 1e3).collect();
        Summary::of(&first, &self.percents)
    }

    /// Most requests open at a time.
    pub fn peak_concurrency(&self) -> usize {
        peaks::concurrency(self.ended())
    }

    /// The result's members, as `vllm bench serve` names them, and what this program adds. Numbers that
    /// do not exist, such as the mean of nothing, are null.
    pub fn members(&self, shown: &[Metric]) -> Map<String, Value> {
        let per_second = |count: usize| count as f64 / self.duration_s;
        let (input, output) = (self.input_tokens(), self.output_tokens());
        let Value::Object(mut members) = json!({
            "duration": self.duration_s,
            "completed": self.completed(),
            "failed": self.failed(),
            "total_input_tokens": input,
            "total_output_tokens": output,
            "request_throughput": per_second(self.completed()),
            "request_goodput": self.goodput.map(|goodput| per_second(goodput.good)),
            "output_throughput": per_second(output),
            "total_token_throughput": per_second(input + output),
            "max_output_tokens_per_s": peaks::tokens_per_second(self.ended()),
            "max_concurrent_requests": self.peak_concurrency(),
            "resent": self.resent(),
            "unfinished": self.outcomes.len() - self.ended().count(),
            "interrupted": self.interrupted,
            "failures": self.failures(),
            "cached_tokens": self.cached_tokens(),
            "prefix_cache_hits": self.cache_hits(),
            "prompts_as_planned": self.prompts_as_planned(),
            "slo_ms": self.goodput.map(|goodput| goodput.slo),
            "client": self.overhead,
        }) else {
            return Map::new();
        };
        for metric in shown {
            self.add(&mut members, metric.name(), self.summary(*metric));
            if *metric == Metric::Ttft {
                self.add(&mut members, "ttft_first_chunk", self.first_chunks());
            }
        }
        members
    }

    fn add(&self, members: &mut Map<String, Value>, name: &str, summary: Option<Summary>) {
        let summary = summary.as_ref();
        members.insert(format!("mean_{name}_ms"), json!(summary.map(|s| s.mean)));
        members.insert(format!("median_{name}_ms"), json!(summary.map(|s| s.median)));
        members.insert(format!("std_{name}_ms"), json!(summary.map(|s| s.std)));
        for (index, percent) in self.percents.iter().enumerate() {
            let value = summary.and_then(|s| s.percentiles.get(index)).map(|(_, value)| *value);
            members.insert(format!("p{percent}_{name}_ms"), json!(value));
        }
    }

    /// A list with an entry for each request, of each of the members that `--save-detailed` adds. Times
    /// are seconds, as vLLM has them.
    pub fn detailed(&self) -> Map<String, Value> {
        let each = |of: &dyn Fn(&Outcome) -> Value| -> Value {
            let entry = |outcome: &Option<Outcome>| outcome.as_ref().map_or(Value::Null, of);
            self.outcomes.iter().map(entry).collect()
        };
        let of_answer = |of: &dyn Fn(&Answer) -> Value, else_: Value| {
            each(&|outcome| outcome.answer.as_ref().map_or_else(|_| else_.clone(), of))
        };
        let members = [
            ("input_lens", each(&|outcome| json!(outcome.prompt_tokens()))),
            ("output_lens", of_answer(&|answer| json!(answer.output_tokens), json!(0))),
            ("ttfts", of_answer(&|answer| json!(answer.ttft), Value::Null)),
            ("ttfts_first_chunk", of_answer(&|a| json!(a.ttft_first_chunk), Value::Null)),
            ("itls", of_answer(&|answer| json!(answer.itls), json!([]))),
            ("e2els", of_answer(&|answer| json!(answer.latency), Value::Null)),
            ("start_times", each(&|outcome| json!(outcome.started))),
            ("generated_texts", of_answer(&|answer| json!(answer.text), json!(""))),
            ("generated_reasoning", of_answer(&|answer| json!(answer.reasoning), json!(""))),
            ("counted_by", of_answer(&|answer| json!(answer.counted_by), Value::Null)),
            ("finish_reasons", of_answer(&|answer| json!(answer.finish_reason), Value::Null)),
            ("cached_lens", of_answer(&|answer| json!(answer.cached_tokens), Value::Null)),
            ("timings", of_answer(&|answer| json!(answer.timings), Value::Null)),
            ("errors", self.errors()),
        ];
        members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn errors(&self) -> Value {
        let error = |outcome: &Option<Outcome>| match outcome {
            Some(Outcome { answer: Ok(_), .. }) => String::new(),
            Some(Outcome { answer: Err(failure), .. }) => failure.to_string(),
            None => "the run was interrupted".to_owned(),
        };
        self.outcomes.iter().map(error).map(Value::from).collect()
    }
}

#[cfg(test)]
pub(super) mod tests;
