//! The view of a sweep: its cells, from the ledger and from the output of running attempts.

mod draw;

use super::canvas::Canvas;
use super::liveness::Condition;
use super::view::{Show, View};
use crate::error::{IoContext, Result};
use crate::results::follow::AppendedLines;
use crate::results::ledger::{Attempt, CellStatus, Ledger};
use crate::sweep::{self, SweepCell};
use jiff::Timestamp;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Bytes at the end of an attempt's output that are read first; they hold some of its last steps.
const OUTPUT_TAIL: u64 = 8 << 10;

/// Follows a sweep.
pub struct SweepView {
    name: String,
    results: PathBuf,
    ledger: Ledger,
    /// True until the ledger has been read once.
    is_new: bool,
    /// The condition of the ledger, which sweeps and comparisons write.
    condition: Condition,
    /// Keys that differ between cells.
    keys: Vec<String>,
    cells: Vec<WatchedCell>,
}

/// A cell and what is known about it.
struct WatchedCell {
    cell: SweepCell,
    /// Its last line in the ledger.
    last: Option<Attempt>,
    /// When its last attempt began, in UTC.
    began: Option<Timestamp>,
    progress: Option<Progress>,
}

/// The progress of a running attempt.
struct Progress {
    output: AppendedLines,
    last: Option<Step>,
}

/// A line of an attempt's output.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Event {
    Step(Step),
    #[serde(other)]
    Other,
}

/// A step that an attempt has trained.
#[derive(Deserialize)]
struct Step {
    step: u64,
    total_steps: u64,
    loss: Option<f64>,
    tok_s: Option<f64>,
    eta_s: Option<f64>,
}

impl Progress {
    fn new(results: &Path, attempt: &Attempt) -> Self {
        let output = sweep::output_path(results, &attempt.key, attempt.attempt);
        Self { output: AppendedLines::from_tail(&output, OUTPUT_TAIL), last: None }
    }

    /// Reads new lines. An output that is gone or unreadable counts as having none.
    fn poll(&mut self) -> bool {
        let mut is_new = false;
        let bytes = self.output.poll().unwrap_or_default().bytes;
        for line in bytes.split(|byte| *byte == b'\n') {
            if let Ok(Event::Step(step)) = serde_json::from_slice(line) {
                self.last = Some(step);
                is_new = true;
            }
        }
        is_new
    }
}

impl WatchedCell {
    fn status(&self) -> Option<CellStatus> {
        self.last.as_ref().map(|last| last.status)
    }

    fn figure(&self, key: &str) -> Option<f64> {
        self.last.as_ref()?.measured.get(key)
    }

    /// Returns the duration of its last attempt in seconds, so far if it is running.
    fn seconds(&self) -> Option<f64> {
        let last = self.last.as_ref()?;
        let end = match last.status {
            CellStatus::Running => crate::format::now(),
            _ => last.at.parse().ok()?,
        };
        Some(self.began?.duration_until(end).as_secs_f64())
    }
}

impl SweepView {
    /// Creates the view of the sweep in a folder, which lies in the results folder whose ledger has its
    /// cells.
    ///
    /// # Errors
    /// If its cells cannot be read.
    pub fn new(folder: &Path) -> Result<Self> {
        let folder = std::path::absolute(folder).at("find", folder)?;
        // The folder is RESULTS/sweeps/NAME.
        let results = folder.parent().and_then(Path::parent).unwrap_or(&folder).to_owned();
        let cells = sweep::cells(&folder)?;
        let values =
            |key: &str| cells.iter().map(|cell| cell.settings.get(key)).collect::<BTreeSet<_>>().len();
        let keys: BTreeSet<&String> = cells.iter().flat_map(|cell| cell.settings.keys()).collect();
        let keys = keys.into_iter().filter(|key| values(key) > 1).cloned().collect();
        let watched = |cell| WatchedCell { cell, last: None, began: None, progress: None };
        Ok(Self {
            name: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            ledger: Ledger::follow(&results),
            is_new: true,
            condition: Condition::for_ledger(&results),
            results,
            keys,
            cells: cells.into_iter().map(watched).collect(),
        })
    }

    /// Names a cell by the settings in which the cells differ, with the last part of each key.
    fn name_of(&self, cell: &SweepCell) -> String {
        let short = |key: &str| key.rsplit('.').next().unwrap_or(key).to_owned();
        let value = |key: &String| Some(format!("{}={}", short(key), cell.settings.get(key)?));
        let named: Vec<String> = self.keys.iter().filter_map(value).collect();
        if named.is_empty() { cell.key.chars().take(12).collect() } else { named.join(" ") }
    }

    /// Takes a ledger line into account, if it belongs to a cell of this sweep.
    fn take(&mut self, line: Attempt) {
        let belongs_to = |cell: &&mut WatchedCell| line.key == cell.cell.key;
        for cell in self.cells.iter_mut().filter(belongs_to) {
            if line.status == CellStatus::Running {
                cell.began = line.at.parse().ok();
                cell.progress = Some(Progress::new(&self.results, &line));
            } else {
                cell.progress = None;
            }
            // A comparison that runs the cell again does not change the row.
            if line.comparison.is_none() || !cell.status().is_some_and(CellStatus::is_result) {
                cell.last = Some(line.clone());
            }
        }
    }

    fn read_ledger(&mut self) -> Result<bool> {
        self.ledger.refresh()?;
        let new = self.ledger.news();
        let is_any = std::mem::take(&mut self.is_new) || !new.is_empty();
        let keys: BTreeSet<&str> = new.iter().map(|line| line.key.as_str()).collect();
        let lines = self.ledger.lines().iter().filter(|line| keys.contains(line.key.as_str()));
        // Take them in ledger order, which the news may not have.
        lines.cloned().collect::<Vec<_>>().into_iter().for_each(|line| self.take(line));
        Ok(is_any)
    }

    fn count(&self, of: impl Fn(Option<CellStatus>) -> bool) -> usize {
        self.cells.iter().filter(|cell| of(cell.status())).count()
    }

    /// Returns the number of cells that are done.
    fn done(&self) -> usize {
        self.count(|status| status.is_some_and(CellStatus::is_final))
    }

    /// Returns the cell with the lowest validation loss so far.
    fn best(&self) -> Option<usize> {
        let losses = self.cells.iter().enumerate();
        let losses = losses.filter(|(_, cell)| cell.status() == Some(CellStatus::Ok));
        let losses = losses.filter_map(|(at, cell)| Some((at, cell.figure("val_loss")?)));
        losses.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(at, _)| at)
    }
}

impl View for SweepView {
    fn poll(&mut self) -> bool {
        let read = self.read_ledger();
        let mut is_new = self.condition.record_read(read);
        for cell in &mut self.cells {
            is_new |= cell.progress.as_mut().is_some_and(Progress::poll);
        }
        self.condition.look(is_new, self.done() >= self.cells.len())
    }

    fn is_live(&self) -> bool {
        self.condition.is_held
    }

    fn rows(&self) -> u16 {
        self.height()
    }

    fn draw(&self, canvas: &mut Canvas, show: &Show) {
        self.draw_frame(canvas, show);
    }
}
