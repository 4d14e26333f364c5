//! Text to tokens and back, by a tokenizer at hand or by the server's own.

use std::collections::BTreeSet;
use std::sync::Arc;

use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use super::LoadError;
use super::client::causes;
use super::workload::WORDS;

/// A tokenizer at hand.
pub trait TextCodec: Send + Sync {
    /// Token ids of a text, without marks around it.
    ///
    /// # Errors
    ///
    /// The tokenizer refuses the text; says why.
    fn encode(&self, text: &str) -> Result<Vec<u32>, String>;

    /// Ids that a prompt may be made of: those of text, not of marks.
    fn ordinary(&self) -> Vec<u32>;
}

/// Who turns text into tokens.
#[derive(Clone)]
pub enum Tokens {
    /// A tokenizer at hand.
    Local(Arc<dyn TextCodec>),
    /// The server's `/tokenize`.
    Server(ServerTokens),
}

impl Tokens {
    /// Token ids of a text.
    ///
    /// # Errors
    ///
    /// The tokenizer or the server fails.
    pub async fn encode(&self, text: &str) -> Result<Vec<u32>, LoadError> {
        match self {
            Tokens::Local(codec) => codec.encode(text).map_err(LoadError::Tokens),
            Tokens::Server(server) => server.encode(text).await,
        }
    }

    /// Ids that prompts of ids are made of.
    ///
    /// # Errors
    ///
    /// As [`encode`](Self::encode); fewer than two such ids.
    pub async fn ordinary(&self) -> Result<Vec<u32>, LoadError> {
        let ids = match self {
            Tokens::Local(codec) => codec.ordinary(),
            // A server does not list its vocabulary; these are in it.
            Tokens::Server(server) => {
                let ids: BTreeSet<u32> =
                    server.encode(&WORDS.join(" ")).await?.into_iter().collect();
                ids.into_iter().collect()
            }
        };
        if ids.len() < 2 {
            return Err(LoadError::Tokens("the vocabulary has no ordinary tokens".to_owned()));
        }
        Ok(ids)
    }
}

/// A server that tokenizes for its clients.
#[derive(Clone, Debug)]
pub struct ServerTokens {
    http: reqwest::Client,
    url: String,
    headers: HeaderMap,
    form: Form,
}

/// How a server wants to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// As vLLM and `pocketd`: `prompt`, and whether to add marks.
    Prompt,
    /// As `llama-server`: `content`.
    Content,
}

impl Form {
    fn body(self, text: &str) -> Value {
        match self {
            Form::Prompt => json!({"prompt": text, "add_special_tokens": false}),
            Form::Content => json!({"content": text}),
        }
    }
}

impl ServerTokens {
    /// Finds out whether and how the server tokenizes; none if it does not.
    pub async fn find(http: &reqwest::Client, base_url: &str, headers: &HeaderMap) -> Option<Self> {
        for form in [Form::Prompt, Form::Content] {
            let url = format!("{base_url}/tokenize");
            let found = Self { http: http.clone(), url, headers: headers.clone(), form };
            if found.encode("the end").await.is_ok_and(|ids| !ids.is_empty()) {
                return Some(found);
            }
        }
        None
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    async fn encode(&self, text: &str) -> Result<Vec<u32>, LoadError> {
        let failed = |reason: String| LoadError::Server { url: self.url.clone(), reason };
        let body = self.form.body(text).to_string();
        let request = self.http.post(&self.url).headers(self.headers.clone()).body(body);
        let request = request.header(reqwest::header::CONTENT_TYPE, "application/json");
        let response = request.send().await.map_err(|error| failed(causes(&error)))?;
        let status = response.status();
        let text = response.text().await.map_err(|error| failed(causes(&error)))?;
        if !status.is_success() {
            return Err(failed(super::Failure::status(status.as_u16(), &text).to_string()));
        }
        let answer: Value = serde_json::from_str(&text).map_err(|e| failed(e.to_string()))?;
        let tokens = answer.get("tokens").and_then(Value::as_array);
        let ids = tokens.map(|list| list.iter().map(id).collect::<Option<Vec<u32>>>());
        ids.flatten().ok_or_else(|| failed("the answer has no list of tokens".to_owned()))
    }
}

fn id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}
