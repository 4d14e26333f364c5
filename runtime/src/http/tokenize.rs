//! `POST /tokenize` and `POST /detokenize`: what a text or a chat is to the model, in vLLM's form.
//!
//! With `messages` the tokens are those of a chat with the same `messages` and
//! `chat_template_kwargs`, so their number is its `usage.prompt_tokens`.

use std::sync::Arc;

use actix_web::web::{self, Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use serde_json::{Map, Value, json};

use super::body::{self, Body, kind, wrong};
use super::error::ApiError;
use super::fields::{self, Endpoint};
use super::inference::json_body;
use super::params;
use super::request::{Conversation, conversation};
use super::state::{App, ServedModel};

/// A field of one of the two bodies.
pub struct Member {
    /// Its name.
    pub name: &'static str,
    /// One line.
    pub about: &'static str,
}

const fn member(name: &'static str, about: &'static str) -> Member {
    Member { name, about }
}

/// Fields of `/tokenize`. Those of a chat are read as a chat's are.
pub const TOKENIZE: &[Member] = &[
    member("model", "the served name; absent means the served model"),
    member("prompt", "a text; this or messages"),
    member("messages", "a conversation as in /v1/chat/completions; this or prompt"),
    member("chat_template_kwargs", "with messages: variables of the chat template"),
    member("add_generation_prompt", "with messages: end with the start of an answer; default true"),
    member(
        "add_special_tokens",
        "the tokenizer's own special tokens around the text; default true with prompt, false with \
         messages",
    ),
    member("return_token_strs", "the text of each token too; default false"),
];

/// Fields of `/detokenize`.
pub const DETOKENIZE: &[Member] = &[
    member("model", "the served name; absent means the served model"),
    member("tokens", "token ids of the model's vocabulary"),
];

/// `POST /tokenize`.
pub async fn tokenize(
    request: HttpRequest,
    app: Data<App>,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    let max_messages = app.limits.messages;
    let work = move |body: &[u8], model: &ServedModel| tokens_of(body, model, max_messages);
    answer(request, app.into_inner(), payload, work).await
}

/// `POST /detokenize`.
pub async fn detokenize(
    request: HttpRequest,
    app: Data<App>,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    answer(request, app.into_inner(), payload, text_of).await
}

async fn answer(
    request: HttpRequest,
    app: Arc<App>,
    payload: Payload,
    work: impl FnOnce(&[u8], &ServedModel) -> Result<Value, ApiError> + Send + 'static,
) -> Result<HttpResponse, ApiError> {
    let (serving, _open) = app.admit()?;
    let body = json_body(&request, payload, &app.limits).await?;
    // A long text takes a while; the server's threads have other clients to serve.
    let answer = web::block(move || work(&body, &serving.model))
        .await
        .map_err(|_| ApiError::internal("the request could not be read"))??;
    Ok(HttpResponse::Ok().json(answer))
}

fn tokens_of(body: &[u8], model: &ServedModel, max_messages: usize) -> Result<Value, ApiError> {
    let given = Given::parse("/tokenize", TOKENIZE, body)?;
    given.check_model(&model.name)?;
    let asked = Asked::read(&given, max_messages)?;
    let text = &model.text;
    let (what, source, special) = match asked.source {
        Source::Prompt(prompt) => ("prompt", prompt, true),
        Source::Chat(conversation, generation_prompt) => {
            ("messages", text.render(&conversation, generation_prompt)?.1, false)
        }
    };
    let tokens = text.encode(what, &source, asked.special.unwrap_or(special))?;
    let strings = asked.strings.then(|| {
        let string = |id: &u32| String::from_utf8_lossy(text.tokenizer.token_bytes(*id));
        tokens.iter().map(|id| string(id).into_owned()).collect::<Vec<_>>()
    });
    Ok(json!({
        "count": tokens.len(),
        "max_model_len": model.context,
        "tokens": tokens,
        "token_strs": strings,
    }))
}

fn text_of(body: &[u8], model: &ServedModel) -> Result<Value, ApiError> {
    let given = Given::parse("/detokenize", DETOKENIZE, body)?;
    given.check_model(&model.name)?;
    let ids = match given.get("tokens") {
        None => return Err(missing("tokens is missing", "tokens")),
        Some(Value::Array(list)) => params::token_ids("tokens", list, model.vocab_size)?,
        Some(value) => return Err(wrong("tokens", value, "a list of token ids")),
    };
    let mut decoder = model.text.tokenizer.stream_with_special();
    let mut text: String = ids.iter().map(|&id| decoder.push(id)).collect();
    if decoder.is_inside_character() {
        text.push(char::REPLACEMENT_CHARACTER);
    }
    Ok(json!({"prompt": text}))
}

/// What `/tokenize` is asked.
#[derive(Debug, PartialEq)]
struct Asked {
    source: Source,
    special: Option<bool>,
    strings: bool,
}

#[derive(Debug, PartialEq)]
enum Source {
    Prompt(String),
    /// With or without the start of an answer.
    Chat(Conversation, bool),
}

impl Asked {
    fn read(given: &Given, max_messages: usize) -> Result<Self, ApiError> {
        let generation_prompt = given.boolean("add_generation_prompt")?;
        let source = match (given.text("prompt")?, given.get("messages")) {
            (Some(_), Some(_)) => {
                return Err(ApiError::field("messages", "prompt and messages are given; send one"));
            }
            (None, None) => return Err(missing("prompt or messages is missing", "prompt")),
            (Some(prompt), None) => {
                for name in ["chat_template_kwargs", "add_generation_prompt"] {
                    if given.get(name).is_some() {
                        let message = format!("{name} is only allowed together with messages");
                        return Err(ApiError::field(name, message));
                    }
                }
                Source::Prompt(prompt.to_owned())
            }
            (None, Some(_)) => {
                Source::Chat(given.conversation(max_messages)?, generation_prompt.unwrap_or(true))
            }
        };
        Ok(Self {
            source,
            special: given.boolean("add_special_tokens")?,
            strings: given.boolean("return_token_strs")?.unwrap_or(false),
        })
    }
}

/// The fields of a body that are not null.
struct Given(Map<String, Value>);

impl Given {
    fn parse(path: &str, known: &[Member], bytes: &[u8]) -> Result<Self, ApiError> {
        let value = body::json(bytes)?;
        let Value::Object(mut fields) = value else {
            return Err(ApiError::invalid(format!(
                "the body must be a JSON object, not {}",
                kind(&value)
            )));
        };
        fields.retain(|_, value| !value.is_null());
        for name in fields.keys() {
            let names = || known.iter().map(|member| member.name);
            if !names().any(|known| known == name) {
                let hint = fields::nearest(name, names())
                    .map(|near| format!("; did you mean '{near}'?"))
                    .unwrap_or_default();
                let message = format!("unknown parameter '{name}' of {path}{hint}");
                return Err(ApiError::field(name, message).with_code("unknown_parameter"));
            }
        }
        Ok(Self(fields))
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    fn text(&self, name: &str) -> Result<Option<&str>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| wrong(name, value, "a string"))
    }

    fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| wrong(name, value, "true or false"))
    }

    fn check_model(&self, served: &str) -> Result<(), ApiError> {
        match self.text("model")? {
            Some(asked) if asked != served => Err(ApiError::model_not_found(asked, served)),
            _ => Ok(()),
        }
    }

    /// Read as the body of a chat, by the same rules.
    fn conversation(&self, max_messages: usize) -> Result<Conversation, ApiError> {
        let fields = ["messages", "chat_template_kwargs"];
        let chat: Map<String, Value> = fields
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), self.get(name)?.clone())))
            .collect();
        let chat = Value::Object(chat).to_string();
        conversation(&Body::parse(Endpoint::Chat, chat.as_bytes())?, max_messages)
    }
}

