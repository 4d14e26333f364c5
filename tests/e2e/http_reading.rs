//! Reading answers of the HTTP API: whole or streamed, of any number of choices, into one form, so
//! that the two modes can be compared.

use std::collections::BTreeMap;

use pocket_tests::http::Client;
use serde_json::{Value, json};

use crate::http_support::CHAT;

/// A choice, however it was delivered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// What it says.
    pub text: String,
    /// What the model thought before.
    pub reasoning: String,
    /// Its log-probabilities; null for none.
    pub logprobs: Value,
    /// Why it ended.
    pub finish_reason: String,
}

/// All choices of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answers {
    /// In the order of their numbers.
    pub choices: Vec<Choice>,
    /// Tokens of prompts and answers.
    pub usage: Value,
}

impl Answers {
    /// What each choice says.
    pub fn texts(&self) -> Vec<&str> {
        self.choices.iter().map(|choice| choice.text.as_str()).collect()
    }

    /// Generated tokens of all choices.
    pub fn tokens(&self) -> u64 {
        self.usage["completion_tokens"].as_u64().unwrap()
    }
}

/// The answers in one object.
pub fn whole_choices(client: &Client, path: &str, request: &Value) -> Answers {
    let reply = client.post(path, request).unwrap();
    assert_eq!(reply.status, 200, "{request}: {}", reply.body);
    let object = reply.json().unwrap();
    let choices =
        object["choices"].as_array().unwrap().iter().enumerate().map(|(index, choice)| {
            assert_eq!(choice["index"], index, "{object}");
            let (text, reasoning) = texts(path, choice, "message");
            let mut logprobs = Value::Null;
            extend(&mut logprobs, &choice["logprobs"]);
            let finish_reason = choice["finish_reason"].as_str().unwrap().to_owned();
            Choice { text, reasoning, logprobs, finish_reason }
        });
    Answers { choices: choices.collect(), usage: object["usage"].clone() }
}

/// The answers by server-sent events, each of which is checked for its form.
pub fn streamed_choices(client: &Client, path: &str, request: &Value) -> Answers {
    let request = with_stream(request);
    let events: Vec<String> =
        client.stream(path, &request).unwrap().map(|event| event.unwrap().data).collect();
    of_events(path, &events)
}

/// The answers in both modes, which must not differ.
pub fn both_choices(client: &Client, path: &str, request: &Value) -> Answers {
    let whole = whole_choices(client, path, request);
    assert_eq!(streamed_choices(client, path, request), whole, "{path} {request}");
    whole
}

/// The request for a stream that ends with the usage.
pub fn with_stream(request: &Value) -> Value {
    let mut request = request.clone();
    request["stream"] = json!(true);
    request["stream_options"] = json!({"include_usage": true});
    request
}

/// What the events of a stream with usage say.
pub fn of_events(path: &str, events: &[String]) -> Answers {
    let (done, chunks) = events.split_last().expect("events");
    assert_eq!(done, "[DONE]");
    let chunks: Vec<Value> =
        chunks.iter().map(|data| serde_json::from_str(data).unwrap()).collect();
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]), "{chunks:?}");
    let (last, chunks) = chunks.split_last().expect("a chunk with the usage");
    assert_eq!(last["choices"], json!([]), "{last}");
    let mut choices: BTreeMap<u64, Choice> = BTreeMap::new();
    for chunk in chunks {
        assert_eq!(chunk["usage"], Value::Null, "usage comes once: {chunk}");
        let [part] = chunk["choices"].as_array().unwrap().as_slice() else {
            panic!("not one choice: {chunk}")
        };
        let index = part["index"].as_u64().unwrap();
        let opens = !choices.contains_key(&index);
        assert!(opens || part["delta"].get("role").is_none(), "opens twice: {chunk}");
        let choice = choices.entry(index).or_default();
        assert_eq!(choice.finish_reason, "", "a choice goes on after its end: {chunk}");
        let (text, reasoning) = texts(path, part, "delta");
        let reason = part["finish_reason"].as_str().unwrap_or_default();
        let says = !text.is_empty() || !reasoning.is_empty() || !reason.is_empty();
        assert!(says || (opens && path == CHAT), "a chunk says nothing: {chunk}");
        choice.text.push_str(&text);
        choice.reasoning.push_str(&reasoning);
        choice.finish_reason.push_str(reason);
        extend(&mut choice.logprobs, &part["logprobs"]);
    }
    for (number, (index, choice)) in (0..).zip(&choices) {
        assert_eq!(*index, number, "{choices:?}");
        assert_ne!(choice.finish_reason, "", "{index} has no end");
    }
    Answers { choices: choices.into_values().collect(), usage: last["usage"].clone() }
}

/// Text and reasoning of a choice whose message is called `member`.
fn texts(path: &str, choice: &Value, member: &str) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if path == CHAT {
        (text(&choice[member]["content"]), text(&choice[member]["reasoning_content"]))
    } else {
        (text(&choice["text"]), String::new())
    }
}

/// Appends the lists of log-probabilities; none and empty ones are the same.
fn extend(all: &mut Value, more: &Value) {
    let Some(members) = more.as_object() else { return };
    for (name, list) in members {
        let Some(list) = list.as_array().filter(|list| !list.is_empty()) else { continue };
        if !all[name].is_array() {
            all[name] = json!([]);
        }
        all[name].as_array_mut().unwrap().extend(list.iter().cloned());
    }
}
