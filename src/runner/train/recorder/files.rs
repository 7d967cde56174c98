//! The row files of a run, and its event file for TensorBoard.

use crate::checkpoint::FileRecord;
use crate::error::{Error, Result};
use crate::metrics::{FP8_COLUMNS, HeldOutColumn, PAIR_COLUMNS, ScoreColumn, score_figure, source_column};
use crate::plan::Plan;
use crate::ranks::fault;
use crate::results::folder::{METRICS, TIMING};
use crate::results::rows::{ResumedRows, RowWriter, SavedRows};
use crate::results::summary::Sample;
use crate::results::tensorboard::{Event, EventFile};
use crate::results::{MetricsRow, RunFolder, Summary, TimingRow};
use std::collections::{BTreeMap, BTreeSet};

/// `metrics.csv`, `timing.csv`, and the event file if the recipe asks for one.
pub(super) struct RowFiles {
    metrics: RowWriter<MetricsRow>,
    timing: RowWriter<TimingRow>,
    events: Option<EventFile>,
}

/// The rows of earlier processes.
pub(super) struct EarlierRows {
    /// The kept and removed rows of `metrics.csv`.
    pub metrics: ResumedRows<MetricsRow>,
    /// The damage among the removed rows of `timing.csv`.
    pub damaged_timing: Option<String>,
    /// Wall time of the run up to the last kept row, in seconds.
    pub wall_s: f64,
    /// True if the checkpoint has no hashes of the files.
    pub are_unchecked: bool,
}

impl RowFiles {
    /// Opens the row files at a step, and drops the rows beyond it. `saved` has sizes and hashes of the files
    /// in the run's own checkpoint. It is `None` for a run without one, none of whose rows are kept.
    ///
    /// # Errors
    /// If a file cannot be written, differs from the checkpoint's record of it, or lacks rows up to the step.
    pub fn open(
        folder: &RunFolder,
        plan: &Plan,
        summary: &Summary,
        step: u64,
        saved: Option<&BTreeMap<String, FileRecord>>,
    ) -> Result<(Self, EarlierRows)> {
        let path = |file: &str| folder.path().join(file);
        let columns = extra_columns(plan, summary);
        let Some(saved) = saved else {
            let (metrics, cut) = RowWriter::<MetricsRow>::restart(&path(METRICS), &columns)?;
            let (timing, cut_timing) = RowWriter::<TimingRow>::restart(&path(TIMING), &[])?;
            let earlier = EarlierRows {
                metrics: cut,
                damaged_timing: cut_timing.damage,
                wall_s: 0.0,
                are_unchecked: false,
            };
            return Ok((Self { metrics, timing, events: None }, earlier));
        };
        let saved_rows = |file: &str| {
            let FileRecord { bytes, blake3 } = saved.get(file)?.clone();
            Some(SavedRows { bytes, blake3 })
        };
        let (saved_metrics, saved_timing) = (saved_rows(METRICS), saved_rows(TIMING));
        if let Some(saved) = &saved_timing {
            // This check must come before `metrics.csv` is truncated.
            saved.verify(&path(TIMING), step)?;
        }
        let (metrics, kept) =
            RowWriter::<MetricsRow>::resume(&path(METRICS), step, saved_metrics.as_ref(), &columns)?;
        let last = kept.last.as_ref().map_or(0, |row| row.step);
        if last != step {
            return Err(Error::failed(format!(
                "{} ends at step {last}, but the checkpoint is of step {step}: rows were lost. Restore the file, or \
                 start a new run from the checkpoint with `xrun resume RUN --fork`",
                path(METRICS).display(),
            )));
        }
        let (timing, cut) = RowWriter::<TimingRow>::resume(&path(TIMING), step, saved_timing.as_ref(), &[])?;
        let earlier = EarlierRows {
            metrics: kept,
            damaged_timing: cut.damage,
            wall_s: cut.last.map_or(0.0, |row| row.wall_s),
            are_unchecked: saved_metrics.is_none() || saved_timing.is_none(),
        };
        Ok((Self { metrics, timing, events: None }, earlier))
    }

