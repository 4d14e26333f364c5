//! `pocketd serve`: the daemon.
//!
//! Its life: take the port, find and check the model, load it, serve, drain, stop. The port is taken
//! first, so that a second daemon on the same port is refused before it spends minutes on loading, and
//! so that `/health` can say how far loading is; the control plane's next, for the same reasons. A stop
//! signal, or an operator's wish, is obeyed at any point; a second signal ends the process at once. When
//! the engine fails, open requests hear it, `/health` shows it for a moment, and the process ends with
//! code 1 for its supervisor to see. A service manager is told all of this, and may have taken the port.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use actix_web::dev::ServerHandle;
use actix_web::rt::{self, System};
use actix_web::web::Data;
use anyhow::{Context, anyhow, bail};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use pocket_actors::observe::Observer;
use pocket_actors::{Engine, EngineError};
use pocket_config::Settings;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::engine::Signals;
use super::reload::Reload;
use crate::boot::{self, Boot};
use crate::cli::ServeArgs;
use crate::control::{ControlServer, Daemon, Listeners};
use crate::failure::bad_input;
use crate::http::{
    self, App, Certificates, Front, Keys, Limits, Place, SamplingDefaults, ServedModel, Serving,
    TextSide,
};
use crate::logging::FilterHandle;
use crate::systemd::{Reporter, Sockets};
use crate::telemetry::Telemetry;

/// How long `/health` says why the engine failed before the process ends: long enough for a prober
/// with a period of a second.
const FAILURE_SHOWN: Duration = Duration::from_secs(3);

/// What a reader gets beyond the shutdown's limit for the last of an answer that was cut at the limit.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// Serves until a signal or a failure; with `--dry-run` prints the memory plan instead.
pub fn run(settings: &Settings, args: &ServeArgs, log: FilterHandle) -> anyhow::Result<()> {
    if args.dry_run {
        return boot::prepare_to_serve(settings)?.print_plan(args.json);
    }
    if let Some(parent) = args.tied_to_parent {
        tie_to_parent(Pid::from_raw(parent))?;
    }
    http::expect_long_names();
    // Before there are other threads.
    let sockets = Sockets::take()?;
    // Before the runtime, which would panic for want of descriptors.
    let connections = boot::connections(boot::raise_descriptor_limit()?);
    let sources = args.settings.sources();
    System::new().block_on(async {
        let reload = Reload::listen(sources, settings.clone(), log.clone())?;
        serve(settings, connections, sockets, log, reload).await
    })
}

/// From now on the end of whoever started this process stops it, however that end came.
fn tie_to_parent(parent: Pid) -> anyhow::Result<()> {
    prctl::set_pdeathsig(Signal::SIGTERM).context("cannot tie this process to its parent")?;
    // If it ended before that call, nobody will send the signal any more.
    if getppid() != parent {
        bail!("process {parent}, which this server was to stop with, is gone");
    }
    Ok(())
}

async fn serve(
    settings: &Settings,
    connections: usize,
    sockets: Sockets,
    log: FilterHandle,
    mut reload: Reload,
) -> anyhow::Result<()> {
    // To the very end: what is left of its traces is sent when everything else has stopped.
    let telemetry = Telemetry::start(settings)?;
    let (stop, mut stops) = Stops::listen(settings)?;
    let keys = Keys::load(settings)?;
    let app = Data::new(App::new(Limits::of(settings), keys, Certificates::load(settings)?));
    let (server, mut listening) = open_port(settings, connections, sockets.http, &app)?;
    let daemon = Daemon::new(app.clone().into_inner(), settings.clone(), log, stop);
    // Until the end: operators see how the daemon drains.
    let listeners = Listeners::open(settings, sockets.control)?;
    let _control = ControlServer::start(listeners, daemon)?;
    rt::spawn(http::watch_pulse(app.clone().into_inner()));
    let reporter = Reporter::start(app.clone().into_inner(), settings.load_timeout.duration())?;
    let started = tokio::select! {
        started = start(settings, &app, telemetry.as_ref().map(Telemetry::observer)) => started,
        stop = stops.next() => {
            tracing::info!(by = stop.by, "stopping before the model was loaded");
            reporter.stopping(Duration::ZERO);
            app.set_draining();
            server.stop(true).await;
            return Ok(());
        }
    };
    let engine = started?;
    let handle = engine.handle();
    let reloading = async {
        loop {
            reload.asked().await;
            reload.run(&handle, &app, &reporter).await;
        }
    };
    tokio::select! {
        never = reloading => never,
        ended = &mut listening => {
            ended.context("the HTTP server crashed")?.context("the HTTP server failed")?;
            Err(anyhow!("the HTTP server ended"))
        }
        reason = handle.failed() => fail(reason, &app, &server, &mut stops.signals).await,
        stop = stops.next() => {
            tracing::info!(
                by = stop.by,
                open_requests = app.open_requests(),
                limit_s = stop.limit.as_secs_f64(),
                "draining: new requests are refused, open ones finish; a signal ends at once"
            );
            reporter.stopping(stop.limit);
            tokio::select! {
                stopped = drain(engine, stop.limit, &app, &server) => stopped,
                signal = stops.signals.next() => Err(signal.into()),
            }
        }
    }
}

