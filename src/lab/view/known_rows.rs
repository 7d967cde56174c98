//! The rows of runs that pages show, read further as they are appended.

use crate::error::Result;
use crate::lock::lock;
use crate::metrics::{MetricsRow, TimingRow};
use crate::results::follow::RowFollower;
use crate::results::names::{METRICS, TIMING};
use crate::results::rows::Row;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Most rows kept in memory for all runs together: some hundred MB.
const MAX_ROWS: usize = 1_000_000;

/// The rows of a run, and the readers that continue them.
#[derive(Debug)]
pub struct RunRows {
    /// The rows of `metrics.csv`.
    pub metrics: Vec<MetricsRow>,
    /// The rows of `timing.csv`.
    pub timing: Vec<TimingRow>,
    metrics_file: RowFollower<MetricsRow>,
    timing_file: RowFollower<TimingRow>,
}

impl RunRows {
    /// Creates the rows of a run's folder without reading any.
    pub fn new(run: &Path) -> Self {
        Self {
            metrics: Vec::new(),
            timing: Vec::new(),
            metrics_file: RowFollower::new(&run.join(METRICS)),
            timing_file: RowFollower::new(&run.join(TIMING)),
        }
    }

    /// Reads what was appended since the last call.
    ///
    /// # Errors
    /// If a file is a link or cannot be read, or its content is not what a run writes.
    pub fn read_on(&mut self) -> Result<()> {
        read_on(&mut self.metrics_file, &mut self.metrics)?;
        read_on(&mut self.timing_file, &mut self.timing)
    }

    /// Returns the rows of training steps in `timing.csv`.
    pub fn steps(&self) -> impl Iterator<Item = &TimingRow> {
        self.timing.iter().filter(|row| row.phase.is_step())
    }

    fn len(&self) -> usize {
        self.metrics.len() + self.timing.len()
    }
}

/// Reads what was appended to a file, up to its current end.
fn read_on<R: Row>(file: &mut RowFollower<R>, rows: &mut Vec<R>) -> Result<()> {
    loop {
        let new = file.poll().inspect_err(|_| rows.clear())?;
        let has_more = new.has_more;
        new.add_to(rows);
        if !has_more {
            return Ok(());
        }
    }
}

/// The rows of the runs that were requested most recently.
#[derive(Debug, Default)]
pub struct KnownRows {
    /// By `RECIPE/RUN`, most recently requested last.
    runs: Mutex<Vec<(String, Arc<Mutex<RunRows>>)>>,
}

impl KnownRows {
    /// Calls `use_rows` with the current rows of a run.
    ///
    /// # Errors
    /// If [`RunRows::read_on`] fails.
    pub fn with<T>(&self, id: &str, run: &Path, use_rows: impl FnOnce(&RunRows) -> T) -> Result<T> {
        let rows = self.entry(id, run);
        // After a panic the rows read so far are valid, and the next call continues.
        let mut rows = lock(&rows);
        rows.read_on()?;
        let found = use_rows(&rows);
        drop(rows);
        self.forget_oldest();
        Ok(found)
    }

    fn entry(&self, id: &str, run: &Path) -> Arc<Mutex<RunRows>> {
        let mut runs = lock(&self.runs);
        let entry = match runs.iter().position(|(known, _)| known == id) {
            Some(place) => runs.remove(place),
            None => (id.to_owned(), Arc::new(Mutex::new(RunRows::new(run)))),
        };
        let rows = entry.1.clone();
        runs.push(entry);
        rows
    }

    /// Forgets the least recently requested runs while there are too many rows, but never the last run.
    fn forget_oldest(&self) {
        let mut runs = lock(&self.runs);
        // A run that is being read is counted next time.
        let len = |rows: &Arc<Mutex<RunRows>>| rows.try_lock().map_or(0, |rows| rows.len());
        let mut total: usize = runs.iter().map(|(_, rows)| len(rows)).sum();
        while total > MAX_ROWS && runs.len() > 1 {
            total -= len(&runs.remove(0).1).min(total);
        }
    }
}
