//! A small HTTP client for tests: JSON in, JSON or server-sent events out.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;
use ureq::http::{HeaderMap, Response};
use ureq::{Agent, Body, BodyReader};

/// Talks to one server. Every call, a whole stream included, ends within the client's limit.
#[derive(Clone, Debug)]
pub struct Client {
    agent: Agent,
    base: String,
}

/// An answer that has come completely.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: String,
}

impl Reply {
    /// The body as JSON.
    ///
    /// # Errors
    ///
    /// It is not; shows it.
    pub fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.body).with_context(|| format!("not JSON: {:?}", self.body))
    }

    /// The value of a header, if it is there and text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

impl Client {
    /// A client of the server at `base`, such as `http://127.0.0.1:8000`.
    pub fn new(base: impl Into<String>, limit: Duration) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(limit))
            // A test's server may be killed between two calls.
            .max_idle_connections(0)
            .build();
        Self { agent: config.into(), base: base.into() }
    }

    /// GET.
    ///
    /// # Errors
    ///
    /// No connection, or no complete answer within the limit. A status is not an error.
    pub fn get(&self, path: &str) -> anyhow::Result<Reply> {
        reply(self.agent.get(self.url(path)).call()?)
    }

    /// POST of a JSON value.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub fn post(&self, path: &str, body: &Value) -> anyhow::Result<Reply> {
        self.post_text(path, &body.to_string())
    }

    /// POST of any text, declared as JSON.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub fn post_text(&self, path: &str, body: &str) -> anyhow::Result<Reply> {
        reply(self.send(path, body)?)
    }

    /// POST of a JSON value, answered by server-sent events. Dropping the stream hangs up.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get); an answer that is not a stream, which it shows.
    pub fn stream(&self, path: &str, body: &Value) -> anyhow::Result<EventStream> {
        let response = self.send(path, &body.to_string())?;
        let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok());
        if !kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
            bail!("not a stream: {:?}", reply(response)?);
        }
        let headers = response.headers().clone();
        Ok(EventStream { headers, lines: BufReader::new(response.into_body().into_reader()) })
    }

    fn send(&self, path: &str, body: &str) -> anyhow::Result<Response<Body>> {
        let request = self.agent.post(self.url(path)).header("content-type", "application/json");
        Ok(request.send(body)?)
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }
}

fn reply(mut response: Response<Body>) -> anyhow::Result<Reply> {
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let body = response.body_mut().read_to_string()?;
    Ok(Reply { status, headers, body })
}

/// Server-sent events as they come; ends when the server closes the stream.
pub struct EventStream {
    /// Headers of the answer.
    pub headers: HeaderMap,
    lines: BufReader<BodyReader<'static>>,
}

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Its `event:` field; most have none.
    pub name: Option<String>,
    /// Its `data:` lines, joined by line breaks.
    pub data: String,
}

impl Event {
    /// The data as JSON.
    ///
    /// # Errors
    ///
    /// It is not; shows it.
    pub fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.data).with_context(|| format!("not JSON: {:?}", self.data))
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").field("headers", &self.headers).finish_non_exhaustive()
    }
}

impl EventStream {
    fn read(&mut self) -> anyhow::Result<Option<Event>> {
        let mut event = Event::default();
        let mut data: Vec<String> = Vec::new();
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line)? == 0 {
                anyhow::ensure!(data.is_empty(), "the stream ends within an event: {data:?}");
                return Ok(None);
            }
            let line = line.trim_end_matches(['\r', '\n']);
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "" if line.is_empty() && !data.is_empty() => {
                    event.data = data.join("\n");
                    return Ok(Some(event));
                }
                "data" => data.push(value.to_owned()),
                "event" => event.name = Some(value.to_owned()),
                // Comments keep a connection open.
                _ => {}
            }
        }
    }
}

impl Iterator for EventStream {
    type Item = anyhow::Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread::{self, JoinHandle};

    use super::*;
    use crate::wait::PATIENCE;

    /// Serves one connection: reads a request, sends `answer`, and reports what it read, then whether
    /// the client hung up.
    fn serve(answer: &'static str, close: bool) -> (Client, JoinHandle<(String, bool)>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = Client::new(format!("http://{}", listener.local_addr().unwrap()), PATIENCE);
        let server = thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            let mut buffer = [0; 1024];
            // A GET ends with its headers, a POST of these tests with a brace.
            loop {
                let end: &[u8] = if request.starts_with(b"GET") { b"\r\n\r\n" } else { b"}" };
                if request.ends_with(end) {
                    break;
                }
                let count = connection.read(&mut buffer).unwrap();
                request.extend_from_slice(&buffer[..count]);
            }
            connection.write_all(answer.as_bytes()).unwrap();
            let hung_up = !close && matches!(connection.read(&mut buffer), Ok(0) | Err(_));
            (String::from_utf8(request).unwrap(), hung_up)
        });
        (client, server)
    }

    #[test]
    fn a_status_is_an_answer() {
        let (client, server) = serve(
            "HTTP/1.1 503 Service Unavailable\r\nx-why: rank 2\r\ncontent-length: 11\r\n\r\n{\"rank\": 2}",
            true,
        );
        let reply = client.get("/health").unwrap();
        assert_eq!((reply.status, reply.header("x-why")), (503, Some("rank 2")));
        assert_eq!(reply.json().unwrap()["rank"], 2);
        assert!(server.join().unwrap().0.starts_with("GET /health HTTP/1.1\r\n"));
    }

    #[test]
    fn events_are_read_as_they_are_framed() {
        let (client, server) = serve(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
             : comment\n\ndata: {\"a\": 1}\n\nevent: error\r\ndata: one\r\ndata:two\r\n\r\ndata: [DONE]\n\n",
            true,
        );
        let body = serde_json::json!({"stream": true});
        let events: Vec<Event> = client.stream("/v1", &body).unwrap().map(Result::unwrap).collect();
        assert_eq!(events.len(), 3);
        assert_eq!(events[0].json().unwrap()["a"], 1);
        assert_eq!(events[1], Event { name: Some("error".into()), data: "one\ntwo".into() });
        assert_eq!(events[2].data, "[DONE]");
        assert!(server.join().unwrap().0.ends_with("{\"stream\":true}"));
    }

    #[test]
    fn what_is_no_stream_is_shown() {
        let (client, server) = serve("HTTP/1.1 400 Bad\r\ncontent-length: 3\r\n\r\nbad", true);
        let error = client.stream("/v1", &serde_json::json!({})).unwrap_err();
        assert!(error.to_string().contains("status: 400"), "{error}");
        server.join().unwrap();
    }

    #[test]
    fn dropping_a_stream_hangs_up() {
        let (client, server) = serve(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
             9\r\ndata: a\n\n\r\n",
            false,
        );
        let mut stream = client.stream("/v1", &serde_json::json!({})).unwrap();
        assert_eq!(stream.next().unwrap().unwrap().data, "a");
        drop(stream);
        assert!(server.join().unwrap().1);
    }
}
