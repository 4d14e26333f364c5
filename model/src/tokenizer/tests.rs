//! The tokenizers of the demo and of the reference checkpoints, against the `tokenizers` crate's own
//! decoding and the recorded reference ids.

use std::path::PathBuf;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::json;

use super::*;

fn fixture(path: &str) -> Vec<u8> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    std::fs::read(root.join(path)).unwrap()
}

fn load(directory: &str, vocab_size: usize) -> Tokenizer {
    let tokenizer = fixture(&format!("{directory}/tokenizer.json"));
    let config = fixture(&format!("{directory}/tokenizer_config.json"));
    Tokenizer::from_bytes(&tokenizer, Some(&config), vocab_size).unwrap()
}

fn demo() -> Tokenizer {
    load("demo", 1024)
}

fn reference() -> Tokenizer {
    load("../tests/fixtures/tiny-tied", 640)
}

#[test]
fn texts_get_the_reference_ids() {
    for name in ["tiny-tied", "tiny-untied", "tiny-sharded"] {
        let directory = format!("../tests/fixtures/{name}");
        let tokenizer = load(&directory, 640);
        let expected: Value =
            serde_json::from_slice(&fixture(&format!("{directory}/expected.json"))).unwrap();
        for case in expected["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
            assert_eq!(tokenizer.encode(text, true).unwrap(), ids, "{text:?}");
            assert_eq!(tokenizer.decode(&ids), text);
        }
    }
}

#[test]
fn answers_of_the_demo_decode_to_the_reference_texts() {
    let tokenizer = demo();
    let expected: Value =
        serde_json::from_slice(&fixture("../tests/fixtures/demo/expected.json")).unwrap();
    for case in expected["cases"].as_array().unwrap() {
        let ids: Vec<u32> = serde_json::from_value(case["greedy"].clone()).unwrap();
        assert_eq!(tokenizer.decode(&ids), case["text"].as_str().unwrap());
    }
}

#[test]
fn special_tokens_have_roles_and_ids() {
    let tokenizer = demo();
    assert_eq!(tokenizer.special_tokens().get("eos_token"), Some("<|im_end|>"));
    assert_eq!(tokenizer.eos_id(), Some(1023));
    assert!(tokenizer.is_special(1023) && !tokenizer.is_special(5));
    let ids = tokenizer.encode("<|im_start|>a<|im_end|>", false).unwrap();
    assert_eq!((ids[0], *ids.last().unwrap()), (1022, 1023));
    assert_eq!(tokenizer.decode(&ids), "a");
    let mut shown = tokenizer.stream_with_special();
    let text: String = ids.iter().map(|&id| shown.push(id)).collect();
    assert_eq!(text, "<|im_start|>a<|im_end|>");
}

#[test]
fn every_byte_has_its_letter() {
    let alphabet: Vec<char> = (0..0x144).filter_map(char::from_u32).collect();
    let mut bytes: Vec<u8> = alphabet.iter().filter_map(|&c| byte_of(c)).collect();
    bytes.sort_unstable();
    assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
    assert_eq!(byte_of('Ġ'), Some(b' '));
    assert_eq!(byte_of('Ċ'), Some(b'\n'));
    assert_eq!(byte_of('中'), None);
}

