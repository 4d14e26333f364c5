//! Lines for systemd's journal, which keeps time and priority itself: a line begins with its priority,
//! and has neither time nor colours.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Whether `file`, standard error say, goes to the journal. The variable alone does not say so: it is
/// inherited by programs whose output somebody has sent elsewhere.
pub fn is(file: impl AsFd) -> bool {
    let named = env::var_os("JOURNAL_STREAM");
    named.is_some_and(|named| is_named(&named, file))
}

/// Lines with the priority of an error.
pub fn error(text: &str) -> String {
    let mut lines = String::new();
    // Writing to a string does not fail.
    let _ = prefix(&mut lines, priority(&Level::ERROR), text);
    lines
}

/// Whether `named`, DEVICE:INODE, is this file.
fn is_named(named: &OsStr, file: impl AsFd) -> bool {
    let file = file.as_fd().try_clone_to_owned().map(File::from);
    file.and_then(|file| file.metadata())
        .is_ok_and(|file| named.to_str() == Some(&format!("{}:{}", file.dev(), file.ino())))
}

/// The priority of a level, as syslog counts them: error, warning, informational, debug.
fn priority(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// Writes an event as another format does, with its priority before each line.
pub struct Prefixed<F>(pub F);

impl<S, N, F> FormatEvent<S, N> for Prefixed<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        self.0.format_event(context, Writer::new(&mut text), event)?;
        prefix(&mut writer, priority(event.metadata().level()), &text)
    }
}

/// The journal takes every line as an entry of its own.
fn prefix(writer: &mut impl fmt::Write, priority: u8, text: &str) -> fmt::Result {
    text.lines().try_for_each(|line| writeln!(writer, "<{priority}>{}", line.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_told_from_other_files() {
        let (file, other) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let metadata = file.metadata().unwrap();
        let named = format!("{}:{}", metadata.dev(), metadata.ino());
        assert!(is_named(OsStr::new(&named), &file));
        assert!(!is_named(OsStr::new(&named), &other));
        assert!(!is_named(OsStr::new(""), &file));
    }

    #[test]
    fn every_line_of_an_event_has_its_priority() {
        let mut text = String::new();
        prefix(&mut text, priority(&Level::WARN), " WARN a: b\nsecond\n").unwrap();
        prefix(&mut text, priority(&Level::ERROR), "ERROR c").unwrap();
        prefix(&mut text, priority(&Level::TRACE), "d").unwrap();
        prefix(&mut text, priority(&Level::INFO), "e").unwrap();
        assert_eq!(error("a\n  b\n"), "<3>a\n<3>b\n");
        assert_eq!(text, "<4>WARN a: b\n<4>second\n<3>ERROR c\n<7>d\n<6>e\n");
    }
}
