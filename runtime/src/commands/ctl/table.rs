//! Tables for people.

use std::io::{self, Write};

/// How a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows under headings; columns are as wide as their widest cell.
pub struct Table {
    columns: Vec<(String, Side)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// One without rows.
    pub fn new(columns: &[(&str, Side)]) -> Self {
        let mut table = Self { columns: Vec::new(), rows: Vec::new() };
        columns.iter().for_each(|(name, side)| table.column(*name, *side));
        table
    }

    /// Adds a column; before there are rows.
    pub fn column(&mut self, name: impl Into<String>, side: Side) {
        self.columns.push((name.into(), side));
    }

    /// Adds a row, one cell a column.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// Writes it. The last column is not padded.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let headings: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let width = |column: usize| {
            let cells = std::iter::once(&headings).chain(&self.rows);
            cells.filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> = (0..self.columns.len()).filter_map(width).collect();
        for row in std::iter::once(&headings).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, width), (_, side)) in row.iter().zip(&widths).zip(&self.columns) {
                match side {
                    Side::Left => line.push_str(&format!("{cell:<width$}  ")),
                    Side::Right => line.push_str(&format!("{cell:>width$}  ")),
                }
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A dash where there is nothing.
pub fn or_dash(text: impl Into<String>) -> String {
    let text = text.into();
    if text.is_empty() { "-".to_owned() } else { text }
}

/// Bytes in a unit that leaves few digits.
pub fn bytes(count: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut shown = format!("{count} B");
    let mut value = count as f64;
    for unit in units {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        shown = format!("{value:.1} {unit}");
    }
    shown
}

/// A duration as people say it.
pub fn duration(seconds: f64) -> String {
    let whole = seconds as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_spaces() {
        let mut table =
            Table::new(&[("name", Side::Left), ("count", Side::Right), ("", Side::Left)]);
        table.row(vec!["long name".to_owned(), "7".to_owned(), "x".to_owned()]);
        table.row(vec!["ü".to_owned(), "1234567".to_owned(), String::new()]);
        let mut text = Vec::new();
        table.write(&mut text).unwrap();
        let expected = "name         count\nlong name        7  x\nü          1234567\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn amounts_are_short() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(5 << 30), "5.0 GiB");
        assert_eq!(duration(3.25), "3.2 s");
        assert_eq!(duration(61.0), "1 min 1 s");
        assert_eq!(duration(7260.0), "2 h 1 min");
        assert_eq!(duration(90_000.0), "1 d 1 h");
        assert_eq!(or_dash(""), "-");
    }
}
