//! Spans of what has ended.
//!
//! A request is a span of its client's trace, if that came with one that is sampled, else of a new one;
//! its stages are spans inside. A forward call serves many requests and is a trace of its own. Names are
//! those of OpenTelemetry's conventions for generative models where they have one, and of vLLM's traces
//! for the latencies.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceState,
};
use opentelemetry::{Array, InstrumentationScope, KeyValue, StringValue, Value};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};
use pocket_actors::api::{FinishReason, Timings};
use pocket_actors::observe::{EndedCall, EndedRequest, Observed, TraceHeaders};
use pocket_actors::profile::CallId;

/// Makes spans.
pub struct Spans {
    ids: RandomIdGenerator,
    propagator: TraceContextPropagator,
    scope: InstrumentationScope,
}

impl Spans {
    /// Nothing has been made yet.
    pub fn new() -> Self {
        let scope = InstrumentationScope::builder("pocketd");
        Self {
            ids: RandomIdGenerator::default(),
            propagator: TraceContextPropagator::new(),
            scope: scope.with_version(env!("CARGO_PKG_VERSION")).build(),
        }
    }

    /// The spans of one thing; none of what its client does not want to be traced.
    pub fn of(&self, observed: &Observed) -> Vec<SpanData> {
        match observed {
            Observed::Request(request) => self.request(request),
            Observed::Call(call) => vec![self.call(call)],
        }
    }

    fn request(&self, request: &EndedRequest) -> Vec<SpanData> {
        let parent = request.trace.as_ref().and_then(|trace| self.parent(trace));
        if parent.as_ref().is_some_and(|parent| !parent.is_sampled()) {
            return Vec::new();
        }
        let context = match &parent {
            Some(parent) => self.context(parent.trace_id(), parent.trace_state().clone()),
            None => self.context(self.ids.new_trace_id(), TraceState::default()),
        };
        let EndedRequest { arrived, stages, .. } = request;
        let whole = SpanData {
            parent_span_id: parent.as_ref().map_or(SpanId::INVALID, SpanContext::span_id),
            parent_span_is_remote: parent.is_some(),
            span_kind: SpanKind::Server,
            attributes: Self::attributes(request),
            status: match request.outcome {
                "failed" | "deadline_exceeded" => Status::error(request.outcome),
                _ => Status::Unset,
            },
            ..self.span("request", context.clone(), *arrived, stages.total())
        };
        let mut spans = vec![whole];
        let mut at = *arrived;
        let stages =
            [("queue", Some(stages.queue)), ("prefill", stages.prefill), ("decode", stages.decode)];
        for (name, took) in stages {
            let Some(took) = took else { break };
            let own = self.context(context.trace_id(), context.trace_state().clone());
            spans.push(SpanData {
                parent_span_id: context.span_id(),
                ..self.span(name, own, at, took)
            });
            at += took;
        }
        spans
    }

    fn attributes(request: &EndedRequest) -> Vec<KeyValue> {
        let EndedRequest { id, label, model, outcome, reasons, stages, timings, .. } = request;
        let Timings { prompt_tokens, completion_tokens, cached_tokens, .. } = *timings;
        let seconds = |time: Duration| time.as_secs_f64();
        let reasons = reasons.iter().map(|reason| StringValue::from(reason_name(*reason)));
        let mut attributes = vec![
            KeyValue::new("gen_ai.request.id", id.clone()),
            KeyValue::new("gen_ai.request.model", model.clone()),
            KeyValue::new("gen_ai.usage.input_tokens", number(prompt_tokens)),
            KeyValue::new("gen_ai.usage.output_tokens", number(completion_tokens)),
            KeyValue::new("gen_ai.usage.cache_read.input_tokens", number(cached_tokens)),
            KeyValue::new(
                "gen_ai.response.finish_reasons",
                Value::Array(Array::String(reasons.collect())),
            ),
            KeyValue::new("gen_ai.latency.time_in_queue", seconds(stages.queue)),
            KeyValue::new("gen_ai.latency.e2e", seconds(stages.total())),
            KeyValue::new("pocket.outcome", *outcome),
            KeyValue::new("pocket.prefill_calls", number(timings.prefill_calls)),
            KeyValue::new("pocket.preemptions", number(timings.preemptions)),
        ];
        let latencies = [
            ("gen_ai.latency.time_in_model_prefill", stages.prefill),
            ("gen_ai.latency.time_in_model_decode", stages.decode),
            ("gen_ai.latency.time_to_first_token", stages.first_token()),
        ];
        for (name, time) in latencies {
            attributes.extend(time.map(|time| KeyValue::new(name, seconds(time))));
        }
        attributes.extend(label.clone().map(|label| KeyValue::new("pocket.request.label", label)));
        attributes
    }

