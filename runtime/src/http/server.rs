//! The listener and its routes.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::Duration;

use actix_web::body::MessageBody;
use actix_web::dev::{Server, ServiceRequest, ServiceResponse};
use actix_web::guard;
use actix_web::http::ConnectionType;
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::middleware::{Condition, Next, from_fn};
use actix_web::web::{self, Data, PathConfig, ServiceConfig};
use actix_web::{App as Application, HttpRequest, HttpResponse, HttpServer, Resource, Route};

use pocket_config::{Origins, Settings};

use super::error::ApiError;
use super::state::App;
use super::tls::Certificates;
use super::{auth, connection, cors, inference, info, label, metrics, openapi, requests, tokenize};

/// Says on every answer that a flag makes outputs wrong by request, and which.
const OUTPUTS_WRONG: HeaderName = HeaderName::from_static("x-pocket-outputs-wrong");

/// Handlers only parse, tokenize elsewhere and pass events on, so two threads carry many clients.
const THREADS: usize = 2;

/// Longer than clients keep idle connections in their pools, so that it is they who close them: a
/// server that closes first breaks the request that is just being sent.
const KEEP_ALIVE: Duration = Duration::from_secs(75);

/// What the last bytes of answers may take to leave once no request is open.
const FLUSH_LIMIT_S: u64 = 2;

/// Methods of what can be read; HEAD gives the headers of GET.
const READ: &str = "GET, HEAD";
const POST: &str = "POST";
const DELETE: &str = "DELETE";

/// What is listened on.
pub enum Place<'a> {
    /// The first address that a host resolves to, and a port. Only one is taken, so that a free port (0)
    /// is one port and a port in use is an error, not half a server.
    Address(&'a str, u16),
    /// Sockets that listen already.
    Sockets(Vec<TcpListener>),
}

/// How clients reach the server.
#[derive(Clone, Debug)]
pub struct Front {
    /// Connections at a time; more wait until one closes.
    connections: usize,
    /// Whose pages may use the API.
    origins: Option<Origins>,
}

impl Front {
    /// As the settings have it.
    pub fn of(settings: &Settings, connections: usize) -> Self {
        Self { connections, origins: settings.cors_origins.clone() }
    }
}

/// Takes the place and starts to answer there. Also says the address, of several sockets the first one's.
pub fn listen(place: Place<'_>, front: Front, app: Data<App>) -> io::Result<(Server, SocketAddr)> {
    let Front { connections, origins } = front;
    let tls = app.certificates.as_ref().map(Certificates::config).transpose()?;
    let (encrypted, needs_key) = (tls.is_some(), app.keys.are_needed());
    let client_time = app.limits.client_time;
    let server = HttpServer::new(move || {
        let cors = cors::allowing(origins.as_ref(), OUTPUTS_WRONG);
        Application::new()
            .app_data(app.clone())
            // The last is the outermost: an answer without a key has all marks too.
            .wrap(from_fn(auth::check))
            .wrap(from_fn(mark))
            .wrap(Condition::new(origins.is_some(), cors))
            .configure(routes)
            .default_service(web::to(no_route))
    })
    .on_connect(move |connection, data| connection::on_connect(connection, data, client_time))
    .workers(THREADS)
    .max_connections((connections / THREADS).max(1))
    .keep_alive(KEEP_ALIVE)
    .client_request_timeout(client_time)
    // An event is a small packet; without this it may wait for the last one's acknowledgement.
    .tcp_nodelay(true)
    .shutdown_timeout(FLUSH_LIMIT_S)
    .disable_signals();
    let no_address = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let server = match place {
        Place::Address(host, port) => {
            let address = (host, port).to_socket_addrs()?.next().ok_or_else(no_address)?;
            match tls {
                Some(tls) => server.bind_rustls_0_23(address, tls)?,
                None => server.bind(address)?,
            }
        }
        Place::Sockets(sockets) => {
            sockets.into_iter().try_fold(server, |server, socket| match tls.clone() {
                Some(tls) => server.listen_rustls_0_23(socket, tls),
                None => server.listen(socket),
            })?
        }
    };
    let addresses = server.addrs();
    addresses.iter().for_each(|address| warn_if_open(*address, encrypted, needs_key));
    let address = addresses.first().copied().ok_or_else(no_address)?;
    Ok((server.run(), address))
}

/// Warns of what is dangerous where others than this machine's users can reach the address.
fn warn_if_open(address: SocketAddr, encrypted: bool, needs_key: bool) {
    if address.ip().is_loopback() {
        return;
    }
    if !needs_key {
        tracing::warn!(
            reachable = %address,
            "everybody who reaches this address may ask; set api_key or api_key_file, or listen on \
             127.0.0.1"
        );
    } else if !encrypted {
        tracing::warn!(
            reachable = %address,
            "keys go over the network as they are; set tls_cert and tls_key"
        );
    }
}

