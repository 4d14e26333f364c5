//! The control plane's thread.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tonic::service::{InterceptorLayer, Routes};
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Status};
use tonic_health::pb::health_server::HealthServer;

use super::access::Guard;
use super::health::HealthService;
use super::listen::{Listeners, Tcp};
use super::service::Service;
use super::socket::SocketFile;
use super::{Daemon, proto, throughput};
use crate::failure::bad_input;

/// What answers that are under way get to end.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// Wait after a connection could not be accepted: descriptors may be used up for a while.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A connection whose other end is gone is noticed by this.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// The running server. Dropping it ends it and removes its socket.
pub struct ControlServer {
    daemon: Arc<Daemon>,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    /// Answers on `listeners` from now on.
    pub fn start(listeners: Listeners, daemon: Daemon) -> anyhow::Result<Self> {
        let daemon = Arc::new(daemon);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let parts = parts(&runtime, &daemon, listeners)?;
        let thread = thread::Builder::new().name("control".into()).spawn({
            let daemon = Arc::clone(&daemon);
            move || runtime.block_on(serve(daemon, parts))
        })?;
        Ok(Self { daemon, thread: Some(thread) })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.daemon.ending.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}

/// The services and what they are served on. The socket's file lives as long as they do.
struct Parts {
    socket: Option<(Option<SocketFile>, tokio::net::UnixListener, Arc<Guard>)>,
    tcp: Option<(tokio::net::TcpListener, Arc<Guard>, Server)>,
    routes: Routes,
}

/// Everything that can be refused.
fn parts(runtime: &Runtime, daemon: &Arc<Daemon>, open: Listeners) -> anyhow::Result<Parts> {
    // Listeners register with the runtime they are made in.
    let _inside = runtime.enter();
    let reflection = |descriptors: tonic_reflection::server::Builder<'static>| {
        descriptors
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let descriptors = tonic_reflection::server::Builder::configure;
    let routes =
        Routes::new(proto::control_server::ControlServer::new(Service(Arc::clone(daemon))))
            .add_service(HealthServer::new(HealthService(Arc::clone(daemon))))
            .add_service(reflection(descriptors()).build_v1()?)
            // grpcurl and others still ask for it.
            .add_service(reflection(descriptors()).build_v1alpha()?);
    let socket = match open.socket {
        Some((file, listener, guard)) => {
            Some((file, tokio::net::UnixListener::from_std(listener)?, Arc::new(guard)))
        }
        None => None,
    };
    let tcp = match open.tcp {
        Some(Tcp { listener, guard, tls }) => {
            let server = match tls {
                // What is wrong with certificates and keys is found here.
                Some(tls) => server().tls_config(tls).map_err(|error| {
                    let reason = std::error::Error::source(&error)
                        .map_or_else(|| error.to_string(), ToString::to_string);
                    bad_input(format!("control_tls_cert and control_tls_key: {reason}"))
                })?,
                None => server(),
            };
            Some((tokio::net::TcpListener::from_std(listener)?, Arc::new(guard), server))
        }
        None => None,
    };
    Ok(Parts { socket, tcp, routes })
}

fn server() -> Server {
    Server::builder().http2_keepalive_interval(Some(KEEP_ALIVE)).tcp_nodelay(true)
}

/// Answers until the daemon ends.
async fn serve(daemon: Arc<Daemon>, parts: Parts) {
    let Parts { socket, tcp, routes } = parts;
    let over_socket = async {
        if let Some((file, listener, guard)) = socket {
            let accepted = accepted(async || Ok(listener.accept().await?.0));
            answer(server(), guard, routes.clone(), accepted, &daemon).await;
            drop(file);
        }
    };
    let over_tcp = async {
        if let Some((listener, guard, server)) = tcp {
            let accepted = accepted(async || Ok(listener.accept().await?.0));
            answer(server, guard, routes.clone(), accepted, &daemon).await;
        }
    };
    let answering = async { tokio::join!(over_socket, over_tcp) };
    tokio::select! {
        _ = answering => {}
        () = sample(&daemon) => {}
    }
}

/// Looks at the counters from time to time.
async fn sample(daemon: &Daemon) {
    let mut ticks = interval(throughput::PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        daemon.observe();
    }
}

/// Connections as they come. One that cannot be accepted does not end the server.
fn accepted<C>(
    accept: impl AsyncFn() -> io::Result<C>,
) -> impl Stream<Item = Result<C, Infallible>> {
    async_stream::stream! {
        loop {
            match accept().await {
                Ok(connection) => yield Ok(connection),
                Err(error) => {
                    tracing::warn!(%error, "a connection to the control plane was not accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Answers one listener's calls until the daemon ends.
async fn answer<C>(
    server: Server,
    guard: Arc<Guard>,
    routes: Routes,
    accepted: impl Stream<Item = Result<C, Infallible>>,
    daemon: &Daemon,
) where
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let check = move |request: Request<()>| -> Result<Request<()>, Status> {
        guard.admit(&request).inspect_err(|refusal| {
            tracing::warn!(reason = refusal.message(), "a caller of the control plane was refused");
        })?;
        Ok(request)
    };
    let serving = server
        .layer(InterceptorLayer::new(check))
        .add_routes(routes)
        .serve_with_incoming_shutdown(accepted, daemon.ending());
    let mut serving = pin!(serving);
    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = daemon.ending() => match timeout(LAST_ANSWERS, serving).await {
            Ok(ended) => ended,
            // Callers that do not read.
            Err(_) => Ok(()),
        },
    };
    if let Err(error) = ended {
        tracing::error!(%error, "the control plane has ended");
    }
}
