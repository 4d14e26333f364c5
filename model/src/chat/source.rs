//! Where a checkpoint keeps its chat template: a file of its own, or a key of the tokenizer's
//! configuration, there either one text or a list of named ones.

use serde::Deserialize;

use super::error::ChatError;
use crate::tokenizer::TOKENIZER_CONFIG_FILE;

/// Name of the file that holds nothing but the template.
pub const CHAT_TEMPLATE_FILE: &str = "chat_template.jinja";
/// Name of the file in which processors used to keep it.
pub const LEGACY_CHAT_TEMPLATE_FILE: &str = "chat_template.json";

/// The template used if there is no reason for another.
pub(super) const DEFAULT: &str = "default";
/// The template used, if there is one of this name, when there are tools.
pub(super) const TOOL_USE: &str = "tool_use";

/// The files a template may be in, as far as the checkpoint has them. The first that holds one wins.
#[derive(Clone, Copy, Debug, Default)]
pub struct TemplateFiles<'a> {
    /// Bytes of [`CHAT_TEMPLATE_FILE`].
    pub jinja: Option<&'a [u8]>,
    /// Bytes of [`TOKENIZER_CONFIG_FILE`]; special tokens are read from it in any case.
    pub tokenizer_config: Option<&'a [u8]>,
    /// Bytes of [`LEGACY_CHAT_TEMPLATE_FILE`].
    pub legacy: Option<&'a [u8]>,
}

#[derive(Deserialize)]
struct Config {
    chat_template: Option<Templates>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<Named>),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

/// Templates by name; one of them is [`DEFAULT`]. None if the checkpoint has no template.
pub(super) fn find(files: &TemplateFiles<'_>) -> Result<Option<Vec<(String, String)>>, ChatError> {
    if let Some(bytes) = files.jinja {
        let source =
            std::str::from_utf8(bytes).map_err(|error| malformed(CHAT_TEMPLATE_FILE, error))?;
        return Ok(Some(vec![(DEFAULT.to_owned(), source.to_owned())]));
    }
    let configs = [
        (TOKENIZER_CONFIG_FILE, files.tokenizer_config),
        (LEGACY_CHAT_TEMPLATE_FILE, files.legacy),
    ];
    for (file, bytes) in configs {
        let Some(bytes) = bytes else { continue };
        let config: Config =
            serde_json::from_slice(bytes).map_err(|error| malformed(file, error))?;
        match config.chat_template {
            None => {}
            Some(Templates::One(source)) => return Ok(Some(vec![(DEFAULT.to_owned(), source)])),
            Some(Templates::Named(list)) => {
                if !list.iter().any(|named| named.name == DEFAULT) {
                    return Err(malformed(file, "none of its chat templates is named default"));
                }
                let templates = list.into_iter().map(|named| (named.name, named.template));
                return Ok(Some(templates.collect()));
            }
        }
    }
    Ok(None)
}

fn malformed(file: &str, reason: impl std::fmt::Display) -> ChatError {
    ChatError::Malformed { reason: format!("{file}: {reason}") }
}
