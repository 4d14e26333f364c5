//! Every field a request may carry, in one table: whether it is implemented, inert, or accepted only
//! with the values that ask for nothing. The parser obeys the table; the book's page of fields and the
//! API description are made from it.
//!
//! The fields are those of OpenAI's API and the extensions vLLM's users send. A `null` always means
//! "not given". What is not in the table is refused by name: a misspelt `max_token` that is silently
//! ignored costs its owner more than a 400.

use serde_json::{Map, Value, json};

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
    /// It does what it says. Its values as a JSON schema (as JSON).
    Implemented(&'static str),
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

/// Fields without which a request is refused.
const REQUIRED: &[&str] = &["messages", "prompt"];

const fn field(
    name: &'static str,
    endpoints: &'static [Endpoint],
    support: Support,
    about: &'static str,
) -> Field {
    Field { name, endpoints, support, about }
}

/// The schemas that are long or come more than once.
mod schemas {
    use super::Support::{self, Implemented};

    pub const BOOLEAN: Support = Implemented(r#"{"type":"boolean","default":false}"#);
    pub const PENALTY: Support =
        Implemented(r#"{"type":"number","minimum":-2,"maximum":2,"default":0}"#);
    pub const TOKENS: Support =
        Implemented(r#"{"type":"integer","minimum":1,"maximum":4294967295}"#);
    pub const TOP: Support = Implemented(r#"{"type":"integer","minimum":0,"maximum":20}"#);
    pub const MESSAGES: Support = Implemented(
        r#"{"type":"array","minItems":1,"items":{"anyOf":[
            {"type":"object","required":["role","content"],"additionalProperties":false,"properties":{
                "role":{"type":"string","enum":["system","developer","user","tool"]},
                "content":{"anyOf":[{"type":"string"},{"type":"array","minItems":1,
                    "items":{"type":"object","required":["type","text"],"properties":{
                        "type":{"type":"string","enum":["text"]},"text":{"type":"string"}}}}]},
                "name":{"type":["string","null"]}}},
            {"type":"object","required":["role"],"additionalProperties":false,"properties":{
                "role":{"type":"string","enum":["assistant"]},
                "content":{"type":["string","null"]},"reasoning_content":{"type":["string","null"]},
                "name":{"type":["string","null"]},"refusal":{"type":"null"},"audio":{"type":"null"},
                "function_call":{"type":"null"},"annotations":{"type":["array","null"],"maxItems":0},
                "tool_calls":{"type":["array","null"],"maxItems":0}}},
            {"type":"object","required":["role","content","tool_call_id"],
                "additionalProperties":false,"properties":{
                "role":{"type":"string","enum":["tool"]},"content":{"type":"string"},
                "tool_call_id":{"type":"string"}}}]}}"#,
    );
    pub const PROMPT: Support = Implemented(
        r#"{"anyOf":[{"type":"string","minLength":1},
            {"type":"array","minItems":1,"items":{"type":"integer","minimum":0}},
            {"type":"array","minItems":1,"maxItems":128,"items":{"type":"string","minLength":1}},
            {"type":"array","minItems":1,"maxItems":128,
                "items":{"type":"array","minItems":1,"items":{"type":"integer","minimum":0}}}]}"#,
    );
    pub const STOP: Support = Implemented(
        r#"{"anyOf":[{"type":"string","minLength":1},
            {"type":"array","maxItems":16,"items":{"type":"string","minLength":1}}]}"#,
    );
    pub const STREAM_OPTIONS: Support = Implemented(
        r#"{"type":"object","additionalProperties":false,"properties":{
            "include_usage":{"type":"boolean"},"include_obfuscation":{"enum":[false]},
            "continuous_usage_stats":{"enum":[false]}}}"#,
    );
    pub const LOGIT_BIAS: Support = Implemented(
        r#"{"type":"object","default":{},
            "additionalProperties":{"type":"number","minimum":-100,"maximum":100}}"#,
    );
    pub const IDS: Support =
        Implemented(r#"{"type":"array","default":[],"items":{"type":"integer","minimum":0}}"#);
}

