//! From what a request says to token ids.

use pocket_model::chat::{ChatError, ChatTemplate};
use pocket_model::tokenizer::Tokenizer;

use super::error::ApiError;
use super::request::Prompt;

/// Tokenizer and chat template of the served model.
pub struct TextSide {
    /// Texts to token ids.
    pub tokenizer: Tokenizer,
    /// Conversations to texts; not every checkpoint has one.
    pub template: Option<ChatTemplate>,
}

impl TextSide {
    /// The token ids of a prompt. Takes time in proportion to it: call it off the server's threads.
    pub fn tokenize(&self, prompt: Prompt) -> Result<Vec<u32>, ApiError> {
        let ids = match prompt {
            Prompt::Ids(ids) => ids,
            Prompt::Text(text) => self.encode(&text, true)?,
            Prompt::Messages(messages) => {
                let Some(template) = &self.template else {
                    return Err(ApiError::field(
                        "messages",
                        "this model has no chat template; use /v1/completions",
                    ));
                };
                // The template has written the special tokens.
                self.encode(&template.render(&messages, true).map_err(refused)?, false)?
            }
        };
        match ids.is_empty() {
            true => Err(ApiError::invalid("the prompt has no tokens")),
            false => Ok(ids),
        }
    }

    fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, ApiError> {
        self.tokenizer
            .encode(text, special)
            .map_err(|error| ApiError::invalid(format!("the prompt cannot be read: {error}")))
    }
}

/// A conversation the template does not take is the client's mistake; a template that does not work is
/// the server's.
fn refused(error: ChatError) -> ApiError {
    match error.is_client_error() {
        true => ApiError::field("messages", error.to_string()),
        false => ApiError::internal(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use actix_web::ResponseError;

    use super::*;

    #[test]
    fn the_templates_refusal_is_the_clients_and_its_failure_ours() {
        let refusal = ChatError::Refused { message: "System message must be first.".into() };
        let error = refused(refusal);
        assert_eq!(error.status_code(), 400);
        assert_eq!(error.to_json()["error"]["param"], "messages");
        assert_eq!(error.to_string(), "System message must be first.");
        let broken = ChatError::Malformed { reason: "not a template".into() };
        assert_eq!(refused(broken).status_code(), 500);
    }
}
