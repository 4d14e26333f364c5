//! Sends one request and reads its stream.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use eventsource_stream::Eventsource;
use futures_util::{FutureExt, StreamExt};
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::failure::Failure;
use super::reading::{Answer, Reading};
use super::tally::Tally;
use super::{LoadError, Planned, Prompt};

/// Which of OpenAI's two generating routes a server is asked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// `/v1/completions`: a text or token ids are continued.
    Completions,
    /// `/v1/chat/completions`: a user's message is answered.
    Chat,
}

impl Backend {
    /// Its name as an option and in results.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Completions => "openai",
            Backend::Chat => "openai-chat",
        }
    }

    /// Where it is, below the server's address.
    pub fn path(self) -> &'static str {
        match self {
            Backend::Completions => "/v1/completions",
            Backend::Chat => "/v1/chat/completions",
        }
    }
}

/// Who is asked, and what every request has.
#[derive(Clone, Debug)]
pub struct Target {
    /// The server, such as `http://127.0.0.1:8000`, without a slash at the end.
    pub base_url: String,
    /// The route below it.
    pub endpoint: String,
    /// How requests are written.
    pub backend: Backend,
    /// Name of the model; a server of one model may not need it.
    pub model: Option<String>,
    /// Headers of every request, the API key's included.
    pub headers: HeaderMap,
    /// Members of every request's body, over those that are set here.
    pub extra_body: Map<String, Value>,
    /// Ask for answers of full length, past end-of-sequence tokens.
    pub ignore_eos: bool,
    /// What one request may take.
    pub timeout: Duration,
}

/// Sends requests to one server. Connections are kept and used again.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    target: Arc<Target>,
}

/// What came of a request. Times are seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// When it was sent, after the beginning of the run.
    pub started: f64,
    /// Tokens of its prompt, as far as they are known before it is sent.
    pub planned_prompt: Option<usize>,
    /// Tokens asked for.
    pub planned_output: usize,
    /// The answer, or why there is none.
    pub answer: Result<Answer, Failure>,
    /// From sending to the end, whatever it was.
    pub took: f64,
    /// It was sent a second time, because the server had closed the connection that it first went over.
    pub resent: bool,
}

impl Outcome {
    /// Tokens of the prompt: by the plan where that is exact, else by the server.
    pub fn prompt_tokens(&self) -> Option<usize> {
        let counted = self.answer.as_ref().ok().and_then(|answer| answer.prompt_tokens);
        counted.or(self.planned_prompt)
    }
}

impl Client {
    /// A client of `target`.
    ///
    /// # Errors
    ///
    /// The TLS library cannot be set up.
    pub fn new(target: Target) -> Result<Self, LoadError> {
        let mut builder = reqwest::Client::builder()
            .tcp_nodelay(true)
            // A load test is not to be held up by its own economy.
            .pool_max_idle_per_host(usize::MAX)
            .redirect(reqwest::redirect::Policy::none());
        if is_local(&target.base_url) {
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|error| LoadError::Client(causes(&error)))?;
        Ok(Self { http, target: Arc::new(target) })
    }

    /// Who is asked.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The HTTP client, for questions about the server.
    pub fn http(&self) -> &reqwest::Client {
        &self.http
    }

    /// Sends a request and waits for the end of its answer. `began` is when the run did.
    pub async fn ask(&self, planned: &Planned, began: Instant, tally: &Tally) -> Outcome {
        let body = Bytes::from(self.body(planned).to_string());
        let sent = Instant::now();
        tally.sent();
        let limit = self.target.timeout;
        let mut resent = false;
        let exchange = self.exchange(body, sent, tally, &mut resent);
        let answer = match tokio::time::timeout(limit, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::Timeout { limit_s: limit.as_secs_f64() }),
        };
        tally.ended(answer.is_ok());
        Outcome {
            started: sent.duration_since(began).as_secs_f64(),
            planned_prompt: planned.prompt_tokens,
            planned_output: planned.output_tokens,
            answer,
            took: sent.elapsed().as_secs_f64(),
            resent,
        }
    }

    async fn exchange(
        &self,
        body: Bytes,
        sent: Instant,
        tally: &Tally,
        resent: &mut bool,
    ) -> Result<Answer, Failure> {
        let url = format!("{}{}", self.target.base_url, self.target.endpoint);
        let send = || {
            self.http
                .post(&url)
                .header(CONTENT_TYPE, "application/json")
                .headers(self.target.headers.clone())
                .body(body.clone())
                .send()
        };
        let response = match send().await {
            Err(error) if broke_off(&error) => {
                *resent = true;
                send().await
            }
            response => response,
        };
        let response = response.map_err(|error| Failure::Connection { reason: causes(&error) })?;
        let status = response.status();
        if !status.is_success() {
            // The status is the news; a body that breaks off does not hide it.
            let body = response.text().await.unwrap_or_default();
            return Err(Failure::status(status.as_u16(), &body));
        }
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().to_owned();
        if !kind.starts_with("text/event-stream") {
            let body = response.text().await.unwrap_or_default();
            return Err(Failure::not_a_stream(&kind, &body));
        }
        read(response, sent, tally).await
    }

    fn body(&self, planned: &Planned) -> Value {
        let target = &self.target;
        let mut body = Map::new();
        if let Some(model) = &target.model {
            body.insert("model".into(), json!(model));
        }
        match target.backend {
            Backend::Completions => {
                let prompt = match &planned.prompt {
                    Prompt::Text(text) => json!(text),
                    Prompt::Ids(ids) => json!(ids),
                };
                body.insert("prompt".into(), prompt);
                body.insert("max_tokens".into(), json!(planned.output_tokens));
            }
            Backend::Chat => {
                let content = match &planned.prompt {
                    Prompt::Text(text) => json!(text),
                    // No server takes these in a chat, and each says so.
                    Prompt::Ids(ids) => json!(ids),
                };
                body.insert("messages".into(), json!([{"role": "user", "content": content}]));
                body.insert("max_completion_tokens".into(), json!(planned.output_tokens));
            }
        }
        if target.ignore_eos {
            body.insert("ignore_eos".into(), json!(true));
        }
        body.insert("stream".into(), json!(true));
        body.insert("stream_options".into(), json!({"include_usage": true}));
        body.extend(target.extra_body.clone());
        Value::Object(body)
    }
}

