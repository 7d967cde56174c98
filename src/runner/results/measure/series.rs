//! Reads the columns of a run's row files that measures need.

use crate::error::{Error, Result};
use crate::results::difference::RowCells;
use crate::results::folder::{METRICS, TIMING};
use crate::results::rows::{self, Phase, TimingRow};
use crate::results::stored;
use std::path::Path;

/// A value in a column, and the row that it comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeriesValue {
    pub step: u64,
    /// Tokens trained on up to and including this step.
    pub tokens: u64,
    /// The value, which may be NaN or infinite.
    pub value: f32,
}

/// Returns the values of a column of `metrics.csv` that are not blank, in order of steps; `None` if the file
/// has no such column.
///
/// # Errors
/// If the file cannot be read, or a line is not a row.
pub fn column(run: &Path, name: &str) -> Result<Option<Vec<SeriesValue>>> {
    let path = run.join(METRICS);
    let rows = RowCells::parse(&stored::read(&path)?)
        .map_err(|why| Error::failed(format!("{}: {why}", path.display())))?;
    let wrong = |line: usize, why: String| Error::failed(format!("{}:{line}: {why}", path.display()));
    let Some(tokens) = rows.cells("tokens_seen") else {
        return Err(wrong(1, "the header lacks tokens_seen".to_owned()));
    };
    let Some(cells) = rows.cells(name) else { return Ok(None) };
    let mut values = Vec::new();
    for (line, ((step, cell), (_, tokens))) in (2..).zip(cells.zip(tokens)) {
        if !cell.is_empty() {
            let value = cell.parse().map_err(|_| wrong(line, format!("{name} is `{cell}`, not a number")))?;
            let tokens = tokens.parse().map_err(|_| wrong(line, format!("`{tokens}` is not a count")))?;
            values.push(SeriesValue { step, tokens, value });
        }
    }
    Ok(Some(values))
}

/// Returns the wall time of the training steps up to `step`, in seconds.
///
/// # Errors
/// If `timing.csv` cannot be read.
pub fn training_seconds(run: &Path, step: u64) -> Result<f64> {
    let rows: Vec<TimingRow> = rows::read(&run.join(TIMING))?;
    let trains = |row: &&TimingRow| matches!(row.phase, Phase::Warmup | Phase::Train) && row.step <= step;
    Ok(rows.iter().filter(trains).map(|row| row.step_ms / 1e3).sum())
}

/// Returns the energy that a run used, in joules: from its GPUs' energy counters if there are any, and
/// otherwise from all phases whose power was measured. `None` if neither was recorded.
///
/// # Errors
/// If `timing.csv` cannot be read.
pub fn joules(run: &Path) -> Result<Option<f64>> {
    let rows: Vec<TimingRow> = rows::read(&run.join(TIMING))?;
    let counted = rows.iter().filter_map(|row| row.energy_j).reduce(|sum, joules| sum + joules);
    if counted.is_some() {
        return Ok(counted);
    }
    let known: Vec<f64> = rows
        .iter()
        .filter_map(|row| Some(row.power_w? * row.step_ms / 1e3))
        .filter(|x| x.is_finite())
        .collect();
    Ok((!known.is_empty()).then(|| known.iter().sum()))
}
