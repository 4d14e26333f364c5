//! `pocketd flags`: the experiment flags and their values in this environment.

use std::io::Write;

use pocket_config::{FLAGS, Flag, Kind, Settings};
use serde::Serialize;
use serde_json::Value;

use super::output::{print_json, stdout};
use crate::cli::FlagsArgs;

/// One flag as programs read it. Values have their own type; null is "not set".
#[derive(Serialize)]
struct Row {
    name: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    default: Value,
    value: Value,
    meaning: &'static str,
    /// False when answers are wrong while the flag is on.
    outputs_correct: bool,
    /// True when it may change while the daemon runs.
    runtime: bool,
}

/// Prints them.
pub fn run(settings: &Settings, args: &FlagsArgs) -> anyhow::Result<()> {
    let rows: Vec<Row> = FLAGS.iter().map(|flag| row(flag, settings)).collect();
    if args.json { print_json(&rows) } else { print_table(&rows) }
}

fn row(flag: &'static Flag, settings: &Settings) -> Row {
    Row {
        name: flag.name,
        kind: flag.kind.name(),
        default: typed(flag.kind, flag.default_text()),
        value: typed(flag.kind, flag.value_text(&settings.flags)),
        meaning: flag.meaning,
        outputs_correct: flag.outputs_correct,
        runtime: flag.runtime,
    }
}

fn typed(kind: Kind, text: String) -> Value {
    match kind {
        _ if text.is_empty() => Value::Null,
        Kind::Boolean => Value::Bool(text == "1"),
        Kind::Integer | Kind::Seconds | Kind::Number | Kind::TextOrInteger => {
            text.parse().map_or(Value::String(text), Value::Number)
        }
        Kind::Text => Value::String(text),
    }
}

fn print_table(rows: &[Row]) -> anyhow::Result<()> {
    let shown = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or_default();
    let mut out = stdout();
    writeln!(
        out,
        "{:width$}  {:<7}  {:<7}  {:<16}  {:<7}  {:<7}  meaning",
        "flag", "type", "default", "value", "correct", "runtime"
    )?;
    for row in rows {
        writeln!(
            out,
            "{:width$}  {:<7}  {:<7}  {:<16}  {:<7}  {:<7}  {}",
            row.name,
            row.kind,
            shown(&row.default),
            shown(&row.value),
            yes_no(row.outputs_correct),
            yes_no(row.runtime),
            row.meaning
        )?;
    }
    Ok(out.flush()?)
}

fn yes_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_carries_type_default_value_and_consequences() {
        let mut settings = Settings::default();
        settings.flags.set("POCKET_ASCEND_IPC_ALLREDUCE_SKIP", "true").unwrap();
        let rows: Vec<Row> = FLAGS.iter().map(|flag| row(flag, &settings)).collect();
        let json = serde_json::to_value(&rows).unwrap();
        assert_eq!(json.as_array().unwrap().len(), FLAGS.len());
        let skip = &json[0];
        assert_eq!(skip["name"], "POCKET_ASCEND_IPC_ALLREDUCE_SKIP");
        assert_eq!(skip["type"], "boolean");
        assert_eq!(skip["default"], false);
        assert_eq!(skip["value"], true);
        assert_eq!(skip["outputs_correct"], false);
        assert_eq!(skip["runtime"], true);
        let delay = &json[4];
        assert_eq!(
            (delay["name"].as_str(), delay["value"].as_u64()),
            (Some("POCKET_CALL_DELAY_US"), Some(0))
        );
        let mut rows = json.as_array().unwrap().iter();
        let fault = rows.find(|row| row["name"] == "POCKET_FAULT").unwrap();
        assert_eq!(
            (fault["value"].as_str(), fault["default"].as_str()),
            (Some("none"), Some("none"))
        );
    }
}
