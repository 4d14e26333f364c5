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

/// That they are all of vLLM's is seen end to end.
#[test]
fn a_result_has_the_same_members_whatever_came_of_the_run() {
    let members = |outcomes: Vec<Option<Outcome>>| -> Vec<String> {
        let measured = measured(outcomes, None);
        let members = measured.members(&Metric::ALL).into_iter().chain(measured.detailed());
        members.map(|(name, _)| name).collect()
    };
    let full = members(vec![Some(answered(0.0, 0.1, &[0.1]))]);
    // A percentile of a whole number has no decimals in its name.
    for name in ["p50_itl_ms", "p99.9_itl_ms", "mean_ttft_ms", "itls"] {
        assert!(full.iter().any(|member| member == name), "no {name}");
    }
    assert_eq!(members(vec![]), full);
    assert_eq!(members(vec![Some(failed(0.0, 0.1)), None]), full);
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
