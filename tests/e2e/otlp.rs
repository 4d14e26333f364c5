//! Traces go to a collector, and one that is not there is no trouble.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use pocket_tests::daemon::Daemon;
use pocket_tests::wait::{PATIENCE, until};
use serde_json::json;
use tokio::sync::oneshot;
use tonic::{Request, Response, Status};

use crate::control::two_ranks;
use crate::http_support::{COMPLETIONS, post_text, raw};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// What a collector was sent.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<ResourceSpans>>>);

#[tonic::async_trait]
impl TraceService for Received {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let spans = request.into_inner().resource_spans;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Received {
    fn resources(&self) -> Vec<ResourceSpans> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn spans(&self) -> Vec<Span> {
        let scopes = self.resources().into_iter().flat_map(|resource| resource.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// The span of the request with this label.
    fn request(&self, label: &str) -> Option<Span> {
        let is_it = |span: &Span| text(span, "pocket.request.label").as_deref() == Some(label);
        self.spans().into_iter().find(|span| span.name == "request" && is_it(span))
    }
}

/// A collector, as far as the protocol goes. Dropping it ends it.
struct Collector {
    received: Received,
    address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Collector {
    fn start(listener: TcpListener) -> Self {
        let (end, ended) = oneshot::channel::<()>();
        let (received, address) = (Received::default(), listener.local_addr().unwrap());
        let service = TraceServiceServer::new(received.clone());
        let thread = thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                listener.set_nonblocking(true).unwrap();
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let connections = async_stream::stream! {
                    loop {
                        yield listener.accept().await.map(|(connection, _)| connection);
                    }
                };
                let server = tonic::transport::Server::builder().add_service(service);
                tokio::select! {
                    served = server.serve_with_incoming(connections) => served.unwrap(),
                    _ = ended => {}
                }
            });
        });
        Self { received, address, end: Some(end), thread: Some(thread) }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn loopback() -> TcpListener {
    TcpListener::bind(("127.0.0.1", 0)).unwrap()
}

fn attribute(span: &Span, key: &str) -> Option<Attribute> {
    let attribute = span.attributes.iter().find(|attribute| attribute.key == key)?;
    attribute.value.as_ref()?.value.clone()
}

fn text(span: &Span, key: &str) -> Option<String> {
    match attribute(span, key)? {
        Attribute::StringValue(text) => Some(text),
        _ => None,
    }
}

fn number(span: &Span, key: &str) -> i64 {
    match attribute(span, key) {
        Some(Attribute::IntValue(number)) => number,
        other => panic!("{key} is {other:?}"),
    }
}

fn numbers(span: &Span, key: &str) -> Vec<i64> {
    let Some(Attribute::ArrayValue(array)) = attribute(span, key) else {
        panic!("no {key}: {span:?}")
    };
    let number = |value: opentelemetry_proto::tonic::common::v1::AnyValue| match value.value {
        Some(Attribute::IntValue(number)) => number,
        other => panic!("{other:?}"),
    };
    array.values.into_iter().map(number).collect()
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Asks for five tokens under a label, with these headers; gives the id of the answer.
fn ask(daemon: &Daemon, label: &str, headers: &str) -> String {
    let request = json!({"prompt": "Go:", "max_tokens": 5, "temperature": 0, "ignore_eos": true});
    let headers = format!("x-request-id: {label}\r\n{headers}");
    let reply = raw(daemon, &post_text(COMPLETIONS, &headers, &request));
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    let body = reply.split("\r\n\r\n").nth(1).unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    body["id"].as_str().unwrap().to_owned()
}

#[test]
fn requests_and_steps_reach_a_collector() {
    let collector = Collector::start(loopback());
    let received = &collector.received;
    let daemon = two_ranks().args(["--otlp-endpoint", &collector.url()]).start().unwrap();
    let id = ask(&daemon, "traced", &format!("traceparent: 00-{TRACE}-{PARENT}-01\r\n"));
    ask(&daemon, "unsampled", &format!("traceparent: 00-{TRACE}-{PARENT}-00\r\n"));
    ask(&daemon, "alone", "");
    let request = until("the span", PATIENCE, || received.request("traced")).unwrap();
    assert_eq!(
        (hex(&request.trace_id), hex(&request.parent_span_id)),
        (TRACE.into(), PARENT.into())
    );
    assert_eq!(text(&request, "gen_ai.request.id"), Some(id));
    assert_eq!(text(&request, "gen_ai.request.model").as_deref(), Some("demo"));
    assert_eq!(text(&request, "pocket.outcome").as_deref(), Some("finished"));
    assert_eq!(number(&request, "gen_ai.usage.output_tokens"), 5);
    assert!(number(&request, "gen_ai.usage.input_tokens") > 0);
    let Some(Attribute::DoubleValue(first)) =
        attribute(&request, "gen_ai.latency.time_to_first_token")
    else {
        panic!("{request:?}")
    };
    let Some(Attribute::DoubleValue(whole)) = attribute(&request, "gen_ai.latency.e2e") else {
        panic!("{request:?}")
    };
    assert!(first > 0.0 && first <= whole, "{first} {whole}");
    let reasons = format!("{:?}", attribute(&request, "gen_ai.response.finish_reasons"));
    assert!(reasons.contains("length"), "{reasons}");

    let spans = received.spans();
    let inside: Vec<&Span> =
        spans.iter().filter(|span| span.parent_span_id == request.span_id).collect();
    let names: Vec<&str> = inside.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["queue", "prefill", "decode"]);
    for span in &inside {
        assert_eq!(hex(&span.trace_id), TRACE);
        assert!(request.start_time_unix_nano <= span.start_time_unix_nano);
        assert!(span.end_time_unix_nano <= request.end_time_unix_nano);
    }
    let alone = until("the other span", PATIENCE, || received.request("alone")).unwrap();
    assert!(alone.parent_span_id.is_empty() && hex(&alone.trace_id) != TRACE, "{alone:?}");
    assert!(received.request("unsampled").is_none(), "its client does not want it");

    // Each request has one call with its prompt, and one for each token after the first.
    let kind = |step: &Span| text(step, "pocket.kind").unwrap();
    let steps = until("the steps", PATIENCE, || {
        let steps = received.spans().into_iter().filter(|span| span.name == "step");
        let steps: Vec<Span> = steps.collect();
        (steps.iter().filter(|step| kind(step) == "decode").count() >= 3 * 4).then_some(steps)
    });
    let steps = steps.unwrap();
    assert!(steps.iter().filter(|step| kind(step) == "prefill").count() >= 3);
    assert!(steps.is_sorted_by_key(|step| number(step, "pocket.step")));
    for step in &steps {
        assert_eq!(number(step, "pocket.epoch"), 1);
        let prefill = i64::from(kind(step) == "prefill");
        assert_eq!(number(step, "pocket.prefill_segments"), prefill, "{step:?}");
        assert_eq!(number(step, "pocket.decode_segments"), 1 - prefill, "{step:?}");
        assert!(number(step, "pocket.rows") >= 1);
        let ranks = numbers(step, "pocket.rank_us");
        assert!(ranks.len() == 2 && ranks.iter().all(|us| *us > 0), "{ranks:?}");
        assert_eq!(step.trace_id.len(), 16);
        assert!(step.parent_span_id.is_empty() && hex(&step.trace_id) != TRACE);
    }
    let resource = received.resources()[0].resource.clone().unwrap();
    assert!(format!("{resource:?}").contains("pocketd"), "{resource:?}");

    // What is not sent yet is sent at the end.
    ask(&daemon, "last", "");
    daemon.stop(PATIENCE).unwrap();
    assert!(received.request("last").is_some(), "{:?}", received.spans());
}

#[test]
fn a_collector_that_is_gone_or_silent_holds_nobody_up_and_is_said_once() {
    const WARNING: &str = "takes no traces";
    // The kernel takes connections to it; nobody ever answers.
    let silent = loopback();
    let gone = loopback().local_addr().unwrap();
    for address in [gone, silent.local_addr().unwrap()] {
        let url = format!("http://{address}");
        let daemon = two_ranks().args(["--otlp-endpoint", &url]).start().unwrap();
        ask(&daemon, "first", "");
        until("the warning", PATIENCE, || daemon.log().contains(WARNING).then_some(())).unwrap();
        for number in 0..20 {
            ask(&daemon, &format!("r{number}"), "");
        }
        let finished = daemon.stop(PATIENCE).unwrap();
        assert_eq!(finished.status.code(), Some(0), "{finished:?}");
        assert_eq!(finished.stderr.matches(WARNING).count(), 1, "{}", finished.stderr);
    }
}

#[test]
fn a_collector_that_comes_back_is_used_again() {
    let address = loopback().local_addr().unwrap();
    let url = format!("http://{address}");
    // As other programs have it.
    let daemon = two_ranks().env("OTEL_EXPORTER_OTLP_ENDPOINT", &url).start().unwrap();
    ask(&daemon, "lost", "");
    until("the warning", PATIENCE, || daemon.log().contains("takes no traces").then_some(()))
        .unwrap();
    let collector = Collector::start(TcpListener::bind(address).unwrap());
    let mut number = 0;
    until("a span", PATIENCE, || {
        number += 1;
        let label = format!("again-{number}");
        ask(&daemon, &label, "");
        (1..=number).find_map(|number| collector.received.request(&format!("again-{number}")))
    })
    .unwrap();
    until("a word of it", PATIENCE, || daemon.log().contains("takes traces again").then_some(()))
        .unwrap();
    daemon.stop(PATIENCE).unwrap();
}

#[test]
fn an_endpoint_that_cannot_be_used_is_refused() {
    let refused = |options: pocket_tests::daemon::DaemonOptions| {
        let finished = options.spawn().unwrap().finish(PATIENCE).unwrap();
        assert_eq!(finished.status.code(), Some(2), "{finished:?}");
        finished.stderr
    };
    let why = refused(two_ranks().args(["--otlp-endpoint", "localhost:4317"]));
    assert!(why.contains("http://HOST:PORT"), "{why}");
    let variable = "OTEL_EXPORTER_OTLP_ENDPOINT";
    let why = refused(two_ranks().env(variable, "https://collector:4317"));
    assert!(why.contains(variable) && why.contains("http://HOST:PORT"), "{why}");
    let off = two_ranks().env(variable, "https://collector:4317");
    off.args(["--otlp-endpoint", "none"]).start().unwrap().stop(PATIENCE).unwrap();
}
