//! A request body: JSON, checked against the [field table](super::fields), read field by field with
//! errors that name the field, its value and its range.

use std::fmt::Display;

use serde_json::{Map, Value};

use super::error::ApiError;
use super::fields::{self, Endpoint, Support};

/// Longest part of a value that an error quotes, in characters.
const QUOTED: usize = 60;

/// Levels of lists and objects the JSON parser reads; deeper ones could overflow the stack.
const NESTED: usize = 127;

/// The fields of one request that are not null and that the table knows.
#[derive(Debug)]
pub struct Body {
    endpoint: Endpoint,
    fields: Map<String, Value>,
}

/// Reads the JSON of a body.
pub fn json(bytes: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| {
        let error = error.to_string();
        // The parser has no name for it but in words.
        let message = if error.starts_with("recursion limit") {
            format!(
                "lists and objects of the body are nested too deep: {error}; at most {NESTED} levels \
                 are read"
            )
        } else {
            format!("the body is not valid JSON: {error}")
        };
        ApiError::invalid(message).with_code("invalid_json")
    })
}

impl Body {
    /// Reads a body and refuses fields that are unknown or ask for what is not implemented.
    pub fn parse(endpoint: Endpoint, bytes: &[u8]) -> Result<Self, ApiError> {
        let value = json(bytes)?;
        let Value::Object(mut fields) = value else {
            return Err(ApiError::invalid(format!(
                "the body must be a JSON object, not {}",
                kind(&value)
            )));
        };
        fields.retain(|_, value| !value.is_null());
        for (name, value) in &fields {
            check(endpoint, name, value)?;
        }
        Ok(Self { endpoint, fields })
    }

    /// A field as it came; none when absent or null.
    pub fn get(&self, name: &'static str) -> Option<&Value> {
        debug_assert!(
            matches!(
                fields::find(self.endpoint, name).map(|field| field.support),
                Some(Support::Implemented(_))
            ),
            "{name} is read and the table does not say so"
        );
        self.fields.get(name)
    }

    /// A field that is true or false.
    pub fn boolean(&self, name: &'static str) -> Result<Option<bool>, ApiError> {
        self.read(name, "true or false", |value| value.as_bool())
    }

    /// A field that is a string.
    pub fn text(&self, name: &'static str) -> Result<Option<&str>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_str() {
            Some(text) => Ok(Some(text)),
            None => Err(wrong(name, value, "a string")),
        }
    }

    /// A field that is a number for which `allowed` holds; `range` says the same in words.
    pub fn number(
        &self,
        name: &'static str,
        range: &str,
        allowed: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>, ApiError> {
        self.read(name, &format!("a number {range}"), |value| {
            value.as_f64().filter(|number| allowed(*number))
        })
    }

    /// A field that is a whole number from `least` to `most`.
    pub fn integer(
        &self,
        name: &'static str,
        least: i64,
        most: i64,
    ) -> Result<Option<i64>, ApiError> {
        let expected = match most {
            i64::MAX if least > i64::MIN => format!("a whole number, at least {least}"),
            _ => format!("a whole number from {least} to {most}"),
        };
        self.read(name, &expected, |value| {
            whole_number(value).filter(|number| (least..=most).contains(number))
        })
    }

    fn read<T>(
        &self,
        name: &'static str,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| wrong(name, value, expected))
    }
}

/// What the table says to a field that was given.
fn check(endpoint: Endpoint, name: &str, value: &Value) -> Result<(), ApiError> {
    let Some(field) = fields::find(endpoint, name) else {
        let known = fields::of(endpoint).map(|field| field.name);
        let path = endpoint.path();
        let message = match fields::nearest(name, known) {
            Some(near) => format!("unknown parameter '{name}' of {path}; did you mean '{near}'?"),
            None => format!("unknown parameter '{name}' of {path}"),
        };
        return Err(ApiError::field(name, message).with_code("unknown_parameter"));
    };
    match field.support {
        Support::Implemented(_) | Support::Inert => Ok(()),
        Support::Only(allowed) if fields::accepts(allowed, value) => Ok(()),
        Support::Only(allowed) => {
            let instead = match allowed {
                [] => "leave it out".to_string(),
                allowed => format!("leave it out or send {}", allowed.join(" or ")),
            };
            let message = format!(
                "{name} ({}) is {}, which is not supported; {instead}",
                field.about,
                quote(value)
            );
            Err(ApiError::field(name, message).with_code("unsupported_parameter"))
        }
    }
}

/// The error for a value of the wrong kind or out of range.
pub fn wrong(param: impl Display, value: &Value, expected: &str) -> ApiError {
    let message = format!("{param} is {}; it must be {expected}", quote(value));
    ApiError::field(param.to_string(), message)
}

/// An integer, or a float without a fraction: JSON does not tell them apart.
pub fn whole_number(value: &Value) -> Option<i64> {
    // Beyond 2^53 a double no longer says which whole number was meant.
    const EXACT: f64 = (1u64 << 53) as f64;
    value.as_i64().or_else(|| {
        value
            .as_f64()
            .filter(|number| number.fract() == 0.0 && number.abs() <= EXACT)
            .map(|number| number as i64)
    })
}

