//! Writes the tables of a sweep, `table.csv` and `table.md`, anew after every ledger line.

use super::axes::Axes;
use super::cell::{Cell, hash};
use super::schedule::Output;
use crate::error::{Error, IoContext, Result};
use crate::metrics::{self, Metric};
use crate::recipe::plain_text;
use crate::results::atomic;
use crate::results::configurations::Settings;
use crate::results::ledger::{Ledger, SWEEPS};
use crate::results::markdown::{self, plain};
use crate::results::names::file_part;
use crate::results::progress::eprint_line;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The table with all columns.
pub const TABLE: &str = "table.csv";

/// The table to read.
const MARKDOWN: &str = "table.md";

/// The list of a sweep's cells with their settings. The ledger cannot replace it, because a ledger line has
/// the settings of the sweep that ran the cell.
pub const CELLS: &str = "cells.json";

/// A cell, as listed in its sweep's folder.
#[derive(Debug, Serialize, Deserialize)]
pub struct SweepCell {
    /// The key in the ledger.
    pub key: String,
    /// Values that the cell sets on top of the recipe, by key, as TOML.
    pub settings: Settings,
}

/// The tables of a sweep.
#[derive(Debug)]
pub struct Tables {
    /// The folder of the tables.
    pub folder: PathBuf,
    /// The keys that vary.
    keys: Vec<String>,
    /// A sentence below the table to read.
    pub remark: Option<String>,
}

/// Temporary files at least this old are leftovers of a crash; another process may still be writing younger
/// ones.
const LEFTOVER: Duration = Duration::from_secs(60);

/// The status column, before the ledger's figures.
const STATUS: &str = "status";

/// The column with the first digits of a cell's key.
const CELL: &str = "cell";

/// The column with the reason for the status.
const REASON: &str = "reason";

/// Columns after the ledger's figures.
const LAST_COLUMNS: [&str; 5] = ["contended", "attempts", "run", CELL, REASON];

/// Columns that `table.md` omits; `loss` covers only the last batch.
const NOT_IN_MARKDOWN: [&str; 6] = ["loss", "allocated_mib", "contended", "attempts", "run", CELL];

impl Tables {
    /// Creates the tables of the sweep with these cells, in `RESULTS/sweeps/RECIPE-HASH8/`.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn new(results: &Path, recipe: &str, axes: &Axes, cells: &[Cell]) -> Result<Self> {
        let keys: Vec<&str> = cells.iter().map(|cell| cell.key.as_str()).collect();
        let folder = results.join(SWEEPS).join(format!("{}-{}", file_part(recipe), &hash(&keys)[..8]));
        Self::within(folder, &axes.keys, cells)
    }

    /// Creates tables of these cells in a folder, with a column for each of `keys`.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn within(folder: PathBuf, keys: &[String], cells: &[Cell]) -> Result<Self> {
        std::fs::create_dir_all(&folder).at("create", &folder)?;
        let stay = atomic::clear_leftovers(&folder, LEFTOVER);
        stay.iter().for_each(|leftover| eprint_line(&format!("warning: {leftover}")));
        let list: Vec<SweepCell> = cells
            .iter()
            .map(|cell| SweepCell { key: cell.key.clone(), settings: cell.settings.clone() })
            .collect();
        let json = serde_json::to_vec_pretty(&list)
            .map_err(|e| Error::failed(format!("cannot write {CELLS}: {e}")))?;
        atomic::write(&folder.join(CELLS), &json)?;
        Ok(Self { folder, keys: keys.to_vec(), remark: None })
    }

    /// Returns the path of `table.md`.
    pub fn markdown_path(&self) -> PathBuf {
        self.folder.join(MARKDOWN)
    }

    fn header(&self) -> Vec<&str> {
        let keys = self.keys.iter().map(String::as_str);
        let figures = metrics::ledger_metrics().into_iter().map(|(_, metric)| metric.name);
        keys.chain([STATUS]).chain(figures).chain(LAST_COLUMNS).collect()
    }

    fn row(&self, cell: &Cell, ledger: &Ledger) -> Vec<String> {
        let last = ledger.row(&cell.key);
        let figure = |(key, metric): (&str, &Metric)| {
            text(last.and_then(|last| last.measured.get(key)).map(|value| value / metric.divisor))
        };
        let mut row: Vec<String> = self
            .keys
            .iter()
            .map(|key| cell.settings.get(key).map_or(String::new(), |v| plain_text(v).into_owned()))
            .collect();
        row.push(text(last.map(|last| last.status)));
        row.extend(metrics::ledger_metrics().into_iter().map(figure));
        row.extend([
            text(last.and_then(|last| last.measured.contended)),
            text(last.map(|last| last.attempt)),
            text(last.and_then(|last| last.run.as_ref())),
            short(&cell.key),
            text(last.and_then(|last| last.reason.as_ref())),
        ]);
        row
    }

    fn markdown(&self, rows: &[Vec<String>]) -> String {
        let header = self.header();
        let shown: Vec<usize> = (0..header.len())
            .filter(|&at| at < self.keys.len() || !NOT_IN_MARKDOWN.contains(&header[at]))
            // Columns without any value are omitted.
            .filter(|&at| at < self.keys.len() || rows.iter().any(|row| !row[at].is_empty()))
            .collect();
        let value = |row: &[String], at: usize| match header[at] {
            // The advice after the semicolon is only in `table.csv`.
            REASON => markdown_cell(row[at].split(';').next().unwrap_or_default()),
            _ => markdown_cell(&row[at]),
        };
        let headings: Vec<String> = shown.iter().map(|&at| header[at].to_owned()).collect();
        let rows = rows.iter().map(|row| shown.iter().map(|&at| value(row, at)).collect());
        markdown::table(&headings, &rows.collect::<Vec<_>>())
    }
}

