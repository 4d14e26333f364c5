//! The control plane: bytes that are no HTTP/2 on its socket, and messages that are none over connections
//! that are.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::Context;
use std::thread;

use tokio::runtime::Builder;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codegen::{Body as HttpBody, Bytes, http};
use tonic::transport::{Channel, Endpoint};

use super::connections::{HANGS, sent};
use super::{Numbers, frames, holds, is_unharmed, target};
use crate::control::Place;

/// Damaged connections, and as many damaged messages.
const EACH: usize = 1_000;
const THREADS: usize = 4;

/// Whose messages can be anything: nothing that they may come to ask for does harm.
const HARMLESS: &[&str] = &[
    "/pocket.control.v1.Control/GetStatus",
    "/pocket.control.v1.Control/WatchStatus",
    "/pocket.control.v1.Control/ListRequests",
    "/pocket.control.v1.Control/CancelRequest",
    "/pocket.control.v1.Control/SetFlag",
    "/pocket.control.v1.Control/ListFlags",
    "/pocket.control.v1.Control/GetConfig",
    "/grpc.health.v1.Health/Check",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/pocket.control.v1.Control/Nothing",
    "/no.such.Service/Method",
    "/",
];

/// What must not happen because of half a message.
const HARMFUL: &[&str] = &[
    "/pocket.control.v1.Control/Shutdown",
    "/pocket.control.v1.Control/Drain",
    "/pocket.control.v1.Control/RestartRank",
    "/pocket.control.v1.Control/SetLogFilter",
];

/// The length and the mark that go before a message.
fn framed(compressed: u8, length: usize, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(length).unwrap().to_be_bytes();
    [&[compressed], &length[..], message].concat()
}

/// A body that is no message, or that ends within one.
fn cut_off(numbers: &mut Numbers) -> Vec<u8> {
    let count = numbers.below(60);
    let message = numbers.bytes(count);
    match numbers.below(5) {
        0 => Vec::new(),
        1 => framed(0, message.len() + 1 + numbers.below(1000), &message),
        // Compressed, and nobody said how.
        2 => framed(1, message.len(), &message),
        3 => framed(0, 0xffff_ffff, &message),
        _ => framed(2 + numbers.byte() % 254, message.len(), &message)[..numbers.below(5)].to_vec(),
    }
}

/// A message of fields that may be none.
fn garbled(numbers: &mut Numbers) -> Vec<u8> {
    let count = numbers.below(80);
    let mut message = numbers.bytes(count);
    if numbers.below(2) == 0 {
        // A text that is no UTF-8, in the first field.
        let text = [&[0xff, 0xfe][..], &message].concat();
        message = [&[0x0a, u8::try_from(text.len()).unwrap()][..], &text].concat();
    }
    framed(0, message.len(), &message)
}

fn call(numbers: &mut Numbers) -> http::Request<Body> {
    let harmful = numbers.below(4) == 0;
    let path = numbers.one_of(if harmful { HARMFUL } else { HARMLESS });
    let body = match harmful || numbers.below(2) == 0 {
        true => cut_off(numbers),
        false => garbled(numbers),
    };
    let method = if numbers.below(20) == 0 { http::Method::GET } else { http::Method::POST };
    let mut request = http::Request::builder().method(method).uri(path);
    if numbers.below(10) > 0 {
        request = request.header("content-type", "application/grpc").header("te", "trailers");
    }
    let odd = [
        ("grpc-timeout", "never"),
        ("grpc-timeout", "99999999999H"),
        ("grpc-encoding", "gzip"),
        ("grpc-encoding", "\u{7f}"),
        ("content-type", "text/html"),
        ("x-long", &"y".repeat(5_000)),
    ];
    if numbers.below(3) == 0 {
        let (name, value) = odd[numbers.below(odd.len())];
        request = request.header(
            name,
            http::HeaderValue::from_bytes(value.as_bytes()).unwrap_or(
                // What cannot be sent at all is left to the connections that are no HTTP/2.
                http::HeaderValue::from_static("odd"),
            ),
        );
    }
    // Any body will do that knows nothing of gRPC.
    request.body(Body::new(reqwest::Body::from(body))).unwrap()
}

