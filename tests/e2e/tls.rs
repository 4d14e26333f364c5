//! HTTPS, with real handshakes: who is believed, and a certificate that is renewed while the server runs.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

use pocket_tests::daemon::{Daemon, DaemonOptions};
use pocket_tests::generate::{End, Script};
use pocket_tests::wait::{PATIENCE, until};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http_support::{CHAT, COMPLETIONS, Scripted, asks, post_text, reload};

/// Who signs certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// A new one, whom nobody knows.
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its own certificate, in PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for this name and its key, in PEM.
    pub fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }
}

/// A folder with the files of a server's certificate.
struct Files(TempDir);

impl Files {
    fn new((cert, key): &(String, String)) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        files.put(cert, key);
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn put(&self, cert: &str, key: &str) {
        fs::write(self.path("cert.pem"), cert).unwrap();
        fs::write(self.path("key.pem"), key).unwrap();
    }

    /// The same daemon with TLS.
    fn encrypt(&self, options: DaemonOptions) -> DaemonOptions {
        let path = |name| self.path(name).to_str().unwrap().to_owned();
        options.args(["--tls-cert", &path("cert.pem"), "--tls-key", &path("key.pem")])
    }
}

/// A model that never ends its answer, on a device that takes 10 ms a call.
fn endless() -> (Scripted, DaemonOptions) {
    let script = Script::pieces(["one ", "two "]).unwrap().then(End::LoopTo(0)).unwrap();
    let model = Scripted::new(&script);
    let daemon = model.daemon().env("POCKET_CALL_DELAY_US", "10000");
    (model, daemon)
}

type Connection = StreamOwned<ClientConnection, TcpStream>;

/// A connection to a server that `authority` vouches for, once its handshake is done.
fn connect(address: SocketAddr, authority: &Authority) -> Result<Connection, std::io::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut stream = StreamOwned::new(connection, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

/// The certificate the server shows in a new handshake.
fn shown(daemon: &Daemon, authority: &Authority) -> Vec<u8> {
    let stream = connect(daemon.address(), authority).unwrap();
    stream.conn.peer_certificates().unwrap()[0].to_vec()
}

fn der(pem: &str) -> Vec<u8> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec()
}

/// Sends a request and reads to the end of the connection.
fn raw(daemon: &Daemon, authority: &Authority, request: &str) -> String {
    let mut stream = connect(daemon.address(), authority).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // Some ends come without the closing words.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn wait_ready(daemon: &Daemon, authority: &Authority) {
    let request = "GET /health/ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    until("readiness over HTTPS", PATIENCE, || {
        raw(daemon, authority, request).starts_with("HTTP/1.1 200 ").then_some(())
    })
    .unwrap();
}

/// What an HTTP client of everyday makes of the server, if it believes in this authority alone.
async fn chat(daemon: &Daemon, authority: &Authority) -> reqwest::Result<Value> {
    let root = reqwest::Certificate::from_pem(authority.pem().as_bytes())?;
    let client = reqwest::Client::builder().tls_certs_only([root]).timeout(PATIENCE).build()?;
    let url = format!("https://{}{CHAT}", daemon.address());
    let mut request = asks("Hi");
    request["max_tokens"] = json!(4);
    client.post(url).json(&request).send().await?.error_for_status()?.json().await
}

#[test]
fn a_client_that_knows_the_authority_chats_and_others_do_not() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let files = Files::new(&authority.issue("127.0.0.1"));
    let (_model, options) = endless();
    let daemon = files.encrypt(options).start_loading().unwrap();
    wait_ready(&daemon, &authority);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answer = runtime.block_on(chat(&daemon, &authority)).unwrap();
    assert_eq!(answer["choices"][0]["message"]["content"], "one two one two ");
    let refused = runtime.block_on(chat(&daemon, &stranger)).unwrap_err();
    assert!(refused.is_connect(), "{refused:?}");
    assert!(connect(daemon.address(), &stranger).is_err());
    // Without TLS there is nothing to be had.
    let mut plain = TcpStream::connect(daemon.address()).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    plain.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(daemon.stop(PATIENCE).unwrap().status.code(), Some(0));
}

#[test]
fn a_renewed_certificate_is_shown_without_a_restart() {
    let authority = Authority::new();
    let first = authority.issue("127.0.0.1");
    let files = Files::new(&first);
    let (_model, options) = endless();
    let mut daemon = files.encrypt(options).start_loading().unwrap();
    wait_ready(&daemon, &authority);
    assert_eq!(shown(&daemon, &authority), der(&first.0));
    // A stream that is under way all the time.
    let mut stream = connect(daemon.address(), &authority).unwrap();
    let request = json!({
        "prompt": "Go:", "max_tokens": 2000, "temperature": 0, "ignore_eos": true, "stream": true,
    });
    stream.write_all(post_text(COMPLETIONS, "", &request).as_bytes()).unwrap();
    let mut beginning = [0; 64];
    stream.read_exact(&mut beginning).unwrap();
    assert!(beginning.starts_with(b"HTTP/1.1 200 OK"));

    let second = authority.issue("127.0.0.1");
    files.put(&second.0, &second.1);
    assert_eq!(shown(&daemon, &authority), der(&first.0), "not before it is told to");
    reload(&mut daemon, "certificate reloaded");
    assert_eq!(shown(&daemon, &authority), der(&second.0));

    // Files that are of no use change nothing, and the log says why.
    let third = authority.issue("127.0.0.1");
    for (cert, key, why) in [
        (third.0.as_str(), second.1.as_str(), "do not go together"),
        ("nothing\n", third.1.as_str(), "no certificate in PEM"),
        (third.0.as_str(), "", "no private key in PEM"),
    ] {
        files.put(cert, key);
        reload(&mut daemon, "the certificate stays as it was");
        assert!(daemon.log().contains(why), "{why}: {}", daemon.log());
        assert_eq!(shown(&daemon, &authority), der(&second.0));
    }
    files.put(&third.0, &third.1);
    reload(&mut daemon, "certificate reloaded");
    assert_eq!(shown(&daemon, &authority), der(&third.0));

    // The stream has seen nothing of it.
    let mut more = [0; 4096];
    for _ in 0..5 {
        assert!(stream.read(&mut more).unwrap() > 0);
    }
    drop(stream);
    let stopped = daemon.stop(PATIENCE).unwrap();
    assert_eq!(stopped.status.code(), Some(0), "{stopped:?}");
    for (_, key) in [&first, &second, &third] {
        let secret = key.lines().nth(1).unwrap();
        assert!(!stopped.stderr.contains(secret), "a private key is in the log");
    }
}
