//! `X-Request-Id`: the name a client gives its request, by which it finds it in logs and may cancel it.

use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::body::quote;
use super::error::ApiError;

/// Carries the name, in requests and answers.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

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
}
