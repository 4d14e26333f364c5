//! A byte-level tokenizer for a made-up vocabulary: a token for every byte, so that any text can be
//! encoded, then tokens of any bytes, which only a model can produce.

use serde_json::{Map, Value, json};

/// Renders a conversation as the Qwen family does.
const CHAT_TEMPLATE: &str = "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content \
    + '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}\
    {{ '<|im_start|>assistant\\n' }}{%- endif %}";

/// Tokens in id order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    tokens: Vec<Token>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Bytes(Vec<u8>),
    Special(&'static str),
}

impl Vocabulary {
    /// Ends a text.
    pub const END_OF_TEXT: &'static str = "<|endoftext|>";
    /// Begins a message.
    pub const MESSAGE_START: &'static str = "<|im_start|>";
    /// Ends a message, and an answer.
    pub const MESSAGE_END: &'static str = "<|im_end|>";

    /// 256 single bytes, `pieces`, the three special tokens. Pieces must differ from each other and
    /// from single bytes.
    pub fn new(pieces: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut tokens: Vec<Token> = (0..=255).map(|byte| Token::Bytes(vec![byte])).collect();
        tokens.extend(pieces.into_iter().map(Token::Bytes));
        let special = [Self::END_OF_TEXT, Self::MESSAGE_START, Self::MESSAGE_END];
        tokens.extend(special.map(Token::Special));
        Self { tokens }
    }

    /// Adds a token of these bytes at the end, after the special tokens; answers its id.
    pub fn push(&mut self, bytes: Vec<u8>) -> u32 {
        self.tokens.push(Token::Bytes(bytes));
        self.tokens.len() as u32 - 1
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Never: there are always the single bytes.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Id of the token of these bytes.
    pub fn id(&self, bytes: &[u8]) -> Option<u32> {
        let is_it = |token: &Token| matches!(token, Token::Bytes(other) if other == bytes);
        self.tokens.iter().position(is_it).map(|id| id as u32)
    }

    /// Id of [`MESSAGE_END`](Self::MESSAGE_END).
    pub fn end_id(&self) -> u32 {
        let is_it = |token: &Token| *token == Token::Special(Self::MESSAGE_END);
        self.tokens.iter().position(is_it).unwrap_or_default() as u32
    }

    /// The `tokenizer.json`.
    pub fn tokenizer_json(&self) -> Value {
        let mut vocab = Map::new();
        let mut added = Vec::new();
        for (id, token) in self.tokens.iter().enumerate() {
            match token {
                Token::Bytes(bytes) => {
                    vocab.insert(bytes.iter().map(|&byte| letter(byte)).collect(), json!(id));
                }
                Token::Special(content) => {
                    vocab.insert((*content).to_owned(), json!(id));
                    added.push(json!({
                        "id": id, "content": content, "special": true, "normalized": false,
                        "single_word": false, "lstrip": false, "rstrip": false,
                    }));
                }
            }
        }
        let byte_level = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false
        });
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null,
            "decoder": byte_level,
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false,
                "continuing_subword_prefix": null, "end_of_word_suffix": null,
                "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": [],
            },
        })
    }

    /// The `tokenizer_config.json`, chat template included.
    pub fn tokenizer_config(&self) -> Value {
        json!({
            "eos_token": Self::MESSAGE_END,
            "pad_token": Self::END_OF_TEXT,
            "chat_template": CHAT_TEMPLATE,
            "tokenizer_class": "Qwen2Tokenizer",
        })
    }
}

/// The character that stands for a byte in GPT-2's alphabet.
fn letter(byte: u8) -> char {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(&byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|other| !printable(other)).count() as u32;
    // U+0100 to U+0143 are characters.
    char::from_u32(0x100 + rank).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use pocket_model::tokenizer::Tokenizer;

    use super::*;

    #[test]
    fn the_product_reads_it_as_meant() {
        let mut vocabulary = Vocabulary::new([b"Hello".to_vec(), vec![0xf0, 0x9f]]);
        let last = vocabulary.push(b"rival".to_vec());
        let json = serde_json::to_vec(&vocabulary.tokenizer_json()).unwrap();
        let config = serde_json::to_vec(&vocabulary.tokenizer_config()).unwrap();
        let tokenizer = Tokenizer::from_bytes(&json, Some(&config), 262).unwrap();
        assert_eq!((tokenizer.len(), vocabulary.len()), (262, 262));
        for byte in 0..=255_u8 {
            assert_eq!(tokenizer.token_bytes(u32::from(byte)), [byte]);
        }
        assert_eq!(tokenizer.token_bytes(256), b"Hello");
        assert_eq!(vocabulary.id(&[0xf0, 0x9f]), Some(257));
        assert_eq!(tokenizer.token_bytes(last), b"rival");
        assert_eq!(tokenizer.eos_id(), Some(vocabulary.end_id()));
        assert!(
            tokenizer.is_special(258) && tokenizer.is_special(260) && !tokenizer.is_special(last)
        );
        let ids = tokenizer.encode("Hello é<|im_end|>", true).unwrap();
        let bytes = "Hello é".bytes().map(u32::from);
        assert_eq!(ids, bytes.chain([260]).collect::<Vec<_>>());
    }
}
