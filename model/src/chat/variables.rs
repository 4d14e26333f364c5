//! What a template sees.

use minijinja::Environment;
use serde_json::{Map, Value};

use super::{ChatError, RenderOptions};
use crate::tokenizer::SpecialTokens;

/// The variables of one rendering. Those of the request come beside the others, never in their place:
/// what a conversation says, and what the checkpoint's marks are, is not for them to change.
///
/// # Errors
///
/// A variable of the request with the name of another, or of a function.
pub(super) fn gather(
    environment: &Environment<'_>,
    special: &SpecialTokens,
    messages: &[Value],
    options: &RenderOptions,
) -> Result<Map<String, Value>, ChatError> {
    let mut variables: Map<String, Value> =
        special.iter().map(|(role, token)| (role.into(), token.into())).collect();
    variables.insert("messages".into(), messages.into());
    variables.insert("tools".into(), options.tools.clone().map_or(Value::Null, Value::from));
    variables.insert("documents".into(), Value::Null);
    variables.insert("add_generation_prompt".into(), options.add_generation_prompt.into());
    for (name, value) in &options.kwargs {
        let is_function = environment.globals().any(|(global, _)| global == name);
        if is_function || variables.contains_key(name) {
            return Err(ChatError::Reserved { name: name.clone() });
        }
        variables.insert(name.clone(), value.clone());
    }
    Ok(variables)
}