impl Output for Tables {
    fn write(&mut self, cells: &[Cell], ledger: &Ledger) -> Result<()> {
        let rows: Vec<Vec<String>> = cells.iter().map(|cell| self.row(cell, ledger)).collect();
        atomic::write(&self.folder.join(TABLE), &csv_bytes(&self.header(), rows.iter())?)?;
        let remark = self.remark.as_ref().map_or(String::new(), |remark| format!("\n{}\n", plain(remark)));
        atomic::write(&self.markdown_path(), (self.markdown(&rows) + &remark).as_bytes())
    }
}

/// Formats a value that may be missing; a missing one is blank.
pub fn text(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Formats a table as CSV.
///
/// # Errors
/// If it cannot be written.
pub fn csv_bytes<R>(header: &[impl AsRef<[u8]>], rows: impl Iterator<Item = R>) -> Result<Vec<u8>>
where
    R: IntoIterator<Item: AsRef<[u8]>>,
{
    let mut writer = csv::Writer::from_writer(Vec::new());
    let wrong = |e: String| Error::failed(format!("cannot write a table: {e}"));
    writer.write_record(header).map_err(|e| wrong(e.to_string()))?;
    for row in rows {
        writer.write_record(row).map_err(|e| wrong(e.to_string()))?;
    }
    writer.into_inner().map_err(|e| wrong(e.to_string()))
}

/// Returns the first digits of a key, which are enough to find its lines in the ledger.
fn short(key: &str) -> String {
    key.chars().take(12).collect()
}

/// Formats a value for a Markdown table: escapes text, and shortens numbers to five digits.
fn markdown_cell(value: &str) -> String {
    match value.parse::<f64>() {
        Ok(number) if number.fract() != 0.0 && number.is_finite() => {
            let digits = 4 - (number.abs().log10().floor() as i32).clamp(-4, 4);
            // Short numbers, such as learning rates, keep their digits.
            if value.len() <= 7 { value.to_owned() } else { format!("{number:.*}", digits.max(0) as usize) }
        }
        _ => plain(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_markdown_are_short() {
        let cases = [
            ("0.00003", "0.00003"),
            ("6.270175933837891", "6.2702"),
            ("139123.4567", "139123"),
            ("1.12011718", "1.1201"),
            ("30", "30"),
            ("", ""),
            ("\"a|b\"", "\"a\\|b\""),
            ("<script>\n<!-- xrun:end -->", "&lt;script> &lt;!-- xrun:end -->"),
        ];
        for (value, shown) in cases {
            assert_eq!(markdown_cell(value), shown);
        }
    }
}
