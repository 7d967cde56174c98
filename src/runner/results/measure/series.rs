//! Reads the columns of a run's row files that measures need.

use crate::error::{Error, Result};
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
    let bytes = stored::read(&path)?;
    let wrong = |line: usize, why: String| Error::failed(format!("{}:{line}: {why}", path.display()));
    let mut reader = csv::Reader::from_reader(bytes.as_slice());
    let header = reader.headers().map_err(|e| wrong(1, e.to_string()))?.clone();
    let at = |name: &str| header.iter().position(|column| column == name);
    let (Some(step), Some(tokens)) = (at("step"), at("tokens_seen")) else {
        return Err(wrong(1, "the header lacks step or tokens_seen".to_owned()));
    };
    let Some(column) = at(name) else { return Ok(None) };
    let mut values = Vec::new();
    for (index, record) in reader.records().enumerate() {
        let line = index + 2;
        let record = record.map_err(|e| wrong(line, e.to_string()))?;
        let cell = |at: usize| record.get(at).unwrap_or_default();
        if cell(column).is_empty() {
            continue;
        }
        let count = |at: usize| {
            cell(at).parse::<u64>().map_err(|_| wrong(line, format!("`{}` is not a count", cell(at))))
        };
        let value = cell(column).parse::<f32>();
        let value = value.map_err(|_| wrong(line, format!("{name} is `{}`, not a number", cell(column))))?;
        values.push(SeriesValue { step: count(step)?, tokens: count(tokens)?, value });
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
