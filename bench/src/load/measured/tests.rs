//! Results under the names of `vllm bench serve`, and what they are taken of.

use super::*;
use crate::load::{CountedBy, Failure};

/// An answer to a request sent at this time, with a token at `ttft` and after each of the gaps.
pub fn answered(started: f64, ttft: f64, itls: &[f64]) -> Outcome {
    let latency = ttft + itls.iter().sum::<f64>();
    let answer = Answer {
        ttft,
        ttft_first_chunk: ttft / 2.0,
        itls: itls.to_vec(),
        latency,
        output_tokens: itls.len() + 1,
        counted_by: CountedBy::Usage,
        prompt_tokens: Some(10),
        cached_tokens: None,
        text: "text".to_owned(),
        reasoning: String::new(),
        finish_reason: Some("length".to_owned()),
        timings: None,
    };
    Outcome {
        started,
        planned_prompt: Some(10),
        planned_output: itls.len() + 1,
        answer: Ok(answer),
        took: latency,
        resent: false,
    }
}

/// A request that failed after so many seconds.
pub fn failed(started: f64, took: f64) -> Outcome {
    let answer = Err(Failure::status(503, "busy"));
    Outcome { started, planned_prompt: Some(10), planned_output: 3, answer, took, resent: false }
}

/// A run of two seconds with these outcomes.
pub fn measured(outcomes: Vec<Option<Outcome>>, slo: Option<Slo>) -> Measured {
    let overhead = Overhead::of(Some(0.1), 2.0, 10, &[], &[]);
    let interrupted = outcomes.iter().any(Option::is_none);
    Measured::of(Ran { outcomes, duration_s: 2.0, interrupted, overhead }, slo, &[50.0, 99.9])
}

/// The members of a result of `vllm bench serve` (`vllm/benchmarks/serve.py`), for generation, with
/// `--save-detailed` and one percentile; those of the setting are the command's.
const VLLM: &[&str] = &[
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "input_lens",
    "output_lens",
    "ttfts",
    "itls",
    "start_times",
    "generated_texts",
    "errors",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
    "mean_ttft_ms",
    "median_ttft_ms",
    "std_ttft_ms",
    "p99.9_ttft_ms",
    "mean_tpot_ms",
    "median_tpot_ms",
    "std_tpot_ms",
    "p99.9_tpot_ms",
    "mean_itl_ms",
    "median_itl_ms",
    "std_itl_ms",
    "p99.9_itl_ms",
    "mean_e2el_ms",
    "median_e2el_ms",
    "std_e2el_ms",
    "p99.9_e2el_ms",
];

#[test]
fn all_members_of_vllm_are_there() {
    for outcomes in [vec![], vec![Some(answered(0.0, 0.1, &[0.1])), Some(failed(0.0, 0.1)), None]] {
        let measured = measured(outcomes, None);
        let mut members = measured.members(&Metric::ALL);
        members.extend(measured.detailed());
        for name in VLLM {
            assert!(members.contains_key(*name), "no {name}");
        }
        // A percentile of a whole number has no decimals in its name.
        assert!(members.contains_key("p50_itl_ms"));
    }
}

#[test]
fn numbers_are_of_complete_answers_only() {
    let outcomes = vec![
        Some(answered(0.0, 0.1, &[0.1, 0.1])),
        Some(failed(0.0, 0.01)),
        Some(answered(0.0, 0.3, &[])),
        None,
    ];
    let measured = measured(outcomes, Some(Slo { ttft: Some(200.0), ..Slo::default() }));
    let members = measured.members(&Metric::ALL);
    for (name, expected) in [
        ("completed", json!(2)),
        ("failed", json!(1)),
        ("unfinished", json!(1)),
        ("interrupted", json!(true)),
        ("failures", json!({"status": 1})),
        ("total_input_tokens", json!(20)),
        ("total_output_tokens", json!(4)),
        ("request_throughput", json!(1.0)),
        ("request_goodput", json!(0.5)),
        ("output_throughput", json!(2.0)),
        ("total_token_throughput", json!(12.0)),
        ("mean_ttft_ms", json!(200.0)),
        ("p50_ttft_first_chunk_ms", json!(100.0)),
        ("mean_tpot_ms", json!(100.0)),
        ("max_concurrent_requests", json!(3)),
        ("prompts_as_planned", json!(true)),
        ("cached_tokens", Value::Null),
    ] {
        let close = members[name] == expected
            || members[name]
                .as_f64()
                .zip(expected.as_f64())
                .is_some_and(|(a, b)| (a - b).abs() < 1e-9);
        assert!(close, "{name}: {} instead of {expected}", members[name]);
    }
    let detailed = measured.detailed();
    assert_eq!(detailed["output_lens"], json!([3, 0, 1, null]));
    assert_eq!(detailed["errors"], json!(["", "HTTP 503: busy", "", "the run was interrupted"]));
    let table = measured.table(&Metric::ALL).to_string();
    for part in ["status:", "first failure: HTTP 503: busy", "Interrupted", "goodput"] {
        assert!(table.contains(part), "{part}: {table}");
    }
}

#[test]
fn each_objective_counts() {
    let kept = |slo: Slo| slo.kept_by(answered(0.0, 0.1, &[0.2]).answer.as_ref().unwrap());
    let none = Slo::default();
    assert!(kept(none));
    assert!(kept(Slo { ttft: Some(100.0), tpot: Some(200.1), e2el: Some(300.1) }));
    assert!(!kept(Slo { ttft: Some(99.0), ..none }));
    assert!(!kept(Slo { tpot: Some(199.0), ..none }));
    assert!(!kept(Slo { e2el: Some(299.0), ..none }));
    let one = answered(0.0, 0.1, &[]);
    assert!(Slo { tpot: Some(0.0), ..none }.kept_by(one.answer.as_ref().unwrap()));
}

/// B3: what a cache had is counted, but for what prompts share on purpose.
#[test]
fn cached_tokens_are_counted() {
    let cached = |tokens: usize| {
        let mut outcome = answered(0.0, 0.1, &[]);
        outcome.answer.as_mut().unwrap().cached_tokens = Some(tokens);
        Some(outcome)
    };
    let measured = measured(vec![cached(0), cached(8), cached(5)], None);
    assert_eq!((measured.cached_tokens(), measured.cache_hits()), (Some(13), Some(2)));
    assert_eq!((measured.cached_beyond(0), measured.cached_beyond(5)), (13, 3));
    assert_eq!(measured.cached_beyond(8), 0);
    // A chat template's own tokens are in every prompt.
    let mut chat = answered(0.0, 0.1, &[]);
    chat.answer.as_mut().unwrap().cached_tokens = Some(8);
    chat.answer.as_mut().unwrap().prompt_tokens = Some(17);
    assert_eq!(super::tests::measured(vec![Some(chat)], None).cached_beyond(0), 1);
}
