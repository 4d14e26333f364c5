//! The messages of a chat request: which members and contents the API takes. What the template at
//! hand makes of roles and lists of parts is `pocket_model::chat`'s business.

use serde_json::{Map, Value, json};

use super::body::{kind, quote, wrong};
use super::error::ApiError;
use super::fields;

/// Fields of a message and the roles that may carry them.
const MESSAGE_FIELDS: &[(&str, &[&str])] = &[
    ("role", &["system", "developer", "user", "assistant", "tool"]),
    ("content", &["system", "developer", "user", "assistant", "tool"]),
    ("name", &["system", "developer", "user", "assistant", "tool"]),
    ("reasoning_content", &["assistant"]),
    ("tool_call_id", &["tool"]),
    // Members of an answer that clients send back; null (or empty) when the answer was text.
    ("refusal", &[]),
    ("audio", &[]),
    ("annotations", &[]),
    ("tool_calls", &[]),
    ("function_call", &[]),
];

/// Reads `messages`: each becomes an object with `role`, `content` and whatever else a template may
/// use, and nothing that is not text. More than `most` are refused.
pub fn read(value: &Value, most: usize) -> Result<Vec<Value>, ApiError> {
    let list = match value {
        Value::Array(list) if list.len() > most => {
            let message = format!("messages has {} messages; at most {most} are taken", list.len());
            return Err(ApiError::field("messages", message));
        }
        Value::Array(list) if !list.is_empty() => list,
        _ => return Err(wrong("messages", value, "a list of at least one message")),
    };
    list.iter().enumerate().map(|(index, message)| read_one(index, message)).collect()
}

fn read_one(index: usize, message: &Value) -> Result<Value, ApiError> {
    let at = |member: &str| format!("messages[{index}].{member}");
    let Value::Object(members) = message else {
        return Err(wrong(format!("messages[{index}]"), message, "an object"));
    };
    let roles = MESSAGE_FIELDS[0].1;
    let role = match members.get("role") {
        Some(Value::String(role)) if roles.contains(&role.as_str()) => role.as_str(),
        role => {
            let expected = format!("one of {}", roles.join(", "));
            return Err(wrong(at("role"), role.unwrap_or(&Value::Null), &expected));
        }
    };
    let mut ready = Map::new();
    ready.insert("role".into(), json!(role));
    ready.insert("content".into(), content(&at("content"), role, members.get("content"))?);
    for (name, value) in members {
        check_member(index, name, role, value)?;
        match name.as_str() {
            "role" | "content" => {}
            "reasoning_content" | "tool_call_id" | "name" => match value {
                Value::Null => {}
                Value::String(_) => {
                    ready.insert(name.clone(), value.clone());
                }
                _ => return Err(wrong(at(name), value, "a string")),
            },
            // Empty, or check_member would have refused it.
            _ => {}
        }
    }
    Ok(Value::Object(ready))
}

fn check_member(index: usize, name: &str, role: &str, value: &Value) -> Result<(), ApiError> {
    let param = format!("messages[{index}].{name}");
    match MESSAGE_FIELDS.iter().find(|(known, _)| *known == name) {
        Some((_, roles)) if roles.contains(&role) => Ok(()),
        Some(_) if value.is_null() || value.as_array().is_some_and(Vec::is_empty) => Ok(()),
        Some(_) => {
            let message =
                format!("{param} is {}, which is not supported for role {role}", quote(value));
            Err(ApiError::field(param, message).with_code("unsupported_parameter"))
        }
        None => {
            let known = MESSAGE_FIELDS.iter().map(|(known, _)| *known);
            let message = match fields::nearest(name, known) {
                Some(near) => format!("unknown parameter '{param}'; did you mean '{near}'?"),
                None => format!("unknown parameter '{param}'"),
            };
            Err(ApiError::field(param, message).with_code("unknown_parameter"))
        }
    }
}

/// A message's text: a string or a list of text parts; nothing only from the assistant, whose turn may
/// have been empty.
fn content(param: &str, role: &str, value: Option<&Value>) -> Result<Value, ApiError> {
    match value {
        Some(Value::String(_)) => Ok(json!(value)),
        Some(Value::Array(parts)) if !parts.is_empty() => parts
            .iter()
            .enumerate()
            .map(|(index, part)| text_part(&format!("{param}[{index}]"), part))
            .collect(),
        None | Some(Value::Null) if role == "assistant" => Ok(Value::Null),
        value => {
            let value = value.unwrap_or(&Value::Null);
            Err(wrong(param, value, "a string or a list of text parts"))
        }
    }
}

