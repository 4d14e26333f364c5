//! Writing results to standard output.

use std::io::{self, BufWriter, StdoutLock, Write};

use serde::Serialize;

/// Standard output for a result that is written at once.
pub fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::new(io::stdout().lock())
}

/// One JSON value and a line end, and nothing else.
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    // Serialised first: a value that cannot be must not leave half of itself on the output.
    let text = serde_json::to_string(value)?;
    let mut out = stdout();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}
