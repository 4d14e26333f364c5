//! Why a request brought no complete answer.

use std::fmt;

use serde::Serialize;

/// So much of what a server said is kept.
const SHOWN: usize = 500;

/// Why a request brought no complete answer. None of these ends a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Failure {
    /// No connection, or it broke before the answer began.
    Connection {
        /// What the system said.
        reason: String,
    },
    /// The server refused.
    Status {
        /// HTTP status.
        status: u16,
        /// The beginning of what it said.
        body: String,
    },
    /// The server answered, but not with a stream of events.
    NotAStream {
        /// What it calls its answer.
        content_type: String,
        /// The beginning of it.
        body: String,
    },
    /// An error in the stream.
    ErrorEvent {
        /// What it says.
        message: String,
    },
    /// What the server sent cannot be read.
    Malformed {
        /// Why, and the beginning of it.
        reason: String,
    },
    /// The stream ended in the middle.
    Cut {
        /// Chunks with tokens that had come.
        chunks: usize,
        /// What happened.
        reason: String,
    },
    /// The stream is complete, and there was not one token in it.
    NoToken {
        /// How many events there were.
        events: usize,
    },
    /// The answer took longer than a request may.
    Timeout {
        /// What it may take, seconds.
        limit_s: f64,
    },
}

impl Failure {
    /// A refusal, with the beginning of what was said.
    pub fn status(status: u16, body: &str) -> Self {
        // Most say it in OpenAI's form.
        let said = serde_json::from_str(body).map(|value| super::wire::message_of(&value));
        Self::Status { status, body: shown(said.as_deref().unwrap_or(body)) }
    }

    /// Something that cannot be read, and why.
    pub fn malformed(why: &str, what: &str) -> Self {
        Self::Malformed { reason: format!("{why}: {}", shown(what)) }
    }

    /// An answer of another kind.
    pub fn not_a_stream(content_type: &str, body: &str) -> Self {
        Self::NotAStream { content_type: content_type.to_owned(), body: shown(body) }
    }

    /// What it is called in counts.
    pub fn kind(&self) -> &'static str {
        match self {
            Failure::Connection { .. } => "connection",
            Failure::Status { .. } => "status",
            Failure::NotAStream { .. } => "not_a_stream",
            Failure::ErrorEvent { .. } => "error_event",
            Failure::Malformed { .. } => "malformed",
            Failure::Cut { .. } => "cut",
            Failure::NoToken { .. } => "no_token",
            Failure::Timeout { .. } => "timeout",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Connection { reason } => write!(f, "no connection: {reason}"),
            Failure::Status { status, body } if body.is_empty() => write!(f, "HTTP {status}"),
            Failure::Status { status, body } => write!(f, "HTTP {status}: {body}"),
            Failure::NotAStream { content_type, body } => {
                write!(f, "the answer is {content_type:?} and not a stream of events: {body}")
            }
            Failure::ErrorEvent { message } => write!(f, "the server reports: {message}"),
            Failure::Malformed { reason } => write!(f, "an event cannot be read: {reason}"),
            Failure::Cut { chunks, reason } => {
                write!(f, "the stream was cut after {chunks} chunks with tokens: {reason}")
            }
            Failure::NoToken { events } => {
                write!(f, "the answer ended without a token, after {events} events")
            }
            Failure::Timeout { limit_s } => write!(f, "no complete answer within {limit_s} s"),
        }
    }
}

/// The beginning of a text, on one line.
pub fn shown(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_shows_what_the_server_said() {
        let openai = r#"{"error": {"message": "the queue is full", "type": "x"}}"#;
        assert_eq!(Failure::status(429, openai).to_string(), "HTTP 429: the queue is full");
        assert_eq!(
            Failure::status(502, "<h1>Bad\n gateway</h1>").to_string(),
            "HTTP 502: <h1>Bad gateway</h1>"
        );
        assert_eq!(Failure::status(500, "").to_string(), "HTTP 500");
        assert_eq!(shown(&"\u{1f980}".repeat(600)).chars().count(), SHOWN + 3);
    }

    #[test]
    fn kinds_are_those_of_the_json() {
        for failure in [
            Failure::Connection { reason: String::new() },
            Failure::status(500, ""),
            Failure::not_a_stream("text/html", ""),
            Failure::ErrorEvent { message: String::new() },
            Failure::malformed("", ""),
            Failure::Cut { chunks: 0, reason: String::new() },
            Failure::NoToken { events: 1 },
            Failure::Timeout { limit_s: 1.0 },
        ] {
            assert_eq!(serde_json::to_value(&failure).unwrap()["kind"], failure.kind());
        }
    }
}
