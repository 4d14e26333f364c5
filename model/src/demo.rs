//! The demo checkpoint, part of the program so that every command works without a download.
//!
//! A chat model of 1,757,568 parameters in the Qwen3.5 architecture, trained on a synthetic corpus:
//! capitals, planets, the calendar, small sums. It splits over 1, 2 or 4 ranks.

/// What messages call it.
pub const NAME: &str = "the demo model";

/// Its `model.safetensors`.
pub(crate) const WEIGHTS: &[u8] = include_bytes!("../demo/model.safetensors");

/// One of its small files.
pub(crate) fn file(name: &str) -> Option<&'static [u8]> {
    match name {
        "config.json" => Some(include_bytes!("../demo/config.json")),
        "generation_config.json" => Some(include_bytes!("../demo/generation_config.json")),
        "tokenizer.json" => Some(include_bytes!("../demo/tokenizer.json")),
        "tokenizer_config.json" => Some(include_bytes!("../demo/tokenizer_config.json")),
        _ => None,
    }
}
