//! Brings a conversation into the form a template expects.

use serde_json::{Map, Value};

use super::error::ChatError;

/// Checks each message and adapts it: see [`ChatTemplate::render_with`](super::ChatTemplate::render_with).
pub(super) fn normalise(
    messages: &[Value],
    takes_parts: bool,
    knows_developer: bool,
) -> Result<Vec<Value>, ChatError> {
    let message = |(index, message): (usize, &Value)| {
        let wrong = |at: &str, reason: &str| ChatError::Message {
            index,
            at: at.to_owned(),
            reason: reason.to_owned(),
        };
        let Value::Object(message) = message else {
            return Err(wrong("", "is not an object with a role and a content"));
        };
        let mut message = message.clone();
        match message.get("role") {
            Some(Value::String(role)) if role == "developer" && !knows_developer => {
                message.insert("role".into(), "system".into());
            }
            Some(Value::String(_)) => {}
            _ => return Err(wrong(".role", "is not a text")),
        }
        normalise_content(&mut message, takes_parts).map_err(|(at, reason)| wrong(&at, reason))?;
        parse_arguments(&mut message);
        Ok(Value::Object(message))
    };
    messages.iter().enumerate().map(message).collect()
}

fn normalise_content(
    message: &mut Map<String, Value>,
    takes_parts: bool,
) -> Result<(), (String, &'static str)> {
    let content = match message.get("content") {
        Some(Value::String(_)) => return Ok(()),
        // An assistant that only calls functions says nothing.
        None | Some(Value::Null) => Value::from(""),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().enumerate().map(|(index, part)| {
                let at = || format!(".content[{index}]");
                match (part["type"].as_str(), part["text"].as_str()) {
                    (Some("text"), Some(text)) => Ok(text),
                    (Some("text"), None) => Err((at(), "has no text")),
                    _ => Err((at(), "is not of type text: this model takes nothing else")),
                }
            });
            let texts: Vec<&str> = texts.collect::<Result<_, _>>()?;
            if takes_parts {
                return Ok(());
            }
            texts.join("\n").into()
        }
        Some(_) => return Err((".content".into(), "is neither a text nor a list of parts")),
    };
    message.insert("content".into(), content);
    Ok(())
}

/// Clients hand a call's arguments back as the text they got; templates loop over them, so a text that
/// is a JSON object becomes one.
fn parse_arguments(message: &mut Map<String, Value>) {
    let Some(Value::Array(calls)) = message.get_mut("tool_calls") else { return };
    for call in calls {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        let parsed = arguments.as_str().map(serde_json::from_str::<Map<String, Value>>);
        if let Some(Ok(object)) = parsed {
            *arguments = Value::Object(object);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn one(message: Value, takes_parts: bool) -> Result<Value, String> {
        normalise(&[message], takes_parts, false)
            .map(|mut messages| messages.remove(0))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn developer_is_system_to_a_template_that_knows_no_better_k2() {
        let message = [json!({"role": "developer", "content": "Be brief."})];
        let role = |knows| normalise(&message, false, knows).unwrap()[0]["role"].clone();
        assert_eq!(role(false), "system");
        assert_eq!(role(true), "developer");
    }

    #[test]
    fn parts_are_joined_unless_the_template_takes_them() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let message = json!({"role": "user", "content": parts});
        assert_eq!(one(message.clone(), false).unwrap()["content"], "a\nb");
        assert_eq!(one(message.clone(), true).unwrap(), message);
    }

    #[test]
    fn no_content_is_empty_content_k7() {
        let call = json!({"role": "assistant", "content": null, "tool_calls": []});
        assert_eq!(one(call, false).unwrap()["content"], "");
        assert_eq!(one(json!({"role": "assistant"}), true).unwrap()["content"], "");
    }

    #[test]
    fn arguments_in_text_become_an_object() {
        let call = |arguments: Value| {
            let call =
                json!({"type": "function", "function": {"name": "f", "arguments": arguments}});
            json!({"role": "assistant", "content": "", "tool_calls": [call]})
        };
        let object = json!({"b": 1, "a": [2]});
        assert_eq!(one(call(json!("{\"b\": 1, \"a\": [2]}")), false), Ok(call(object.clone())));
        assert_eq!(one(call(object.clone()), false), Ok(call(object)));
        assert_eq!(one(call(json!("not JSON")), false), Ok(call(json!("not JSON"))));
    }

    #[test]
    fn what_is_no_message_is_named() {
        let error = |message| one(message, false).unwrap_err();
        assert_eq!(error(json!("hi")), "messages[0] is not an object with a role and a content");
        assert_eq!(error(json!({"content": "hi"})), "messages[0].role is not a text");
        assert_eq!(
            error(json!({"role": "user", "content": 7})),
            "messages[0].content is neither a text nor a list of parts"
        );
        let image = json!({"role": "user", "content": [{"type": "image_url"}]});
        assert_eq!(
            error(image),
            "messages[0].content[0] is not of type text: this model takes nothing else"
        );
        let empty = json!({"role": "user", "content": [{"type": "text"}]});
        assert_eq!(error(empty), "messages[0].content[0] has no text");
    }
}