/// The gRPC status of an answer, wherever it stands; none if the answer is not one of gRPC.
async fn status(response: http::Response<impl HttpBody<Data = Bytes> + Unpin>) -> Option<String> {
    let shown = |headers: &http::HeaderMap| {
        headers.get("grpc-status").map(|status| String::from_utf8_lossy(status.as_bytes()).into())
    };
    let http = response.status();
    assert!(http.as_u16() < 500, "{http}");
    let mut status = shown(response.headers());
    let mut body = response.into_body();
    // The first frames of an answer that has no end are enough.
    for _ in 0..4 {
        match std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            Some(Ok(frame)) => status = frame.trailers_ref().and_then(shown).or(status),
            Some(Err(_)) | None => break,
        }
    }
    status
}

async fn connect(place: &Place) -> Channel {
    let socket = format!("unix:{}", place.socket().display());
    Endpoint::from_shared(socket).unwrap().connect().await.unwrap()
}

/// Sends damaged messages and counts the answers by their status.
async fn call_all(place: &Place) -> BTreeMap<String, usize> {
    let mut numbers = Numbers(5);
    let mut channel = connect(place).await;
    let mut counted = BTreeMap::new();
    for number in 0..EACH {
        let request = call(&mut numbers);
        let shown = format!("call {number}: {request:?}");
        let answer = async {
            let ready =
                |context: &mut Context<'_>| GrpcService::<Body>::poll_ready(&mut channel, context);
            if std::future::poll_fn(ready).await.is_err() {
                return "cut".to_owned();
            }
            match GrpcService::call(&mut channel, request).await {
                Ok(response) => status(response).await.unwrap_or("none".to_owned()),
                Err(_) => "cut".to_owned(),
            }
        };
        let answer =
            timeout(HANGS, answer).await.unwrap_or_else(|_| panic!("left hanging by {shown}"));
        if answer == "cut" {
            channel = connect(place).await;
        }
        *counted.entry(answer).or_insert(0) += 1;
    }
    counted
}

#[test]
fn two_thousand_damaged_frames_and_messages_break_nothing() {
    let place = Place::new();
    let mut daemon = place.steers(target()).start().unwrap();
    // What it takes to answer at all is there before memory is looked at.
    connections(&place, 100, EACH / 5);
    let before = holds(&mut daemon);
    let answered = connections(&place, 1, EACH);
    eprintln!("damaged connections that were answered with something: {answered}");
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let statuses = runtime.block_on(call_all(&place));
    eprintln!("answers to damaged messages by gRPC status: {statuses:?}");
    let good = statuses.get("0").copied().unwrap_or(0);
    assert!(good < EACH / 3, "they were not wrong enough: {statuses:?}");
    assert!(statuses.len() >= 4, "all alike: {statuses:?}");
    let status = place.asked(&["status"]);
    assert_eq!((&status["state"], &status["restarts"]), (&"ready".into(), &0.into()), "{status}");
    assert_eq!(place.ctl(&["health"]).stdout, "SERVING\n");
    is_unharmed(daemon, before);
}

/// Makes so many damaged connections; answers how many were answered.
fn connections(place: &Place, seed: u64, count: usize) -> usize {
    let path = place.socket();
    let attacker = |thread: usize| {
        let path = path.clone();
        move || {
            let mut numbers = Numbers(seed + thread as u64);
            let mut answered = 0;
            for _ in 0..count / THREADS {
                let connection = UnixStream::connect(&path).unwrap();
                connection.set_read_timeout(Some(HANGS)).unwrap();
                let answer =
                    sent(connection, &frames::malformed(&mut numbers), 1 + numbers.below(3));
                answered += usize::from(!answer.is_empty());
            }
            answered
        }
    };
    let threads: Vec<_> = (0..THREADS).map(|thread| thread::spawn(attacker(thread))).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).sum()
}