fn missing(message: &str, field: &str) -> ApiError {
    ApiError::field(field, message).with_code("missing_required_parameter")
}

#[cfg(test)]
mod tests {
    use pocket_model::chat::{ChatTemplate, TemplateFiles};

    use super::*;
    use crate::http::messages;
    use crate::http::prompt::TextSide;
    use crate::http::request::Prompt;
    use crate::http::testing::{DEFAULTS, tokenizer};

    const TEMPLATE: &[u8] = b"{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>\n\
        {% endfor %}{% if add_generation_prompt %}<|im_start|>{{ mood }}{% endif %}";

    fn model() -> ServedModel {
        let files = TemplateFiles { jinja: Some(TEMPLATE), tokenizer_config: None, legacy: None };
        ServedModel {
            name: "demo".into(),
            created: 0,
            context: 128,
            vocab_size: 640,
            defaults: DEFAULTS,
            text: TextSide {
                tokenizer: tokenizer(),
                template: ChatTemplate::from_files(&files).unwrap(),
            },
        }
    }

    fn tokenize(body: Value) -> Result<Value, ApiError> {
        tokens_of(body.to_string().as_bytes(), &model(), 16)
    }

    fn detokenize(body: Value) -> Result<Value, ApiError> {
        text_of(body.to_string().as_bytes(), &model())
    }

