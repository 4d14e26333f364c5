//! `/metrics`: which series there are, that they move with the requests, and that levels fall to
//! zero.

use pocket_tests::generate::{End, Script};
use pocket_tests::http::Client;
use pocket_tests::wait::{PATIENCE, until};
use serde_json::json;

use crate::http_support::{CHAT, COMPLETIONS, Scripted, asks, metric, wait_idle, whole};

/// What dashboards made for vLLM read, and the kind of each.
const VLLM: &[(&str, &str)] = &[
    ("vllm:num_requests_running", "gauge"),
    ("vllm:num_requests_waiting", "gauge"),
    ("vllm:kv_cache_usage_perc", "gauge"),
    ("vllm:prompt_tokens_total", "counter"),
    ("vllm:generation_tokens_total", "counter"),
    ("vllm:num_preemptions_total", "counter"),
    ("vllm:request_success_total", "counter"),
    ("vllm:iteration_tokens_total", "histogram"),
    ("vllm:time_to_first_token_seconds", "histogram"),
    ("vllm:inter_token_latency_seconds", "histogram"),
    ("vllm:request_time_per_output_token_seconds", "histogram"),
    ("vllm:e2e_request_latency_seconds", "histogram"),
    ("vllm:request_queue_time_seconds", "histogram"),
    ("vllm:request_prefill_time_seconds", "histogram"),
    ("vllm:request_decode_time_seconds", "histogram"),
];

const OWN: &[(&str, &str)] = &[
    ("pocket_build_info", "gauge"),
    ("pocket_flag_info", "gauge"),
    ("pocket_requests_running", "gauge"),
    ("pocket_requests_waiting", "gauge"),
    ("pocket_slots", "gauge"),
    ("pocket_kv_usage_ratio", "gauge"),
    ("pocket_kv_blocks", "gauge"),
    ("pocket_kv_blocks_used", "gauge"),
    ("pocket_requests_total", "counter"),
    ("pocket_answers_total", "counter"),
    ("pocket_prefill_rows_total", "counter"),
    ("pocket_prompt_tokens_total", "counter"),
    ("pocket_generation_tokens_total", "counter"),
    ("pocket_preemptions_total", "counter"),
    ("pocket_forward_calls_total", "counter"),
    ("pocket_rows_per_call", "histogram"),
    ("pocket_forward_call_seconds", "histogram"),
    ("pocket_gemm_calls_total", "counter"),
    ("pocket_weight_bytes_read_total", "counter"),
    ("pocket_query_key_pairs_total", "counter"),
    ("pocket_all_reduce_calls_total", "counter"),
    ("pocket_all_reduce_bytes_total", "counter"),
    ("pocket_all_reduce_wait_seconds_total", "counter"),
    ("pocket_time_to_first_token_seconds", "histogram"),
    ("pocket_inter_token_latency_seconds", "histogram"),
    ("pocket_e2e_request_latency_seconds", "histogram"),
];

/// A model that says three tokens and ends.
fn model() -> Scripted {
    Scripted::new(&Script::pieces(["one ", "two ", "three "]).unwrap())
}

#[test]
fn every_series_is_there_from_the_start() {
    let model = model();
    let daemon = model.daemon().start().unwrap();
    let metrics = daemon.client().get("/metrics").unwrap().body;
    for (name, kind) in VLLM.iter().chain(OWN) {
        let declared = format!("# TYPE {name} {kind}\n");
        assert!(metrics.contains(&declared), "no {declared:?} in {metrics}");
    }
    let named: Vec<&str> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    let mut distinct = named.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), named.len(), "declared twice: {named:?}");
}