/// Every route of the API: path, methods, and who answers.
fn table() -> Vec<(&'static str, &'static str, Route)> {
    vec![
        ("/health", READ, read().to(info::health)),
        ("/health/live", READ, read().to(info::live)),
        ("/health/ready", READ, read().to(info::ready)),
        ("/version", READ, read().to(info::version)),
        ("/metrics", READ, read().to(metrics::metrics)),
        ("/openapi.json", READ, read().to(openapi::document)),
        ("/v1/models", READ, read().to(info::models)),
        ("/v1/models/{name:.+}", READ, read().to(info::model)),
        ("/v1/chat/completions", POST, web::post().to(inference::chat)),
        ("/v1/completions", POST, web::post().to(inference::completions)),
        ("/v1/requests/{id:.+}", DELETE, web::delete().to(requests::cancel)),
        ("/tokenize", POST, web::post().to(tokenize::tokenize)),
        ("/detokenize", POST, web::post().to(tokenize::detokenize)),
    ]
}

/// Sets the routes up.
pub fn routes(config: &mut ServiceConfig) {
    // What cannot be part of any path.
    config.app_data(PathConfig::default().error_handler(|_, request| {
        ApiError::no_route(request.method().as_str(), request.path()).into()
    }));
    for (path, methods, route) in table() {
        config.service(resource(path, methods, route));
    }
}

/// GET, and HEAD, of which the server drops the body.
fn read() -> Route {
    web::route().guard(guard::Any(guard::Get()).or(guard::Head()))
}

/// A path with the methods of one route; others are refused by name.
fn resource(path: &str, methods: &'static str, route: Route) -> Resource {
    web::resource(path).route(route).default_service(web::to(
        move |request: HttpRequest| async move {
            Err::<HttpResponse, _>(ApiError::method_not_allowed(
                request.method().as_str(),
                request.path(),
                methods,
            ))
        },
    ))
}

async fn no_route(request: HttpRequest) -> Result<HttpResponse, ApiError> {
    Err(ApiError::no_route(request.method().as_str(), request.path()))
}

/// Adds to every answer the name its request was given, and what holds for the server as a whole: a
/// flag that makes outputs wrong, and, while it drains, that this connection takes no further request.
async fn mark(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    let app = request.app_data::<Data<App>>().cloned();
    let name = label::given(request.headers());
    // The flag may be set or unset while the answer is computed, which is then partly wrong.
    let wrong_before = app.as_ref().and_then(|app| outputs_wrong(app));
    let mut response = next.call(request).await?;
    if let Ok(Some(name)) = name {
        response.headers_mut().insert(label::REQUEST_ID, name);
    }
    if let Some(app) = app {
        if let Some(flag) = outputs_wrong(&app).or(wrong_before) {
            response.headers_mut().insert(OUTPUTS_WRONG, flag);
        }
        if app.is_draining() {
            response.response_mut().head_mut().set_connection_type(ConnectionType::Close);
        }
    }
    Ok(response)
}

/// The header's value while a flag makes outputs wrong by request: which, and why.
fn outputs_wrong(app: &App) -> Option<HeaderValue> {
    let reason = app.serving()?.engine.outputs_wrong()?;
    // Names, values and meanings are printable; were one not, the header must be there all the same.
    Some(HeaderValue::from_str(&reason).unwrap_or(HeaderValue::from_static("see /health")))
}

#[cfg(test)]
mod tests {
    use actix_web::http::{Method, StatusCode, header};
    use actix_web::test::{self, TestRequest};
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    /// Answers of a server whose model is not there yet: what can be said without an engine.
    async fn ask(app: &Data<App>, request: TestRequest) -> (StatusCode, header::HeaderMap, Value) {
        let service = test::init_service(
            Application::new()
                .app_data(app.clone())
                .wrap(from_fn(auth::check))
                .wrap(from_fn(mark))
                .configure(routes)
                .default_service(web::to(no_route)),
        )
        .await;
        let response = test::call_service(&service, request.to_request()).await;
        let (status, headers) = (response.status(), response.headers().clone());
        (status, headers, test::read_body_json(response).await)
    }

    fn front() -> Front {
        Front::of(&Settings::default(), 2)
    }

    fn starting() -> Data<App> {
        Data::new(App::for_tests())
    }

    #[actix_web::test]
    async fn unknown_routes_and_methods_have_open_ais_error_shape() {
        let app = starting();
        let (status, _, body) = ask(&app, TestRequest::get().uri("/v1/nothing")).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        assert_eq!(body["error"]["message"], "there is no GET /v1/nothing");
        assert_eq!(body["error"]["code"], "unknown_url");
        for (method, path, allow) in [
            (Method::GET, "/v1/completions", POST),
            (Method::GET, "/v1/chat/completions", POST),
            (Method::DELETE, "/health", READ),
            (Method::POST, "/v1/models", READ),
            (Method::POST, "/v1/models/a/b", READ),
            (Method::PUT, "/version", READ),
            (Method::POST, "/metrics", READ),
            (Method::GET, "/tokenize", POST),
            (Method::GET, "/v1/requests/cmpl-1", DELETE),
        ] {
            let request = TestRequest::default().method(method.clone()).uri(path);
            let (status, headers, body) = ask(&app, request).await;
            assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
            assert_eq!(headers.get(header::ALLOW).unwrap(), allow);
            let takes = allow.replace(", ", " or ");
            assert_eq!(body["error"]["message"], format!("{path} takes {takes}, not {method}"));
        }
    }