/// Reads a stream to its end. All events of one read of the socket have its time.
async fn read(
    response: reqwest::Response,
    sent: Instant,
    tally: &Tally,
) -> Result<Answer, Failure> {
    let arrived = Arc::new(Arrived::default());
    let stamp = arrived.clone();
    let mut events = response
        .bytes_stream()
        .inspect(move |_| stamp.set(sent.elapsed().as_secs_f64()))
        .eventsource();
    let mut reading = Reading::default();
    while !reading.is_done() {
        match events.next().await {
            None => break,
            Some(Ok(event)) => {
                let before = reading.chunks();
                if reading.take(arrived.get(), &event.data)? {
                    tally.first_token(arrived.get());
                }
                tally.tokens(reading.chunks() - before);
            }
            Some(Err(error)) => {
                return Err(Failure::Cut { chunks: reading.chunks(), reason: causes(&error) });
            }
        }
    }
    // What ends the body is mostly there already; with it read the connection can be used again.
    let _ = events.next().now_or_never();
    reading.finish()
}

/// Whether a connection ended without a byte of an answer. `llama-server` closes connections after a stream
/// and promises to keep them; whoever has sent the next request by then learns it so, and clients that people
/// use send it again.
fn broke_off(error: &reqwest::Error) -> bool {
    let mut cause: Option<&dyn Error> = error.source();
    while let Some(error) = cause {
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message) {
            return true;
        }
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(kind, Some(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// When the latest bytes of a stream came.
#[derive(Debug, Default)]
struct Arrived(AtomicU64);

impl Arrived {
    fn set(&self, seconds: f64) {
        self.0.store(seconds.to_bits(), Ordering::Relaxed);
    }

    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

/// Whether the server is on this machine, where no proxy is of use.
fn is_local(base_url: &str) -> bool {
    let host = reqwest::Url::parse(base_url).ok().and_then(|url| url.host_str().map(str::to_owned));
    host.is_some_and(|host| {
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    })
}

/// An error and what is below it, on one line: the outermost alone seldom says what happened.
pub(super) fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(cause) = below {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        below = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(backend: Backend, extra: Value) -> Client {
        let Value::Object(extra_body) = extra else { panic!("not an object") };
        Client::new(Target {
            base_url: "http://127.0.0.1:1".to_owned(),
            endpoint: backend.path().to_owned(),
            backend,
            model: Some("demo".to_owned()),
            headers: HeaderMap::new(),
            extra_body,
            ignore_eos: true,
            timeout: Duration::from_secs(1),
        })
        .unwrap()
    }

    fn planned(prompt: Prompt) -> Planned {
        Planned { prompt, prompt_tokens: Some(2), output_tokens: 5 }
    }

    #[test]
    fn requests_are_written_as_each_route_has_them() {
        let completions = client(Backend::Completions, json!({"temperature": 0}));
        assert_eq!(
            completions.body(&planned(Prompt::Ids(vec![3, 4]))),
            json!({
                "model": "demo", "prompt": [3, 4], "max_tokens": 5, "ignore_eos": true, "stream": true,
                "stream_options": {"include_usage": true}, "temperature": 0,
            })
        );
        let chat = client(Backend::Chat, json!({"stream_options": {}}));
        assert_eq!(
            chat.body(&planned(Prompt::Text("hi".to_owned()))),
            json!({
                "model": "demo", "messages": [{"role": "user", "content": "hi"}],
                "max_completion_tokens": 5, "ignore_eos": true, "stream": true, "stream_options": {},
            })
        );
    }

    #[test]
    fn no_proxy_stands_before_this_machine() {
        for local in ["http://127.0.0.1:8000", "http://[::1]:80", "http://localhost:1"] {
            assert!(is_local(local), "{local}");
        }
        for far in ["http://10.0.0.1:8000", "https://example.org", "nonsense"] {
            assert!(!is_local(far), "{far}");
        }
    }
}