    fn call(&self, ended: &EndedCall) -> SpanData {
        let EndedCall {
            call,
            began,
            took,
            prefill_rows,
            prefill_segments,
            decode_segments,
            ranks_us,
        } = ended;
        let CallId { epoch, step, rows, .. } = *call;
        let count = |count: usize| number(count as u64);
        let ranks = ranks_us.iter().map(|us| number(*us)).collect();
        let context = self.context(self.ids.new_trace_id(), TraceState::default());
        SpanData {
            attributes: vec![
                KeyValue::new("pocket.kind", call.kind()),
                KeyValue::new("pocket.epoch", number(epoch)),
                KeyValue::new("pocket.step", number(step)),
                KeyValue::new("pocket.rows", count(rows)),
                KeyValue::new("pocket.prefill_rows", count(*prefill_rows)),
                KeyValue::new("pocket.prefill_segments", count(*prefill_segments)),
                KeyValue::new("pocket.decode_segments", count(*decode_segments)),
                KeyValue::new("pocket.rank_us", Value::Array(Array::I64(ranks))),
            ],
            ..self.span("step", context, *began, *took)
        }
    }

    /// The client's span; none where the header makes no sense, as the standard has it.
    fn parent(&self, trace: &TraceHeaders) -> Option<SpanContext> {
        let TraceHeaders { traceparent, tracestate } = trace;
        let headers: HashMap<String, String> = [
            ("traceparent".to_owned(), traceparent.clone()),
            ("tracestate".to_owned(), tracestate.clone()),
        ]
        .into();
        let context =
            self.propagator.extract_with_context(&opentelemetry::Context::new(), &headers);
        let parent = context.span().span_context().clone();
        parent.is_valid().then_some(parent)
    }

    fn context(&self, trace: opentelemetry::trace::TraceId, state: TraceState) -> SpanContext {
        SpanContext::new(trace, self.ids.new_span_id(), TraceFlags::SAMPLED, false, state)
    }

    fn span(
        &self,
        name: &'static str,
        span_context: SpanContext,
        start_time: SystemTime,
        took: Duration,
    ) -> SpanData {
        SpanData {
            span_context,
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: Cow::Borrowed(name),
            start_time,
            end_time: start_time + took,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }
}

fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Cancelled => "cancelled",
    }
}

