//! From a conversation to the text the model was trained to continue, by the checkpoint's own chat
//! template.
//!
//! Templates are written for Jinja2 as transformers sets it up. Here minijinja renders them, with
//! what it lacks of Python added ([`environment`], [`json`], [`python`]); a set of templates and
//! conversations with Jinja2's own results keeps the two equal byte for byte.
//!
//! A template comes with a checkpoint, so it is not trusted: it reads no files, and its work is
//! limited in proportion to the conversation.

mod environment;
mod error;
mod generation_tag;
mod json;
mod messages;
mod python;
mod source;
mod variables;

use chrono::NaiveDateTime;
use minijinja::Environment;
use minijinja::value::Serde;
use serde_json::{Map, Value};

use crate::reasoning::is_reasoning_template;
use crate::tokenizer::SpecialTokens;

pub use error::ChatError;
pub use source::{CHAT_TEMPLATE_FILE, LEGACY_CHAT_TEMPLATE_FILE, TemplateFiles};

/// A checkpoint's chat template, compiled.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special: SpecialTokens,
    /// Content may be a list of parts; the template puts them together itself.
    takes_parts: bool,
    /// The template has a meaning for the role `developer`.
    knows_developer: bool,
    reasons: bool,
}

/// What a conversation is rendered with, beyond its messages.
#[derive(Clone, Debug, PartialEq)]
pub struct RenderOptions {
    /// End with the beginning of an assistant's message, for the model to continue.
    pub add_generation_prompt: bool,
    /// Functions the model may call, in OpenAI's form.
    pub tools: Option<Vec<Value>>,
    /// More variables for the template, `enable_thinking` for one; a request's
    /// `chat_template_kwargs`.
    pub kwargs: Map<String, Value>,
    /// What `strftime_now` takes for now; `None` is the machine's local time.
    pub now: Option<NaiveDateTime>,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self { add_generation_prompt: true, tools: None, kwargs: Map::new(), now: None }
    }
}

impl ChatTemplate {
    /// The template in a checkpoint's files, if it has one.
    ///
    /// # Errors
    ///
    /// A file that is not what its name says, or a template that is not valid Jinja.
    pub fn from_files(files: &TemplateFiles<'_>) -> Result<Option<Self>, ChatError> {
        let special = match files.tokenizer_config {
            Some(config) => SpecialTokens::from_bytes(config)
                .map_err(|error| ChatError::Malformed { reason: error.to_string() })?,
            None => SpecialTokens::default(),
        };
        let Some(templates) = source::find(files)? else { return Ok(None) };
        Self::new(templates, special).map(Some)
    }

    fn new(templates: Vec<(String, String)>, special: SpecialTokens) -> Result<Self, ChatError> {
        let mut environment = environment::new();
        let knows_developer = templates.iter().any(|(_, source)| source.contains("developer"));
        let reasons = templates.iter().any(|(_, source)| is_reasoning_template(source));
        for (name, source) in templates {
            let source = generation_tag::replace(&source);
            environment
                .add_template_owned(name.clone(), source)
                .map_err(|error| ChatError::template(&name, &error))?;
        }
        let mut template =
            Self { environment, special, takes_parts: false, knows_developer, reasons };
        template.takes_parts = template.probe_parts();
        Ok(template)
    }

    /// Whether the model reasons before it answers, as far as its template tells: see
    /// [`is_reasoning_template`].
    pub fn reasons(&self) -> bool {
        self.reasons
    }

    /// The text of a conversation, ending with the beginning of an answer.
    ///
    /// # Errors
    ///
    /// As [`render_with`](Self::render_with).
    pub fn render(
        &self,
        messages: &[Value],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let options = RenderOptions { add_generation_prompt, ..RenderOptions::default() };
        self.render_with(messages, &options)
    }

    /// The text of a conversation. Each message is an object with a `role` and, usually, `content`:
    /// a text, a list of `{"type": "text", "text": ...}`, or null.
    ///
    /// A list of parts is handed on if the template takes lists, else its texts are joined by line
    /// breaks. The role `developer` becomes `system` unless the template speaks of it.
    ///
    /// # Errors
    ///
    /// [`ChatError::is_client_error`] tells a wrong conversation from a template that does not work.
    pub fn render_with(
        &self,
        messages: &[Value],
        options: &RenderOptions,
    ) -> Result<String, ChatError> {
        let messages = messages::normalise(messages, self.takes_parts, self.knows_developer)?;
        let rendered = self.render_raw(&messages, options);
        if let Err(ChatError::Template { reason, .. }) = &rendered
            && !options.kwargs.is_empty()
        {
            // Whose fault it is shows without the request's own variables.
            let without = RenderOptions { kwargs: Map::new(), ..options.clone() };
            if self.render_raw(&messages, &without).is_ok() {
                return Err(ChatError::Variables { reason: reason.clone() });
            }
        }
        rendered
    }

    fn render_raw(&self, messages: &[Value], options: &RenderOptions) -> Result<String, ChatError> {
        let with_tools = options.tools.as_ref().is_some_and(|tools| !tools.is_empty());
        let name = match self.environment.get_template(source::TOOL_USE) {
            Ok(_) if with_tools => source::TOOL_USE,
            _ => source::DEFAULT,
        };

        // The clock and the limit are this call's own; the compiled templates are shared.
        let mut environment = self.environment.clone();
        let now = options.now;
        environment.add_function("strftime_now", move |format: &str| python::strftime(now, format));
        let variables = variables::gather(&environment, &self.special, messages, options)?;
        let fuel = environment::fuel(&variables);
        environment.set_fuel(Some(fuel));
        environment
            .get_template(name)
            .and_then(|template| template.render(Serde(&variables)))
            .map_err(|error| ChatError::rendering(name, &error, fuel))
    }

    /// Whether the template shows the text of a content that is a list of parts, found out by trying:
    /// a template that does not fails, or shows the list as Python writes it.
    fn probe_parts(&self) -> bool {
        const TEXT: &str = "pocketd's probe";
        let part = serde_json::json!([{"type": "text", "text": TEXT}]);
        let messages = [serde_json::json!({"role": "user", "content": part})];
        self.render_raw(&messages, &RenderOptions::default())
            .is_ok_and(|text| text.contains(TEXT) && !text.contains("'type'"))
    }
}

#[cfg(test)]
mod tests;
