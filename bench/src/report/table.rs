//! Tables, for pages and for terminals.

use std::fmt::Write;

use serde::Serialize;

use super::markdown::escaped;

/// How a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows under headings. Put units into the headings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// One line about what is in it; may be empty.
    pub caption: String,
    headings: Vec<(String, Side)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// One without rows.
    pub fn new(caption: impl Into<String>, headings: &[(&str, Side)]) -> Self {
        let headings = headings.iter().map(|(name, side)| ((*name).to_owned(), *side)).collect();
        Self { caption: caption.into(), headings, rows: Vec::new() }
    }

    /// Two columns, what and how much.
    pub fn of_facts(caption: impl Into<String>, facts: Vec<(String, String)>) -> Self {
        let mut table = Self::new(caption, &[("", Side::Left), ("value", Side::Left)]);
        for (what, value) in facts {
            table.row([what, value]);
        }
        table
    }

    /// Adds a row. Cells that are missing are empty, cells without a heading are dropped.
    pub fn row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) -> &mut Self {
        let mut row: Vec<String> = cells.into_iter().map(Into::into).collect();
        row.resize(self.headings.len(), String::new());
        self.rows.push(row);
        self
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Columns aligned by spaces, as a terminal shows them, with the caption above.
    pub fn text(&self) -> String {
        let headings = self.headings.iter().map(|(name, _)| name.clone()).collect();
        let lines = self.aligned(std::iter::once(&headings).chain(&self.rows), "  ");
        let caption = if self.caption.is_empty() { "" } else { "\n" };
        format!("{}{caption}{}\n", self.caption, lines.join("\n"))
    }

    /// A Markdown table whose source is aligned too.
    pub(super) fn markdown(&self) -> String {
        let clean = |row: &Vec<String>| row.iter().map(|cell| escaped(cell)).collect();
        let rows: Vec<Vec<String>> = self.rows.iter().map(clean).collect();
        let headings: Vec<String> = self.headings.iter().map(|(name, _)| escaped(name)).collect();
        let rules = self.headings.iter().map(|(_, side)| match side {
            Side::Left => "---".to_owned(),
            Side::Right => "--:".to_owned(),
        });
        let rules: Vec<String> = rules.collect();
        let all = std::iter::once(&headings).chain(std::iter::once(&rules)).chain(&rows);
        let mut text = String::new();
        for line in self.aligned(all, " | ") {
            let _ = writeln!(text, "| {line} |");
        }
        text
    }

    fn aligned<'a>(
        &self,
        rows: impl Iterator<Item = &'a Vec<String>> + Clone,
        between: &str,
    ) -> Vec<String> {
        let width = |column: usize| {
            rows.clone().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> = (0..self.headings.len()).filter_map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).zip(&self.headings);
            let cells = cells.map(|((cell, width), (_, side))| match side {
                Side::Left => format!("{cell:<width$}"),
                Side::Right => format!("{cell:>width$}"),
            });
            cells.collect::<Vec<_>>().join(between).trim_end().to_owned()
        };
        rows.clone().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_and_markdown_get_aligned_columns() {
        let mut table = Table::new("Calls", &[("name", Side::Left), ("ms", Side::Right)]);
        table.row(["a|b", "1.5"]).row(["ü"]);
        assert_eq!(table.text(), "Calls\nname   ms\na|b   1.5\nü\n");
        let expected = "| name |  ms |\n| ---  | --: |\n| a\\|b | 1.5 |\n| ü    | |\n";
        assert_eq!(table.markdown().replace("|     |", "| |"), expected);
        assert!(!table.is_empty());
    }
}