/// Attributes have no unsigned numbers; none of these comes near the difference.
fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use pocket_actors::observe::Stages;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn ended(trace: Option<&str>, stages: Stages, outcome: &'static str) -> Observed {
        Observed::Request(Box::new(EndedRequest {
            id: "cmpl-1".to_owned(),
            label: Some("mine".to_owned()),
            model: "demo".to_owned(),
            trace: trace.map(|traceparent| TraceHeaders {
                traceparent: traceparent.to_owned(),
                tracestate: "vendor=1".to_owned(),
            }),
            arrived: SystemTime::UNIX_EPOCH + Duration::from_secs(1000),
            ended: Instant::now(),
            outcome,
            reasons: vec![FinishReason::Length],
            stages,
            timings: Timings { prompt_tokens: 7, completion_tokens: 3, ..Timings::default() },
        }))
    }

    fn whole() -> Stages {
        let ms = Duration::from_millis;
        Stages { queue: ms(5), prefill: Some(ms(7)), decode: Some(ms(20)) }
    }

    fn value(span: &SpanData, key: &str) -> Option<Value> {
        span.attributes.iter().find(|kv| kv.key.as_str() == key).map(|kv| kv.value.clone())
    }

    #[test]
    fn a_request_goes_into_its_clients_trace_with_its_stages_inside() {
        let spans = Spans::new().of(&ended(Some(PARENT), whole(), "finished"));
        let [request, queue, prefill, decode] = &spans[..] else { panic!("{spans:?}") };
        let trace = request.span_context.trace_id();
        assert_eq!(trace.to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(request.parent_span_id.to_string(), "b7ad6b7169203331");
        assert!(request.parent_span_is_remote);
        assert_eq!(request.span_context.trace_state().header(), "vendor=1");
        assert_eq!(request.end_time.duration_since(request.start_time).unwrap().as_millis(), 32);
        assert_eq!(value(request, "gen_ai.usage.input_tokens"), Some(Value::I64(7)));
        assert_eq!(value(request, "gen_ai.latency.time_to_first_token"), Some(Value::F64(0.012)));
        assert_eq!(value(request, "pocket.request.label"), Some("mine".into()));
        let names: Vec<_> = spans[1..].iter().map(|span| span.name.as_ref()).collect();
        assert_eq!(names, ["queue", "prefill", "decode"]);
        for (stage, next) in [(queue, prefill), (prefill, decode)] {
            assert_eq!(stage.end_time, next.start_time);
        }
        assert_eq!((queue.start_time, decode.end_time), (request.start_time, request.end_time));
        for stage in &spans[1..] {
            assert_eq!(stage.parent_span_id, request.span_context.span_id());
            assert_eq!(stage.span_context.trace_id(), trace);
            assert!(!stage.parent_span_is_remote);
        }
    }

    #[test]
    fn without_a_sound_header_a_trace_begins_and_an_unsampled_one_is_left_alone() {
        let spans = Spans::new();
        for header in [None, Some("nonsense"), Some("00-00000000000000000000000000000000-00-01")] {
            let made = spans.of(&ended(header, whole(), "finished"));
            assert_eq!(made.len(), 4, "{header:?}");
            assert_eq!(made[0].parent_span_id, SpanId::INVALID);
            assert!(made[0].span_context.is_valid());
        }
        let unsampled = PARENT.replace("-01", "-00");
        assert!(spans.of(&ended(Some(&unsampled), whole(), "finished")).is_empty());
    }

    #[test]
    fn one_that_never_began_has_only_waited() {
        let queued = Stages { queue: Duration::from_millis(5), ..Stages::default() };
        let spans = Spans::new().of(&ended(None, queued, "deadline_exceeded"));
        assert_eq!(spans.len(), 2);
        assert_eq!(spans[0].status, Status::error("deadline_exceeded"));
        assert_eq!(value(&spans[0], "gen_ai.latency.time_to_first_token"), None);
    }

    #[test]
    fn a_call_is_a_trace_of_its_own() {
        let call = EndedCall {
            call: CallId { epoch: 2, step: 9, rows: 8, prefill: true },
            began: SystemTime::UNIX_EPOCH,
            took: Duration::from_millis(3),
            prefill_rows: 7,
            prefill_segments: 1,
            decode_segments: 1,
            ranks_us: vec![2000, 2500],
        };
        let spans = Spans::new().of(&Observed::Call(call));
        let [step] = &spans[..] else { panic!("{spans:?}") };
        assert_eq!(step.parent_span_id, SpanId::INVALID);
        let ranks = Value::Array(Array::I64(vec![2000, 2500]));
        assert_eq!(value(step, "pocket.rank_us"), Some(ranks));
        assert_eq!(value(step, "pocket.kind"), Some("prefill".into()));
    }
}
