//! Log lines: to standard error, never to standard output, which belongs to answers.

use std::io::{self, Write};

use pocket_config::{LogFilter, LogFormat};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::failure::bad_input;
use crate::progress;

/// Starts logging for the life of the process.
pub fn start(filter: &LogFilter, format: LogFormat) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter.as_str()).map_err(|error| {
        bad_input(format!("the log filter {:?} is refused: {error}", filter.as_str()))
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(StandardError);
    let started = match format {
        LogFormat::Text => builder.with_ansi(wants_colour()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))
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
