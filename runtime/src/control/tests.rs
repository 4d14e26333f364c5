//! The control plane over real sockets, of a daemon whose model is not loaded yet.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use futures_util::stream;
use pocket_config::{SETTINGS, Settings, Sources};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use super::access::{Guard, Peers};
use super::proto::control_client::ControlClient;
use super::*;
use crate::http::App;

const TOKEN: &str = "a-token-for-tests-only";

/// A control plane, and what it has asked for.
struct Rig {
    folder: TempDir,
    app: Arc<App>,
    stops: mpsc::Receiver<Duration>,
    filters: Arc<Mutex<Vec<String>>>,
    address: Option<SocketAddr>,
    server: Option<ControlServer>,
}

/// Settings of a folder with a token, certificates and a place for a socket.
fn settings(folder: &TempDir, rows: &[(&'static str, &str)]) -> Settings {
    let path = |name: &str| folder.path().join(name).display().to_string();
    let mut command_line = vec![("control_socket", path("control.sock"))];
    command_line.extend(rows.iter().map(|(key, value)| {
        let file = key.ends_with("_file") || key.contains("_tls_");
        (*key, if file { path(value) } else { (*value).to_owned() })
    }));
    let sources = Sources {
        config: None,
        default_file: PathBuf::new(),
        environment: Vec::new(),
        command_line,
    };
    Settings::load(&sources).unwrap()
}

impl Rig {
    fn start(rows: &[(&'static str, &str)]) -> Self {
        Self::in_folder(tempfile::tempdir().unwrap(), rows, |_| {})
    }

    fn in_folder(
        folder: TempDir,
        rows: &[(&'static str, &str)],
        change: impl FnOnce(&mut Listeners),
    ) -> Self {
        fs::write(folder.path().join("token"), format!("{TOKEN}\n")).unwrap();
        let settings = settings(&folder, rows);
        let mut listeners = Listeners::open(&settings, None).unwrap();
        change(&mut listeners);
        let address = listeners.tcp.as_ref().map(|tcp| tcp.listener.local_addr().unwrap());
        let app = Arc::new(App::for_tests());
        let (stop, stops) = mpsc::channel(1);
        let filters = Arc::new(Mutex::new(Vec::new()));
        let log = FilterHandle::new("info", {
            let filters = Arc::clone(&filters);
            move |filter| {
                filters.lock().unwrap().push(filter.to_string());
                Ok(())
            }
        });
        let daemon = Daemon::new(Arc::clone(&app), settings, log, stop);
        let server = Some(ControlServer::start(listeners, daemon).unwrap());
        Self { folder, app, stops, filters, address, server }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("unix:{}", self.socket().display())).unwrap();
        endpoint.connect().await.unwrap()
    }

    async fn control(&self) -> ControlClient<Channel> {
        ControlClient::new(self.channel().await)
    }

    fn url(&self, scheme: &str) -> Endpoint {
        Endpoint::from_shared(format!("{scheme}://{}", self.address.unwrap())).unwrap()
    }
}

/// Code and sentence of a refusal.
fn refusal<T: std::fmt::Debug>(answer: Result<T, tonic::Status>) -> (Code, String) {
    let status = answer.unwrap_err();
    (status.code(), status.message().to_owned())
}

#[tokio::test]
async fn a_loading_daemon_tells_its_status_once_and_again() {
    let rig = Rig::start(&[]);
    rig.app.set_loaded(0.25);
    let mut control = rig.control().await;
    let status = control.get_status(proto::GetStatusRequest {}).await.unwrap().into_inner();
    assert_eq!((status.state.as_str(), status.loaded), ("starting", 0.25));
    assert_eq!(status.version, env!("CARGO_PKG_VERSION"));
    assert_eq!(status.pid, std::process::id());
    assert!(status.memory_bytes > 0 && status.ranks.is_empty());
    let watch = |interval_s| proto::WatchStatusRequest { interval_s };
    let mut stream = control.watch_status(watch(0.1)).await.unwrap().into_inner();
    rig.app.set_draining();
    let mut states = Vec::new();
    while states.last().is_none_or(|state| state != "draining") {
        states.push(stream.message().await.unwrap().unwrap().state);
    }
    let (code, why) = refusal(control.watch_status(watch(0.01)).await);
    assert_eq!(code, Code::InvalidArgument);
    assert!(why.contains("0.01") && why.contains("0.1 to 3600"), "{why}");
}

#[tokio::test]
async fn what_needs_an_engine_waits_for_it() {
    let rig = Rig::start(&[]);
    let mut control = rig.control().await;
    let name = || "x".to_owned();
    let flag = || proto::SetFlagRequest { name: name(), value: String::new() };
    let refusals = [
        refusal(control.drain(proto::DrainRequest {}).await),
        refusal(control.resume(proto::ResumeRequest {}).await),
        refusal(control.list_requests(proto::ListRequestsRequest {}).await),
        refusal(control.cancel_request(proto::CancelRequestRequest { name: name() }).await),
        refusal(control.restart_rank(proto::RestartRankRequest { rank: 0 }).await),
        refusal(control.set_flag(flag()).await),
    ];
    for refusal in refusals {
        assert_eq!(refusal, (Code::Unavailable, "the model is loading".to_owned()));
    }
    let unnamed = proto::CancelRequestRequest { name: String::new() };
    assert_eq!(refusal(control.cancel_request(unnamed).await).0, Code::InvalidArgument);
    rig.app.set_draining();
    let refused = refusal(control.drain(proto::DrainRequest {}).await);
    assert_eq!(refused, (Code::FailedPrecondition, "the server is shutting down".to_owned()));
}

#[tokio::test]
async fn flags_and_settings_are_listed_and_secrets_are_not() {
    let rig = Rig::start(&[("control_address", "127.0.0.1:0"), ("control_token_file", "token")]);
    let mut control = rig.control().await;
    let flags = control.list_flags(proto::ListFlagsRequest {}).await.unwrap().into_inner().flags;
    assert_eq!(flags.len(), pocket_config::FLAGS.len());
    let reply = control.get_config(proto::GetConfigRequest {}).await.unwrap().into_inner();
    assert_eq!(reply.settings.len(), SETTINGS.len());
    let value = |key| reply.settings.iter().find(|s| s.key == key).unwrap().value.clone();
    assert_eq!(value("control_address"), "127.0.0.1:0");
    assert!(value("control_token_file").ends_with("/token"));
    assert!(!serde_json::to_string(&reply).unwrap().contains(TOKEN));
}

#[tokio::test]
async fn the_log_filter_is_checked_and_changed() {
    let rig = Rig::start(&[]);
    let mut control = rig.control().await;
    let filter = |text: &str| proto::SetLogFilterRequest { filter: text.to_owned() };
    let reply = control.set_log_filter(filter("warn,pocketd=debug")).await.unwrap().into_inner();
    assert_eq!(reply.previous, "info");
    for wrong in ["", "loud", "pocketd=loud"] {
        let (code, why) = refusal(control.set_log_filter(filter(wrong)).await);
        assert_eq!(code, Code::InvalidArgument);
        assert!(why.contains(wrong) && why.contains("accepted is"), "{why}");
    }
    let reply = control.set_log_filter(filter("error")).await.unwrap().into_inner();
    assert_eq!(reply.previous, "warn,pocketd=debug");
    assert_eq!(rig.filters.lock().unwrap().len(), 2, "refused filters change nothing");
}

#[tokio::test]
async fn a_shutdown_is_handed_on_once_with_its_limit() {
    let mut rig = Rig::start(&[("shutdown_timeout", "7")]);
    let mut control = rig.control().await;
    let within = |limit_s| proto::ShutdownRequest { limit_s };
    for wrong in [-1.0, 86_401.0, f64::NAN] {
        let (code, why) = refusal(control.shutdown(within(Some(wrong))).await);
        assert_eq!(code, Code::InvalidArgument);
        assert!(why.contains("0 to 86400"), "{why}");
    }
    let reply = control.shutdown(within(None)).await.unwrap().into_inner();
    assert_eq!(reply.limit_s, 7.0);
    let again = refusal(control.shutdown(within(None)).await);
    let already = (Code::FailedPrecondition, "the server is shutting down already".to_owned());
    assert_eq!(again, already);
    assert_eq!(rig.stops.recv().await, Some(Duration::from_secs(7)));
    assert_eq!(control.shutdown(within(Some(0.5))).await.unwrap().into_inner().limit_s, 0.5);
    assert_eq!(rig.stops.recv().await, Some(Duration::from_millis(500)));
    rig.app.set_draining();
    assert_eq!(refusal(control.shutdown(within(None)).await), already);
}

#[tokio::test]
async fn health_is_the_engines_and_reflection_lists_the_services() {
    let rig = Rig::start(&[]);
    let channel = rig.channel().await;
    let mut health = HealthClient::new(channel.clone());
    let of = |service: &str| HealthCheckRequest { service: service.to_owned() };
    let daemon = health.check(of("")).await.unwrap().into_inner();
    assert_eq!(daemon.status(), ServingStatus::NotServing);
    let control = health.check(of("pocket.control.v1.Control")).await.unwrap().into_inner();
    assert_eq!(control.status(), ServingStatus::Serving);
    assert_eq!(refusal(health.check(of("x")).await).0, Code::NotFound);
    let mut watch = health.watch(of("x")).await.unwrap().into_inner();
    let first = watch.message().await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::ServiceUnknown);

    let list = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut reflection = ServerReflectionClient::new(channel);
    let asked = reflection.server_reflection_info(stream::iter([list])).await;
    let reply: ServerReflectionResponse =
        asked.unwrap().into_inner().message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(services)) = reply.message_response else {
        panic!("{reply:?}")
    };
    let names: Vec<String> = services.service.into_iter().map(|service| service.name).collect();
    for name in ["pocket.control.v1.Control", "grpc.health.v1.Health"] {
        assert!(names.iter().any(|found| found == name), "{name} is not in {names:?}");
    }
}

#[tokio::test]
async fn the_end_of_the_server_ends_watches_and_removes_the_socket() {
    let mut rig = Rig::start(&[]);
    let request = proto::WatchStatusRequest { interval_s: 3600.0 };
    let mut stream = rig.control().await.watch_status(request).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    assert!(rig.socket().exists());
    let server = rig.server.take();
    tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
    assert!(stream.message().await.unwrap().is_none(), "an end, not an error");
    assert!(!rig.socket().exists());
}

/// Whatever the file's mode.
#[tokio::test]
async fn a_stranger_is_refused_on_every_service() {
    let rig = Rig::in_folder(tempfile::tempdir().unwrap(), &[], |listeners| {
        let (_, _, guard) = listeners.socket.as_mut().unwrap();
        *guard = Guard::Peers(Peers { users: Vec::new(), group: u32::MAX });
    });
    let (code, why) = refusal(rig.control().await.get_status(proto::GetStatusRequest {}).await);
    assert_eq!(code, Code::PermissionDenied);
    assert!(why.contains("nor in the socket's group"), "{why}");
    let mut health = HealthClient::new(rig.channel().await);
    let checked = health.check(HealthCheckRequest::default()).await;
    assert_eq!(refusal(checked).0, Code::PermissionDenied);
}

#[tokio::test]
async fn over_tcp_the_token_is_asked_for() {
    let rig = Rig::start(&[("control_address", "127.0.0.1:0"), ("control_token_file", "token")]);
    let mut control = ControlClient::new(rig.url("http").connect().await.unwrap());
    let mut ask = async |header: Option<&str>| {
        let mut request = Request::new(proto::GetStatusRequest {});
        if let Some(header) = header {
            request.metadata_mut().insert("authorization", header.parse().unwrap());
        }
        control.get_status(request).await
    };
    assert!(ask(Some(&format!("Bearer {TOKEN}"))).await.is_ok());
    for wrong in [None, Some("Bearer wrong"), Some(TOKEN)] {
        assert_eq!(refusal(ask(wrong).await).0, Code::Unauthenticated, "{wrong:?}");
    }
    assert!(rig.control().await.get_status(proto::GetStatusRequest {}).await.is_ok());
}

/// An authority, and a certificate and key by it for `name`.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }
}

#[tokio::test]
async fn over_tls_a_certificate_is_asked_for() {
    let (authority, other) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = authority.issue("127.0.0.1");
    for (name, text) in [("cert", &cert), ("key", &key), ("ca", &authority.pem())] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let rows = [
        ("control_address", "127.0.0.1:0"),
        ("control_tls_cert", "cert"),
        ("control_tls_key", "key"),
        ("control_tls_client_ca", "ca"),
    ];
    let rig = Rig::in_folder(folder, &rows, |_| {});
    let trusting = |authority: &Authority| {
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority.pem()))
    };
    let ask = async |tls: ClientTlsConfig| {
        // What the server refuses may be heard in the handshake or by the first call.
        let channel = rig.url("https").tls_config(tls).unwrap().connect().await;
        let channel = channel.map_err(|error| error.to_string())?;
        let asked = ControlClient::new(channel).get_status(proto::GetStatusRequest {}).await;
        asked.map(|status| status.into_inner().state).map_err(|status| status.to_string())
    };
    let shown = |(cert, key): (String, String)| Identity::from_pem(cert, key);
    let own = || shown(authority.issue("operator"));
    assert_eq!(ask(trusting(&authority).identity(own())).await, Ok("starting".to_owned()));
    assert!(ask(trusting(&authority)).await.is_err(), "no certificate");
    let forged = shown(other.issue("operator"));
    assert!(ask(trusting(&authority).identity(forged)).await.is_err(), "another's certificate");
    assert!(ask(trusting(&other).identity(own())).await.is_err(), "a server that is not believed");
    let plain = async {
        let channel = rig.url("http").connect().await.map_err(|error| error.to_string())?;
        let asked = ControlClient::new(channel).get_status(proto::GetStatusRequest {}).await;
        asked.map_err(|status| status.to_string())
    };
    assert!(plain.await.is_err(), "no TLS");
    assert_eq!(ask(trusting(&authority).identity(own())).await, Ok("starting".to_owned()));
}

