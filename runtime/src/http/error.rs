//! Errors as OpenAI's clients expect them: `{"error": {"message", "type", "param", "code"}}`.

use std::fmt;
use std::time::Duration;

use actix_web::http::{StatusCode, header};
use actix_web::{HttpResponse, HttpResponseBuilder, ResponseError};
use pocket_actors::api::RequestError;
use serde_json::{Value, json};

/// Seconds a client is asked to wait before it tries again, with 429 and 503.
const RETRY_AFTER_S: u64 = 1;

/// The client closed the connection; no standard has a number for it, nor a phrase.
const CLIENT_CLOSED: u16 = 499;
const CLIENT_CLOSED_PHRASE: &str = "Client Closed Request";

/// A refusal or a failure, on its way to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    /// OpenAI's `type`: the kind of mistake, coarser than the status.
    kind: &'static str,
    /// OpenAI's `code`: what a program may branch on.
    code: Option<&'static str>,
    message: String,
    /// The field of the request that is wrong.
    param: Option<String>,
    /// Methods the route has, for 405.
    allow: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, code: None, message: message.into(), param: None, allow: None }
    }

    /// The request is wrong as a whole: 400.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// One field of the request is wrong: 400.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), code: Some("invalid_value"), ..Self::invalid(message) }
    }

    /// Replaces the code of the error.
    pub fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// No key was shown where one is needed: 401.
    pub fn no_key() -> Self {
        Self {
            status: StatusCode::UNAUTHORIZED,
            ..Self::invalid("an API key is needed; send it as 'Authorization: Bearer KEY'")
                .with_code("missing_api_key")
        }
    }

    /// The key that was shown is none of the server's: 401. It is not repeated, for it may be somebody's.
    pub fn wrong_key() -> Self {
        Self {
            status: StatusCode::UNAUTHORIZED,
            ..Self::invalid("the API key is not one of this server's").with_code("invalid_api_key")
        }
    }

    /// The body did not come within this time: 408.
    pub fn body_too_slow(limit: Duration) -> Self {
        let message =
            format!("the body did not come within {} s (client_timeout)", limit.as_secs_f64());
        Self::new(StatusCode::REQUEST_TIMEOUT, "timeout_error", message)
            .with_code("request_timeout")
    }

    /// The request names a model that is not served: 404.
    pub fn model_not_found(asked: &str, served: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            ..Self::field(
                "model",
                format!("the model '{asked}' does not exist; this server has '{served}'"),
            )
            .with_code("model_not_found")
        }
    }

    /// There is no such route: 404.
    pub fn no_route(method: &str, path: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            ..Self::invalid(format!("there is no {method} {path}")).with_code("unknown_url")
        }
    }

    /// The route exists, with other methods: 405.
    pub fn method_not_allowed(method: &str, path: &str, allow: &'static str) -> Self {
        Self {
            status: StatusCode::METHOD_NOT_ALLOWED,
            allow: Some(allow),
            ..Self::invalid(format!("{path} takes {}, not {method}", allow.replace(", ", " or ")))
                .with_code("method_not_supported")
        }
    }

    /// The body is larger than `limit` bytes: 413.
    pub fn body_too_large(limit: usize) -> Self {
        Self {
            status: StatusCode::PAYLOAD_TOO_LARGE,
            ..Self::invalid(format!("the request body is larger than {limit} bytes"))
                .with_code("request_too_large")
        }
    }

    /// The body is not declared as JSON: 415.
    pub fn not_json(content_type: &str) -> Self {
        let found = match content_type {
            "" => "there is none".to_string(),
            other => format!("it is '{other}'"),
        };
        Self {
            status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ..Self::invalid(format!("Content-Type must be application/json; {found}"))
                .with_code("unsupported_content_type")
        }
    }

    /// The body is encoded in a way that is not undone here: 415.
    pub fn encoded_body(encoding: &str) -> Self {
        Self {
            status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ..Self::invalid(format!(
                "Content-Encoding is '{encoding}'; send the body as it is, without that header"
            ))
            .with_code("unsupported_content_encoding")
        }
    }

    /// There is no live request of this name: 404.
    pub fn no_such_request(id: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            ..Self::field("id", format!("there is no live request '{id}'"))
                .with_code("request_not_found")
        }
    }

    /// The client has gone, or looks as if it had: 499, the number proxies log for it. Only one that
    /// has closed no more than its own side will ever read this.
    pub fn hung_up() -> Self {
        let status = StatusCode::from_u16(CLIENT_CLOSED).unwrap_or(StatusCode::BAD_REQUEST);
        Self {
            status,
            ..Self::invalid(
                "the client closed its side of the connection before its answer was complete",
            )
            .with_code("client_closed_request")
        }
    }

    /// The request's time is over: 504.
    pub fn deadline_exceeded(message: impl Into<String>) -> Self {
        Self {
            code: Some("deadline_exceeded"),
            ..Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", message)
        }
    }

    /// The server cannot take requests now: 503.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self {
            code: Some("unavailable"),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable_error", message)
        }
    }

    /// The server failed: 500.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The object OpenAI's clients read, also as the last event of a stream that fails.
    pub fn to_json(&self) -> Value {
        json!({
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        })
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        let message = error.to_string();
        match error {
            RequestError::Invalid(_) => Self::invalid(message),
            RequestError::QueueFull { .. } => Self {
                code: Some("queue_full"),
                ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            },
            RequestError::DeadlineExceeded(_) => Self::deadline_exceeded(message),
            RequestError::Cancelled => Self::unavailable(message).with_code("cancelled"),
            RequestError::Unread(_) => {
                Self::new(StatusCode::REQUEST_TIMEOUT, "timeout_error", message)
                    .with_code("answer_not_read")
            }
            RequestError::Unavailable(_) => Self::unavailable(message),
            RequestError::RankFailed(_) => Self::internal(message).with_code("rank_failed"),
        }
    }
}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        self.status
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponseBuilder::new(self.status);
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.insert_header((header::RETRY_AFTER, RETRY_AFTER_S));
        }
        if let Some(allow) = self.allow {
            response.insert_header((header::ALLOW, allow));
        }
        match self.status {
            StatusCode::UNAUTHORIZED => {
                response.insert_header((header::WWW_AUTHENTICATE, "Bearer"));
            }
            // What still comes of the request would be taken for the next one.
            StatusCode::REQUEST_TIMEOUT => {
                response.force_close();
            }
            status if status.as_u16() == CLIENT_CLOSED => {
                response.reason(CLIENT_CLOSED_PHRASE);
            }
            _ => {}
        }
        response.json(self.to_json())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engines_refusals_have_their_statuses() {
        let cases = [
            (RequestError::Invalid("prompt is empty".into()), 400, "invalid_request_error"),
            (RequestError::QueueFull { waiting: 8, limit: 8 }, 429, "rate_limit_error"),
            (RequestError::DeadlineExceeded(Duration::from_secs(2)), 504, "timeout_error"),
            (RequestError::Cancelled, 503, "service_unavailable_error"),
            (RequestError::Unread(8), 408, "timeout_error"),
            (RequestError::Unavailable("draining".into()), 503, "service_unavailable_error"),
            (RequestError::RankFailed("rank 2 died".into()), 500, "server_error"),
        ];
        for (error, status, kind) in cases {
            let text = error.to_string();
            let error = ApiError::from(error);
            let response = error.error_response();
            assert_eq!(response.status().as_u16(), status, "{text}");
            assert_eq!(error.to_json()["error"]["type"], kind);
            assert_eq!(error.to_json()["error"]["message"], text.as_str());
            assert_eq!(
                response.headers().contains_key(header::RETRY_AFTER),
                matches!(status, 429 | 503),
                "{text}"
            );
        }
    }

    #[test]
    fn the_object_always_has_its_four_members() {
        let json = ApiError::invalid("no").to_json();
        assert_eq!(
            json.to_string(),
            r#"{"error":{"message":"no","type":"invalid_request_error","param":null,"code":null}}"#
        );
        let json = ApiError::model_not_found("gpt-9", "demo").to_json();
        assert_eq!(json["error"]["param"], "model");
        assert_eq!(json["error"]["code"], "model_not_found");
    }

    #[test]
    fn a_405_says_what_is_allowed() {
        let error = ApiError::method_not_allowed("POST", "/health", "GET, HEAD");
        assert_eq!(error.to_string(), "/health takes GET or HEAD, not POST");
        let response = error.error_response();
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(response.headers().get(header::ALLOW).unwrap(), "GET, HEAD");
    }

    /// What programs go by when a key is asked for.
    #[test]
    fn a_401_says_how_a_key_is_shown() {
        for error in [ApiError::no_key(), ApiError::wrong_key()] {
            let response = error.error_response();
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
            assert_eq!(response.headers().get(header::WWW_AUTHENTICATE).unwrap(), "Bearer");
            assert_eq!(error.to_json()["error"]["type"], "invalid_request_error");
        }
    }

    #[test]
    fn a_client_that_hung_up_has_a_status_of_its_own() {
        assert_eq!(ApiError::hung_up().status_code().as_u16(), 499);
        let response = ApiError::hung_up().error_response();
        assert_eq!(response.head().reason(), "Client Closed Request");
    }
}
