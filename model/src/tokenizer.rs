//! Text to token ids and back, from a checkpoint's `tokenizer.json` and `tokenizer_config.json`.
//!
//! Splitting text is the work of the `tokenizers` crate. Going back is done here, from a table of
//! each token's bytes, since an answer is decoded a token at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use crate::detokenize::{StreamDecoder, TokenTable};

/// Name of the file with vocabulary and merges.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
/// Name of the file with the special tokens' roles and, in older checkpoints, the chat template.
pub const TOKENIZER_CONFIG_FILE: &str = "tokenizer_config.json";

/// Why a tokenizer cannot be used, or a text not be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// A file is not what its name says.
    #[error("{file} is malformed: {reason}")]
    Malformed {
        /// Which file.
        file: &'static str,
        /// What the parser said.
        reason: String,
    },
    /// The way tokens become text is not one this program knows.
    #[error(
        "tokenizer.json has a decoder of type {kind}; ByteLevel and ByteFallback are supported"
    )]
    UnsupportedDecoder {
        /// The decoder's `type`.
        kind: String,
    },
    /// Tokenizer and weights do not belong together.
    #[error(
        "tokenizer.json has token ids up to {largest_id}, but the model's vocab_size is {vocab_size}"
    )]
    VocabularyTooSmall {
        /// Largest id the tokenizer can produce.
        largest_id: u32,
        /// Rows of the model's embedding.
        vocab_size: usize,
    },
    /// The tokenizer refused a text.
    #[error("the text cannot be tokenized: {0}")]
    Encode(String),
}

/// A checkpoint's tokenizer. Cheap to share by reference between threads.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    table: Arc<TokenTable>,
    special: SpecialTokens,
}

impl Tokenizer {
    /// Reads the bytes of `tokenizer.json` and, if the checkpoint has one, `tokenizer_config.json`.
    ///
    /// # Errors
    ///
    /// A malformed file, an unknown kind of decoder, or token ids that the model's `vocab_size` has
    /// no embedding for. A vocabulary that is larger than the tokenizer is usual: it is padded.
    pub fn from_bytes(
        tokenizer: &[u8],
        config: Option<&[u8]>,
        vocab_size: usize,
    ) -> Result<Self, TokenizerError> {
        let malformed = |reason: String| TokenizerError::Malformed { file: TOKENIZER_FILE, reason };
        let mut inner = tokenizers::Tokenizer::from_bytes(tokenizer)
            .map_err(|error| malformed(error.to_string()))?;
        // Settings of the training run: a prompt is never shortened or padded in silence.
        inner.with_truncation(None).map_err(|error| malformed(error.to_string()))?;
        inner.with_padding(None);
        let table = table(&inner)?;
        let largest_id = inner.get_vocab(true).into_values().max().unwrap_or_default();
        if largest_id as usize >= vocab_size {
            return Err(TokenizerError::VocabularyTooSmall { largest_id, vocab_size });
        }
        let special = config.map(SpecialTokens::from_bytes).transpose()?.unwrap_or_default();
        Ok(Self { inner, table: Arc::new(table), special })
    }

    /// Token ids of a text. Text that spells a special token becomes that token.
    /// `add_special_tokens` adds the marks that the tokenizer puts around a whole text, if any: wanted
    /// for raw text, not for a rendered chat, whose template has written them.
    ///
    /// # Errors
    ///
    /// The tokenizer's normalizer or model refused the text.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.encode_fast(text, add_special_tokens);
        let encoding = encoding.map_err(|error| TokenizerError::Encode(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Text of `ids`: exactly what [`StreamDecoder`] shows of them, control tokens left out.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut decoder = self.stream();
        ids.iter().map(|&id| decoder.push(id)).collect()
    }

    /// A decoder for one answer.
    pub fn stream(&self) -> StreamDecoder {
        StreamDecoder::new(self.table.clone(), false)
    }

    /// A decoder that shows control tokens as well.
    pub fn stream_with_special(&self) -> StreamDecoder {
        StreamDecoder::new(self.table.clone(), true)
    }

    /// The bytes a token stands for, which need not be whole characters; none for an unused id.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.table.bytes(id)
    }

    /// Whether a token is a control mark such as `<|im_end|>`, shown to nobody.
    pub fn is_special(&self, id: u32) -> bool {
        self.table.is_special(id)
    }

    /// Id of the token spelled `token`.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Number of token ids the tokenizer knows.
    pub fn len(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Whether it knows no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Special tokens by role, as a chat template sees them.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special
    }

    /// Id of the end-of-sequence token that `tokenizer_config.json` names: in a chat model the one
    /// that ends an answer, whatever the model's own configuration says.
    pub fn eos_id(&self) -> Option<u32> {
        self.token_id(self.special.get("eos_token")?)
    }
}

/// Special tokens by role: `eos_token`, `pad_token` and so on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens(BTreeMap<String, String>);

impl SpecialTokens {
    /// The roles a chat template may name.
    const ROLES: [&str; 7] = [
        "bos_token",
        "eos_token",
        "unk_token",
        "sep_token",
        "pad_token",
        "cls_token",
        "mask_token",
    ];

