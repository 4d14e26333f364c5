use pocket_device::WorkDone;

use super::*;

fn metrics() -> Metrics {
    Metrics::new("demo", 2, &FlagSet::default()).unwrap()
}

#[test]
fn series_are_there_from_the_start_under_both_names() {
    let text = metrics().text();
    for line in [
        "pocket_requests_running 0",
        "vllm:num_requests_running{model_name=\"demo\"} 0",
        "vllm:num_requests_waiting{model_name=\"demo\"} 0",
        "vllm:kv_cache_usage_perc{model_name=\"demo\"} 0",
        "vllm:prompt_tokens_total{model_name=\"demo\"} 0",
        "vllm:generation_tokens_total{model_name=\"demo\"} 0",
        "vllm:time_to_first_token_seconds_bucket{model_name=\"demo\",le=\"0.001\"} 0",
        "vllm:inter_token_latency_seconds_bucket{model_name=\"demo\",le=\"0.01\"} 0",
        "vllm:e2e_request_latency_seconds_count{model_name=\"demo\"} 0",
        "vllm:request_queue_time_seconds_count{model_name=\"demo\"} 0",
        "vllm:request_prefill_time_seconds_count{model_name=\"demo\"} 0",
        "vllm:request_decode_time_seconds_count{model_name=\"demo\"} 0",
        "vllm:iteration_tokens_total_bucket{model_name=\"demo\",le=\"16384\"} 0",
        "vllm:request_success_total{finished_reason=\"length\",model_name=\"demo\"} 0",
        "pocket_requests_total{outcome=\"queue_full\"} 0",
        "pocket_all_reduce_skips_total{rank=\"1\"} 0",
        "pocket_flag_info{flag=\"POCKET_ASCEND_IPC_ALLREDUCE_SKIP\",value=\"0\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }
    assert!(text.contains("pocket_build_info{version="));
}

#[test]
fn what_is_observed_is_shown_under_both_names() {
    let metrics = metrics();
    metrics.first_token(Duration::from_millis(30));
    metrics.next_token(Duration::from_millis(30));
    metrics.levels(Levels { running: 3, kv_blocks: 8, kv_blocks_used: 2, ..Levels::default() });
    metrics.left(Outcome::QueueFull);
    metrics.answered(FinishReason::Stop);
    let (rows, prefill_rows) = (9, 8);
    let (took, work) = (Duration::from_millis(1), WorkDone::default());
    metrics.call(Call { rows, prefill_rows, took, work });
    assert_eq!(metrics.tokens(), TokenCounts { prompt: 8, generated: 2 });
    let text = metrics.text();
    for line in [
        "pocket_requests_running 3",
        "pocket_kv_blocks_used 2",
        "pocket_prefill_rows_total 8",
        "vllm:kv_cache_usage_perc{model_name=\"demo\"} 0.25",
        "pocket_time_to_first_token_seconds_bucket{le=\"0.02\"} 0",
        "vllm:time_to_first_token_seconds_bucket{model_name=\"demo\",le=\"0.04\"} 1",
        "vllm:inter_token_latency_seconds_count{model_name=\"demo\"} 1",
        "pocket_generation_tokens_total 2",
        "vllm:generation_tokens_total{model_name=\"demo\"} 2",
        "pocket_requests_total{outcome=\"queue_full\"} 1",
        "vllm:request_success_total{finished_reason=\"stop\",model_name=\"demo\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }
}
