//! Log lines: to standard error, never to standard output, which belongs to answers. (A rank has no
//! answers; its standard output is the daemon's standard error.) `journal` is their form for systemd's
//! journal, which failures and panics have there too.

mod journal;

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};

use pocket_config::{LogFilter, LogFormat, SETTINGS};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::failure::bad_input;
use crate::progress;
use journal::Prefixed;

/// Where log lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Those of every program.
    StandardError,
    /// Those of a rank that the coordinator has started.
    StandardOutput,
}

impl Place {
    fn is_journal(self) -> bool {
        match self {
            Place::StandardError => journal::is(io::stderr()),
            Place::StandardOutput => journal::is(io::stdout()),
        }
    }

    fn is_terminal(self) -> bool {
        match self {
            Place::StandardError => io::stderr().is_terminal(),
            Place::StandardOutput => io::stdout().is_terminal(),
        }
    }

    fn write(self, line: &[u8]) -> io::Result<()> {
        match self {
            Place::StandardError => io::stderr().write_all(line),
            Place::StandardOutput => {
                let mut out = io::stdout().lock();
                out.write_all(line)?;
                out.flush()
            }
        }
    }
}

/// Starts logging for the life of the process.
pub fn start(filter: &LogFilter, format: LogFormat, place: Place) -> anyhow::Result<FilterHandle> {
    let text = filter.as_str();
    let filter = EnvFilter::try_new(text)
        .map_err(|error| bad_input(format!("the log filter {text:?} is refused: {error}")))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(Lines(place));
    // The handles have different types.
    let (started, handle) = match format {
        LogFormat::Text if place.is_journal() => {
            let builder = builder.with_ansi(false).without_time().map_event_format(Prefixed);
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            let apply = move |filter| handle.reload(filter).map_err(|error| error.to_string());
            (builder.try_init(), FilterHandle::new(text, apply))
        }
        LogFormat::Text => {
            let builder = builder.with_ansi(wants_colour(place)).with_filter_reloading();
            let handle = builder.reload_handle();
            let apply = move |filter| handle.reload(filter).map_err(|error| error.to_string());
            (builder.try_init(), FilterHandle::new(text, apply))
        }
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_filter_reloading();
            let handle = builder.reload_handle();
            let apply = move |filter| handle.reload(filter).map_err(|error| error.to_string());
            (builder.try_init(), FilterHandle::new(text, apply))
        }
    };
    started.map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))?;
    Ok(handle)
}

type Apply = dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync;

/// Changes what is logged while the process runs. Clones change the same log.
#[derive(Clone)]
pub struct FilterHandle {
    current: Arc<Mutex<String>>,
    apply: Arc<Apply>,
}

impl FilterHandle {
    /// For a log that starts with `filter`; `apply` puts another in its place.
    pub fn new(
        filter: &str,
        apply: impl Fn(EnvFilter) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self { current: Arc::new(Mutex::new(filter.to_owned())), apply: Arc::new(apply) }
    }

    /// Logs by another filter from now on and gives the one until now; it is written as the setting
    /// `log_level` is.
    pub fn set(&self, filter: &str) -> Result<String, String> {
        let refused = |why: String| format!("the log filter {filter:?} is refused: {why}");
        if let Some(setting) = SETTINGS.iter().find(|setting| setting.key == "log_level") {
            setting.check(filter).map_err(refused)?;
        }
        let parsed = EnvFilter::try_new(filter).map_err(|error| refused(error.to_string()))?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        (self.apply)(parsed)?;
        Ok(std::mem::replace(&mut *current, filter.to_owned()))
    }
}

/// Colours are for terminals, and not for those that ask for none (<https://no-color.org>).
fn wants_colour(place: Place) -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    place.is_terminal() && !unwanted
}

/// Writes the program's last line, why it failed, to standard error: for the journal with the priority
/// of an error.
pub fn last_line(line: &str) {
    let mut text = format!("{line}\n");
    if Place::StandardError.is_journal() {
        text = journal::error(&text);
    }
    // Nobody may be reading standard error either.
    let _ = Place::StandardError.write(text.as_bytes());
}

/// Has panics written with the priority of an error where standard error goes to the journal, which
/// takes every line for news of no importance otherwise.
pub fn mark_panics() {
    if !Place::StandardError.is_journal() {
        return;
    }
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        let trace = std::backtrace::Backtrace::capture();
        let trace = match trace.status() {
            std::backtrace::BacktraceStatus::Captured => format!("\n{trace}"),
            _ => String::new(),
        };
        let text = journal::error(&format!("thread {name}: {panic}{trace}"));
        let _ = Place::StandardError.write(text.as_bytes());
    }));
}

/// Hands out one [`Line`] an event.
struct Lines(Place);

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { place: self.0, text: Vec::with_capacity(256) }
    }
}

/// Collects an event and writes it in one piece, so that lines of several processes on one terminal do
/// not mix, and a progress bar steps aside for it.
struct Line {
    place: Place,
    text: Vec<u8>,
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // A log that cannot be written has nowhere to complain to.
        progress::aside(|| drop(self.place.write(&self.text)));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    use super::*;

    /// Set for the process that is to panic.
    const PANIC: &str = "TEST_PANIC";

    /// A panic hook is the whole process's, so this test is two: it runs itself once more.
    #[test]
    fn panics_have_their_priority_in_the_journal() {
        if std::env::var_os(PANIC).is_some() {
            mark_panics();
            let thread = std::thread::Builder::new().name("unlucky".to_owned());
            let joined = thread.spawn(|| panic!("in\ntwo lines")).unwrap().join();
            return assert!(joined.is_err());
        }
        let journal = tempfile::NamedTempFile::new().unwrap();
        let facts = journal.as_file().metadata().unwrap();
        let name = "logging::tests::panics_have_their_priority_in_the_journal";
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(PANIC, "1")
            .env("JOURNAL_STREAM", format!("{}:{}", facts.dev(), facts.ino()))
            .env_remove("RUST_BACKTRACE")
            .stdout(Stdio::null())
            .stderr(journal.reopen().unwrap())
            .status()
            .unwrap();
        assert!(status.success());
        let text = std::fs::read_to_string(journal.path()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("<3>thread unlucky: panicked at "), "{text}");
        assert_eq!(lines[1..], ["<3>in", "<3>two lines"]);
    }
}
