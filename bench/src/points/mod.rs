//! Reading points from files: CSV with a heading, or JSON in any of the forms that points come in.
//!
//! A point has tokens (`tokens` or `prompt_tokens`), a time to first token ([`TTFT_COLUMNS`]) and calls (`calls`
//! or `prefill_calls`; one where there is no such column). In JSON, points are an array of objects, or a table of
//! `columns` and `rows`, by itself or anywhere inside an object, where its key is the table's name. Of a
//! record of `bench prefill` or of `fit`, the points are those that it was fitted to itself.

mod json;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::law::Point;

/// Names of times to first token in milliseconds, the preferred first.
pub const TTFT_COLUMNS: [&str; 5] =
    ["ttft_ms", "ttft_mean_ms", "mean_ttft_ms", "ttft_p50_ms", "median_ttft_ms"];

/// The column of the times that a record of this program was fitted to, where it has several.
const RECORD_COLUMN: &str = "ttft_p50_ms";

const TOKEN_COLUMNS: [&str; 2] = ["tokens", "prompt_tokens"];
const CALL_COLUMNS: [&str; 2] = ["calls", "prefill_calls"];

/// Which points of a file are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Tables by name; all that hold points if none is named.
    pub tables: Vec<String>,
    /// The column of the time to first token; the first of [`TTFT_COLUMNS`] that all tables have if none is
    /// named.
    pub ttft_column: Option<String>,
}

/// Points of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The points, table by table.
    pub points: Vec<Point>,
    /// The tables they are from.
    pub tables: Vec<String>,
    /// The column their times are from.
    pub ttft_column: String,
    /// How far a wave check moved the mean TTFT, milliseconds, if the file has `mean_ttft_moved_ms`.
    pub wave_moved_ms: Option<f64>,
}

/// Why a file has no points.
#[derive(Debug, Error)]
pub enum PointsError {
    /// It cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is neither CSV nor JSON.
    #[error("{}: not JSON", .path.display())]
    Json {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// It is not a table.
    #[error("{}: not CSV", .path.display())]
    Csv {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: csv::Error,
    },
    /// No table has tokens and times.
    #[error(
        "{}: no table has a column of tokens ({}) and one of times ({}); the columns are {}",
        .path.display(),
        TOKEN_COLUMNS.join(" or "),
        .times.join(", "),
        .there.join(", ")
    )]
    NoPoints {
        /// Which file.
        path: PathBuf,
        /// Columns that would do for times.
        times: Vec<String>,
        /// All columns of its tables.
        there: Vec<String>,
    },
    /// A table that was asked for is not there.
    #[error("{}: no table '{table}' with points; there is {}", .path.display(), .there.join(", "))]
    NoTable {
        /// Which file.
        path: PathBuf,
        /// What was asked for.
        table: String,
        /// What is there.
        there: Vec<String>,
    },
    /// The tables have no time to first token in common.
    #[error(
        "{}: the tables {} have no column of times in common{}; choose a table or a column",
        .path.display(),
        .tables.join(", "),
        .column.as_ref().map(|column| format!(" called '{column}'")).unwrap_or_default()
    )]
    NoColumn {
        /// Which file.
        path: PathBuf,
        /// The tables.
        tables: Vec<String>,
        /// The column that was asked for.
        column: Option<String>,
    },
    /// A cell is not the number it should be.
    #[error("{}: table {table}, row {row}: '{column}' is not {needed}", .path.display())]
    Cell {
        /// Which file.
        path: PathBuf,
        /// In which table.
        table: String,
        /// In which row, counted from 1.
        row: usize,
        /// In which column.
        column: String,
        /// What it should be.
        needed: &'static str,
    },
}

/// Rows of numbers under names. A cell that is no number is empty.
#[derive(Clone, Debug, PartialEq)]
struct Table {
    name: String,
    columns: Vec<String>,
    rows: Vec<Vec<Option<f64>>>,
}

impl Table {
    fn column(&self, names: &[impl AsRef<str>]) -> Option<usize> {
        names.iter().find_map(|name| self.columns.iter().position(|column| column == name.as_ref()))
    }

    fn has_points(&self, times: &[String]) -> bool {
        self.column(&TOKEN_COLUMNS).is_some() && self.column(times).is_some()
    }
}

