//! Settings and flags from a TOML file: flat keys, and the flags in a `[flags]` table.

use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{SETTINGS, Seen, Settings, find};
use crate::error::{ConfigError, Origin};
use crate::flags;
use crate::nearest::nearest;
use crate::value::Kind;

/// The table that holds flags.
const FLAGS_TABLE: &str = "flags";

/// Applies every key of the file at `path`.
pub(super) fn apply(settings: &mut Settings, path: &Path) -> Result<(), ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    let file = File { path, text: &text };
    let root = DeTable::parse(&text).map_err(|error| ConfigError::Syntax {
        origin: file.origin(error.span().map_or(0, |span| span.start)),
        reason: error.message().replace('\n', " "),
    })?;
    let mut seen = Seen::default();
    for (key, value) in in_order(root.get_ref()) {
        let origin = file.origin(key.span().start);
        let name = key.get_ref().as_ref();
        if name == FLAGS_TABLE {
            file.apply_flags(settings, &origin, value)?;
            continue;
        }
        let Some(setting) = find(name) else {
            return Err(unknown(origin, name));
        };
        seen.note(&origin, setting, name)?;
        let text = as_text(setting.kind, value.get_ref()).ok_or_else(|| ConfigError::BadValue {
            origin: origin.clone(),
            name: name.to_owned(),
            value: setting.quoted(file.source_of(value)),
            accepts: written_as(setting.kind, &setting.accepts()),
        })?;
        settings.set_from(&origin, setting, name, &text)?;
    }
    Ok(())
}

fn unknown(origin: Origin, name: &str) -> ConfigError {
    let candidates = SETTINGS.iter().map(|setting| setting.key).chain([FLAGS_TABLE]);
    let hint = if name.starts_with(flags::PREFIX) {
        "; experiment flags go into the [flags] table"
    } else {
        ""
    };
    ConfigError::Unknown {
        origin,
        name: name.to_owned(),
        nearest: nearest(name, candidates).unwrap_or_default().to_owned(),
        hint,
    }
}

/// The file being read, to say where things stand.
struct File<'a> {
    path: &'a Path,
    text: &'a str,
}

impl File<'_> {
    fn origin(&self, offset: usize) -> Origin {
        let before = self.text.as_bytes().iter().take(offset);
        let line = 1 + before.filter(|byte| **byte == b'\n').count();
        Origin::File { path: PathBuf::from(self.path), line }
    }

    /// The value as it is written in the file.
    fn source_of(&self, value: &Spanned<DeValue<'_>>) -> &str {
        self.text.get(value.span()).unwrap_or_default()
    }

    fn apply_flags(
        &self,
        settings: &mut Settings,
        origin: &Origin,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(), ConfigError> {
        let Some(table) = value.get_ref().as_table() else {
            return Err(ConfigError::BadValue {
                origin: origin.clone(),
                name: FLAGS_TABLE.to_owned(),
                value: self.source_of(value).to_owned(),
                accepts: "a table of POCKET_ flags".to_owned(),
            });
        };
        for (key, value) in in_order(table) {
            let origin = self.origin(key.span().start);
            let name = key.get_ref().as_ref();
            let flag = flags::find(&origin, name)?;
            let text =
                as_text(flag.kind, value.get_ref()).ok_or_else(|| ConfigError::BadValue {
                    origin: origin.clone(),
                    name: name.to_owned(),
                    value: self.source_of(value).to_owned(),
                    accepts: written_as(flag.kind, &flag.accepts()),
                })?;
            settings.flags.set_from(&origin, name, &text)?;
        }
        Ok(())
    }
}

/// The keys of a table as they stand in the file, so that the first mistake is the one reported.
fn in_order<'a, 'i>(
    table: &'a DeTable<'i>,
) -> Vec<(&'a Spanned<std::borrow::Cow<'i, str>>, &'a Spanned<DeValue<'i>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// The text of a value of the right type; `None` for the wrong type.
fn as_text(kind: Kind, value: &DeValue<'_>) -> Option<String> {
    match (kind, value) {
        (Kind::Text | Kind::TextOrInteger, DeValue::String(text)) => {
            Some(text.clone().into_owned())
        }
        (Kind::Boolean, DeValue::Boolean(value)) => Some(value.to_string()),
        (Kind::Text, DeValue::Integer(_)) => None,
        (_, DeValue::Integer(value)) => {
            i64::from_str_radix(value.as_str(), value.radix()).ok().map(|value| value.to_string())
        }
        (Kind::Seconds | Kind::Number, DeValue::Float(value)) => Some(value.as_str().to_owned()),
        _ => None,
    }
}

/// What is accepted, with a word on how a file writes it.
fn written_as(kind: Kind, accepts: &str) -> String {
    match kind {
        Kind::Text => format!("a text in quotes: {accepts}"),
        Kind::TextOrInteger => accepts.to_owned(),
        Kind::Boolean | Kind::Integer | Kind::Seconds | Kind::Number => {
            format!("without quotes: {accepts}")
        }
    }
}
