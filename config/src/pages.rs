//! The reference pages of the book, written from the tables.

use std::fmt::Write;

use crate::flags::FLAGS;
use crate::settings::{Group, SETTINGS, Setting};
use crate::value::Kind;

/// First lines of both pages: what to run instead of editing.
const GENERATED: &str = "<!-- Written from the tables in config/src by `UPDATE_DOCS=1 cargo test \
                         --release -p pocket-config pages`; do not edit. -->\n\n";

/// `docs/src/flags.md`.
pub fn flags_page() -> String {
    let mut page = format!(
        "{GENERATED}# Experiment flags\n\n\
         Flags change how the engine works, for a measurement or a test. They are environment variables \
         of the daemon or entries of the `[flags]` table of its configuration file (the environment \
         wins). A `POCKET_*` variable that is not listed here is refused with the nearest valid name, \
         and so is a value that is not accepted; the exit code is 2.\n\n\
         `pocketd flags` prints this list with the values in force, `pocketd flags --json` prints it \
         for programs. The log of the start names every flag that is not at its default. While a flag \
         makes outputs wrong, log, `/health` and a response header say so.\n\n\
         | flag | type | default | outputs correct | may change while running |\n\
         | --- | --- | --- | --- | --- |\n"
    );
    for flag in FLAGS {
        row(
            &mut page,
            &[
                &format!("[`{0}`](#{1})", flag.name, flag.name.to_lowercase()),
                flag.kind.name(),
                shown_default(&flag.default_text()),
                yes_no(flag.outputs_correct),
                yes_no(flag.runtime),
            ],
        );
    }
    for flag in FLAGS {
        let meaning = capitalised(flag.meaning);
        section(
            &mut page,
            &format!(
                "\n## {}\n\n{meaning}.\n\n{}\n\nAccepted: {}.",
                flag.name,
                flag.doc,
                flag.accepts()
            ),
        );
    }
    page
}

/// `docs/src/settings.md`.
pub fn settings_page() -> String {
    let mut page = format!(
        "{GENERATED}# Settings\n\n\
         A setting is looked for in four places, and the last one that has it wins: the built-in \
         default, a TOML file, a `POCKETD_*` environment variable, an option of the command line. The \
         file is the one named by `--config`, else by `POCKETD_CONFIG`, else \
         `/etc/pocketd/pocketd.toml` if that exists; its keys are the names below. A name that is not \
         listed here is refused with the nearest valid one, whatever place it stands in; the exit code \
         is 2.\n\n\
         ```toml\n\
         model = \"/models/qwen3.5-0.8b\"\n\
         tensor_parallel_size = 2\n\
         max_model_len = 8192\n\
         stall_timeout = 20.5\n\n\
         [flags]\n\
         POCKET_PHASE_PROFILE = true\n\
         ```\n"
    );
    for (group, title) in [
        (Group::Model, "Model"),
        (Group::Engine, "Engine"),
        (Group::Server, "Server"),
        (Group::Logging, "Logging"),
    ] {
        section(
            &mut page,
            &format!(
                "\n## {title}\n\n| key | option | variable | default |\n| --- | --- | --- | --- |"
            ),
        );
        for setting in SETTINGS.iter().filter(|setting| setting.group == group) {
            row(
                &mut page,
                &[
                    &format!("`{}`", setting.key),
                    &option_cell(setting),
                    &format!("`{}`", setting.variable()),
                    &setting.default_text(),
                ],
            );
        }
        for setting in SETTINGS.iter().filter(|setting| setting.group == group) {
            section(&mut page, &setting_section(setting));
        }
    }
    page
}

/// A boolean option stands alone; the bar of a choice would end the cell.
fn option_cell(setting: &Setting) -> String {
    match setting.kind {
        Kind::Boolean => format!("`--{}`", setting.option()),
        _ => format!("`--{} {}`", setting.option(), setting.placeholder.replace('|', "\\|")),
    }
}

fn setting_section(setting: &Setting) -> String {
    let mut text = format!("\n### {}\n\n{}.", setting.key, capitalised(setting.meaning));
    if !setting.doc.is_empty() {
        // Writing to a string cannot fail; the same holds below.
        let _ = write!(text, " {}", setting.doc);
    }
    let _ = write!(text, "\n\nAccepted: {}.", setting.accepts());
    for older in setting.older {
        let _ = write!(text, " `--{}` is its older name.", older.replace('_', "-"));
    }
    text
}

fn row(page: &mut String, cells: &[&str]) {
    section(page, &format!("| {} |", cells.join(" | ")));
}

fn section(page: &mut String, text: &str) {
    page.push_str(text);
    page.push('\n');
}

fn shown_default(text: &str) -> &str {
    if text.is_empty() { "not set" } else { text }
}

fn yes_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Compares a page with its file, or writes the file when asked to.
    fn check(name: &str, page: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src").join(name);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, page).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap();
        for (index, (found, expected)) in found.lines().zip(page.lines()).enumerate() {
            assert_eq!(found, expected, "{name}:{} is stale; run with UPDATE_DOCS=1", index + 1);
        }
        assert_eq!(found.len(), page.len(), "{name} is stale; run with UPDATE_DOCS=1");
    }

    #[test]
    fn the_flags_page_is_up_to_date() {
        check("flags.md", &flags_page());
    }

    #[test]
    fn the_settings_page_is_up_to_date() {
        check("settings.md", &settings_page());
    }

    #[test]
    fn every_row_is_on_its_page() {
        for flag in FLAGS {
            assert!(flags_page().contains(&format!("## {}\n", flag.name)));
        }
        for setting in SETTINGS {
            assert!(settings_page().contains(&format!("### {}\n", setting.key)));
        }
    }
}
