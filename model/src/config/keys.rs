//! Checked access to the keys of a JSON object, with errors that name file, key and value.

use serde_json::{Map, Value};

use crate::ModelError;

/// An object of a JSON file, and where in the file it is.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    file: String,
    path: String,
    map: Map<String, Value>,
}

impl Keys {
    /// The root object of a file.
    pub(crate) fn parse(file: &str, text: &[u8]) -> Result<Keys, ModelError> {
        let wrong = |detail: String| ModelError::Json { file: file.to_owned(), detail };
        match serde_json::from_slice(text) {
            Ok(Value::Object(map)) => Ok(Keys { file: file.to_owned(), path: String::new(), map }),
            Ok(_) => Err(wrong("expected a JSON object".to_owned())),
            Err(error) => Err(wrong(format!("not valid JSON: {error}"))),
        }
    }

    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// A key's value; an explicit null counts as absent, as the reference writes unset values.
    pub(crate) fn value(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// An object one level down.
    pub(crate) fn object(&self, key: &str) -> Result<Option<Keys>, ModelError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Keys {
                file: self.file.clone(),
                path: format!("{}{key}.", self.path),
                map: map.clone(),
            })),
            Some(other) => Err(self.wrong(key, other, "an object")),
        }
    }

    pub(crate) fn list(&self, key: &str) -> Result<Option<Vec<Value>>, ModelError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list.clone())),
            Some(other) => Err(self.wrong(key, other, "a list")),
        }
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<String>, ModelError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(self.wrong(key, other, "a string")),
        }
    }

    pub(crate) fn bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(self.wrong(key, other, "true or false")),
        }
    }

    /// A string that, when it is there, must be one of `allowed`.
    pub(crate) fn require_text(&self, key: &str, allowed: &[&str]) -> Result<(), ModelError> {
        match self.text(key)? {
            Some(found) if !allowed.contains(&found.as_str()) => {
                Err(self.wrong(key, &Value::String(found), &allowed.join(" or ")))
            }
            _ => Ok(()),
        }
    }

    /// A whole number from 1 to `most` that has to be there.
    pub(crate) fn count(&self, key: &str, most: usize) -> Result<usize, ModelError> {
        self.optional_count(key, 1, most)?
            .ok_or_else(|| self.missing(key, &format!("a whole number from 1 to {most}")))
    }

    /// A whole number from `least` to `most`, if it is there.
    pub(crate) fn optional_count(
        &self,
        key: &str,
        least: usize,
        most: usize,
    ) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let fits = |number: u64| {
            usize::try_from(number).ok().filter(|number| (least..=most).contains(number))
        };
        match value.as_u64().and_then(fits) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(key, value, &format!("a whole number from {least} to {most}"))),
        }
    }

    /// A number above 0 and at most `most` that has to be there.
    pub(crate) fn positive(&self, key: &str, most: f64) -> Result<f64, ModelError> {
        let expected = format!("a number above 0, at most {most}");
        let value = self.value(key).ok_or_else(|| self.missing(key, &expected))?;
        value
            .as_f64()
            .filter(|number| *number > 0.0 && *number <= most)
            .ok_or_else(|| self.wrong(key, value, &expected))
    }

    /// A number from `least` to `most`, if it is there.
    pub(crate) fn optional_number(
        &self,
        key: &str,
        least: f64,
        most: f64,
    ) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_f64().filter(|number| (least..=most).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(key, value, &format!("a number from {least} to {most}"))),
        }
    }

    pub(crate) fn missing(&self, key: &str, expected: &str) -> ModelError {
        ModelError::KeyMissing {
            file: self.file.clone(),
            key: format!("{}{key}", self.path),
            expected: expected.to_owned(),
        }
    }

    pub(crate) fn wrong(&self, key: &str, value: &Value, expected: &str) -> ModelError {
        // A value of any size can stand in the file; the message stays one readable line.
        const SHOWN: usize = 80;
        let mut value = value.to_string();
        if let Some((end, _)) = value.char_indices().nth(SHOWN) {
            value.truncate(end);
            value.push_str("...");
        }
        ModelError::KeyValue {
            file: self.file.clone(),
            key: format!("{}{key}", self.path),
            value,
            expected: expected.to_owned(),
        }
    }

    pub(crate) fn conflict(&self, detail: String) -> ModelError {
        ModelError::KeyConflict { file: self.file.clone(), detail }
    }
}
