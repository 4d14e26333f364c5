//! Every field a request may carry, in one table: whether it is implemented, inert, or accepted only
//! with the values that ask for nothing. The parser obeys the table and documentation is made from it.
//!
//! The fields are those of OpenAI's API and the extensions vLLM's users send. A `null` always means
//! "not given". What is not in the table is refused by name: a misspelt `max_token` that is silently
//! ignored costs its owner more than a 400.

use serde_json::Value;

/// The routes that take a JSON body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/completions`.
    Completions,
}

impl Endpoint {
    /// Its path.
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
        }
    }
}

/// What happens to a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It does what it says.
    Implemented,
    /// Any value is accepted; nothing depends on it.
    Inert,
    /// Only these values (as JSON), which ask for nothing; others are refused by name.
    Only(&'static [&'static str]),
}

/// One field of a request body.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name in the JSON object.
    pub name: &'static str,
    /// Where it is known.
    pub endpoints: &'static [Endpoint],
    /// What happens to it.
    pub support: Support,
    /// One line for the documentation: meaning, range, default.
    pub about: &'static str,
}

use Endpoint::{Chat, Completions};
use Support::{Implemented, Inert, Only};

const CHAT: &[Endpoint] = &[Chat];
const TEXT: &[Endpoint] = &[Completions];
const BOTH: &[Endpoint] = &[Chat, Completions];

const fn field(
    name: &'static str,
    endpoints: &'static [Endpoint],
    support: Support,
    about: &'static str,
) -> Field {
    Field { name, endpoints, support, about }
}

/// The table.
#[rustfmt::skip]
pub const FIELDS: &[Field] = &[
    // What to answer.
    field("model", BOTH, Implemented, "the served name; absent means the served model"),
    field("messages", CHAT, Implemented, "the conversation; roles system, developer (as system), user, assistant, tool; text only"),
    field("prompt", TEXT, Implemented, "one string or one list of token ids"),
    // How long.
    field("max_tokens", BOTH, Implemented, "most tokens to generate, at least 1; completions: 16 when absent; chat: as many as fit"),
    field("max_completion_tokens", CHAT, Implemented, "the newer name of max_tokens; both must agree"),
    field("stop", BOTH, Implemented, "a string or a list of up to 16; the answer ends before the first one"),
    field("ignore_eos", BOTH, Implemented, "go on past end-of-sequence tokens; default false"),
    // How tokens are chosen.
    field("temperature", BOTH, Implemented, "0 to 2; 0 takes the likeliest token; default from generation_config.json, else 1"),
    field("top_p", BOTH, Implemented, "above 0, at most 1; default from generation_config.json, else 1"),
    field("top_k", BOTH, Implemented, "-1 or 0 keeps all tokens; default from generation_config.json, else all"),
    field("seed", BOTH, Implemented, "a 64-bit integer; the same seed gives the same answer"),
    // How it is delivered.
    field("stream", BOTH, Implemented, "server-sent events instead of one object; default false"),
    field("stream_options", BOTH, Implemented, "with stream only: include_usage adds a last chunk with the usage"),
    field("n", BOTH, Only(&["1"]), "number of answers"),
    // Labels.
    field("user", BOTH, Inert, "a label of the caller"),
    field("metadata", CHAT, Inert, "labels of the caller"),
    field("safety_identifier", CHAT, Inert, "a label of the caller"),
    field("prompt_cache_key", CHAT, Inert, "a hint of OpenAI's cache"),
    field("prompt_cache_retention", CHAT, Inert, "a hint of OpenAI's cache"),
    field("service_tier", CHAT, Only(&["\"auto\"", "\"default\""]), "OpenAI's price classes"),
    field("store", CHAT, Only(&["false"]), "keeping answers at OpenAI"),
    // Not implemented: accepted as far as they ask for nothing.
    field("frequency_penalty", BOTH, Only(&["0"]), "penalty on frequent tokens"),
    field("presence_penalty", BOTH, Only(&["0"]), "penalty on tokens seen"),
    field("repetition_penalty", BOTH, Only(&["1"]), "factor on tokens seen"),
    field("length_penalty", BOTH, Only(&["1"]), "beam search"),
    field("use_beam_search", BOTH, Only(&["false"]), "beam search"),
    field("min_p", BOTH, Only(&["0"]), "least share of the top probability"),
    field("min_tokens", BOTH, Only(&["0"]), "fewest tokens to generate"),
    field("logit_bias", BOTH, Only(&["{}"]), "added to chosen tokens' logits"),
    field("logprobs", CHAT, Only(&["false"]), "log-probabilities of the answer"),
    field("top_logprobs", CHAT, Only(&["0"]), "log-probabilities of alternatives"),
    field("logprobs", TEXT, Only(&[]), "log-probabilities of the answer"),
    field("prompt_logprobs", BOTH, Only(&[]), "log-probabilities of the prompt"),
    field("echo", BOTH, Only(&["false"]), "the prompt before the answer"),
    field("best_of", TEXT, Only(&["1"]), "the best of several answers"),
    field("suffix", TEXT, Only(&["\"\""]), "text after the answer"),
    field("stop_token_ids", BOTH, Only(&["[]"]), "tokens that end the answer"),
    field("include_stop_str_in_output", BOTH, Only(&["false"]), "keep the stop text in the answer"),
    field("skip_special_tokens", BOTH, Only(&["true"]), "leave special tokens out of the text"),
    field("spaces_between_special_tokens", BOTH, Only(&["true"]), "spaces between special tokens"),
    field("truncate_prompt_tokens", BOTH, Only(&[]), "cut a prompt that is too long"),
    field("add_special_tokens", CHAT, Only(&["false"]), "the tokenizer's own special tokens around the prompt"),
    field("add_special_tokens", TEXT, Only(&["true"]), "the tokenizer's own special tokens around the prompt"),
    field("add_generation_prompt", CHAT, Only(&["true"]), "end the prompt with the start of an answer"),
    field("continue_final_message", CHAT, Only(&["false"]), "go on with the last message"),
    field("chat_template", CHAT, Only(&[]), "another template"),
    field("chat_template_kwargs", CHAT, Only(&["{}"]), "variables of the template"),
    field("reasoning_effort", CHAT, Only(&[]), "how long to think"),
    field("verbosity", CHAT, Only(&["\"medium\""]), "how long to answer"),
    field("response_format", CHAT, Only(&["{\"type\":\"text\"}"]), "JSON and schemas"),
    field("tools", CHAT, Only(&["[]"]), "functions the model may call"),
    field("tool_choice", CHAT, Only(&["\"none\"", "\"auto\""]), "which function to call"),
    field("parallel_tool_calls", CHAT, Only(&["true", "false"]), "several calls at once"),
    field("functions", CHAT, Only(&["[]"]), "the older name of tools"),
    field("function_call", CHAT, Only(&["\"none\"", "\"auto\""]), "the older name of tool_choice"),
    field("modalities", CHAT, Only(&["[\"text\"]"]), "kinds of output"),
    field("audio", CHAT, Only(&[]), "spoken output"),
    field("prediction", CHAT, Only(&[]), "text expected in the answer"),
    field("web_search_options", CHAT, Only(&[]), "web search"),
    field("priority", BOTH, Only(&["0"]), "order in the queue"),
];