/// The counters after requests of which everything is known.
#[test]
fn counters_say_what_was_done() {
    let model = model();
    let daemon = model.daemon().start().unwrap();
    let client = daemon.client();
    let count = |series: &str| metric(&client, series);
    for series in ["pocket_generation_tokens_total", "pocket_rows_per_call_count"] {
        assert_eq!(count(series), 0.0, "{series}");
    }
    let chat = whole(&client, CHAT, &asks("Count"));
    let text = json!({"prompt": [65, 66, 67, 68, 69], "temperature": 0});
    whole(&client, COMPLETIONS, &text);
    let mut two = text.clone();
    two["n"] = json!(2);
    two["max_tokens"] = json!(2);
    let two = client.post(COMPLETIONS, &two).unwrap();
    assert_eq!(two.status, 200, "{}", two.body);
    // What never reached the engine is not counted there.
    assert_eq!(client.post(COMPLETIONS, &json!({"prompt": ""})).unwrap().status, 400);
    wait_idle(&client);

    for (series, expected) in [
        ("pocket_requests_total{outcome=\"finished\"}", 3.0),
        ("pocket_answers_total{finished_reason=\"stop\"}", 2.0),
        ("pocket_answers_total{finished_reason=\"length\"}", 2.0),
        ("pocket_generation_tokens_total", 4.0 + 4.0 + 2.0 * 2.0),
        ("pocket_prompt_tokens_total", 2.0 * 5.0 + chat.usage["prompt_tokens"].as_f64().unwrap()),
        // Each request once, whatever the number of its answers; their tokens after the first.
        ("pocket_time_to_first_token_seconds_count", 3.0),
        ("pocket_e2e_request_latency_seconds_count", 3.0),
        ("pocket_request_queue_time_seconds_count", 3.0),
        ("pocket_preemptions_total", 0.0),
        ("pocket_forward_calls_total{kind=\"prefill\"}", 3.0),
    ] {
        assert_eq!(count(series), expected, "{series}");
    }
    let calls = count("pocket_forward_calls_total{kind=\"prefill\"}")
        + count("pocket_forward_calls_total{kind=\"decode\"}");
    assert_eq!(count("pocket_rows_per_call_count"), calls);
    assert!(count("pocket_gemm_calls_total") > calls);
    assert!(count("pocket_weight_bytes_read_total") > 0.0);
    // The same numbers by their other names.
    for (ours, theirs) in [
        ("pocket_generation_tokens_total", "vllm:generation_tokens_total{model_name=\"scripted\"}"),
        ("pocket_prompt_tokens_total", "vllm:prompt_tokens_total{model_name=\"scripted\"}"),
        (
            "pocket_answers_total{finished_reason=\"stop\"}",
            "vllm:request_success_total{finished_reason=\"stop\",model_name=\"scripted\"}",
        ),
        (
            "pocket_inter_token_latency_seconds_count",
            "vllm:inter_token_latency_seconds_count{model_name=\"scripted\"}",
        ),
    ] {
        assert_eq!(count(ours), count(theirs), "{ours}");
    }
}

/// H19: levels rise while requests are there and fall to zero, however they leave.
#[test]
fn levels_fall_to_zero() {
    let script = Script::pieces(["one ", "two "]).unwrap().then(End::LoopTo(0)).unwrap();
    let model = Scripted::new(&script);
    let daemon = model.daemon().args(["--max-num-seqs", "2"]);
    let daemon = daemon.env("POCKET_CALL_DELAY_US", "5000").start().unwrap();
    let client = daemon.client();
    assert_eq!(metric(&client, "pocket_slots"), 2.0);
    levels_are_zero(&client);
    let request = json!({"prompt": "Go:", "n": 3, "max_tokens": 4000, "stream": true});
    let stream = client.stream(COMPLETIONS, &request).unwrap();
    until("two running and one waiting", PATIENCE, || {
        let now = |series: &str| metric(&client, series);
        (now("pocket_requests_running") == 2.0 && now("pocket_requests_waiting") == 1.0)
            .then_some(())
    })
    .unwrap();
    assert!(metric(&client, "pocket_kv_blocks_used") >= 2.0);
    assert!(metric(&client, "pocket_kv_usage_ratio") > 0.0);
    drop(stream);
    wait_idle(&client);
    levels_are_zero(&client);
    assert_eq!(metric(&client, "pocket_requests_total{outcome=\"cancelled\"}"), 1.0);
}

fn levels_are_zero(client: &Client) {
    for series in [
        "pocket_requests_running",
        "pocket_requests_waiting",
        "pocket_kv_blocks_used",
        "pocket_kv_usage_ratio",
        "vllm:num_requests_running{model_name=\"scripted\"}",
        "vllm:num_requests_waiting{model_name=\"scripted\"}",
        "vllm:kv_cache_usage_perc{model_name=\"scripted\"}",
    ] {
        assert_eq!(metric(client, series), 0.0, "{series}");
    }
}