/// Reads the points of a file.
pub fn read(path: &Path, selection: &Selection) -> Result<Found, PointsError> {
    let here = || path.to_owned();
    let text =
        fs::read_to_string(path).map_err(|source| PointsError::Read { path: here(), source })?;
    let mut fitted = None;
    let (tables, wave_moved_ms) = if text.trim_start().starts_with(['{', '[']) {
        let value = serde_json::from_str(&text)
            .map_err(|source| PointsError::Json { path: here(), source })?;
        let tables = match json::of_record(&value) {
            Some(points) => {
                fitted = Some(RECORD_COLUMN);
                vec![points]
            }
            None => json::tables(&value),
        };
        (tables, json::number_called(&value, "mean_ttft_moved_ms"))
    } else {
        let table = from_csv(&text).map_err(|source| PointsError::Csv { path: here(), source })?;
        (vec![table], None)
    };
    let wanted = wanted(path, tables, selection)?;
    let names: Vec<String> = wanted.iter().map(|table| table.name.clone()).collect();
    let candidates: Vec<&str> = match &selection.ttft_column {
        Some(column) => vec![column],
        None => fitted.into_iter().chain(TTFT_COLUMNS).collect(),
    };
    let common = candidates
        .into_iter()
        .find(|name| wanted.iter().all(|table| table.column(&[name]).is_some()));
    let Some(ttft_column) = common.map(str::to_owned) else {
        let column = selection.ttft_column.clone();
        return Err(PointsError::NoColumn { path: here(), tables: names, column });
    };
    let mut points = Vec::new();
    for table in &wanted {
        points.extend(points_of(path, table, &ttft_column)?);
    }
    Ok(Found { points, tables: names, ttft_column, wave_moved_ms })
}

/// The tables that were asked for, or all with points.
fn wanted(
    path: &Path,
    tables: Vec<Table>,
    selection: &Selection,
) -> Result<Vec<Table>, PointsError> {
    let times = match &selection.ttft_column {
        Some(column) => vec![column.clone()],
        None => TTFT_COLUMNS.map(str::to_owned).to_vec(),
    };
    let columns: BTreeSet<String> = tables.iter().flat_map(|table| table.columns.clone()).collect();
    let tables: Vec<Table> = tables.into_iter().filter(|table| table.has_points(&times)).collect();
    if tables.is_empty() {
        let (path, there) = (path.to_owned(), columns.into_iter().collect());
        return Err(PointsError::NoPoints { path, times, there });
    }
    if selection.tables.is_empty() {
        return Ok(tables);
    }
    let find = |name: &String| {
        tables.iter().find(|table| table.name == *name).cloned().ok_or_else(|| {
            let there = tables.iter().map(|table| table.name.clone()).collect();
            PointsError::NoTable { path: path.to_owned(), table: name.clone(), there }
        })
    };
    selection.tables.iter().map(find).collect()
}

fn points_of(path: &Path, table: &Table, ttft: &str) -> Result<Vec<Point>, PointsError> {
    let tokens = table.column(&TOKEN_COLUMNS);
    let (calls, times) = (table.column(&CALL_COLUMNS), table.column(&[ttft]));
    let cell = |row: usize, column: Option<usize>, needed, good: fn(f64) -> bool| {
        let value = column.and_then(|at| *table.rows[row].get(at)?);
        value.filter(|value| good(*value)).ok_or_else(|| PointsError::Cell {
            path: path.to_owned(),
            table: table.name.clone(),
            row: row + 1,
            column: column.map(|at| table.columns[at].clone()).unwrap_or_default(),
            needed,
        })
    };
    let count = |value: f64| (1.0..1e15).contains(&value) && value.fract() == 0.0;
    let point = |row: usize| {
        let counted = "a whole number from 1";
        Ok(Point {
            calls: match calls {
                Some(_) => cell(row, calls, counted, count)? as u64,
                None => 1,
            },
            tokens: cell(row, tokens, counted, count)? as u64,
            ttft_ms: cell(row, times, "a time above zero", |ms| ms.is_finite() && ms > 0.0)?,
        })
    };
    (0..table.rows.len()).map(point).collect()
}

fn from_csv(text: &str) -> Result<Table, csv::Error> {
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .comment(Some(b'#'))
        .from_reader(text.as_bytes());
    let columns = reader.headers()?.iter().map(str::to_owned).collect();
    let row = |record: csv::StringRecord| record.iter().map(|cell| cell.parse().ok()).collect();
    let rows = reader.records().map(|record| record.map(row)).collect::<Result<_, _>>()?;
    Ok(Table { name: "points".to_owned(), columns, rows })
}

#[cfg(test)]
mod tests;
