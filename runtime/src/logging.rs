//! Log lines: to standard error, never to standard output, which belongs to answers. `journal` is their
//! form for systemd's journal.

mod journal;

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use pocket_config::{LogFilter, LogFormat, SETTINGS};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::failure::bad_input;
use crate::progress;
use journal::Prefixed;

/// Starts logging for the life of the process.
pub fn start(filter: &LogFilter, format: LogFormat) -> anyhow::Result<FilterHandle> {
    let text = filter.as_str();
    let filter = EnvFilter::try_new(text)
        .map_err(|error| bad_input(format!("the log filter {text:?} is refused: {error}")))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(StandardError);
    // The handles have different types.
    let (started, handle) = match format {
        LogFormat::Text if journal::is_standard_error() => {
            let builder = builder.with_ansi(false).without_time().map_event_format(Prefixed);
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            let apply = move |filter| handle.reload(filter).map_err(|error| error.to_string());
            (builder.try_init(), FilterHandle::new(text, apply))
        }
        LogFormat::Text => {
            let builder = builder.with_ansi(wants_colour()).with_filter_reloading();
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
fn wants_colour() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::IsTerminal::is_terminal(&io::stderr()) && !unwanted
}

/// Hands out one [`Line`] an event.
struct StandardError;

impl<'a> MakeWriter<'a> for StandardError {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line(Vec::with_capacity(256))
    }
}

/// Collects an event and writes it in one piece, so that lines of several processes on one terminal do
/// not mix, and a progress bar steps aside for it.
struct Line(Vec<u8>);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // A log that cannot be written has nowhere to complain to.
        progress::aside(|| drop(io::stderr().write_all(&self.0)));
    }
}
