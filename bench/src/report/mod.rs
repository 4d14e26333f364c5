//! Reports: `report.html` and `report.md` beside `record.json`.
//!
//! A report is a title, an introduction, and sections of paragraphs, [tables](Table) and [plots](Plot). The
//! page is one file without scripts or anything from outside, light, and readable on paper; the Markdown has
//! its plots beside it as `report-1.svg` and so on; [`Report::text`] is for a terminal.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pocket_bench::record::{Kind, Record};
//! use pocket_bench::report::{Curves, Plot, Report, Scale, Series, Side, Table};
//!
//! let record = Record::new(Kind::Ladder, vec!["pocketd bench ladder".to_owned()], ());
//! let mut report = Report::of(&record, "A ladder of waves");
//! report.introduce("Waves of rising width, one after the other.");
//!
//! let mut table = Table::new("Each width", &[("slots", Side::Right), ("TTFT ms", Side::Right)]);
//! table.row(["1", "417.4"]).row(["4", "1177"]);
//! let plot = Plot::curves(&Curves {
//!     title: "TTFT by width",
//!     x: ("slots", Scale::PowersOfTwo),
//!     y: ("mean TTFT, ms", Scale::Linear),
//!     series: &[Series { name: "waves", points: vec![(1.0, 417.4), (4.0, 1177.4)] }],
//! })?;
//! report.section("Widths").table(table).plot(plot);
//!
//! let folder = tempfile::tempdir()?;
//! record.write(folder.path())?;
//! report.write(folder.path())?;
//! # Ok(()) }
//! ```
//!
//! Of a record, a report tells by itself: that it is INVALID and why, the commands that repeat it, the
//! machine, and the servers with their flags and counters. Text is escaped; there is no markup in it.

mod html;
mod markdown;
pub mod number;
mod plot;
mod provenance;
mod table;

use std::path::{Path, PathBuf};

use serde::Serialize;
use thiserror::Error;

use crate::record::{Record, RecordError, write_file};

pub use plot::{
    Bar, Bars, Curves, Distribution, FitPlot, Mark, Plot, PlotError, Roofline, Scale, Series,
};
pub use table::{Side, Table};

/// The page's name in a result directory.
pub const HTML_NAME: &str = "report.html";

/// The Markdown's name in a result directory.
pub const MARKDOWN_NAME: &str = "report.md";

/// Why a report cannot be written.
#[derive(Debug, Error)]
pub enum ReportError {
    /// The page cannot be made.
    #[error("cannot render the report")]
    Render(#[from] minijinja::Error),
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] RecordError),
}

/// A report in the making.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    title: String,
    introduction: Vec<String>,
    /// What speaks against the record.
    invalid: Vec<String>,
    sections: Vec<Section>,
    /// How it was measured; comes last.
    provenance: Vec<Section>,
}

/// A part of a report, under a heading of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    heading: String,
    blocks: Vec<Block>,
}

#[derive(Clone, Debug, PartialEq)]
enum Block {
    Text(String),
    Commands(Vec<String>),
    Table(Table),
    Plot(Plot),
}

impl Report {
    /// An empty one that is of no record.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            introduction: Vec::new(),
            invalid: Vec::new(),
            sections: Vec::new(),
            provenance: Vec::new(),
        }
    }

    /// An empty one of a record: says whether it is valid, how it was measured and how to repeat it.
    pub fn of<T: Serialize>(record: &Record<T>, title: impl Into<String>) -> Self {
        Self {
            invalid: record.reasons().map(ToString::to_string).collect(),
            provenance: provenance::sections(record),
            ..Self::new(title)
        }
    }

    /// Adds a paragraph below the title: what was done and what came out.
    pub fn introduce(&mut self, text: impl Into<String>) -> &mut Self {
        self.introduction.push(text.into());
        self
    }

    /// Adds a section, to which blocks are added.
    pub fn section(&mut self, heading: impl Into<String>) -> &mut Section {
        self.sections.push(Section { heading: heading.into(), blocks: Vec::new() });
        let last = self.sections.len() - 1;
        &mut self.sections[last]
    }

    /// The section that was added last.
    pub fn last_section(&mut self) -> Option<&mut Section> {
        self.sections.last_mut()
    }

    /// Writes [`HTML_NAME`] and [`MARKDOWN_NAME`] with its plots into a directory, which is made if it is
    /// not there. Returns the page.
    pub fn write(&self, directory: &Path) -> Result<PathBuf, ReportError> {
        for (at, plot) in self.plots().enumerate() {
            write_file(directory, &markdown::plot_name(at), &plot.svg(at))?;
        }
        write_file(directory, MARKDOWN_NAME, &self.markdown())?;
        Ok(write_file(directory, HTML_NAME, &self.html()?)?)
    }

    /// The page.
    pub fn html(&self) -> Result<String, ReportError> {
        Ok(html::page(self)?)
    }

    /// The Markdown. Its plots are files beside it.
    pub fn markdown(&self) -> String {
        markdown::document(self)
    }

    /// Text for a terminal: everything but the plots and how it was measured.
    pub fn text(&self) -> String {
        markdown::terminal(self)
    }

    fn all_sections(&self) -> impl Iterator<Item = &Section> {
        self.sections.iter().chain(&self.provenance)
    }

    /// Plots in the order of the report.
    fn plots(&self) -> impl Iterator<Item = &Plot> {
        self.all_sections().flat_map(|section| &section.blocks).filter_map(|block| match block {
            Block::Plot(plot) => Some(plot),
            _ => None,
        })
    }
}

impl Section {
    /// Adds a paragraph.
    pub fn text(&mut self, text: impl Into<String>) -> &mut Self {
        self.blocks.push(Block::Text(text.into()));
        self
    }

    /// Adds commands, one a line.
    pub fn commands(&mut self, commands: Vec<String>) -> &mut Self {
        self.blocks.push(Block::Commands(commands));
        self
    }

    /// Adds a table.
    pub fn table(&mut self, table: Table) -> &mut Self {
        self.blocks.push(Block::Table(table));
        self
    }

    /// Adds a plot.
    pub fn plot(&mut self, plot: Plot) -> &mut Self {
        self.blocks.push(Block::Plot(plot));
        self
    }
}

#[cfg(test)]
mod tests;
