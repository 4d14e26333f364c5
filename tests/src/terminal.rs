//! A terminal for programs that draw on one.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::Command;

use anyhow::ensure;
use nix::pty::{Winsize, openpty};
use nix::sys::termios::{Termios, tcgetattr};

/// The end of a terminal that a person sits at. The program gets the other.
#[derive(Debug)]
pub struct Terminal {
    person: OwnedFd,
    program: Option<OwnedFd>,
    before: Termios,
    /// Where the program's end is opened again, for `stty`.
    path: String,
}

impl Terminal {
    /// A terminal of this size.
    ///
    /// # Errors
    ///
    /// The system has none to give.
    pub fn new(rows: u16, columns: u16) -> anyhow::Result<Self> {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(&size, None)?;
        let path = nix::unistd::ttyname(&pair.slave)?.display().to_string();
        let before = tcgetattr(&pair.master)?;
        Ok(Self { person: pair.master, program: Some(pair.slave), before, path })
    }

    /// Whether echo, line editing and all that are as they were in the beginning, which is how a program
    /// has to leave them.
    ///
    /// # Errors
    ///
    /// The system does not say.
    pub fn is_as_before(&self) -> anyhow::Result<bool> {
        // Asked at this end, it answers for the other.
        Ok(tcgetattr(&self.person)? == self.before)
    }

    /// Types something.
    ///
    /// # Errors
    ///
    /// Nobody has the other end open.
    pub fn type_in(&self, keys: &str) -> anyhow::Result<()> {
        Ok(File::from(self.person.try_clone()?).write_all(keys.as_bytes())?)
    }

    /// Gives it another size, of which the program on it is told.
    ///
    /// # Errors
    ///
    /// There is no `stty`, or it fails.
    pub fn resize(&self, rows: u16, columns: u16) -> anyhow::Result<()> {
        let (rows, columns) = (rows.to_string(), columns.to_string());
        let args = ["-F", &self.path, "rows", &rows, "cols", &columns];
        let status = Command::new("stty").args(args).status()?;
        ensure!(status.success(), "stty: {status}");
        Ok(())
    }

    /// What comes on it, and the program's end, which can be given once.
    pub(crate) fn ends(&mut self) -> anyhow::Result<(File, OwnedFd)> {
        let program = self.program.take();
        let program = program.ok_or_else(|| anyhow::anyhow!("the terminal has had its program"))?;
        Ok((self.person.try_clone()?.into(), program))
    }
}

/// The lines that all this output leaves on a screen of so many rows. Understands what full-screen
/// programs send: moving the cursor, clearing, colours (which it drops), and text.
pub fn screen(output: &str, rows: usize) -> Vec<String> {
    let mut lines = vec![Vec::<char>::new(); rows];
    let (mut row, mut column) = (0, 0);
    let mut chars = output.chars();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => {
                if chars.next() != Some('[') {
                    continue;
                }
                let mut parameters = String::new();
                let last = loop {
                    match chars.next() {
                        Some(c) if c.is_ascii_alphabetic() => break c,
                        Some(c) => parameters.push(c),
                        None => return text(&lines),
                    }
                };
                let number = |index: usize| {
                    let parameter = parameters.split(';').nth(index);
                    parameter.and_then(|text| text.parse::<usize>().ok()).unwrap_or(1)
                };
                match (last, parameters.as_str()) {
                    ('H', _) => (row, column) = (number(0) - 1, number(1) - 1),
                    ('J', "2") | ('h' | 'l', "?1049") => lines.iter_mut().for_each(Vec::clear),
                    _ => {}
                }
            }
            '\r' => column = 0,
            '\n' => row += 1,
            c => {
                if let Some(line) = lines.get_mut(row) {
                    if line.len() <= column {
                        line.resize(column + 1, ' ');
                    }
                    line[column] = c;
                }
                column += 1;
            }
        }
    }
    text(&lines)
}

fn text(lines: &[Vec<char>]) -> Vec<String> {
    lines.iter().map(|line| line.iter().collect::<String>().trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_screen_is_what_is_left_on_it() {
        let output = "\u{1b}[?1049h\u{1b}[1;1Hold\u{1b}[2J\u{1b}[2;3H\u{1b}[1;31mred\u{1b}[0m\u{1b}[1;1Hab\u{1b}[1;2HX";
        assert_eq!(screen(output, 3), ["aX", "  red", ""]);
        assert_eq!(screen("one\r\ntwo\u{1b}[9;9Hout of sight\u{1b}[1", 2), ["one", "two"]);
        assert_eq!(screen("shown\u{1b}[?1049l", 1), [""]);
    }
}