fn text_part(param: &str, part: &Value) -> Result<Value, ApiError> {
    let Value::Object(members) = part else {
        return Err(wrong(param, part, "an object like {\"type\":\"text\",\"text\":\"...\"}"));
    };
    match members.get("type").and_then(Value::as_str) {
        Some("text") => {}
        Some(other) => {
            let message = format!("{param} is of type '{other}'; this model takes only text");
            return Err(ApiError::field(param, message).with_code("unsupported_parameter"));
        }
        None => return Err(ApiError::field(param, format!("{param} has no type"))),
    }
    match members.get("text") {
        Some(Value::String(text)) => Ok(json!({"type": "text", "text": text})),
        other => {
            let what = other.map_or("missing", kind);
            Err(ApiError::field(param, format!("{param}.text is {what}; it must be a string")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(messages: Value) -> String {
        read(&messages, 16).unwrap_err().to_string()
    }

    #[test]
    fn what_a_template_may_use_is_handed_on() {
        let messages = read(
            &json!([
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [
                    {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}},
                    {"type": "text", "text": "there"},
                ]},
                {"role": "assistant", "content": null, "refusal": null, "tool_calls": []},
                {"role": "tool", "content": "4", "tool_call_id": "c1"},
                {"role": "assistant", "content": "4", "reasoning_content": "2+2", "name": "bot"},
            ]),
            5,
        )
        .unwrap();
        assert_eq!(
            Value::Array(messages),
            json!([
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [
                    {"type": "text", "text": "Hi"}, {"type": "text", "text": "there"},
                ]},
                {"role": "assistant", "content": null},
                {"role": "tool", "content": "4", "tool_call_id": "c1"},
                {"role": "assistant", "content": "4", "reasoning_content": "2+2", "name": "bot"},
            ])
        );
    }

    #[test]
    fn what_is_not_a_conversation_is_refused_by_name() {
        assert_eq!(refusal(json!([])), "messages is []; it must be a list of at least one message");
        assert_eq!(
            refusal(json!("Hi")),
            "messages is \"Hi\"; it must be a list of at least one message"
        );
        assert_eq!(refusal(json!(["Hi"])), "messages[0] is \"Hi\"; it must be an object");
        assert_eq!(
            refusal(json!([{"role": "bot", "content": "Hi"}])),
            "messages[0].role is \"bot\"; it must be one of system, developer, user, assistant, tool"
        );
        assert_eq!(
            refusal(json!([{"content": "Hi"}])),
            "messages[0].role is null; it must be one of system, developer, user, assistant, tool"
        );
        assert_eq!(
            refusal(json!([{"role": "user", "content": "a"}, {"role": "user", "content": null}])),
            "messages[1].content is null; it must be a string or a list of text parts"
        );
        assert_eq!(
            refusal(json!([{"role": "user"}])),
            "messages[0].content is null; it must be a string or a list of text parts"
        );
        assert_eq!(
            refusal(json!([{"role": "user", "content": "a", "nam": "b"}])),
            "unknown parameter 'messages[0].nam'; did you mean 'name'?"
        );
        assert_eq!(
            refusal(json!([{"role": "user", "content": "a", "name": 1}])),
            "messages[0].name is 1; it must be a string"
        );
        assert_eq!(
            refusal(json!([{"role": "assistant", "content": "", "tool_calls": [{}]}])),
            "messages[0].tool_calls is [{}], which is not supported for role assistant"
        );
    }

    #[test]
    fn there_is_a_most_of_messages() {
        let message = json!({"role": "user", "content": "Hi"});
        assert_eq!(read(&json!(vec![message.clone(); 16]), 16).unwrap().len(), 16);
        assert_eq!(
            refusal(json!(vec![message; 17])),
            "messages has 17 messages; at most 16 are taken"
        );
    }

    #[test]
    fn only_text_parts_are_taken() {
        let with = |part: Value| refusal(json!([{"role": "user", "content": [part]}]));
        assert_eq!(
            with(json!({"type": "image_url", "image_url": {"url": "data:"}})),
            "messages[0].content[0] is of type 'image_url'; this model takes only text"
        );
        assert_eq!(with(json!({"text": "a"})), "messages[0].content[0] has no type");
        assert_eq!(
            with(json!({"type": "text"})),
            "messages[0].content[0].text is missing; it must be a string"
        );
        assert!(with(json!("a")).starts_with("messages[0].content[0] is \"a\"; it must be"));
    }
}
