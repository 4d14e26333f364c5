//! From the engine's events to what a client reads: one object, or server-sent events.
//!
//! Both are folds over the same events, so the concatenated stream is the whole answer. A stream ends
//! with `[DONE]` exactly when the answer is complete; a failure after the headers were sent is an
//! error event and then the end.

use pocket_actors::api::{Event, FinishReason, RequestError, Timings};

use super::error::ApiError;
use super::reply::{ChunkUsage, Identity};

/// An answer as its pieces come in.
#[derive(Debug)]
pub struct Whole {
    identity: Identity,
    text: String,
}

impl Whole {
    /// An answer without text yet.
    pub fn new(identity: Identity) -> Self {
        Self { identity, text: String::new() }
    }

    /// Takes an event; the last one gives the object or the error.
    pub fn take(&mut self, event: Event) -> Option<Result<String, ApiError>> {
        match event {
            Event::Token { text, .. } => {
                self.text.push_str(&text);
                None
            }
            Event::Finished { reason, text, timings, .. } => {
                self.text.push_str(&text);
                log_finished(&self.identity, reason, &timings);
                Some(match reason {
                    FinishReason::Cancelled => Err(cancelled()),
                    _ => Ok(self.identity.whole(&self.text, reason, &timings)),
                })
            }
            Event::Failed(error) => Some(Err(failure(&self.identity, error))),
        }
    }
}

/// An answer as a stream of server-sent events.
#[derive(Debug)]
pub struct Chunks {
    identity: Identity,
    usage: ChunkUsage,
    opened: bool,
    ended: bool,
}

impl Chunks {
    /// A stream nothing was sent on yet.
    pub fn new(identity: Identity, include_usage: bool) -> Self {
        let usage = if include_usage { ChunkUsage::AtTheEnd } else { ChunkUsage::Absent };
        Self { identity, usage, opened: false, ended: false }
    }

    /// Whether the last event was taken.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// The bytes an event becomes; none for a token that completed no text. The opening chunk waits
    /// for the first token, so that a client's time to first chunk is its time to first token.
    pub fn take(&mut self, event: Event) -> String {
        let mut out = String::new();
        self.ended = !matches!(event, Event::Token { .. });
        match event {
            Event::Token { text, .. } => {
                self.open(&mut out);
                self.piece(&text, &mut out);
            }
            Event::Finished { reason, text, timings, .. } => {
                self.open(&mut out);
                self.piece(&text, &mut out);
                if reason == FinishReason::Cancelled {
                    data(&cancelled().to_json().to_string(), &mut out);
                } else {
                    for chunk in self.identity.closing(reason, &timings, self.usage) {
                        data(&chunk, &mut out);
                    }
                    data("[DONE]", &mut out);
                }
                log_finished(&self.identity, reason, &timings);
            }
            Event::Failed(error) => {
                let error = failure(&self.identity, error);
                data(&error.to_json().to_string(), &mut out);
            }
        }
        out
    }

    fn open(&mut self, out: &mut String) {
        if !std::mem::replace(&mut self.opened, true)
            && let Some(chunk) = self.identity.opening(self.usage)
        {
            data(&chunk, out);
        }
    }

    fn piece(&self, text: &str, out: &mut String) {
        if !text.is_empty() {
            data(&self.identity.piece(text, self.usage), out);
        }
    }
}

/// Appends one server-sent event. JSON has no raw line breaks, so one `data:` line holds it.
fn data(payload: &str, out: &mut String) {
    out.push_str("data: ");
    out.push_str(payload);
    out.push_str("\n\n");
}

/// Half an answer must not look like a whole one: who cancels, or is cut off by a shutdown, gets an
/// error.
fn cancelled() -> ApiError {
    ApiError::unavailable("the request was cancelled before its answer was complete")
        .with_code("cancelled")
}

/// What a client hears when the engine drops a request without a last event; it should not happen.
pub fn lost() -> Event {
    Event::Failed(RequestError::RankFailed(
        "the engine stopped before the answer was complete".into(),
    ))
}

fn log_finished(identity: &Identity, reason: FinishReason, timings: &Timings) {
    tracing::info!(
        id = identity.id,
        ?reason,
        prompt_tokens = timings.prompt_tokens,
        completion_tokens = timings.completion_tokens,
        queue_ms = timings.queue_ms,
        prefill_ms = timings.prefill_ms,
        decode_ms = timings.decode_ms,
        "request finished"
    );
}

fn failure(identity: &Identity, error: RequestError) -> ApiError {
    tracing::warn!(id = identity.id, %error, "request failed");
    error.into()
}

#[cfg(test)]
mod tests {
    use pocket_actors::api::EngineCounters;
    use serde_json::{Value, json};

    use super::*;
    use crate::http::fields::Endpoint;

    fn token(text: &str) -> Event {
        Event::Token { id: 7, text: text.into() }
    }

    fn finished(text: &str, reason: FinishReason) -> Event {
        Event::Finished {
            reason,
            text: text.into(),
            timings: Timings { prompt_tokens: 4, completion_tokens: 3, ..Timings::default() },
            counters: EngineCounters::default(),
        }
    }

