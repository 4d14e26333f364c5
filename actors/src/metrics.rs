//! What the engine counts, as Prometheus text.
//!
//! Every series has a `pocket_*` name. Those that dashboards and autoscalers key on are there under
//! vLLM's names too, with vLLM's bucket bounds and its `model_name` label. The values of both are the
//! same; one place here observes them.

mod observed;
mod series;

use std::time::Duration;

use pocket_collectives::Counters;
use pocket_config::FlagSet;
use prometheus::{Encoder, IntGaugeVec, Registry, TextEncoder};

use crate::api::{CallCost, FinishReason, Timings, TokenCounts};
pub(crate) use observed::{Call, Levels, Outcome};
pub use series::MetricsError;
use series::{Counter, Family, Gauge, Histogram, Series};

/// All series of one engine.
pub struct Metrics {
    registry: Registry,
    flags: IntGaugeVec,

    running: Gauge,
    waiting: Gauge,
    slots: Gauge,
    kv_usage: Gauge,
    kv_blocks: Gauge,
    kv_blocks_used: Gauge,
    call_fixed: Gauge,
    call_row: Gauge,

    requests: Family,
    answers: Family,
    prompt_tokens: Counter,
    prefill_rows: Counter,
    generated_tokens: Counter,
    preemptions: Counter,
    restarts: Counter,
    self_tests: Counter,

    calls: Family,
    rows: Histogram,
    call_time: Histogram,
    gemm_calls: Counter,
    weight_bytes: Counter,
    query_key_pairs: Counter,
    all_reduces: Family,
    all_reduces_skipped: Family,
    all_reduce_bytes: Family,
    all_reduce_wait: Family,

    first_token: Histogram,
    between_tokens: Histogram,
    per_token: Histogram,
    end_to_end: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
}

const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const BETWEEN_TOKENS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
const OF_A_REQUEST: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
/// The slowest request there is where none has a deadline, in seconds: a day, the longest that can be set.
const SLOWEST_S: f64 = 86_400.0;
const ROWS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];

/// These bounds, and further ones, each twice the one before, until nothing lies beyond `slowest`: a time
/// in the last bucket, which has no bound, says no more than that it was long.
fn up_to(bounds: &[f64], slowest: f64) -> Vec<f64> {
    let mut all = bounds.to_vec();
    while let Some(last) = all.last().copied().filter(|last| *last < slowest) {
        all.push(2.0 * last);
    }
    all
}