    /// Reads the bytes of `tokenizer_config.json`.
    ///
    /// # Errors
    ///
    /// Not JSON, or a token that is neither text nor an object with `content`.
    pub fn from_bytes(config: &[u8]) -> Result<Self, TokenizerError> {
        let malformed = |reason| TokenizerError::Malformed { file: TOKENIZER_CONFIG_FILE, reason };
        let config: serde_json::Map<String, Value> =
            serde_json::from_slice(config).map_err(|error| malformed(error.to_string()))?;
        let mut tokens = BTreeMap::new();
        for role in Self::ROLES {
            let Some(value) = config.get(role).filter(|value| !value.is_null()) else { continue };
            let token: Token = Token::deserialize(value)
                .map_err(|_| malformed(format!("{role} is neither a text nor has a content")))?;
            let (Token::Text(text) | Token::Object { content: text }) = token;
            tokens.insert(role.to_owned(), text);
        }
        Ok(Self(tokens))
    }

    /// The token with this role.
    pub fn get(&self, role: &str) -> Option<&str> {
        self.0.get(role).map(String::as_str)
    }

    /// All roles that have a token.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(role, token)| (role.as_str(), token.as_str()))
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Token {
    Text(String),
    Object { content: String },
}

/// The bytes of every token, by the tokenizer's own decoding rules.
fn table(tokenizer: &tokenizers::Tokenizer) -> Result<TokenTable, TokenizerError> {
    let decoder = serde_json::to_value(tokenizer.get_decoder()).map_err(|error| {
        TokenizerError::Malformed { file: TOKENIZER_FILE, reason: error.to_string() }
    })?;
    let rules = Rules::read(&decoder)?;
    let mut tokens = Vec::new();
    let mut set = |id: u32, bytes: Vec<u8>| {
        let index = id as usize;
        if tokens.len() <= index {
            tokens.resize(index + 1, Vec::new());
        }
        tokens[index] = bytes;
    };
    for (token, id) in tokenizer.get_vocab(false) {
        set(id, rules.bytes(&token));
    }
    let mut special = Vec::new();
    for (id, token) in tokenizer.get_added_tokens_decoder() {
        // An added token is text as it stands, not in the model's alphabet.
        set(id, token.content.into_bytes());
        if token.special {
            special.push(id);
        }
    }
    Ok(TokenTable::new(&tokens, special, rules.leading_spaces))
}

/// How the spelling of a token in the vocabulary becomes bytes: GPT-2's byte alphabet, or
/// SentencePiece's marks for spaces and single bytes.
#[derive(Debug, Default)]
struct Rules {
    byte_level: bool,
    byte_fallback: bool,
    replace: Vec<(String, String)>,
    leading_spaces: usize,
}

impl Rules {
    /// Reads the `decoder` of a `tokenizer.json`.
    fn read(decoder: &Value) -> Result<Self, TokenizerError> {
        let mut rules = Self::default();
        let mut fused = false;
        let steps = match decoder["type"].as_str() {
            Some("Sequence") => decoder["decoders"].as_array().map_or(&[][..], Vec::as_slice),
            _ => std::slice::from_ref(decoder),
        };
        for step in steps {
            let kind = step["type"].as_str().unwrap_or("none");
            match kind {
                "ByteLevel" => rules.byte_level = true,
                "ByteFallback" => rules.byte_fallback = true,
                "Fuse" => fused = true,
                "Replace" => match (step["pattern"]["String"].as_str(), step["content"].as_str()) {
                    (Some(from), Some(to)) => rules.replace.push((from.into(), to.into())),
                    _ => return Err(unsupported("Replace with a regular expression")),
                },
                // After Fuse it strips the whole text; before, it would strip every token.
                "Strip" if fused && step["content"] == " " && step["stop"] == 0 => {
                    rules.leading_spaces = step["start"].as_u64().unwrap_or_default() as usize;
                }
                _ => return Err(unsupported(kind)),
            }
        }
        if rules.byte_level || rules.byte_fallback { Ok(rules) } else { Err(unsupported("none")) }
    }

    fn bytes(&self, token: &str) -> Vec<u8> {
        let replaced =
            self.replace.iter().fold(token.to_owned(), |text, (from, to)| text.replace(from, to));
        if self.byte_level {
            // A token outside the alphabet stands for its own spelling.
            let bytes: Option<Vec<u8>> = replaced.chars().map(byte_of).collect();
            return bytes.unwrap_or_else(|| replaced.into_bytes());
        }
        let byte = replaced.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        match byte.filter(|hex| hex.len() == 2).map(|hex| u8::from_str_radix(hex, 16)) {
            Some(Ok(byte)) => vec![byte],
            _ => replaced.into_bytes(),
        }
    }
}

fn unsupported(kind: &str) -> TokenizerError {
    TokenizerError::UnsupportedDecoder { kind: kind.to_owned() }
}

/// The byte that a character stands for in GPT-2's alphabet: printable Latin-1 characters stand for
/// themselves, the 68 other bytes for U+0100 and up, in order.
fn byte_of(character: char) -> Option<u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match u32::from(character) {
        code @ 0..=0xff => u8::try_from(code).ok().filter(|&byte| printable(byte)),
        code => (0..=u8::MAX).filter(|&byte| !printable(byte)).nth(code as usize - 0x100),
    }
}

#[cfg(test)]
mod tests;
