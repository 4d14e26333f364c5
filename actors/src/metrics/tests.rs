use pocket_device::WorkDone;

use super::*;

fn metrics() -> Metrics {
    Metrics::new("demo", 2, &FlagSet::default(), None).unwrap()
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
    assert_eq!(
        metrics.tokens(),
        TokenCounts { prompt: 8, generated: 2, begun: 1, begun_us: 30_000 }
    );
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

/// B14: whatever a request may take has a bucket with a bound.
#[test]
fn buckets_go_as_far_as_the_slowest_request() {
    for limit in [None, Some(5), Some(86_400)] {
        let slowest = limit.map(Duration::from_secs);
        let metrics = Metrics::new("demo", 2, &FlagSet::default(), slowest).unwrap();
        let time = slowest.unwrap_or(Duration::from_secs(86_400));
        let ms = time.as_secs_f64() * 1e3;
        metrics.first_token(time);
        metrics.next_token(time);
        let (rows, prefill_rows, work) = (1, 1, WorkDone::default());
        metrics.call(Call { rows, prefill_rows, took: time, work });
        for timings in [
            Timings { queue_ms: ms, ..Timings::default() },
            Timings { prefill_ms: ms, ..Timings::default() },
            Timings { decode_ms: ms, completion_tokens: 2, ..Timings::default() },
        ] {
            metrics.timings(&timings, 1);
        }
        let text = metrics.text();
        let (mut open, mut bounded) = (0, 0.0);
        for line in text.lines().filter(|line| line.contains("seconds_bucket{")) {
            let (series, count) = line.rsplit_once(' ').unwrap();
            let count: f64 = count.parse().unwrap();
            if series.contains("le=\"+Inf\"") {
                assert!(count > 0.0, "nothing was observed: {line}");
                assert_eq!(count, bounded, "beyond all bounds: {line}");
                open += 1;
            }
            bounded = count;
        }
        // Eight times, seven of them under two names.
        assert_eq!(open, 15);
    }
}
