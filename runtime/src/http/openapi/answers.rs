//! The schemas of answers to chats and completions, whole and in chunks, and of errors.

use serde_json::{Value, json};

use super::schema::{
    count, list, null, nullable, number, object, one_of, partial, reference, text,
};

/// Why a choice ended.
const REASONS: &[&str] = &["stop", "length"];

/// By name.
pub fn schemas() -> Vec<(&'static str, Value)> {
    vec![
        ("Error", error()),
        ("ChatAnswer", answer("chat.completion", message_choice())),
        ("ChatChunk", chunk("chat.completion.chunk", delta_choice())),
        ("CompletionAnswer", answer("text_completion", text_choice(one_of(REASONS)))),
        ("CompletionChunk", chunk("text_completion", text_choice(nullable(one_of(REASONS))))),
        ("Usage", usage()),
        ("Timings", timings()),
        ("ChatLogprobs", chat_logprobs()),
        ("CompletionLogprobs", completion_logprobs()),
    ]
}

fn error() -> Value {
    object([(
        "error",
        object([
            ("message", text()),
            ("type", text()),
            ("param", nullable(text())),
            ("code", nullable(text())),
        ]),
    )])
}

fn answer(kind: &str, choice: Value) -> Value {
    object([
        ("id", text()),
        ("object", json!({"const": kind})),
        ("created", count()),
        ("model", text()),
        ("system_fingerprint", text()),
        ("choices", list(choice)),
        ("usage", reference("Usage")),
        ("timings", reference("Timings")),
    ])
}

/// Usage and timings are in the last chunk only; where usage was asked for, it is null before that.
fn chunk(kind: &str, choice: Value) -> Value {
    partial(
        [
            ("id", text()),
            ("object", json!({"const": kind})),
            ("created", count()),
            ("model", text()),
            ("system_fingerprint", text()),
            ("choices", list(choice)),
        ],
        [("usage", nullable(reference("Usage"))), ("timings", reference("Timings"))],
    )
}

fn message_choice() -> Value {
    let message = partial(
        [("role", json!({"const": "assistant"})), ("content", text()), ("refusal", null())],
        [("reasoning_content", nullable(text()))],
    );
    object([
        ("index", count()),
        ("message", message),
        ("logprobs", nullable(reference("ChatLogprobs"))),
        ("finish_reason", one_of(REASONS)),
    ])
}

fn delta_choice() -> Value {
    let delta = partial(
        [],
        [
            ("role", json!({"const": "assistant"})),
            ("content", text()),
            ("reasoning_content", text()),
        ],
    );
    object([
        ("index", count()),
        ("delta", delta),
        ("logprobs", nullable(reference("ChatLogprobs"))),
        ("finish_reason", nullable(one_of(REASONS))),
    ])
}

fn text_choice(reason: Value) -> Value {
    object([
        ("index", count()),
        ("text", text()),
        ("logprobs", nullable(reference("CompletionLogprobs"))),
        ("finish_reason", reason),
    ])
}

fn usage() -> Value {
    object([
        ("prompt_tokens", count()),
        ("completion_tokens", count()),
        ("total_tokens", count()),
        ("prompt_tokens_details", object([("cached_tokens", count())])),
        ("completion_tokens_details", object([("reasoning_tokens", count())])),
    ])
}

fn timings() -> Value {
    let mut all = times();
    // Only where there are several prompts.
    all["properties"]["prompts"] = list(times());
    all
}

fn times() -> Value {
    object([
        ("queue_ms", number()),
        ("prefill_ms", number()),
        ("decode_ms", number()),
        ("prefill_calls", count()),
        ("calls_before_first_token", count()),
        ("rows_before_first_token", count()),
        ("prompt_tokens", count()),
        ("cached_tokens", count()),
        ("completion_tokens", count()),
        ("preemptions", count()),
    ])
}

fn chat_logprobs() -> Value {
    let bytes = list(json!({"type": "integer", "minimum": 0, "maximum": 255}));
    let candidate = object([("token", text()), ("logprob", number()), ("bytes", bytes.clone())]);
    let token = object([
        ("token", text()),
        ("logprob", number()),
        ("bytes", bytes),
        ("top_logprobs", list(candidate)),
    ]);
    object([("content", list(token)), ("refusal", null())])
}

fn completion_logprobs() -> Value {
    let likeliest = json!({"type": "object", "additionalProperties": number()});
    object([
        ("tokens", list(text())),
        ("token_logprobs", list(nullable(number()))),
        ("top_logprobs", list(nullable(likeliest))),
        ("text_offset", list(count())),
    ])
}

#[cfg(test)]
mod tests {
    use pocket_actors::api::{FinishReason, Timings};

    use super::*;

    fn members(value: &Value) -> Vec<&str> {
        let mut names: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// A member that is added to an answer and not here would be noticed by nobody.
    #[test]
    fn timings_and_errors_have_the_members_described() {
        let described = times();
        let sent = json!(Timings::default());
        assert_eq!(members(&described["properties"]), members(&sent));
        let sent = crate::http::error::ApiError::invalid("no").to_json();
        let described = error();
        let described = &described["properties"]["error"]["properties"];
        assert_eq!(members(described), members(&sent["error"]));
    }

    #[test]
    fn every_reason_an_answer_may_have_is_described() {
        for reason in [FinishReason::Stop, FinishReason::Length] {
            assert!(REASONS.contains(&json!(reason).as_str().unwrap()));
        }
        // Half an answer is an error.
        assert!(!REASONS.contains(&json!(FinishReason::Cancelled).as_str().unwrap()));
    }
}