    /// The payloads of a stream, read the way a client does.
    fn streamed(endpoint: Endpoint, include_usage: bool, events: Vec<Event>) -> Vec<String> {
        let mut chunks = Chunks::new(Identity::new(endpoint, "demo"), include_usage);
        let text: String = events.into_iter().map(|event| chunks.take(event)).collect();
        assert!(text.ends_with("\n\n"), "{text}");
        text.split_terminator("\n\n")
            .map(|event| {
                assert_eq!(event.lines().count(), 1, "{event}");
                event.strip_prefix("data: ").unwrap().to_string()
            })
            .collect()
    }

    fn json_of(payload: &str) -> Value {
        serde_json::from_str(payload).unwrap()
    }

    #[test]
    fn the_stream_is_the_whole_answer_in_pieces() {
        let events = || {
            vec![
                token("Gr"),
                token(""),
                token("üße 🎉"),
                token("\n\nline\r\n"),
                finished(" held", FinishReason::Stop),
            ]
        };
        for endpoint in [Endpoint::Chat, Endpoint::Completions] {
            let payloads = streamed(endpoint, false, events());
            assert_eq!(payloads.last().unwrap(), "[DONE]");
            let streamed: String = payloads[..payloads.len() - 1]
                .iter()
                .map(|payload| {
                    let choice = json_of(payload)["choices"][0].clone();
                    let text = match endpoint {
                        Endpoint::Chat => &choice["delta"]["content"],
                        Endpoint::Completions => &choice["text"],
                    };
                    text.as_str().unwrap_or_default().to_string()
                })
                .collect();
            let mut whole = Whole::new(Identity::new(endpoint, "demo"));
            let object = events().into_iter().find_map(|event| whole.take(event)).unwrap().unwrap();
            let choice = &json_of(&object)["choices"][0];
            let text = match endpoint {
                Endpoint::Chat => &choice["message"]["content"],
                Endpoint::Completions => &choice["text"],
            };
            assert_eq!(text, "Grüße 🎉\n\nline\r\n held");
            assert_eq!(text.as_str().unwrap(), streamed);
        }
    }

    #[test]
    fn a_chat_stream_opens_with_the_role_at_the_first_token_and_sends_no_empty_text() {
        let payloads = streamed(
            Endpoint::Chat,
            false,
            vec![token(""), token("a"), finished("", FinishReason::Length)],
        );
        let deltas: Vec<_> = payloads[..payloads.len() - 1]
            .iter()
            .map(|payload| json_of(payload)["choices"][0]["delta"].clone())
            .collect();
        assert_eq!(
            deltas,
            [json!({"role": "assistant", "content": ""}), json!({"content": "a"}), json!({})]
        );
    }

    #[test]
    fn an_answer_without_any_token_is_still_a_stream() {
        let payloads = streamed(Endpoint::Chat, true, vec![finished("", FinishReason::Stop)]);
        assert_eq!(payloads.len(), 4, "{payloads:?}");
        assert_eq!(json_of(&payloads[0])["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(json_of(&payloads[1])["choices"][0]["finish_reason"], "stop");
        assert_eq!(json_of(&payloads[2])["usage"]["completion_tokens"], 3);
        assert_eq!(payloads[3], "[DONE]");
    }

    /// S2, S33: the error is an event, before or after the first token, and nothing follows it.
    #[test]
    fn a_failure_is_the_last_event_of_a_stream() {
        let failed = || Event::Failed(RequestError::RankFailed("rank 2 was killed".into()));
        for events in [vec![failed()], vec![token("a"), failed()]] {
            let payloads = streamed(Endpoint::Chat, true, events);
            let error = &json_of(payloads.last().unwrap())["error"];
            assert_eq!(error["message"], "rank 2 was killed");
            assert_eq!(error["type"], "server_error");
        }
    }

    #[test]
    fn a_cancelled_answer_is_an_error_after_the_text_there_is() {
        let events = vec![token("half"), finished(" an", FinishReason::Cancelled)];
        let payloads = streamed(Endpoint::Completions, true, events.clone());
        let [first, second, error] = payloads.as_slice() else { panic!("{payloads:?}") };
        assert_eq!(json_of(first)["choices"][0]["text"], "half");
        assert_eq!(json_of(second)["choices"][0]["text"], " an");
        assert_eq!(json_of(error)["error"]["code"], "cancelled");
        let mut whole = Whole::new(Identity::new(Endpoint::Completions, "demo"));
        let end = events.into_iter().find_map(|event| whole.take(event)).unwrap();
        assert_eq!(end.unwrap_err().to_json()["error"]["code"], "cancelled");
    }

    #[test]
    fn a_failure_of_a_whole_answer_is_an_error() {
        let mut whole = Whole::new(Identity::new(Endpoint::Completions, "demo"));
        assert_eq!(whole.take(token("half")).map(|end| end.is_ok()), None);
        let error = whole.take(lost()).unwrap().unwrap_err();
        assert_eq!(error.to_json()["error"]["code"], "rank_failed");
    }
}
