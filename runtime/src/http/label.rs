//! `X-Request-Id`: the name a client gives its request, by which it finds it in logs and may cancel it;
//! and `traceparent`, the trace it belongs to.

use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use pocket_actors::observe::TraceHeaders;
use serde_json::Value;

use super::body::quote;
use super::error::ApiError;

/// Carries the name, in requests and answers.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The W3C's headers of a trace.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// Bytes of the first; later versions may be longer than the 55 of today's.
const MAX_TRACEPARENT: usize = 256;
/// Bytes of the second that everybody passes on.
const MAX_TRACESTATE: usize = 512;

/// Longest name.
const MAX_LENGTH: usize = 128;

/// The name a request has been given, if any.
pub fn given(headers: &HeaderMap) -> Result<Option<HeaderValue>, ApiError> {
    let Some(value) = headers.get(REQUEST_ID) else { return Ok(None) };
    let bytes = value.as_bytes();
    let visible = bytes.iter().all(u8::is_ascii_graphic);
    if visible && (1..=MAX_LENGTH).contains(&bytes.len()) {
        return Ok(Some(value.clone()));
    }
    let shown = quote(&Value::from(String::from_utf8_lossy(bytes)));
    Err(ApiError::field(
        "X-Request-Id",
        format!(
            "the header X-Request-Id is {shown}; it must be 1 to {MAX_LENGTH} visible ASCII characters"
        ),
    ))
}

/// The trace a request belongs to, if its client says so. Whether the header makes sense is for those to
/// judge who keep traces; to them a wrong one is as good as none.
pub fn trace(headers: &HeaderMap) -> Option<TraceHeaders> {
    let text = |name: &HeaderName, longest: usize| {
        let text = headers.get(name)?.to_str().ok()?;
        (text.len() <= longest).then(|| text.to_owned())
    };
    Some(TraceHeaders {
        traceparent: text(&TRACEPARENT, MAX_TRACEPARENT)?,
        tracestate: text(&TRACESTATE, MAX_TRACESTATE).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &[u8]) -> Result<Option<HeaderValue>, String> {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID, HeaderValue::from_bytes(value).unwrap());
        given(&headers).map_err(|error| error.to_string())
    }

    #[test]
    fn a_name_is_a_word_of_visible_characters() {
        assert_eq!(given(&HeaderMap::new()), Ok(None));
        for name in ["a", "run-7/batch:3", &"x".repeat(128)] {
            assert_eq!(of(name.as_bytes()), Ok(Some(HeaderValue::from_str(name).unwrap())));
        }
        for (name, shown) in [
            (&b""[..], "\"\""),
            (b"two words", "\"two words\""),
            ("naïve".as_bytes(), "\"naïve\""),
            (b"\xff", "\"\u{fffd}\""),
        ] {
            let expected = format!(
                "the header X-Request-Id is {shown}; it must be 1 to 128 visible ASCII characters"
            );
            assert_eq!(of(name), Err(expected));
        }
        assert!(of("x".repeat(129).as_bytes()).unwrap_err().contains("xxx..."));
    }
    #[test]
    fn a_trace_is_passed_on_if_it_is_not_too_long() {
        let of = |parent: &str, state: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(TRACEPARENT, HeaderValue::from_str(parent).unwrap());
            headers.insert(TRACESTATE, HeaderValue::from_str(state).unwrap());
            trace(&headers).map(|trace| (trace.traceparent, trace.tracestate))
        };
        assert_eq!(trace(&HeaderMap::new()), None);
        assert_eq!(of("00-1-2-01", "a=1"), Some(("00-1-2-01".to_owned(), "a=1".to_owned())));
        assert_eq!(
            of("00-1-2-01", &"x".repeat(513)),
            Some(("00-1-2-01".to_owned(), String::new()))
        );
        assert_eq!(of(&"x".repeat(257), ""), None);
    }
}
