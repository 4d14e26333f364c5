//! Traces for a collector, by OTLP over gRPC (`otlp_endpoint`).
//!
//! The engine tells of every request and every forward call that has ended; a thread of its own makes
//! spans of them (`spans`) and sends them. Nothing waits for it: what comes faster than the collector
//! takes it is dropped, and a collector that is gone is said to be, once.

mod spans;

use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use opentelemetry::KeyValue;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use pocket_actors::observe::{Observed, Observer};
use pocket_config::{OtlpEndpoint, Settings};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::failure::bad_input;
use spans::Spans;

/// What may wait for the thread; about ten seconds of small calls.
const ROOM: usize = 2048;
/// Most of it that is sent in one message.
const BATCH: usize = 256;
/// What has ended is sent this soon.
const PERIOD: Duration = Duration::from_millis(500);
/// What a collector may take for a message.
const EXPORT_LIMIT: Duration = Duration::from_secs(10);
/// What it may take when the daemon ends.
const LAST_LIMIT: Duration = Duration::from_secs(3);

/// The thread. Dropping it sends what is left, within a limit.
pub struct Telemetry {
    observer: Observer,
    ending: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Telemetry {
    /// Starts it, if the settings name a collector.
    pub fn start(settings: &Settings) -> anyhow::Result<Option<Self>> {
        let Some(OtlpEndpoint::At(url)) = &settings.otlp_endpoint else { return Ok(None) };
        OtlpEndpoint::check(url).map_err(bad_input)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let exporter = exporter(&runtime, url)?;
        let (observer, observed) = Observer::new(ROOM);
        let (ending, is_ending) = watch::channel(false);
        let mut sending = Sending {
            exporter,
            url: url.clone(),
            observer: observer.clone(),
            ending: is_ending,
            silent: false,
            lost: 0,
        };
        let thread = thread::Builder::new()
            .name("telemetry".to_owned())
            .spawn(move || runtime.block_on(sending.run(observed)))?;
        tracing::info!(endpoint = url, "traces go to a collector");
        Ok(Some(Self { observer, ending, thread: Some(thread) }))
    }

    /// Where the engine tells.
    pub fn observer(&self) -> Observer {
        self.observer.clone()
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        self.ending.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}

/// The connection is made when there is something to send, and made again when it broke.
fn exporter(runtime: &Runtime, url: &str) -> anyhow::Result<SpanExporter> {
    // Its tasks belong to the runtime it is made in.
    let _inside = runtime.enter();
    let mut exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(url)
        .with_timeout(EXPORT_LIMIT)
        .build()
        .with_context(|| format!("traces cannot be sent to {url}"))?;
    // OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, where they are set, win over the name given here.
    let named = std::env::var_os("OTEL_SERVICE_NAME").is_some();
    let mut resource = Resource::builder().with_attributes([
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("process.pid", i64::from(std::process::id())),
    ]);
    if !named {
        resource = resource.with_service_name("pocketd");
    }
    exporter.set_resource(&resource.build());
    Ok(exporter)
}

/// What the thread keeps.
struct Sending {
    exporter: SpanExporter,
    url: String,
    observer: Observer,
    ending: watch::Receiver<bool>,
    /// The collector did not take the last message.
    silent: bool,
    /// Spans it did not get since it was last heard.
    lost: u64,
}

impl Sending {
    /// Sends what it hears until the daemon ends, and then what is left.
    async fn run(&mut self, mut observed: mpsc::Receiver<Observed>) {
        let spans = Spans::new();
        let mut ending = self.ending.clone();
        loop {
            let mut heard = Vec::new();
            // Who ends it is dropped with the daemon, which is an end as well.
            let ended = tokio::select! {
                _ = ending.wait_for(|ending| *ending) => true,
                () = collect(&mut observed, &mut heard) => false,
            };
            if ended {
                while let Ok(more) = observed.try_recv() {
                    heard.push(more);
                }
            }
            for part in heard.chunks(BATCH) {
                let batch = part.iter().flat_map(|observed| spans.of(observed)).collect();
                self.send(batch).await;
                if ended && self.silent {
                    // The rest would wait as long.
                    return;
                }
            }
            if ended {
                return;
            }
        }
    }

    async fn send(&mut self, batch: Vec<SpanData>) {
        let unheard = self.observer.take_lost();
        self.lost += unheard;
        if unheard > 0 && !self.silent {
            tracing::warn!(
                unheard,
                "the collector of traces is slower than the engine: some are dropped"
            );
        }
        if batch.is_empty() {
            return;
        }
        let count = batch.len() as u64;
        let mut ending = self.ending.clone();
        let last = async {
            let _ = ending.wait_for(|ending| *ending).await;
            sleep(LAST_LIMIT).await;
        };
        let sent = tokio::select! {
            sent = timeout(EXPORT_LIMIT, self.exporter.export(batch)) => match sent {
                Ok(sent) => sent.map_err(|error| error.to_string()),
                Err(_) => Err(format!("no answer within {} s", EXPORT_LIMIT.as_secs())),
            },
            () = last => Err(format!("no answer within {} s of the end", LAST_LIMIT.as_secs())),
        };
        match sent {
            Ok(()) if self.silent => {
                tracing::info!(
                    endpoint = self.url,
                    lost = self.lost,
                    "the collector takes traces again"
                );
                (self.silent, self.lost) = (false, 0);
            }
            Ok(()) => {}
            Err(error) => {
                self.lost += count;
                if !std::mem::replace(&mut self.silent, true) {
                    tracing::warn!(
                        endpoint = self.url,
                        error,
                        "the collector takes no traces; they are dropped until it does"
                    );
                }
            }
        }
    }
}

/// Waits for something, and then takes what comes within a period, or as much as goes into one message.
async fn collect(observed: &mut mpsc::Receiver<Observed>, heard: &mut Vec<Observed>) {
    // It never closes: an observer is kept beside it.
    heard.extend(observed.recv().await);
    let filling = async {
        while heard.len() < BATCH {
            let room = BATCH - heard.len();
            observed.recv_many(heard, room).await;
        }
    };
    // One that is full ends the wait.
    let _ = timeout(PERIOD, filling).await;
}
