//! Python's methods on text, as far as templates use them and minijinja-contrib lacks them or differs,
//! and its clock.

use std::fmt::Write as _;

use chrono::format::{Item, StrftimeItems};
use chrono::{Local, NaiveDateTime};
use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// Calls `value.name(args)`.
pub(super) fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match value.as_str().map(|text| text_method(text, name, args)) {
        Some(Ok(Some(result))) => Ok(result),
        Some(Err(error)) => Err(error),
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn text_method(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let triple = |before: &str, mark: &str, after: &str| {
        Value::from(Tuple::from([before, mark, after].map(Value::from)))
    };
    Ok(Some(match name {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "partition" => {
            let (mark,): (&str,) = from_args(args)?;
            match text.split_once(mark) {
                Some((before, after)) => triple(before, mark, after),
                None => triple(text, "", ""),
            }
        }
        "rpartition" => {
            let (mark,): (&str,) = from_args(args)?;
            match text.rsplit_once(mark) {
                Some((before, after)) => triple(before, mark, after),
                None => triple("", "", text),
            }
        }
        "rsplit" => {
            let (mark, limit): (&str, Option<usize>) = from_args(args)?;
            let mut parts: Vec<&str> = match limit {
                Some(limit) => text.rsplitn(limit + 1, mark).collect(),
                None => text.rsplit(mark).collect(),
            };
            parts.reverse();
            parts.into_iter().map(Value::from).collect()
        }
        "index" => {
            let (part,): (&str,) = from_args(args)?;
            let Some(at) = text.find(part) else {
                return Err(Error::new(ErrorKind::InvalidOperation, "substring not found"));
            };
            text[..at].chars().count().into()
        }
        _ => return Ok(None),
    }))
}

/// What Python's `str` makes of a value. The engine differs only in the exponents of numbers.
pub(super) fn text(value: &Value) -> String {
    let text = value.to_string();
    if value.kind() != ValueKind::Number || value.is_integer() {
        return text;
    }
    // Rust's debugging form changes to an exponent where Python does.
    let Ok(text) = f64::try_from(value.clone()).map(|float| format!("{float:?}")) else {
        return text;
    };
    match text.split_once('e') {
        Some((digits, exponent)) => match exponent.strip_prefix('-') {
            Some(exponent) => format!("{digits}e-{exponent:0>2}"),
            None => format!("{digits}e+{exponent:0>2}"),
        },
        None => text,
    }
}

/// The time, written as `format` says; `None` is now, here.
pub(super) fn strftime(now: Option<NaiveDateTime>, format: &str) -> Result<String, Error> {
    let now = now.unwrap_or_else(|| Local::now().naive_local());
    let wrong = || {
        let detail = format!("strftime_now does not know the format {format:?}");
        Error::new(ErrorKind::InvalidOperation, detail)
    };
    let items: Vec<Item> = StrftimeItems::new(format).collect();
    if items.contains(&Item::Error) {
        return Err(wrong());
    }
    let mut text = String::new();
    // Fails on what a time without a zone does not have.
    write!(text, "{}", now.format_with_items(items.iter())).map_err(|_| wrong())?;
    Ok(text)
}
