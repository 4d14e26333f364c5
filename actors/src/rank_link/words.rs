//! What a rank's process says on its standard error. That is not its log, which goes elsewhere: it is
//! the Rust runtime, the C library or a device's library, and most often the reason of the end that
//! follows - a panic, a failed allocation, a failed assertion.

use std::collections::VecDeque;
use std::io;

use bytes::{Buf, BytesMut};
use tokio_util::codec::Decoder;

/// Lines that are kept.
const KEPT: usize = 4;
/// Bytes of a line that are kept.
const LINE: usize = 400;

/// Cuts a stream of bytes into lines, whatever is in them and however long they are.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The rest of a line that was too long is dropped.
    skipping: bool,
}

impl Decoder for Lines {
    type Item = String;
    type Error = io::Error;

    fn decode(&mut self, bytes: &mut BytesMut) -> io::Result<Option<String>> {
        loop {
            let end = bytes.iter().position(|byte| *byte == b'\n');
            if end.is_none() && bytes.len() < LINE {
                return Ok(None);
            }
            let line = bytes.split_to(end.unwrap_or(bytes.len()));
            if end.is_some() {
                bytes.advance(1);
            }
            let skipped = std::mem::replace(&mut self.skipping, end.is_none());
            if !skipped {
                return Ok(Some(readable(&line)));
            }
        }
    }

    fn decode_eof(&mut self, bytes: &mut BytesMut) -> io::Result<Option<String>> {
        if let Some(line) = self.decode(bytes)? {
            return Ok(Some(line));
        }
        let last = bytes.split();
        Ok((!last.is_empty() && !self.skipping).then(|| readable(&last)))
    }
}

/// As one line of text for logs and messages.
fn readable(line: &[u8]) -> String {
    let line = String::from_utf8_lossy(&line[..line.len().min(LINE)]);
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The last lines.
#[derive(Debug, Default)]
pub(super) struct LastWords {
    lines: VecDeque<String>,
    /// A panic's stack comes, until the next panic.
    in_stack: bool,
}

impl LastWords {
    /// A line was said. Those that only advise are not kept, nor is where a panic came from in full.
    pub fn hear(&mut self, line: &str) {
        match line {
            "stack backtrace:" => self.in_stack = true,
            line if line.starts_with("thread '") => self.in_stack = false,
            _ => {}
        }
        if self.in_stack || line.is_empty() || line.starts_with("note: ") {
            return;
        }
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(line.to_string());
    }

    /// How a process ended, with them.
    pub fn explain(&self, how: String) -> String {
        match self.lines.iter().map(String::as_str).collect::<Vec<_>>().join(" ") {
            words if words.is_empty() => how,
            words => format!("{how}, saying {words:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut bytes, mut found) = (Lines::default(), BytesMut::new(), Vec::new());
        for piece in pieces {
            bytes.extend_from_slice(piece);
            while let Some(line) = lines.decode(&mut bytes).unwrap() {
                found.push(line);
            }
        }
        while let Some(line) = lines.decode_eof(&mut bytes).unwrap() {
            found.push(line);
        }
        found
    }

    #[test]
    fn lines_come_whole_and_the_last_one_needs_no_end() {
        assert_eq!(lines(&[b"a b", b"\tc\n\nd", b"e"]), ["a b c", "", "de"]);
        assert_eq!(lines(&[b"\xff\n"]), ["\u{fffd}"]);
        assert_eq!(lines(&[]), Vec::<String>::new());
    }

    #[test]
    fn a_line_without_an_end_takes_no_memory() {
        let long = vec![b'x'; 1000];
        let found = lines(&[&long, &long, b"y\nz\n", &long]);
        assert_eq!(found[1], "z");
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].len() == LINE && found[2].len() == LINE);
    }

    #[test]
    fn the_end_is_explained_by_what_was_said_last() {
        let mut words = LastWords::default();
        assert_eq!(words.explain("exited with code 1".to_string()), "exited with code 1");
        for line in ["1", "2", "", "3", "4", "note: run with `RUST_BACKTRACE=1`", "5"] {
            words.hear(line);
        }
        assert_eq!(
            words.explain("killed by signal 6 (SIGABRT)".to_string()),
            "killed by signal 6 (SIGABRT), saying \"2 3 4 5\""
        );
    }

    #[test]
    fn a_panic_is_kept_and_its_stack_is_not() {
        let mut words = LastWords::default();
        let stack = ["stack backtrace:", "0: a", "at b.rs:1"];
        for line in ["thread 'a' panicked at a.rs:1:2:", "no"].into_iter().chain(stack) {
            words.hear(line);
        }
        words.hear("thread 'b' panicked at b.rs:3:4:");
        assert_eq!(
            words.explain("exited".to_string()),
            "exited, saying \"thread 'a' panicked at a.rs:1:2: no thread 'b' panicked at b.rs:3:4:\""
        );
    }
}
