//! The template engine, set up like transformers' Jinja2: its whitespace rules, its filters and
//! functions, Python's methods, Python's way of writing values.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value};
use serde_json::Map;

use super::error::Raised;
use super::{json, python};

/// An engine without templates. It has no loader: a template cannot read files.
pub(super) fn new() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax());
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_formatter(write_value);
    environment.set_unknown_method_callback(python::method);
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("string", python::text);
    environment.add_function("raise_exception", raise_exception);
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", is_iterable);
    environment
}

fn syntax() -> SyntaxConfig {
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(false);
    syntax.build().unwrap_or_default()
}

/// Instructions a conversation may take: generous for any template that visits each message a few
/// times, small enough that a template that does not end is stopped within seconds. The engine also
/// charges one for every 64 bytes of text made.
pub(super) fn fuel(variables: &Map<String, serde_json::Value>) -> u64 {
    const BASE: u64 = 2_000_000;
    const PER_MESSAGE: u64 = 5_000;
    const PER_BYTE: u64 = 4;
    let messages = variables["messages"].as_array().map_or(0, Vec::len) as u64;
    let bytes = Bytes::of(variables);
    BASE + PER_MESSAGE * messages + PER_BYTE * bytes
}

/// Counts the bytes written to it.
struct Bytes(u64);

impl Bytes {
    fn of(variables: &Map<String, serde_json::Value>) -> u64 {
        let mut bytes = Self(0);
        // Counting does not fail.
        let _ = serde_json::to_writer(&mut bytes, variables);
        bytes.0
    }
}

impl std::io::Write for Bytes {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0 += data.len() as u64;
        Ok(data.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    let error = Error::new(ErrorKind::InvalidOperation, "raised by the template");
    Err(error.with_source(Raised(message.to_owned())))
}

/// Writes what `{{ }}` holds.
fn write_value(out: &mut Output, _: &mut State, value: &Value) -> Result<(), Error> {
    out.write_str(&python::text(value)).map_err(|_| ErrorKind::WriteFailure.into())
}

/// Jinja2 calls everything a sequence that has a length and can be indexed.
fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
}

/// Text, and an undefined value, can be looped over in Python.
fn is_iterable(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::String | ValueKind::Undefined) || value.try_iter().is_ok()
}