    /// Creates an event file that starts with the earlier samples.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn begin_events(&mut self, folder: &RunFolder, samples: &[Sample]) -> Result<()> {
        self.events = Some(EventFile::create(folder.path(), samples)?);
        Ok(())
    }

    /// Writes a row of `metrics.csv` and its event.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn metrics(&mut self, row: &MetricsRow) -> Result<()> {
        self.metrics.append(row)?;
        fault::inject_disk_fault(row.step)?;
        self.event(|now| Event::from_metrics(row, now))
    }

    /// Writes a row of `timing.csv` and its event.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn timing(&mut self, row: &TimingRow) -> Result<()> {
        self.timing.append(row)?;
        self.event(|now| Event::from_timing(row, now))
    }

    /// Writes the event of samples.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn samples(&mut self, samples: &[&Sample]) -> Result<()> {
        self.event(|now| Event::from_samples(samples, now))
    }

    fn event(&mut self, event: impl FnOnce(f64) -> Event) -> Result<()> {
        self.events.as_mut().map_or(Ok(()), |events| events.append(event))
    }

    /// Makes all rows durable.
    ///
    /// # Errors
    /// If the disk reports an error.
    pub fn sync(&mut self) -> Result<()> {
        self.metrics.sync()?;
        self.timing.sync()
    }

    /// Returns a closure that makes the rows written so far durable. It may run on any thread.
    ///
    /// # Errors
    /// If a row cannot be written, or a file handle cannot be cloned.
    pub fn later_sync(&mut self) -> Result<impl FnOnce() -> Result<()> + Send + use<>> {
        let (metrics, timing) = (self.metrics.deferred_sync()?, self.timing.deferred_sync()?);
        Ok(move || {
            metrics()?;
            timing()
        })
    }

    /// Returns the current size and hash of the files, as checkpoints store them.
    pub fn content(&self) -> BTreeMap<String, FileRecord> {
        [(METRICS, self.metrics.content()), (TIMING, self.timing.content())]
            .map(|(file, SavedRows { bytes, blake3 })| (file.to_owned(), FileRecord { bytes, blake3 }))
            .into()
    }

    /// Removes copies of dropped rows once a checkpoint of `step` makes them unnecessary.
    ///
    /// # Errors
    /// If they cannot be removed.
    pub fn saved(&mut self, step: u64) -> Result<()> {
        self.metrics.saved(step)?;
        self.timing.saved(step)
    }
}

/// Returns the columns of `metrics.csv` that follow the ones every run has, in the order of the file.
fn extra_columns(plan: &Plan, summary: &Summary) -> Vec<String> {
    // A resume may switch the evaluation of the moving average on or off, so the columns exist in both cases.
    let weights = if plan.ema.is_some() { &[false, true][..] } else { &[false] };
    let mut columns = BTreeSet::new();
    for figure in plan.tasks.iter().flat_map(|task| task.figures()) {
        for (set, &is_average) in
            summary.held_out.keys().flat_map(|set| weights.iter().map(move |w| (set, w)))
        {
            columns.insert(HeldOutColumn { figure, set, is_average }.to_string());
        }
    }
    columns.extend(summary.source_losses.keys().map(|source| source_column(source)));
    if plan.preference.is_some() {
        columns.extend(PAIR_COLUMNS.map(str::to_owned));
    }
    if plan.fp8.is_some() {
        columns.extend(FP8_COLUMNS.map(str::to_owned));
    }
    for (task, entry) in &summary.tasks {
        let own = entry.figures.keys().filter_map(|figure| score_figure(figure));
        columns.extend(own.flat_map(|score| {
            let column = |&is_average| ScoreColumn { task, figure: score.figure.name, is_average };
            weights.iter().map(move |is_average| column(is_average).to_string())
        }));
    }
    columns.into_iter().filter(|column| MetricsRow::is_further_column(column)).collect()
}
