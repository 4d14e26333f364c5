//! A hub on a local port, as much of one as downloading takes: the listing of a revision, its commit,
//! and its files.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// The commit every revision of the stub stands for.
pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// How the stub misbehaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Manner {
    #[default]
    Good,
    /// Answers every request with this status.
    Status(u16),
    /// Shows itself only to the token `secret`.
    Private,
    /// Answers downloads of weights with an error page instead of the file.
    ErrorPage,
    /// Takes requests for weights and never answers.
    Silent,
}

pub(super) struct Hub {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    files: BTreeMap<String, Vec<u8>>,
    manner: Mutex<Manner>,
    stopping: Mutex<bool>,
    /// Method and path of every request.
    requests: Mutex<Vec<String>>,
}

impl Hub {
    /// Serves `org/model` with these files.
    pub(super) fn serve(files: &[(&str, &[u8])], manner: Manner) -> Hub {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            files: files.iter().map(|(name, data)| ((*name).to_owned(), data.to_vec())).collect(),
            manner: Mutex::new(manner),
            stopping: Mutex::new(false),
            requests: Mutex::default(),
        });
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let mut handlers = Vec::new();
                for stream in listener.incoming() {
                    if *shared.stopping.lock().unwrap() {
                        break;
                    }
                    let shared = Arc::clone(&shared);
                    handlers.push(std::thread::spawn(move || shared.answer(stream.unwrap())));
                }
                for handler in handlers {
                    handler.join().unwrap();
                }
            }
        });
        Hub { address, shared, thread: Some(thread) }
    }

    pub(super) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn behave(&self, manner: Manner) {
        *self.shared.manner.lock().unwrap() = manner;
    }

    /// Requests so far whose method and path contain `part`.
    pub(super) fn asked(&self, part: &str) -> usize {
        self.shared.requests.lock().unwrap().iter().filter(|line| line.contains(part)).count()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        *self.shared.stopping.lock().unwrap() = true;
        // Wakes the accept.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Answers one request; the connection is then closed.
    fn answer(&self, mut stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut request = String::new();
        if reader.read_line(&mut request).unwrap_or(0) == 0 {
            return;
        }
        let mut token = None;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 || line.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("authorization")
            {
                token = Some(value.trim().to_owned());
            }
        }
        let mut words = request.split(' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let path = path.split('?').next().unwrap();
        self.requests.lock().unwrap().push(format!("{method} {path}"));

        let manner = *self.manner.lock().unwrap();
        let weights = path.ends_with(".safetensors");
        match manner {
            Manner::Status(status) => return send(&mut stream, method, status, &[], b"{}"),
            Manner::Private if token.as_deref() != Some("Bearer secret") => {
                return send(&mut stream, method, 401, &[], b"{\"error\":\"who are you\"}");
            }
            Manner::ErrorPage if weights && method == "GET" => {
                return send(&mut stream, method, 500, &[], b"<html>sorry</html>");
            }
            Manner::Silent if weights => {
                // Until the client gives up and closes.
                let _ = reader.read_line(&mut request);
                return;
            }
            _ => {}
        }
        let (status, headers, body) = self.resource(path);
        send(&mut stream, method, status, &headers, &body);
    }

    fn resource(&self, path: &str) -> (u16, Vec<String>, Vec<u8>) {
        let revision = |rest: &str| rest == "main" || rest == COMMIT;
        if let Some(rest) = path.strip_prefix("/api/models/org/model/tree/")
            && revision(rest)
        {
            let entries: Vec<serde_json::Value> = self
                .files
                .iter()
                .map(|(name, data)| {
                    serde_json::json!({"type": "file", "oid": "0", "path": name, "size": data.len()})
                })
                .collect();
            return (200, Vec::new(), serde_json::to_vec(&entries).unwrap());
        }
        if let Some(rest) = path.strip_prefix("/api/models/org/model/revision/")
            && revision(rest)
        {
            let body = format!("{{\"sha\":\"{COMMIT}\"}}");
            return (200, Vec::new(), body.into_bytes());
        }
        if let Some(rest) = path.strip_prefix("/org/model/resolve/")
            && let Some((rest, name)) = rest.split_once('/')
            && revision(rest)
            && let Some(data) = self.files.get(name)
        {
            let headers = vec![format!("ETag: \"tag-{name}\""), format!("X-Repo-Commit: {COMMIT}")];
            return (200, headers, data.clone());
        }
        (404, Vec::new(), b"{\"error\":\"not found\"}".to_vec())
    }
}

fn send(stream: &mut TcpStream, method: &str, status: u16, headers: &[String], body: &[u8]) {
    let mut text = format!(
        "HTTP/1.1 {status} Status\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    for header in headers {
        text += header;
        text += "\r\n";
    }
    text += "\r\n";
    let mut bytes = text.into_bytes();
    if method != "HEAD" {
        bytes.extend(body);
    }
    // A client that has gone away is its own business.
    let _ = stream.write_all(&bytes);
}
