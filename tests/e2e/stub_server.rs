//! Servers that stream in odd ways, over real sockets: what a load client must cope with.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use pocket_tests::wait::PATIENCE;
use serde_json::{Value, json};

/// How a request is answered: its number from 0, its body, and the connection.
type Answer = dyn Fn(usize, &Value, &mut Connection) + Send + Sync;

/// A server of `/v1/completions` and `/v1/chat/completions` that answers as it was told; it lists one
/// model, `stub`. It ends when it is dropped.
pub struct StubServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    listening: Option<JoinHandle<()>>,
}

struct Shared {
    answer: Box<Answer>,
    asked: AtomicUsize,
    ending: AtomicBool,
    gate: Gate,
}

/// Counts requests, and lets answers wait for a count.
#[derive(Default)]
struct Gate {
    seen: Mutex<usize>,
    changed: Condvar,
}

impl Gate {
    fn count(&self) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    /// Waits until so many requests have come, or for a fault's time.
    fn wait(&self, count: usize) {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(seen, PATIENCE, |seen| *seen < count);
        drop(waited);
    }
}

/// A client's connection, its request read.
pub struct Connection {
    stream: TcpStream,
    shared: Arc<Shared>,
}

impl StubServer {
    /// Starts it.
    pub fn start(answer: impl Fn(usize, &Value, &mut Connection) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            answer: Box::new(answer),
            asked: AtomicUsize::new(0),
            ending: AtomicBool::new(false),
            gate: Gate::default(),
        });
        let serving = shared.clone();
        let listening = thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if serving.ending.load(Ordering::SeqCst) {
                    return;
                }
                let shared = serving.clone();
                thread::spawn(move || Connection { stream, shared }.serve());
            }
        });
        Self { address, shared, listening: Some(listening) }
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Generating requests so far.
    pub fn asked(&self) -> usize {
        self.shared.asked.load(Ordering::SeqCst)
    }
}

impl Drop for StubServer {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        // A connection wakes the listener, which then ends.
        let _ = TcpStream::connect(self.address);
        if let Some(listening) = self.listening.take() {
            let _ = listening.join();
        }
    }
}

impl Connection {
    /// Answers one request and closes. A client that has gone is no error.
    fn serve(mut self) {
        let Some((path, body)) = self.read() else { return };
        match path.as_str() {
            "/v1/completions" | "/v1/chat/completions" => {
                let number = self.shared.asked.fetch_add(1, Ordering::SeqCst);
                self.shared.gate.count();
                let shared = self.shared.clone();
                (shared.answer)(number, &body, &mut self);
            }
            // Where `llama-server` says which it is.
            "/props" => self.whole(200, &json!({"build_info": "b1"}).to_string()),
            "/v1/models" => self.whole(200, &json!({"data": [{"id": "stub"}]}).to_string()),
            _ => self.whole(404, "no such route"),
        }
    }

    fn read(&mut self) -> Option<(String, Value)> {
        let mut reader = BufReader::new(self.stream.try_clone().ok()?);
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let path = line.split(' ').nth(1)?.to_owned();
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length").and_then(|length| length.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body).ok()?;
        Some((path, serde_json::from_slice(&body).unwrap_or_default()))
    }

    /// An answer in one piece.
    pub fn whole(&mut self, status: u16, body: &str) {
        self.write(&format!(
            "HTTP/1.1 {status} -\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n{body}",
            body.len()
        ));
    }

    /// Begins a stream; its end is the connection's.
    pub fn stream(&mut self) {
        self.write(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n",
        );
    }

    /// Begins a stream that promises more than it holds: its end is a fault.
    pub fn stream_to_be_cut(&mut self) {
        self.write(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 100000\r\n\
             connection: close\r\n\r\n",
        );
    }

    /// Events, all in one write.
    pub fn events(&mut self, events: &[Value]) {
        let text: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
        self.write(&text);
    }

    /// The end of a complete answer of so many tokens, and `[DONE]`.
    pub fn end(&mut self, tokens: usize) {
        self.last(&[], tokens);
    }

    /// The same after some events, all in one write.
    pub fn last(&mut self, events: &[Value], tokens: usize) {
        let usage = json!({"prompt_tokens": 8, "completion_tokens": tokens});
        let end = [finish("stop"), json!({"choices": [], "usage": usage})];
        let events = events.iter().chain(&end).map(|event| format!("data: {event}\n\n"));
        self.write(&(events.collect::<String>() + "data: [DONE]\n\n"));
    }

    /// Waits until so many requests have come.
    pub fn wait_for_requests(&self, count: usize) {
        self.shared.gate.wait(count);
    }

    /// Waits until the client has gone.
    pub fn wait_for_hangup(&mut self) {
        let _ = self.stream.set_read_timeout(Some(PATIENCE));
        // Clients send nothing more, so that anything read is the end.
        let _ = self.stream.read(&mut [0]);
    }

    fn write(&mut self, text: &str) {
        let _ = self.stream.write_all(text.as_bytes());
    }
}

/// A piece of text.
pub fn text(text: &str) -> Value {
    json!({"choices": [{"index": 0, "text": text, "finish_reason": null}]})
}

/// A piece of a chat.
pub fn delta(delta: Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
}

/// The end of a choice, without text.
pub fn finish(reason: &str) -> Value {
    json!({"choices": [{"index": 0, "text": "", "finish_reason": reason}]})
}