    /// O8, K10: a route that is not in the description is found by nobody, a key's owner included.
    #[actix_web::test]
    async fn every_route_is_described_and_no_other() {
        let (_, _, document) = ask(&starting(), TestRequest::get().uri("/openapi.json")).await;
        let mut described: Vec<(String, String)> = Vec::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            described.extend(
                methods
                    .as_object()
                    .unwrap()
                    .keys()
                    .map(|method| (path.clone(), method.to_uppercase())),
            );
        }
        let mut routed: Vec<(String, String)> = table()
            .into_iter()
            .map(|(path, methods, _)| {
                let method = methods.split(',').next().unwrap_or(methods);
                (path.replace(":.+", ""), method.to_owned())
            })
            .collect();
        described.sort();
        routed.sort();
        assert_eq!(described, routed);
    }

    #[actix_web::test]
    async fn a_starting_server_says_so() {
        let app = starting();
        app.set_loaded(0.5);
        let (status, _, body) = ask(&app, TestRequest::get().uri("/health")).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(body, json!({"state": "starting", "loaded": 0.5}));
        let (status, _, body) = ask(&app, TestRequest::get().uri("/health/ready")).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(body, json!({"ready": false, "state": "starting"}));
        let (status, _, body) = ask(&app, TestRequest::get().uri("/health/live")).await;
        assert_eq!((status, body), (StatusCode::OK, json!({"live": true})));
        let chat = TestRequest::post().uri("/v1/chat/completions").set_json(json!({}));
        let (status, headers, body) = ask(&app, chat).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(headers.get(header::RETRY_AFTER).unwrap(), "1");
        assert_eq!(body["error"]["message"], "the model is loading, 50 % of its weights are there");
        for request in [
            TestRequest::get().uri("/v1/models"),
            TestRequest::get().uri("/metrics"),
            TestRequest::delete().uri("/v1/requests/cmpl-1"),
            TestRequest::post().uri("/tokenize").set_json(json!({"prompt": "a"})),
        ] {
            let (status, _, body) = ask(&app, request).await;
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(body["error"]["code"], "unavailable");
        }
        let (status, _, body) = ask(&app, TestRequest::get().uri("/version")).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(body["version"], env!("CARGO_PKG_VERSION"));
    }

    #[actix_web::test]
    async fn a_request_keeps_its_name_on_every_route() {
        let app = starting();
        for path in ["/version", "/v1/nothing", "/v1/completions"] {
            let named = TestRequest::get().uri(path).insert_header((label::REQUEST_ID, "mine"));
            let (_, headers, _) = ask(&app, named).await;
            assert_eq!(headers.get(label::REQUEST_ID).unwrap(), "mine", "{path}");
        }
        let completion = || TestRequest::post().uri("/v1/completions").set_json(json!({}));
        let (status, headers, _) = ask(&app, completion()).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        let own = headers.get(label::REQUEST_ID).unwrap().to_str().unwrap();
        assert!(own.starts_with("cmpl-"), "{own}");
        let wrong = completion().insert_header((label::REQUEST_ID, "two words"));
        let (status, _, body) = ask(&app, wrong).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert_eq!(body["error"]["param"], "X-Request-Id");
    }

    #[actix_web::test]
    async fn a_draining_server_refuses_and_closes() {
        let app = starting();
        app.set_draining();
        let (status, _, body) = ask(&app, TestRequest::get().uri("/health")).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(body["state"], "draining");
        let chat = TestRequest::post().uri("/v1/completions").set_json(json!({"prompt": "a"}));
        let (status, _, body) = ask(&app, chat).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(body["error"]["message"], "the server is shutting down");
    }

    /// HEAD has GET's status and headers, and no body to wait for.
    #[actix_web::test]
    async fn what_can_be_read_answers_head_too() {
        let (server, address) =
            listen(Place::Address("127.0.0.1", 0), front(), starting()).unwrap();
        let handle = server.handle();
        actix_web::rt::spawn(server);
        let mut client = TcpStream::connect(address).await.unwrap();
        let request = b"HEAD /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        client.write_all(request).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("content-type: application/json"), "{answer}");
        assert!(answer.ends_with("\r\n\r\n"), "{answer}");
        handle.stop(false).await;
    }

    #[actix_web::test]
    async fn a_port_in_use_is_an_error_and_port_0_is_one_port() {
        let held = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = held.local_addr().unwrap().port();
        let error =
            listen(Place::Address("127.0.0.1", port), front(), starting()).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let (server, address) =
            listen(Place::Address("127.0.0.1", 0), front(), starting()).unwrap();
        assert_ne!(address.port(), 0);
        let handle = server.handle();
        let running = actix_web::rt::spawn(server);
        handle.stop(false).await;
        running.await.unwrap().unwrap();
    }
}