#[test]
fn what_is_not_safe_is_refused_by_name() {
    const ADDRESS: (&str, &str) = ("control_address", "127.0.0.1:0");
    const TOKEN_FILE: (&str, &str) = ("control_token_file", "token");
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = Authority::new().issue("localhost");
    for (name, text) in [("cert", cert.as_str()), ("key", &key), ("token", TOKEN), ("bad", "x")] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let cases: [(&[(&'static str, &str)], &str); 8] = [
        (&[ADDRESS], "without control_token_file or control_tls_client_ca"),
        (
            &[ADDRESS, ("control_tls_cert", "cert"), ("control_tls_key", "key")],
            "without control_token_file or control_tls_client_ca",
        ),
        (&[ADDRESS, ("control_tls_client_ca", "cert")], "needs control_tls_cert"),
        (&[ADDRESS, TOKEN_FILE, ("control_tls_cert", "cert")], "needs control_tls_key"),
        (&[ADDRESS, TOKEN_FILE, ("control_tls_key", "key")], "needs control_tls_cert"),
        (&[ADDRESS, ("control_token_file", "nothing")], "No such file"),
        (&[ADDRESS, ("control_token_file", "bad")], "1 characters"),
        (
            &[ADDRESS, TOKEN_FILE, ("control_tls_cert", "bad"), ("control_tls_key", "key")],
            "control_tls_cert",
        ),
    ];
    for (rows, part) in cases {
        let settings = settings(&folder, rows);
        let (stop, _stops) = mpsc::channel(1);
        let log = FilterHandle::new("info", |_| Ok(()));
        let daemon = Daemon::new(Arc::new(App::for_tests()), settings.clone(), log, stop);
        let started = Listeners::open(&settings, None)
            .and_then(|listeners| ControlServer::start(listeners, daemon).map(drop));
        let error = format!("{:#}", started.unwrap_err());
        assert!(error.contains(part), "{rows:?}: {error}");
        assert!(!folder.path().join("control.sock").exists(), "{rows:?}");
    }
    let _held = std::os::unix::net::UnixListener::bind(folder.path().join("control.sock")).unwrap();
    let error = Listeners::open(&settings(&folder, &[]), None).map(drop).unwrap_err().to_string();
    assert!(error.contains("control.sock: another process listens there"), "{error}");
}