/// The table's entry for a field of an endpoint.
pub fn find(endpoint: Endpoint, name: &str) -> Option<&'static Field> {
    FIELDS.iter().find(|field| field.name == name && field.endpoints.contains(&endpoint))
}

/// The known name nearest to a misspelt one, when one is near.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 5)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Whether a value is one of those a field with [`Support::Only`] takes. Numbers compare by value:
/// `0` and `0.0` are the same request.
pub fn accepts(allowed: &[&str], value: &Value) -> bool {
    allowed.iter().any(|allowed| {
        let Ok(allowed) = serde_json::from_str::<Value>(allowed) else { return false };
        match (allowed.as_f64(), value.as_f64()) {
            (Some(allowed), Some(value)) => allowed == value,
            _ => allowed == *value,
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_appears_once_an_endpoint_and_every_allowed_value_is_json() {
        for endpoint in [Chat, Completions] {
            let mut names: Vec<_> = FIELDS
                .iter()
                .filter(|field| field.endpoints.contains(&endpoint))
                .map(|field| field.name)
                .collect();
            names.sort_unstable();
            let count = names.len();
            names.dedup();
            assert_eq!(names.len(), count, "{endpoint:?} has a field twice");
        }
        for field in FIELDS {
            assert!(!field.about.is_empty(), "{} is not described", field.name);
            if let Only(values) = field.support {
                for value in values {
                    let value: Value = serde_json::from_str(value)
                        .unwrap_or_else(|error| panic!("{}: {value}: {error}", field.name));
                    assert!(accepts(values, &value), "{}: {value}", field.name);
                }
            }
        }
    }

    #[test]
    fn numbers_compare_by_value_and_the_rest_literally() {
        assert!(accepts(&["0"], &json!(0.0)));
        assert!(!accepts(&["0"], &json!(0.1)));
        assert!(!accepts(&["0"], &json!("0")));
        assert!(!accepts(&["false"], &json!(0)));
        assert!(accepts(&["{\"type\":\"text\"}"], &json!({"type": "text"})));
        assert!(!accepts(&["[]"], &json!([1])));
    }

    #[test]
    fn a_near_name_is_found_and_a_far_one_is_not() {
        let names = || FIELDS.iter().map(|field| field.name);
        assert_eq!(nearest("max_token", names()), Some("max_tokens"));
        assert_eq!(nearest("temprature", names()), Some("temperature"));
        assert_eq!(nearest("zzz", names()), None);
    }
}
