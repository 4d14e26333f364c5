//! The book's page of request fields, written from the table. Only the test that compares it with the
//! file needs it.

use super::fields::{self, Endpoint, Support};

/// What the fields do to answers, after the tables.
const ANSWERS: &str = "\n## Answers\n\n\
- Choices are numbered prompt times `n` plus answer. `usage` counts each prompt once and the tokens of \
all answers, end-of-sequence tokens included.\n\
- `timings`, in the object or on the last chunk: `queue_ms`, `prefill_ms` and `decode_ms` (of the \
slowest prompt), `prefill_calls` (of each prompt, also where prompts share a call), `calls_before_first_token` and \
`rows_before_first_token` (forward calls, whoever they were for, that the engine ended between arrival and \
first token, and their rows; of the prompt that waited for most), `prompt_tokens`, `cached_tokens`, \
`completion_tokens` and `preemptions` (of all prompts). With several prompts `prompts` has the same of \
each.\n\
- Log-probabilities are those of the model itself, before temperature, penalties and bias; minus \
infinity is -9999. The `bytes` of a chat's tokens, one after the other, are the answer, also where a \
token is part of a character; a control token has none, and the last may go on into a stop text. A character that the end of an \
answer or of an echoed prompt cuts off is not shown, but its bytes are here. \
In completions a token that is not whole \
characters is written as `bytes:\\xf0\\x9f`, `text_offset` counts characters, and `top_logprobs` has \
the token itself as well. Tokens that only a stop text has are left out, and so is the token that ends an \
answer.\n\
- If the chat template speaks of `<think>`, the model's reasoning comes as `reasoning_content` and the \
rest as `content`, streamed or not; `logprobs.content` has the tokens of both, marks included. Stop \
texts apply to the whole text. `usage.completion_tokens_details.reasoning_tokens` counts the tokens \
before the answer proper.\n\
- A stream that is silent for 15 seconds gets a comment (`: ping`). An error after its beginning is an \
event with an `error` object and the end, without `[DONE]`. An answer that was cut off by a \
cancellation or a shutdown is such an error, never a choice.\n\
- The header `X-Request-Id` (1 to 128 visible ASCII characters) names a request in the log and for \
`DELETE /v1/requests/{id}`; it comes back with the answer, which has its own id there when none was \
sent.\n";

/// First lines: what to run instead of editing.
const GENERATED: &str = "<!-- Written from the table in runtime/src/http/fields.rs by `UPDATE_DOCS=1 \
                         cargo test --release -p pocketd pages`; do not edit. -->\n\n";

/// `docs/src/api-fields.md`.
fn fields_page() -> String {
    let mut page = format!(
        "{GENERATED}# Fields of requests\n\n\
         Every field of OpenAI's API and the extensions that vLLM's users send, value by value:\n\n\
         - **implemented**: it does what it says; a value out of range is refused with 400, and the \
           message names the field, the value and what is allowed;\n\
         - **inert**: any value is accepted, and nothing depends on it;\n\
         - **only ...**: these values ask for nothing and are accepted; any other is refused by name \
           with 400 (`unsupported_parameter`);\n\
         - **refused**: any value is refused by name; leave it out.\n\n\
         `null` always means \"not given\". A field that is not listed is refused by name with 400 \
         (`unknown_parameter`) and the nearest field there is. `GET /openapi.json` has the same as a \
         JSON schema.\n"
    );
    for endpoint in [Endpoint::Chat, Endpoint::Completions] {
        page += &format!(
            "\n## POST {}\n\n| field | status | meaning |\n| --- | --- | --- |\n",
            endpoint.path()
        );
        for field in fields::of(endpoint) {
            let status =
                status(field.support) + if field.is_required() { ", required" } else { "" };
            page += &format!("| `{}` | {status} | {} |\n", field.name, field.about);
        }
    }
    page + ANSWERS
}

fn status(support: Support) -> String {
    match support {
        Support::Implemented(_) => "implemented".into(),
        Support::Inert => "inert".into(),
        Support::Only([]) => "refused".into(),
        Support::Only(values) => {
            let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
            format!("only {}", values.join(", "))
        }
    }
}

#[test]
fn the_fields_page_is_up_to_date() {
    let page = fields_page();
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/api-fields.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap();
    for (index, (found, expected)) in found.lines().zip(page.lines()).enumerate() {
        assert_eq!(found, expected, "line {} is stale; run with UPDATE_DOCS=1", index + 1);
    }
    assert_eq!(found.len(), page.len(), "the page is stale; run with UPDATE_DOCS=1");
}

#[test]
fn every_field_has_a_row_without_a_bar_in_it() {
    let page = fields_page();
    for field in fields::FIELDS {
        assert!(page.contains(&format!("| `{}` | ", field.name)), "{}", field.name);
    }
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        assert_eq!(row.matches('|').count(), 4, "{row}");
    }
}
