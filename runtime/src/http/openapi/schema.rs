//! Short words for JSON schemas.

use serde_json::{Map, Value, json};

/// A schema of the document by its name.
pub fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// An object that always has these members and no others.
pub fn object<const N: usize>(members: [(&str, Value); N]) -> Value {
    partial(members, [])
}

/// An object that always has the first members, may have the second, and no others.
pub fn partial<const N: usize, const M: usize>(
    always: [(&str, Value); N],
    sometimes: [(&str, Value); M],
) -> Value {
    let required: Vec<&str> = always.iter().map(|(name, _)| *name).collect();
    let properties: Map<String, Value> = always
        .iter()
        .chain(&sometimes)
        .map(|(name, schema)| ((*name).to_owned(), schema.clone()))
        .collect();
    json!({
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": false,
    })
}

/// A list of what the schema describes.
pub fn list(of: Value) -> Value {
    json!({"type": "array", "items": of})
}

/// What the schema describes, or null.
pub fn nullable(schema: Value) -> Value {
    json!({"anyOf": [schema, {"type": "null"}]})
}

/// A text.
pub fn text() -> Value {
    json!({"type": "string"})
}

/// One of some texts.
pub fn one_of(texts: &[&str]) -> Value {
    json!({"type": "string", "enum": texts})
}

/// A whole number from 0.
pub fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

/// A number.
pub fn number() -> Value {
    json!({"type": "number"})
}

/// Nothing.
pub fn null() -> Value {
    json!({"type": "null"})
}