/// The table.
#[rustfmt::skip]
pub const FIELDS: &[Field] = &[
    // What to answer.
    field("model", BOTH, Implemented(r#"{"type":"string"}"#), "the served name; absent means the served model"),
    field("messages", CHAT, schemas::MESSAGES, "the conversation; roles system, developer (as system unless the template knows it), user, assistant, tool; text only; what the template refuses, such as a system message that is not the first, is a 400 with its reason"),
    field("prompt", TEXT, schemas::PROMPT, "one string, one list of token ids, or up to 128 of either in a list, as far as slots and queue have room"),
    field("chat_template_kwargs", CHAT, Implemented(r#"{"type":"object","default":{}}"#), "an object of variables for the chat template, such as enable_thinking; names that are taken (messages, tools, eos_token and the like) are refused"),
    field("n", BOTH, Implemented(r#"{"type":"integer","minimum":1,"maximum":16,"default":1}"#), "answers to each prompt, 1 to 16; answer i is seeded with seed + i"),
    field("best_of", TEXT, Implemented(r#"{"type":"integer","minimum":1,"maximum":16}"#), "accepted when equal to n: all answers are returned, none is chosen among"),
    field("echo", TEXT, schemas::BOOLEAN, "the prompt before each answer, its log-probabilities too when logprobs is given; default false"),
    // How long.
    field("max_tokens", CHAT, schemas::TOKENS, "most tokens to generate, at least 1; as many as fit when absent"),
    field("max_tokens", TEXT, Implemented(r#"{"type":"integer","minimum":0,"maximum":4294967295,"default":16}"#), "most tokens to generate, at least 1 (0 with echo); 16 when absent"),
    field("max_completion_tokens", CHAT, schemas::TOKENS, "the newer name of max_tokens; both must agree"),
    field("min_tokens", BOTH, Implemented(r#"{"type":"integer","minimum":0,"maximum":4294967295,"default":0}"#), "the answer does not end before so many tokens, whatever stops it otherwise; at most max_tokens; default 0"),
    field("stop", BOTH, schemas::STOP, "a string or a list of up to 16; the answer ends before the first one"),
    field("stop_token_ids", BOTH, schemas::IDS, "up to 128 token ids that end the answer as the end-of-sequence token does"),
    field("ignore_eos", BOTH, schemas::BOOLEAN, "go on past end-of-sequence tokens; default false"),
    field("timeout", BOTH, Implemented(r#"{"type":"number","exclusiveMinimum":0,"maximum":86400}"#), "an extension of this server: seconds the request may take, its time in the queue included, above 0 and at most 86400; then it fails with 504"),
    // How tokens are chosen.
    field("temperature", BOTH, Implemented(r#"{"type":"number","minimum":0,"maximum":2}"#), "0 to 2; 0 takes the likeliest token; default from generation_config.json, else 1"),
    field("top_p", BOTH, Implemented(r#"{"type":"number","minimum":1e-45,"maximum":1}"#), "above 0, at most 1; default from generation_config.json, else 1"),
    field("top_k", BOTH, Implemented(r#"{"type":"integer","minimum":-1,"maximum":4294967295}"#), "-1 or 0 keeps all tokens; default from generation_config.json, else all"),
    field("min_p", BOTH, Implemented(r#"{"type":"number","minimum":0,"maximum":1}"#), "0 to 1: least share of the likeliest token's probability; default from generation_config.json, else 0"),
    field("repetition_penalty", BOTH, Implemented(r#"{"type":"number","minimum":1e-45,"maximum":10}"#), "above 0, at most 10: factor against tokens of prompt and answer; default from generation_config.json, else 1"),
    field("presence_penalty", BOTH, schemas::PENALTY, "-2 to 2: taken off the logits of tokens the answer has; default 0"),
    field("frequency_penalty", BOTH, schemas::PENALTY, "-2 to 2: taken off the logits of the answer's tokens, once for each time; default 0"),
    field("logit_bias", BOTH, schemas::LOGIT_BIAS, "an object from token id (as a string) to -100 to 100, added to the token's logit"),
    field("seed", BOTH, Implemented(r#"{"type":"integer"}"#), "a 64-bit integer; the same seed gives the same answer"),
    // How it is delivered.
    field("stream", BOTH, schemas::BOOLEAN, "server-sent events instead of one object; default false"),
    field("stream_options", BOTH, schemas::STREAM_OPTIONS, "with stream only: include_usage adds a last chunk with the usage"),
    field("logprobs", CHAT, schemas::BOOLEAN, "log-probabilities of the answer's tokens; default false"),
    field("top_logprobs", CHAT, schemas::TOP, "with logprobs: true only: so many of the likeliest tokens beside each, 0 to 20; default 0"),
    field("logprobs", TEXT, schemas::TOP, "log-probabilities of the answer's tokens, with so many of the likeliest beside each, 0 to 20 (OpenAI allows 5)"),
    // Labels.
    field("user", BOTH, Inert, "a label of the caller"),
    field("metadata", CHAT, Inert, "labels of the caller"),
    field("safety_identifier", CHAT, Inert, "a label of the caller"),
    field("prompt_cache_key", CHAT, Inert, "a hint of OpenAI's cache"),
    field("prompt_cache_retention", CHAT, Inert, "a hint of OpenAI's cache"),
    field("service_tier", CHAT, Only(&["\"auto\"", "\"default\""]), "OpenAI's price classes"),
    field("store", CHAT, Only(&["false"]), "keeping answers at OpenAI"),
    // Not implemented: accepted as far as they ask for nothing.
    field("length_penalty", BOTH, Only(&["1"]), "beam search"),
    field("use_beam_search", BOTH, Only(&["false"]), "beam search"),
    field("prompt_logprobs", BOTH, Only(&[]), "log-probabilities of the prompt; /v1/completions gives them with echo and logprobs"),
    field("echo", CHAT, Only(&["false"]), "the last message before the answer"),
    field("suffix", TEXT, Only(&["\"\""]), "text after the answer"),
    field("include_stop_str_in_output", BOTH, Only(&["false"]), "keep the stop text in the answer"),
    field("skip_special_tokens", BOTH, Only(&["true"]), "leave special tokens out of the text"),
    field("spaces_between_special_tokens", BOTH, Only(&["true"]), "spaces between special tokens"),
    field("truncate_prompt_tokens", BOTH, Only(&[]), "cut a prompt that is too long"),
    field("allowed_token_ids", BOTH, Only(&[]), "the only tokens that may be chosen"),
    field("bad_words", BOTH, Only(&["[]"]), "texts that may not be generated"),
    field("return_tokens_as_token_ids", BOTH, Only(&["false"]), "token ids instead of texts in logprobs"),
    field("return_token_ids", BOTH, Only(&["false"]), "token ids beside the text"),
    field("add_special_tokens", CHAT, Only(&["false"]), "the tokenizer's own special tokens around the prompt"),
    field("add_special_tokens", TEXT, Only(&["true"]), "the tokenizer's own special tokens around the prompt"),
    field("add_generation_prompt", CHAT, Only(&["true"]), "end the prompt with the start of an answer"),
    field("continue_final_message", CHAT, Only(&["false"]), "go on with the last message"),
    field("chat_template", CHAT, Only(&[]), "another template"),
    field("include_reasoning", CHAT, Only(&["true"]), "leave the reasoning out of the answer"),
    field("reasoning_effort", CHAT, Only(&[]), "how long to think; chat_template_kwargs has the template's own switches"),
    field("verbosity", CHAT, Only(&["\"medium\""]), "how long to answer"),
    field("response_format", CHAT, Only(&["{\"type\":\"text\"}"]), "JSON and schemas"),
    field("structured_outputs", BOTH, Only(&[]), "JSON, schemas and grammars"),
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
    of(endpoint).find(|field| field.name == name)
}

/// The fields of an endpoint.
pub fn of(endpoint: Endpoint) -> impl Iterator<Item = &'static Field> {
    FIELDS.iter().filter(move |field| field.endpoints.contains(&endpoint))
}

impl Field {
    /// Whether a request without it is refused.
    pub fn is_required(&self) -> bool {
        REQUIRED.contains(&self.name)
    }

    /// The JSON schema of its values, `null` for "not given" among them where it may be left out.
    pub fn schema(&self) -> Value {
        let mut schema = match self.support {
            // Every text in the table is a JSON object: the tests read them all.
            Implemented(text) => serde_json::from_str(text).unwrap_or_default(),
            Inert => json!({}),
            Only(values) => {
                let values = values.iter().filter_map(|value| serde_json::from_str(value).ok());
                json!({"enum": values.collect::<Vec<Value>>()})
            }
        };
        if !self.is_required() {
            allow_null(&mut schema);
        }
        schema["description"] = json!(self.about);
        schema
    }
}

fn allow_null(schema: &mut Value) {
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.push(Value::Null);
    }
    if let Some(kind) = schema.get_mut("type") {
        *kind = json!([kind.take(), "null"]);
    }
    if let Some(Value::Array(kinds)) = schema.get_mut("anyOf") {
        kinds.push(json!({"type": "null"}));
    }
}

/// The JSON schema of the body of a request to `endpoint`.
pub fn request_schema(endpoint: Endpoint) -> Value {
    let properties: Map<String, Value> =
        of(endpoint).map(|field| (field.name.to_string(), field.schema())).collect();
    let required: Vec<&str> =
        of(endpoint).filter(|field| field.is_required()).map(|field| field.name).collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
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
mod tests;
