//! How long an answer may become.

use super::body::Body;
use super::error::ApiError;
use super::params::token_limit;

/// Tokens `/v1/completions` generates when nothing is said; OpenAI's number. Chat goes on to the end of
/// the answer.
const COMPLETION_TOKENS: usize = 16;

/// How long an answer may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// The request says so, by this field; what does not fit the context is refused.
    Asked(&'static str, usize),
    /// The request does not say; no more than fits the context.
    AtMost(usize),
    /// The request does not say, and the context is the limit.
    Context,
}

impl Length {
    /// What a chat says.
    pub fn of_chat(body: &Body) -> Result<Self, ApiError> {
        let older = token_limit(body, "max_tokens", 1)?;
        let newer = token_limit(body, "max_completion_tokens", 1)?;
        match (older, newer) {
            (Some(older), Some(newer)) if older != newer => Err(ApiError::field(
                "max_completion_tokens",
                format!(
                    "max_completion_tokens is {newer} and max_tokens is {older}; send one of them"
                ),
            )),
            (_, Some(count)) => Ok(Self::Asked("max_completion_tokens", count)),
            (Some(count), None) => Ok(Self::Asked("max_tokens", count)),
            (None, None) => Ok(Self::Context),
        }
    }

    /// What a completion says. With `echo` the prompt alone may be asked for.
    pub fn of_completion(body: &Body, echo: bool) -> Result<Self, ApiError> {
        match token_limit(body, "max_tokens", 0)? {
            Some(0) if !echo => Err(ApiError::field(
                "max_tokens",
                "max_tokens is 0; it must be at least 1, or 0 together with \"echo\": true",
            )),
            Some(count) => Ok(Self::Asked("max_tokens", count)),
            None => Ok(Self::AtMost(COMPLETION_TOKENS)),
        }
    }

    /// Tokens to generate after a prompt of `prompt_tokens`, called `name` in errors, in a context of
    /// `context` positions. A prompt is never cut: what does not fit is refused with the numbers.
    pub fn fit(self, name: &str, prompt_tokens: usize, context: usize) -> Result<usize, ApiError> {
        let room = context.checked_sub(prompt_tokens);
        match (self, room) {
            (Self::Asked(_, 0), Some(_)) => Ok(0),
            (_, None | Some(0)) => Err(ApiError::invalid(format!(
                "{name} has {prompt_tokens} tokens; the context of this model is {context} \
                 tokens, prompt and answer together"
            ))
            .with_code("context_length_exceeded")),
            (Self::Asked(field, count), Some(room)) if count > room => Err(ApiError::field(
                field,
                format!(
                    "{field} is {count}; after a prompt of {prompt_tokens} tokens at most {room} \
                     fit the context of {context}"
                ),
            )
            .with_code("context_length_exceeded")),
            (Self::Asked(_, count), Some(_)) => Ok(count),
            (Self::AtMost(count), Some(room)) => Ok(count.min(room)),
            (Self::Context, Some(room)) => Ok(room),
        }
    }
}

/// Refuses an answer that must be longer than it may.
pub fn check_least(min_tokens: usize, max_tokens: usize) -> Result<(), ApiError> {
    if min_tokens > max_tokens {
        return Err(ApiError::field(
            "min_tokens",
            format!("min_tokens is {min_tokens}; the answer has at most {max_tokens} tokens"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::http::fields::Endpoint;

    fn chat(older: Value, newer: Value) -> Result<Length, String> {
        let body = json!({"max_tokens": older, "max_completion_tokens": newer}).to_string();
        let body = Body::parse(Endpoint::Chat, body.as_bytes()).unwrap();
        Length::of_chat(&body).map_err(|error| error.to_string())
    }

    fn completion(max_tokens: Value, echo: bool) -> Result<Length, String> {
        let body = json!({"max_tokens": max_tokens}).to_string();
        let body = Body::parse(Endpoint::Completions, body.as_bytes()).unwrap();
        Length::of_completion(&body, echo).map_err(|error| error.to_string())
    }

    #[test]
    fn the_two_names_of_the_length_agree() {
        assert_eq!(chat(json!(4), json!(null)), Ok(Length::Asked("max_tokens", 4)));
        assert_eq!(chat(json!(4), json!(4)), Ok(Length::Asked("max_completion_tokens", 4)));
        assert_eq!(chat(json!(null), json!(null)), Ok(Length::Context));
        assert_eq!(
            chat(json!(4), json!(5)).unwrap_err(),
            "max_completion_tokens is 5 and max_tokens is 4; send one of them"
        );
        assert_eq!(
            chat(json!(null), json!(0)).unwrap_err(),
            "max_completion_tokens is 0; it must be a whole number from 1 to 4294967295"
        );
    }

    #[test]
    fn only_an_echo_may_have_no_answer() {
        assert_eq!(completion(json!(null), false), Ok(Length::AtMost(16)));
        assert_eq!(completion(json!(3), false), Ok(Length::Asked("max_tokens", 3)));
        assert_eq!(completion(json!(0), true), Ok(Length::Asked("max_tokens", 0)));
        assert_eq!(
            completion(json!(0), false).unwrap_err(),
            "max_tokens is 0; it must be at least 1, or 0 together with \"echo\": true"
        );
        assert_eq!(
            completion(json!(-1), true).unwrap_err(),
            "max_tokens is -1; it must be a whole number from 0 to 4294967295"
        );
    }

    /// M18, S33: a prompt is never cut, and the refusal has both numbers.
    #[test]
    fn what_does_not_fit_is_refused_with_the_numbers() {
        let fit = |length: Length, tokens| length.fit("the prompt", tokens, 64);
        assert_eq!(fit(Length::Context, 10).unwrap(), 54);
        assert_eq!(fit(Length::AtMost(16), 10).unwrap(), 16);
        assert_eq!(fit(Length::AtMost(16), 60).unwrap(), 4);
        assert_eq!(fit(Length::Asked("max_tokens", 4), 60).unwrap(), 4);
        assert_eq!(fit(Length::Asked("max_tokens", 0), 64).unwrap(), 0);
        for length in [Length::Context, Length::AtMost(16), Length::Asked("max_tokens", 1)] {
            let error = fit(length, 64).unwrap_err();
            assert_eq!(
                error.to_string(),
                "the prompt has 64 tokens; the context of this model is 64 tokens, prompt and \
                 answer together"
            );
            assert_eq!(error.to_json()["error"]["code"], "context_length_exceeded");
        }
        let error = Length::Asked("max_tokens", 0).fit("prompt[2]", 65, 64).unwrap_err();
        assert!(error.to_string().starts_with("prompt[2] has 65 tokens; "), "{error}");
        assert_eq!(
            fit(Length::Asked("max_tokens", 5), 60).unwrap_err().to_string(),
            "max_tokens is 5; after a prompt of 60 tokens at most 4 fit the context of 64"
        );
    }

    #[test]
    fn the_least_is_not_more_than_the_most() {
        assert_eq!(check_least(16, 16), Ok(()));
        let error = check_least(17, 16).unwrap_err();
        assert_eq!(error.to_string(), "min_tokens is 17; the answer has at most 16 tokens");
        assert_eq!(error.to_json()["error"]["param"], "min_tokens");
    }
}
