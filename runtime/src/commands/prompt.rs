//! What the command line says to token ids, checked against the model before it is loaded.

use serde_json::json;

use crate::boot::Boot;
use crate::failure::bad_input;

/// The tokens of a text as it is.
pub fn of_text(boot: &Boot, text: &str) -> anyhow::Result<Vec<u32>> {
    encode(boot, text, true)
}

/// The tokens of a user's message, ready for the answer.
pub fn of_message(boot: &Boot, text: &str) -> anyhow::Result<Vec<u32>> {
    if text.is_empty() {
        return Err(bad_input("the prompt is empty"));
    }
    let Some(template) = boot.chat_template()? else {
        return Err(bad_input(format!(
            "{} has no chat template; continue the text itself with --raw, or give --ids",
            boot.name
        )));
    };
    let messages = [json!({"role": "user", "content": text})];
    let rendered = template
        .render(&messages, true)
        .map_err(|error| bad_input(format!("the chat template refuses the prompt: {error}")))?;
    // The template writes the special tokens itself.
    encode(boot, &rendered, false)
}

fn encode(boot: &Boot, text: &str, special: bool) -> anyhow::Result<Vec<u32>> {
    let ids = boot
        .tokenizer()?
        .encode(text, special)
        .map_err(|error| bad_input(format!("the text cannot be tokenized: {error}")))?;
    Ok(ids)
}

/// Positions left in the context after these tokens of `what`, each of which the model must know.
pub fn room(boot: &Boot, what: &str, ids: &[u32]) -> anyhow::Result<usize> {
    if ids.is_empty() {
        return Err(bad_input(format!("the {what} is empty: it has no tokens")));
    }
    let vocab = boot.config.vocab_size;
    if let Some(index) = ids.iter().position(|id| *id as usize >= vocab) {
        return Err(bad_input(format!(
            "token id {} (number {} of the {what}) is out of range: this model knows 0 to {}",
            ids[index],
            index + 1,
            vocab.saturating_sub(1)
        )));
    }
    boot.options.max_model_len.checked_sub(ids.len()).ok_or_else(|| {
        bad_input(format!(
            "the {what} has {} tokens, more than the context of {} (--max-model-len)",
            ids.len(),
            boot.options.max_model_len
        ))
    })
}
