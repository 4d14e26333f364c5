//! Log-probabilities as clients read them: chat's list of tokens, and the four lists of completions.

use pocket_model::tokenizer::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value};

use super::entries::Entry;
use super::fields::Endpoint;

/// What minus infinity becomes, which JSON cannot say: vLLM's number.
const LEAST: f64 = -9999.0;

/// The log-probabilities of some tokens of a choice.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Logprobs {
    /// Of a chat.
    Chat {
        /// One a token.
        content: Vec<Token>,
        /// OpenAI's other kind of answer; always null here.
        refusal: Option<()>,
    },
    /// Of a completion: four lists of one length.
    Text {
        /// The tokens as texts; those that are not whole characters as `bytes:\xf0\x9f`.
        tokens: Vec<String>,
        /// Null for the first token of a prompt.
        token_logprobs: Vec<Option<f64>>,
        /// From token to log-probability: the likeliest ones and the token itself.
        top_logprobs: Vec<Option<Map<String, Value>>>,
        /// Where the token's text begins in the choice's text, in characters.
        text_offset: Vec<usize>,
    },
}

/// A token of a chat.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Token {
    #[serde(flatten)]
    itself: Candidate,
    top_logprobs: Vec<Candidate>,
}

/// A token that was, or might have been, chosen.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Candidate {
    /// Its text, or name; U+FFFD for what is not a whole character.
    token: String,
    logprob: f64,
    /// What it adds to the answer; nothing for a control token.
    bytes: Vec<u8>,
}

impl Logprobs {
    /// The entries as `endpoint` shows them.
    pub fn of(endpoint: Endpoint, entries: &[Entry], tokenizer: &Tokenizer) -> Self {
        match endpoint {
            Endpoint::Chat => {
                let content = entries.iter().filter_map(|entry| token(entry, tokenizer)).collect();
                Self::Chat { content, refusal: None }
            }
            Endpoint::Completions => Self::Text {
                tokens: entries.iter().map(|entry| name(tokenizer, entry.id)).collect(),
                token_logprobs: entries.iter().map(logprob).collect(),
                top_logprobs: entries.iter().map(|entry| likeliest(entry, tokenizer)).collect(),
                text_offset: entries.iter().map(|entry| entry.offset).collect(),
            },
        }
    }
}

/// A log-probability that JSON can say.
fn finite(logprob: f64) -> f64 {
    logprob.max(LEAST)
}

fn logprob(entry: &Entry) -> Option<f64> {
    entry.logprobs.as_ref().map(|logprobs| finite(logprobs.logprob))
}

fn token(entry: &Entry, tokenizer: &Tokenizer) -> Option<Token> {
    let logprobs = entry.logprobs.as_ref()?;
    let candidate = |id: u32, logprob: f64| {
        let bytes = tokenizer.token_bytes(id);
        Candidate {
            token: String::from_utf8_lossy(bytes).into_owned(),
            logprob: finite(logprob),
            bytes: if tokenizer.is_special(id) { Vec::new() } else { bytes.to_vec() },
        }
    };
    Some(Token {
        itself: candidate(entry.id, logprobs.logprob),
        top_logprobs: logprobs.top.iter().map(|(id, logprob)| candidate(*id, *logprob)).collect(),
    })
}

/// The likeliest tokens, likeliest first, and the token itself if it is none of them.
fn likeliest(entry: &Entry, tokenizer: &Tokenizer) -> Option<Map<String, Value>> {
    let logprobs = entry.logprobs.as_ref()?;
    let mut likeliest = Map::new();
    for (id, logprob) in logprobs.top.iter().chain([&(entry.id, logprobs.logprob)]) {
        // Of two tokens that look the same the likelier one stays.
        likeliest.entry(name(tokenizer, *id)).or_insert_with(|| Value::from(finite(*logprob)));
    }
    Some(likeliest)
}

/// A token as a text that no other token is, as OpenAI writes it.
fn name(tokenizer: &Tokenizer, id: u32) -> String {
    let bytes = tokenizer.token_bytes(id);
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_string(),
        Err(_) => {
            let escaped = bytes.iter().map(|byte| format!("\\x{byte:02x}"));
            format!("bytes:{}", escaped.collect::<String>())
        }
    }
}

#[cfg(test)]
mod tests {
    use pocket_model::sampler::TokenLogprobs;
    use serde_json::json;

    use super::*;
    use crate::http::testing::tokenizer;

    fn entry(id: u32, offset: usize, logprob: f64, top: &[(u32, f64)]) -> Entry {
        let logprobs = TokenLogprobs { logprob, rank: 1, top: top.to_vec() };
        Entry { id, offset, logprobs: Some(logprobs) }
    }

    fn id(text: &str) -> u32 {
        tokenizer().encode(text, false).unwrap()[0]
    }

    /// S9: half a character is valid JSON, and its bytes are there.
    #[test]
    fn chat_lists_tokens_with_their_bytes() {
        let half = id("🎉");
        let bytes = tokenizer().token_bytes(half).to_vec();
        assert!(std::str::from_utf8(&bytes).is_err());
        let end = tokenizer().token_id("<|im_end|>").unwrap();
        let entries = [
            entry(id("a"), 0, -0.5, &[(id("a"), -0.5), (half, -1.5)]),
            entry(half, 1, f64::NEG_INFINITY, &[]),
            entry(end, 1, -2.0, &[]),
        ];
        let shown = json!(Logprobs::of(Endpoint::Chat, &entries, &tokenizer()));
        let lossy = String::from_utf8_lossy(&bytes);
        assert_eq!(
            shown,
            json!({
                "content": [
                    {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [
                        {"token": "a", "logprob": -0.5, "bytes": [97]},
                        {"token": lossy, "logprob": -1.5, "bytes": bytes},
                    ]},
                    {"token": lossy, "logprob": -9999.0, "bytes": bytes, "top_logprobs": []},
                    {"token": "<|im_end|>", "logprob": -2.0, "bytes": [], "top_logprobs": []},
                ],
                "refusal": null,
            })
        );
    }

    #[test]
    fn completions_have_four_lists_of_one_length() {
        let half = id("🎉");
        let escaped: String =
            tokenizer().token_bytes(half).iter().map(|byte| format!("\\x{byte:02x}")).collect();
        let half_name = format!("bytes:{escaped}");
        let entries = [
            Entry { id: id("a"), offset: 0, logprobs: None },
            entry(id("b"), 1, -3.0, &[(id("a"), -0.5), (half, f64::NEG_INFINITY)]),
            entry(half, 2, -0.25, &[(half, -0.25)]),
        ];
        let shown = json!(Logprobs::of(Endpoint::Completions, &entries, &tokenizer()));
        assert_eq!(
            shown,
            json!({
                "tokens": ["a", "b", half_name],
                "token_logprobs": [null, -3.0, -0.25],
                "top_logprobs": [
                    null,
                    {"a": -0.5, &half_name: -9999.0, "b": -3.0},
                    {&half_name: -0.25},
                ],
                "text_offset": [0, 1, 2],
            })
        );
    }
}
