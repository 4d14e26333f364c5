//! The `tojson` filter as transformers defines it: Python's `json.dumps`, without HTML escapes and, by
//! default, without escapes of other than control characters.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::python;

/// `tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn tojson(
    value: &Value,
    positional: Rest<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    const NAMES: [&str; 4] = ["ensure_ascii", "indent", "separators", "sort_keys"];
    if positional.len() > NAMES.len() {
        return Err(ErrorKind::TooManyArguments.into());
    }
    let argument = |index: usize| -> Result<Option<Value>, Error> {
        let value = match positional.get(index) {
            Some(value) => Some(value.clone()),
            None => named.get::<Option<Value>>(NAMES[index])?,
        };
        Ok(value.filter(|value| !value.is_none()))
    };
    let ensure_ascii = argument(0)?.is_some_and(|value| value.is_true());
    let indent = match argument(1)? {
        None => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(i64::try_from(value)?).unwrap_or_default()),
        }),
    };
    let (item_separator, key_separator) = match argument(2)? {
        Some(pair) => {
            let part = |index| -> Result<String, Error> {
                let part = pair.get_item_by_index(index)?;
                part.as_str().map(str::to_owned).ok_or_else(|| {
                    Error::new(ErrorKind::InvalidOperation, "separators must be two strings")
                })
            };
            (part(0)?, part(1)?)
        }
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let sort_keys = argument(3)?.is_some_and(|value| value.is_true());
    named.assert_all_used()?;
    let mut writer = Writer {
        out: String::new(),
        ensure_ascii,
        indent,
        item_separator,
        key_separator,
        sort_keys,
        depth: 0,
    };
    writer.value(value)?;
    Ok(Value::from(writer.out))
}

struct Writer {
    out: String,
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
    depth: usize,
}

impl Writer {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)?),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.container(['[', ']'], &items, |writer, item| writer.value(item))?;
            }
            ValueKind::Map => {
                let mut entries = Vec::new();
                for name in value.try_iter()? {
                    entries.push((key(&name)?, value.get_item(&name)?));
                }
                if self.sort_keys {
                    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.container(['{', '}'], &entries, |writer, (name, value)| {
                    writer.string(name);
                    writer.out.push_str(&writer.key_separator);
                    writer.value(value)
                })?;
            }
            kind => {
                let detail = format!("a value of type {kind} is not JSON");
                return Err(Error::new(ErrorKind::BadSerialization, detail));
            }
        }
        Ok(())
    }

    fn container<T>(
        &mut self,
        brackets: [char; 2],
        items: &[T],
        mut write: impl FnMut(&mut Self, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(brackets[0]);
        self.depth += 1;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.out.push_str(&self.item_separator);
            }
            self.line_break();
            write(self, item)?;
        }
        self.depth -= 1;
        if !items.is_empty() {
            self.line_break();
        }
        self.out.push(brackets[1]);
        Ok(())
    }

    fn line_break(&mut self) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..self.depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                ' '..='~' => self.out.push(character),
                '\u{7f}'.. if !self.ensure_ascii => self.out.push(character),
                _ => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        // Writing to a String does not fail.
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
            }
        }
        self.out.push('"');
    }
}

/// A number as Python writes it; JSON has no infinity, Python's does.
fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    let float = f64::try_from(value.clone())?;
    Ok(match float {
        _ if float.is_nan() => "NaN".to_owned(),
        _ if float.is_infinite() => format!("{}Infinity", if float < 0.0 { "-" } else { "" }),
        _ => python::text(value),
    })
}

/// The text of a key, which in Python need not be one.
fn key(name: &Value) -> Result<String, Error> {
    match name.kind() {
        ValueKind::String => Ok(name.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if name.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number => number(name),
        kind => {
            let detail = format!("a key of type {kind} is not JSON");
            Err(Error::new(ErrorKind::BadSerialization, detail))
        }
    }
}