/// A value as an error shows it: its JSON, cut when long.
pub fn quote(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// What a value is, in words.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chat(value: Value) -> Result<Body, ApiError> {
        Body::parse(Endpoint::Chat, value.to_string().as_bytes())
    }

    #[test]
    fn what_is_not_an_object_is_refused() {
        let refused = |text: &str| Body::parse(Endpoint::Chat, text.as_bytes()).unwrap_err();
        assert!(refused("{\"model\":").to_string().starts_with("the body is not valid JSON: "));
        assert!(refused("").to_string().starts_with("the body is not valid JSON: "));
        assert_eq!(refused("[]").to_string(), "the body must be a JSON object, not a list");
        // Deeper than the parser's recursion limit: an error, not a stack overflow.
        let deep = "[".repeat(100_000);
        assert_eq!(
            refused(&deep).to_string(),
            "lists and objects of the body are nested too deep: recursion limit exceeded at line 1 \
             column 128; at most 127 levels are read"
        );
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert_eq!(refused(&nested(127)).to_string(), "the body must be a JSON object, not a list");
        assert!(refused(&nested(128)).to_string().contains("nested too deep"));
        assert!(Body::parse(Endpoint::Chat, b"{\"model\":\"\xff\"}").is_err());
    }

    #[test]
    fn unknown_fields_are_refused_with_the_nearest_name() {
        let error = chat(json!({"max_token": 4})).unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown parameter 'max_token' of /v1/chat/completions; did you mean 'max_tokens'?"
        );
        assert_eq!(error.to_json()["error"]["param"], "max_token");
        assert_eq!(error.to_json()["error"]["code"], "unknown_parameter");
        let error = chat(json!({"prompt": "Hi"})).unwrap_err();
        assert_eq!(error.to_string(), "unknown parameter 'prompt' of /v1/chat/completions");
    }

    #[test]
    fn unsupported_values_are_refused_and_defaults_are_not() {
        for (name, value) in [
            ("priority", json!(3)),
            ("length_penalty", json!(0.5)),
            ("response_format", json!({"type": "json_object"})),
            ("tools", json!([{"type": "function"}])),
            ("echo", json!(true)),
            ("reasoning_effort", json!("low")),
        ] {
            let error = chat(json!({name: value})).unwrap_err();
            assert_eq!(error.to_json()["error"]["param"], name);
            assert_eq!(error.to_json()["error"]["code"], "unsupported_parameter");
        }
        assert_eq!(
            chat(json!({"priority": 7})).unwrap_err().to_string(),
            "priority (order in the queue) is 7, which is not supported; leave it out or send 0"
        );
        assert_eq!(
            chat(json!({"audio": {"voice": "x"}})).unwrap_err().to_string(),
            "audio (spoken output) is {\"voice\":\"x\"}, which is not supported; leave it out"
        );
        chat(json!({
            "length_penalty": 1.0, "priority": 0, "tool_choice": "auto", "echo": false,
            "response_format": {"type": "text"}, "tools": null, "audio": null,
            "user": "someone", "metadata": {"a": "b"}, "store": false,
        }))
        .unwrap();
    }

    #[test]
    fn values_out_of_range_name_field_value_and_range() {
        let body = chat(json!({
            "temperature": 3.5, "seed": 1.5, "stream": "yes", "model": 7, "top_k": 1e300,
        }))
        .unwrap();
        let within = |number: f64| (0.0..=2.0).contains(&number);
        assert_eq!(
            body.number("temperature", "from 0 to 2", within).unwrap_err().to_string(),
            "temperature is 3.5; it must be a number from 0 to 2"
        );
        assert_eq!(
            body.integer("seed", i64::MIN, i64::MAX).unwrap_err().to_string(),
            "seed is 1.5; it must be a whole number from -9223372036854775808 to \
             9223372036854775807"
        );
        assert_eq!(
            body.integer("top_k", -1, i64::MAX).unwrap_err().to_string(),
            "top_k is 1e+300; it must be a whole number, at least -1"
        );
        assert_eq!(
            body.boolean("stream").unwrap_err().to_string(),
            "stream is \"yes\"; it must be true or false"
        );
        assert_eq!(body.text("model").unwrap_err().to_string(), "model is 7; it must be a string");
        assert_eq!(body.boolean("ignore_eos").unwrap(), None);
    }

    #[test]
    fn a_float_without_fraction_is_a_whole_number() {
        assert_eq!(whole_number(&json!(16.0)), Some(16));
        assert_eq!(whole_number(&json!(-1)), Some(-1));
        assert_eq!(whole_number(&json!(1e300)), None);
        assert_eq!(whole_number(&json!(u64::MAX)), None);
        assert_eq!(whole_number(&json!("16")), None);
    }

    #[test]
    fn long_values_are_cut_on_a_character() {
        let quoted = quote(&json!("é".repeat(500)));
        assert_eq!(quoted.chars().count(), QUOTED + 3);
        assert!(quoted.ends_with("é..."));
    }
}