impl Metrics {
    /// Series at zero for a model of this name, run by `world` ranks under `flags`. No time that is measured
    /// is beyond `slowest`, if there is such a limit, and buckets go that far.
    ///
    /// # Errors
    ///
    /// Two series of one name, which the tests exclude.
    pub(crate) fn new(
        model: &str,
        world: usize,
        flags: &FlagSet,
        slowest: Option<Duration>,
    ) -> Result<Self, MetricsError> {
        let slowest = slowest.map_or(SLOWEST_S, |limit| limit.as_secs_f64());
        let [first_token, between_tokens, of_a_request] =
            [FIRST_TOKEN, BETWEEN_TOKENS, OF_A_REQUEST].map(|bounds| up_to(bounds, slowest));
        let registry = Registry::new();
        let s = Series { registry: &registry, model };
        let outcomes: Vec<&str> = Outcome::ALL.iter().map(|(_, name)| *name).collect();
        let ranks: Vec<String> = (0..world).map(|rank| rank.to_string()).collect();
        let ranks: Vec<&str> = ranks.iter().map(String::as_str).collect();
        s.info(
            "pocket_build_info",
            "Version of the server",
            &[("version", env!("CARGO_PKG_VERSION"))],
        )?;
        let metrics = Self {
            flags: s.labels(
                "pocket_flag_info",
                "Experiment flags and their values",
                &["flag", "value"],
            )?,
            running: s.gauge(
                "pocket_requests_running",
                "Sequences being computed",
                "num_requests_running",
            )?,
            waiting: s.gauge(
                "pocket_requests_waiting",
                "Sequences waiting for a slot or for memory",
                "num_requests_waiting",
            )?,
            slots: s.gauge("pocket_slots", "Sequences that can be computed at a time", "")?,
            kv_usage: s.gauge(
                "pocket_kv_usage_ratio",
                "Part of the KV blocks that is held, 0 to 1",
                "kv_cache_usage_perc",
            )?,
            kv_blocks: s.gauge("pocket_kv_blocks", "KV blocks there are", "")?,
            kv_blocks_used: s.gauge("pocket_kv_blocks_used", "KV blocks held", "")?,
            call_fixed: s.gauge(
                "pocket_call_fixed_seconds",
                "Fixed cost of a forward call, as measured while running",
                "",
            )?,
            call_row: s.gauge(
                "pocket_call_row_seconds",
                "Cost of a row of a forward call, as measured while running",
                "",
            )?,
            requests: s.family(
                "pocket_requests_total",
                "Requests that reached the engine and have left it, by how",
                "outcome",
                &outcomes,
                "",
            )?,
            answers: s.family(
                "pocket_answers_total",
                "Answers that are complete, by why they ended",
                "finished_reason",
                &["stop", "length"],
                "request_success_total",
            )?,
            prompt_tokens: s.counter(
                "pocket_prompt_tokens_total",
                "Prompt tokens of requests that began",
                "prompt_tokens_total",
            )?,
            prefill_rows: s.counter(
                "pocket_prefill_rows_total",
                "Rows of prompts computed, those computed again included",
                "",
            )?,
            generated_tokens: s.counter(
                "pocket_generation_tokens_total",
                "Tokens generated",
                "generation_tokens_total",
            )?,
            preemptions: s.counter(
                "pocket_preemptions_total",
                "Sequences that gave their memory up and were computed again",
                "num_preemptions_total",
            )?,
            restarts: s.counter(
                "pocket_restarts_total",
                "Times the ranks were started again after a failure",
                "",
            )?,
            self_tests: s.counter(
                "pocket_self_tests_total",
                "Self-tests passed; their forward calls are in no other series",
                "",
            )?,
            calls: s.family(
                "pocket_forward_calls_total",
                "Forward calls, by whether they carried prompt rows",
                "kind",
                &["prefill", "decode"],
                "",
            )?,
            rows: s.histogram(
                "pocket_rows_per_call",
                "Rows of a forward call",
                ROWS,
                "iteration_tokens_total",
            )?,
            call_time: s.histogram(
                "pocket_forward_call_seconds",
                "Time of a forward call, from plan to the last rank's report",
                &first_token,
                "",
            )?,
            gemm_calls: s.counter(
                "pocket_gemm_calls_total",
                "Matrix products with weights on rank 0",
                "",
            )?,
            weight_bytes: s.counter(
                "pocket_weight_bytes_read_total",
                "Bytes of weights those products read",
                "",
            )?,
            query_key_pairs: s.counter(
                "pocket_query_key_pairs_total",
                "Pairs of a query row and a key it sees on rank 0, by layer",
                "",
            )?,
            all_reduces: s.family(
                "pocket_all_reduce_calls_total",
                "All-reduces run",
                "rank",
                &ranks,
                "",
            )?,
            all_reduces_skipped: s.family(
                "pocket_all_reduce_skips_total",
                "All-reduces skipped by request",
                "rank",
                &ranks,
                "",
            )?,
            all_reduce_bytes: s.family(
                "pocket_all_reduce_bytes_total",
                "Bytes reduced",
                "rank",
                &ranks,
                "",
            )?,
            all_reduce_wait: s.family(
                "pocket_all_reduce_wait_seconds_total",
                "Time spent waiting for other ranks",
                "rank",
                &ranks,
                "",
            )?,
            first_token: s.histogram(
                "pocket_time_to_first_token_seconds",
                "From arrival to the first token",
                &first_token,
                "time_to_first_token_seconds",
            )?,
            between_tokens: s.histogram(
                "pocket_inter_token_latency_seconds",
                "Between two tokens of an answer",
                &between_tokens,
                "inter_token_latency_seconds",
            )?,
            per_token: s.histogram(
                "pocket_time_per_output_token_seconds",
                "Mean time of a token after the first, by request",
                &between_tokens,
                "request_time_per_output_token_seconds",
            )?,
            end_to_end: s.histogram(
                "pocket_e2e_request_latency_seconds",
                "From arrival to the last token",
                &of_a_request,
                "e2e_request_latency_seconds",
            )?,
            queue: s.histogram(
                "pocket_request_queue_time_seconds",
                "From arrival to the first forward call",
                &of_a_request,
                "request_queue_time_seconds",
            )?,
            prefill: s.histogram(
                "pocket_request_prefill_time_seconds",
                "From the first forward call to the first token",
                &of_a_request,
                "request_prefill_time_seconds",
            )?,
            decode: s.histogram(
                "pocket_request_decode_time_seconds",
                "From the first token to the last",
                &of_a_request,
                "request_decode_time_seconds",
            )?,
            registry,
        };
        metrics.flags(flags);
        Ok(metrics)
    }