#[test]
fn what_cannot_be_used_is_named() {
    let tokenizer = fixture("demo/tokenizer.json");
    let error = |tokenizer: &[u8], config: Option<&[u8]>, vocab_size| {
        Tokenizer::from_bytes(tokenizer, config, vocab_size).unwrap_err().to_string()
    };
    assert_eq!(
        error(&tokenizer, None, 1000),
        "tokenizer.json has token ids up to 1023, but the model's vocab_size is 1000"
    );
    assert!(error(b"{", None, 1024).starts_with("tokenizer.json is malformed: "));
    assert!(
        error(&tokenizer, Some(b"[]"), 1024).starts_with("tokenizer_config.json is malformed: ")
    );
    assert_eq!(
        error(&tokenizer, Some(br#"{"eos_token": 7}"#), 1024),
        "tokenizer_config.json is malformed: eos_token is neither a text nor has a content"
    );
    let with_decoder = |decoder: Value| {
        let mut json: Value = serde_json::from_slice(&tokenizer).unwrap();
        json["decoder"] = decoder;
        error(&serde_json::to_vec(&json).unwrap(), None, 1024)
    };
    let word_piece = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    assert!(with_decoder(word_piece).contains("a decoder of type WordPiece;"));
    assert!(with_decoder(Value::Null).contains("a decoder of type none;"));
}

#[test]
fn settings_that_shorten_or_pad_are_ignored() {
    let mut json: Value = serde_json::from_slice(&fixture("demo/tokenizer.json")).unwrap();
    json["truncation"] = json!({
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0
    });
    let tokenizer = Tokenizer::from_bytes(&serde_json::to_vec(&json).unwrap(), None, 1024).unwrap();
    let text = "one two three four five six";
    assert_eq!(tokenizer.encode(text, true).unwrap(), demo().encode(text, true).unwrap());
}

#[test]
fn a_special_token_may_be_an_object() {
    let config = br#"{"bos_token": {"content": "<s>", "special": true}, "eos_token": null}"#;
    let tokens = SpecialTokens::from_bytes(config).unwrap();
    assert_eq!(tokens.iter().collect::<Vec<_>>(), [("bos_token", "<s>")]);
}

/// SentencePiece's conventions: `▁` for a space, `<0x..>` for a byte.
fn byte_fallback() -> Tokenizer {
    let mut vocab = serde_json::Map::new();
    for token in ["<unk>", "▁hi", "▁", "é"] {
        vocab.insert(token.into(), json!(vocab.len()));
    }
    for byte in 0..=255 {
        vocab.insert(format!("<0x{byte:02X}>"), json!(vocab.len()));
    }
    let json = json!({
        "version": "1.0",
        "added_tokens": [],
        "model": {
            "type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "vocab": vocab, "merges": []
        },
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        ]}
    });
    Tokenizer::from_bytes(&serde_json::to_vec(&json).unwrap(), None, 1024).unwrap()
}

#[test]
fn byte_fallback_tokens_join_to_characters() {
    let tokenizer = byte_fallback();
    let mut ids = vec![1, 2, 3, 1];
    ids.extend("😀".bytes().map(|byte| 4 + u32::from(byte)));
    assert_eq!(tokenizer.decode(&ids), "hi é hi😀");
    assert_eq!(tokenizer.decode(&ids), tokenizer.inner.decode(&ids, true).unwrap());
    assert_eq!(tokenizer.decode(&ids[..7]), "hi é hi");
}

/// The crate's decoding of the whole sequence, less the U+FFFD it puts for an incomplete end.
fn whole(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut text = tokenizer.inner.decode(ids, true).unwrap();
    let mut decoder = tokenizer.stream();
    ids.iter().for_each(|&id| drop(decoder.push(id)));
    if decoder.is_inside_character() {
        assert_eq!(text.pop(), Some(char::REPLACEMENT_CHARACTER));
    }
    text
}

#[test]
fn emoji_and_cjk_cut_at_any_token_show_whole_characters_s5_s6() {
    for tokenizer in [demo(), reference()] {
        let text = "né 中文字 👩‍👩‍👧 🇫🇷😀";
        let ids = tokenizer.encode(text, false).unwrap();
        assert!(ids.len() > text.chars().count(), "characters take several tokens");
        for cut in 0..=ids.len() {
            let shown = tokenizer.decode(&ids[..cut]);
            assert!(text.starts_with(&shown), "{cut}: {shown:?}");
        }
        assert_eq!(tokenizer.decode(&ids), text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn any_ids_stream_to_the_text_of_the_whole(ids in prop::collection::vec(0_u32..1100, 0..60)) {
        for tokenizer in [demo(), reference()] {
            prop_assert_eq!(tokenizer.decode(&ids), whole(&tokenizer, &ids));
        }
    }

    #[test]
    fn any_text_survives(text in "\\PC{0,40}") {
        for tokenizer in [demo(), reference()] {
            let ids = tokenizer.encode(&text, false).unwrap();
            // Text that spells a control token is taken for it.
            if !ids.iter().any(|&id| tokenizer.is_special(id)) {
                prop_assert_eq!(tokenizer.decode(&ids), text.clone());
            }
        }
    }
}