/// What asks the daemon to stop: a signal, or an operator.
struct Stops {
    signals: Signals,
    asked: mpsc::Receiver<Duration>,
    /// The limit of a stop that names none.
    limit: Duration,
}

/// A wish to stop.
struct Stop {
    /// Who asks, for the log.
    by: String,
    /// What open requests get to finish.
    limit: Duration,
}

impl Stops {
    /// Also gives the way by which an operator asks.
    fn listen(settings: &Settings) -> io::Result<(mpsc::Sender<Duration>, Self)> {
        let (stop, asked) = mpsc::channel(1);
        let limit = settings.shutdown_timeout.duration();
        Ok((stop, Self { signals: Signals::listen()?, asked, limit }))
    }

    async fn next(&mut self) -> Stop {
        tokio::select! {
            signal = self.signals.next() => Stop { by: signal.to_string(), limit: self.limit },
            Some(limit) = self.asked.recv() => Stop { by: "an operator".to_owned(), limit },
        }
    }
}

/// Takes the address, or the sockets that were handed over, and answers there from now on, until the
/// server is stopped or its task ends.
fn open_port(
    settings: &Settings,
    connections: usize,
    handed: Vec<TcpListener>,
    app: &Data<App>,
) -> anyhow::Result<(ServerHandle, JoinHandle<io::Result<()>>)> {
    let (host, port) = (settings.host.as_str(), settings.port);
    let front = Front::of(settings, connections);
    let place = if handed.is_empty() {
        Place::Address(host, port)
    } else {
        tracing::info!(sockets = handed.len(), "listening where the service manager does");
        // It listens before there is a server, so that clients need not try again; neither should those
        // that come a moment later. A model that is not there by then has failed.
        app.hold_while_loading(settings.load_timeout.duration());
        Place::Sockets(handed)
    };
    let (server, address) = http::listen(place, front, app.clone()).map_err(|error| {
        let fix = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "; stop what listens there or choose another --port (0 takes a free one)"
            }
            io::ErrorKind::PermissionDenied => "; ports below 1024 need privileges",
            _ => "; --host must be an address of this machine",
        };
        bad_input(format!("cannot listen on {host}:{port}: {error}{fix}"))
    })?;
    let handle = server.handle();
    let task = rt::spawn(server);
    // Scripts wait for this line and read the address from it.
    tracing::info!(%address, "listening");
    Ok((handle, task))
}

/// Finds, checks and loads the model; requests are served when this returns.
async fn start(
    settings: &Settings,
    app: &Data<App>,
    observer: Option<Observer>,
) -> anyhow::Result<Engine> {
    let (mut boot, model) = prepare(settings).await?;
    boot.options.observer = observer;
    announce(settings, &mut boot)?;
    let engine =
        boot.start(|engine| app.set_loading(engine), |share| app.set_loaded(share)).await?;
    let status = engine.handle().status().await;
    tracing::info!(model = model.name, ranks = status.ranks.len(), "ready");
    app.set_ready(Serving { model, engine: engine.handle() });
    Ok(engine)
}