    fn text(answer: &Value) -> String {
        let answer = detokenize(json!({"tokens": answer["tokens"]})).unwrap();
        answer["prompt"].as_str().unwrap().to_owned()
    }

    /// K10: the tokens are those the model would read.
    #[test]
    fn a_conversation_has_the_tokens_of_the_same_chat() {
        let messages = json!([{"role": "user", "content": "Hi \u{1f980}"}]);
        let kwargs = json!({"mood": "happy"});
        let answer =
            tokenize(json!({"messages": messages, "chat_template_kwargs": kwargs})).unwrap();
        let conversation = Conversation {
            messages: messages::read(&messages, 16).unwrap(),
            kwargs: kwargs.as_object().unwrap().clone(),
        };
        let chat = model().text.tokenize("the prompt", &Prompt::Messages(conversation)).unwrap();
        assert_eq!(answer["tokens"], json!(chat.ids));
        assert_eq!(answer["count"], chat.ids.len());
        assert_eq!(answer["max_model_len"], 128);
        assert_eq!(answer["token_strs"], Value::Null);
        assert_eq!(text(&answer), "<|im_start|>Hi \u{1f980}<|im_end|>\n<|im_start|>happy");
        let ended = json!({"messages": messages, "add_generation_prompt": false});
        assert_eq!(text(&tokenize(ended).unwrap()), "<|im_start|>Hi \u{1f980}<|im_end|>\n");
    }

    #[test]
    fn a_text_goes_there_and_back() {
        for prompt in ["", "a b", "na\u{ef}ve \u{1f980}<|im_end|>"] {
            let answer = tokenize(json!({"prompt": prompt, "return_token_strs": true})).unwrap();
            assert_eq!(text(&answer), prompt);
            let strings = answer["token_strs"].as_array().unwrap();
            assert_eq!(json!(strings.len()), answer["count"]);
        }
        let answer = tokenize(json!({"prompt": "a b", "return_token_strs": true})).unwrap();
        let strings: Vec<&str> =
            answer["token_strs"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(strings.concat(), "a b");
    }

    #[test]
    fn half_a_character_is_shown_as_one_that_is_wrong() {
        let tokens = tokenize(json!({"prompt": "\u{1f980}"})).unwrap()["tokens"].clone();
        let half = &tokens.as_array().unwrap()[..1];
        assert_eq!(detokenize(json!({"tokens": half})).unwrap()["prompt"], "\u{fffd}");
        assert_eq!(detokenize(json!({"tokens": []})).unwrap()["prompt"], "");
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_name() {
        let messages = json!([{"role": "user", "content": "Hi"}]);
        for (body, param, part) in [
            (json!({}), json!("prompt"), "prompt or messages is missing"),
            (json!({"prompt": "a", "messages": messages}), json!("messages"), "send one"),
            (json!({"prompt": 1}), json!("prompt"), "it must be a string"),
            (
                json!({"prompt": "a", "add_generation_prompt": true}),
                json!("add_generation_prompt"),
                "messages",
            ),
            (
                json!({"prompt": "a", "add_special_tokens": 1}),
                json!("add_special_tokens"),
                "true or false",
            ),
            (json!({"messages": []}), json!("messages"), "at least one message"),
            (
                json!({"prompt": "a", "return_token_str": true}),
                json!("return_token_str"),
                "did you mean 'return_token_strs'",
            ),
            (json!({"prompt": "a", "model": "gpt-9"}), json!("model"), "gpt-9"),
            (json!([]), Value::Null, "must be a JSON object"),
        ] {
            let error = tokenize(body).unwrap_err();
            assert_eq!(error.to_json()["error"]["param"], param);
            assert!(error.to_string().contains(part), "{error}");
        }
        for (body, part) in [
            (json!({}), "tokens is missing"),
            (json!({"tokens": "a"}), "a list of token ids"),
            (json!({"tokens": [1, 640]}), "tokens[1] is 640; token ids of this model are 0 to 639"),
        ] {
            let error = detokenize(body).unwrap_err();
            assert_eq!(error.to_json()["error"]["param"], "tokens");
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