    /// Shows the flags as they are now.
    pub(crate) fn flags(&self, flags: &FlagSet) {
        self.flags.reset();
        for flag in pocket_config::FLAGS {
            let value = flag.value_text(flags);
            self.flags.with_label_values(&[flag.name, value.as_str()]).set(1);
        }
    }

    /// All series in Prometheus' text format, version 0.0.4.
    pub fn text(&self) -> String {
        let mut text = Vec::new();
        match TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            Ok(()) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) => format!("# {error}\n"),
        }
    }

    /// Tokens so far.
    pub(crate) fn tokens(&self) -> TokenCounts {
        // Whole numbers, below 2^53 for a very long time.
        let (prompt, generated) = (self.prefill_rows.get(), self.generated_tokens.get());
        let (begun, seconds) = self.first_token.totals();
        TokenCounts {
            prompt: prompt as u64,
            generated: generated as u64,
            begun,
            begun_us: (seconds * 1e6) as u64,
        }
    }

    pub(crate) fn levels(&self, levels: Levels) {
        self.running.set(levels.running as f64);
        self.waiting.set(levels.waiting as f64);
        self.slots.set(levels.slots as f64);
        self.kv_blocks.set(levels.kv_blocks as f64);
        self.kv_blocks_used.set(levels.kv_blocks_used as f64);
        self.kv_usage.set(levels.kv_blocks_used as f64 / levels.kv_blocks.max(1) as f64);
        if let Some(CallCost { fixed_us, row_us }) = levels.cost {
            self.call_fixed.set(fixed_us * 1e-6);
            self.call_row.set(row_us * 1e-6);
        }
    }

    pub(crate) fn call(&self, call: Call) {
        let kind = if call.prefill_rows > 0 { "prefill" } else { "decode" };
        self.calls.add(kind, 1.0);
        self.prefill_rows.add(call.prefill_rows as f64);
        self.rows.observe(call.rows as f64);
        self.call_time.observe(call.took.as_secs_f64());
        self.gemm_calls.add(call.work.gemm_calls as f64);
        self.weight_bytes.add(call.work.weight_bytes as f64);
        self.query_key_pairs.add(call.work.query_key_pairs as f64);
    }

    pub(crate) fn all_reduces(&self, rank: usize, spent: &Counters) {
        let rank = rank.to_string();
        self.all_reduces.add(&rank, spent.run as f64);
        self.all_reduces_skipped.add(&rank, spent.skipped as f64);
        self.all_reduce_bytes.add(&rank, spent.bytes as f64);
        self.all_reduce_wait.add(&rank, spent.wait_us as f64 * 1e-6);
    }

    pub(crate) fn began(&self, prompt_tokens: usize) {
        self.prompt_tokens.add(prompt_tokens as f64);
    }

    pub(crate) fn first_token(&self, after: Duration) {
        self.generated_tokens.add(1.0);
        self.first_token.observe(after.as_secs_f64());
    }

    pub(crate) fn next_token(&self, after: Duration) {
        self.generated_tokens.add(1.0);
        self.between_tokens.observe(after.as_secs_f64());
    }

    /// A token that is the first of its answer but not of its request.
    pub(crate) fn token(&self) {
        self.generated_tokens.add(1.0);
    }

    pub(crate) fn answered(&self, reason: FinishReason) {
        match reason {
            FinishReason::Stop => self.answers.add("stop", 1.0),
            FinishReason::Length => self.answers.add("length", 1.0),
            FinishReason::Cancelled => {}
        }
    }

    pub(crate) fn preempted(&self, sequences: usize) {
        self.preemptions.add(sequences as f64);
    }

    pub(crate) fn restarted(&self) {
        self.restarts.add(1.0);
    }

    pub(crate) fn self_tested(&self) {
        self.self_tests.add(1.0);
    }

    pub(crate) fn left(&self, outcome: Outcome) {
        self.requests.add(outcome.name(), 1.0);
    }

    /// Where the time of a request went whose answers are complete.
    pub(crate) fn timings(&self, timings: &Timings, answers: usize) {
        let s = |ms: f64| ms * 1e-3;
        self.queue.observe(s(timings.queue_ms));
        self.prefill.observe(s(timings.prefill_ms));
        self.decode.observe(s(timings.decode_ms));
        self.end_to_end.observe(s(timings.queue_ms + timings.prefill_ms + timings.decode_ms));
        let later = timings.completion_tokens as f64 / answers.max(1) as f64 - 1.0;
        if later > 0.0 {
            self.per_token.observe(s(timings.decode_ms) / later);
        }
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