/// Finds the model, checks it and reads its tokenizer. A download may take minutes and reading files
/// blocks, so this has a thread of its own, which no signal has to wait for.
async fn prepare(settings: &Settings) -> anyhow::Result<(Boot, ServedModel)> {
    let (sender, receiver) = oneshot::channel();
    let settings = settings.clone();
    thread::Builder::new().name("boot".into()).spawn(move || {
        let prepared = boot::prepare_to_serve(&settings).and_then(|mut boot| {
            boot.options.max_restarts = settings.max_restarts.get();
            boot.options.self_test_interval = settings.self_test_interval.duration();
            let model = served_model(&boot)?;
            Ok((boot, model))
        });
        // Nobody receives when a signal came first.
        let _ = sender.send(prepared);
    })?;
    receiver.await.context("preparing the model ended without a result")?
}

/// Says what is about to be served and within which limits, and what is not at its default.
fn announce(settings: &Settings, boot: &mut Boot) -> anyhow::Result<()> {
    boot.announce()?;
    let options = &boot.options;
    tracing::info!(
        max_num_seqs = options.max_num_seqs,
        kv_blocks = options.kv_blocks,
        kv_tokens = boot.kv_tokens(),
        kv_dtype = %options.kv_dtype,
        max_merged_rows = settings.max_merged_rows.to_string(),
        max_queue = options.max_queue,
        request_timeout_s = options.request_timeout.map(|limit| limit.as_secs_f64()),
        max_request_bytes = settings.max_request_bytes.get(),
        max_messages = settings.max_messages.get(),
        client_timeout_s = settings.client_timeout.duration().as_secs_f64(),
        stall_timeout_s = options.stall_timeout.as_secs_f64(),
        stall_noticed_within_s = options.stall_noticed_within().as_secs_f64(),
        self_test_interval_s = options.self_test_interval.map(|interval| interval.as_secs_f64()),
        load_timeout_s = options.load_timeout.as_secs_f64(),
        max_restarts = options.max_restarts,
        restart_window_s = options.restart_window.as_secs_f64(),
        shutdown_timeout_s = settings.shutdown_timeout.duration().as_secs_f64(),
        "limits"
    );
    let changed = settings.non_default();
    if !changed.is_empty() {
        tracing::info!(settings = ?changed, "not at their defaults");
    }
    Ok(())
}

fn served_model(boot: &Boot) -> anyhow::Result<ServedModel> {
    Ok(ServedModel {
        name: boot.name.clone(),
        created: http::unix_seconds(),
        context: boot.options.max_model_len,
        vocab_size: boot.config.vocab_size,
        defaults: SamplingDefaults::of(&boot.generation),
        text: TextSide { tokenizer: Arc::new(boot.tokenizer()?), template: boot.chat_template()? },
    })
}

/// Lets open requests finish, then stops ranks and server.
async fn drain(
    engine: Engine,
    limit: Duration,
    app: &Data<App>,
    server: &ServerHandle,
) -> anyhow::Result<()> {
    app.set_draining();
    let deadline = Instant::now() + limit;
    let stopped = engine.shutdown(limit).await;
    // The engine has said all it will; slow readers may not have read it all.
    let read = tokio::time::timeout_at(deadline + LAST_BYTES, app.idle()).await;
    if read.is_err() {
        let open_requests = app.open_requests();
        tracing::warn!(open_requests, "clients did not read their answers to the end in time");
    }
    server.stop(true).await;
    match stopped {
        // What was asked for is done. With the exit code of a failure a supervisor would start it again.
        Err(killed @ EngineError::Killed { .. }) => tracing::error!("{killed}"),
        stopped => stopped?,
    }
    tracing::info!("stopped");
    Ok(())
}

/// Shows why the engine failed, then ends with it.
async fn fail(
    reason: String,
    app: &Data<App>,
    server: &ServerHandle,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    tracing::error!(reason, open_requests = app.open_requests(), "the engine failed");
    app.set_failed(&reason);
    tokio::select! {
        () = tokio::time::sleep(FAILURE_SHOWN) => {}
        _ = signals.next() => {}
    }
    server.stop(true).await;
    Err(anyhow!("the engine failed: {reason}"))
}
