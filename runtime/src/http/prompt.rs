//! From what a request says to token ids.

use std::sync::Arc;

use pocket_model::chat::{ChatError, ChatTemplate, RenderOptions};
use pocket_model::reasoning::{ReasoningSplitter, prompt_opens_reasoning};
use pocket_model::tokenizer::Tokenizer;

use super::error::ApiError;
use super::request::{Conversation, Prompt};

/// Tokenizer and chat template of the served model.
pub struct TextSide {
    /// Texts to token ids and back; answers keep it while they are written.
    pub tokenizer: Arc<Tokenizer>,
    /// Conversations to texts; not every checkpoint has one.
    pub template: Option<ChatTemplate>,
}

/// A prompt as the model reads it.
#[derive(Debug)]
pub struct Tokenized {
    /// Its tokens, at least one.
    pub ids: Vec<u32>,
    /// Of a chat with a model that reasons: what tells reasoning from answer in what it writes.
    pub splitter: Option<ReasoningSplitter>,
}

impl TextSide {
    /// The token ids of a prompt, called `name` in errors. Takes time in proportion to it: call it off
    /// the server's threads.
    pub fn tokenize(&self, name: &str, prompt: &Prompt) -> Result<Tokenized, ApiError> {
        let (ids, splitter) = match prompt {
            Prompt::Ids(ids) => (ids.clone(), None),
            Prompt::Text(text) => (self.encode(name, text, true)?, None),
            Prompt::Messages(conversation) => {
                let (template, text) = self.render(conversation, true)?;
                let splitter = template
                    .reasons()
                    .then(|| ReasoningSplitter::new(prompt_opens_reasoning(&text)));
                // The template has written the special tokens.
                (self.encode(name, &text, false)?, splitter)
            }
        };
        match ids.is_empty() {
            true => Err(ApiError::invalid(format!("{name} has no tokens"))),
            false => Ok(Tokenized { ids, splitter }),
        }
    }

    /// A prompt as `echo` shows it: a text as it was given, token ids with their control marks.
    pub fn shown(&self, prompt: &Prompt) -> String {
        match prompt {
            Prompt::Text(text) => text.clone(),
            Prompt::Ids(ids) => {
                let mut decoder = self.tokenizer.stream_with_special();
                ids.iter().map(|&id| decoder.push(id)).collect()
            }
            // Chats are not echoed.
            Prompt::Messages(_) => String::new(),
        }
    }

    /// The text of a conversation, with the beginning of an answer or without, and the template that
    /// made it.
    pub fn render(
        &self,
        conversation: &Conversation,
        add_generation_prompt: bool,
    ) -> Result<(&ChatTemplate, String), ApiError> {
        let Some(template) = &self.template else {
            return Err(ApiError::field(
                "messages",
                "this model has no chat template; use /v1/completions",
            ));
        };
        let kwargs = conversation.kwargs.clone();
        let options = RenderOptions { add_generation_prompt, kwargs, ..RenderOptions::default() };
        let text = template.render_with(&conversation.messages, &options).map_err(refused)?;
        Ok((template, text))
    }

    /// The tokens of a text, called `name` in errors, with the tokenizer's own special tokens around it
    /// or without.
    pub fn encode(&self, name: &str, text: &str, special: bool) -> Result<Vec<u32>, ApiError> {
        self.tokenizer
            .encode(text, special)
            .map_err(|error| ApiError::invalid(format!("{name} cannot be read: {error}")))
    }
}

/// A conversation the template does not take is the client's mistake; a template that does not work is
/// the server's.
fn refused(error: ChatError) -> ApiError {
    match error {
        ChatError::Reserved { .. } | ChatError::Variables { .. } => {
            ApiError::field("chat_template_kwargs", error.to_string())
        }
        _ if error.is_client_error() => ApiError::field("messages", error.to_string()),
        _ => ApiError::internal(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use actix_web::ResponseError;
    use pocket_model::chat::TemplateFiles;
    use serde_json::{Map, json};

    use super::*;
    use crate::http::testing::tokenizer;

    /// A template that reasons unless told not to, as Qwen's do.
    const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
        {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n\
        {% else %}<think>\n{% endif %}";

    fn text_side(template: Option<&str>) -> TextSide {
        let files = TemplateFiles {
            jinja: template.map(str::as_bytes),
            tokenizer_config: None,
            legacy: None,
        };
        TextSide { tokenizer: tokenizer(), template: ChatTemplate::from_files(&files).unwrap() }
    }

    fn chat(kwargs: Map<String, serde_json::Value>) -> Prompt {
        let messages = vec![json!({"role": "user", "content": "Hi"})];
        Prompt::Messages(Conversation { messages, kwargs })
    }

    /// S25: whether the model is within its reasoning when it starts is for the prompt to say.
    #[test]
    fn a_templates_variables_reach_it_and_the_splitter_starts_where_the_prompt_ends() {
        let side = text_side(Some(TEMPLATE));
        let split = |kwargs: serde_json::Value| {
            let kwargs = kwargs.as_object().unwrap().clone();
            let tokenized = side.tokenize("the prompt", &chat(kwargs)).unwrap();
            let split = tokenized.splitter.unwrap().push("so</think>x");
            (side.tokenizer.decode(&tokenized.ids), split.reasoning)
        };
        let (text, reasoning) = split(json!({}));
        assert!(text.ends_with("Hi\n<think>\n"), "{text}");
        assert_eq!(reasoning, "so");
        let (text, reasoning) = split(json!({"enable_thinking": false}));
        assert!(text.ends_with("</think>\n\n"), "{text}");
        assert_eq!(reasoning, "");
        let plain = text_side(Some("{{ messages[0].content }}"));
        assert!(plain.tokenize("the prompt", &chat(Map::new())).unwrap().splitter.is_none());
    }

    #[test]
    fn a_prompt_is_echoed_as_it_was_given() {
        let side = text_side(None);
        assert_eq!(side.shown(&Prompt::Text("e\u{301} <|im_end|>".into())), "e\u{301} <|im_end|>");
        let ids = side.tokenizer.encode("a b<|im_end|>", false).unwrap();
        assert_eq!(side.shown(&Prompt::Ids(ids)), "a b<|im_end|>");
    }

    #[test]
    fn what_has_no_tokens_or_no_template_is_refused_by_name() {
        let side = text_side(None);
        let refusal = |prompt| side.tokenize("prompt[1]", &prompt).unwrap_err().to_string();
        assert_eq!(refusal(Prompt::Text(String::new())), "prompt[1] has no tokens");
        assert_eq!(
            refusal(chat(Map::new())),
            "this model has no chat template; use /v1/completions"
        );
    }

    #[test]
    fn the_templates_refusal_is_the_clients_and_its_failure_ours() {
        let refusal = ChatError::Refused { message: "System message must be first.".into() };
        let error = refused(refusal);
        assert_eq!(error.status_code(), 400);
        assert_eq!(error.to_json()["error"]["param"], "messages");
        assert_eq!(error.to_string(), "System message must be first.");
        let taken = refused(ChatError::Reserved { name: "tools".into() });
        assert_eq!(taken.to_json()["error"]["param"], "chat_template_kwargs");
        let broken = ChatError::Malformed { reason: "not a template".into() };
        assert_eq!(refused(broken).status_code(), 500);
    }
}
