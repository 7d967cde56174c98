//! The results that rank 0 writes during training: rows, progress, checkpoints, samples.

use super::gauges::Gauges;
use super::rank::{Rank, StepReport};
use crate::checkpoint::{FileRecord, Meta, Store};
use crate::data::stories::judge;
use crate::device::cuda::Algorithms;
use crate::error::{Error, ErrorKind, Result};
use crate::model::flops_per_token;
use crate::plan::{CheckpointInterval, Plan};
use crate::ranks::fault;
use crate::results::folder::{ALGORITHMS, METRICS, TIMING, overwrite_running};
use crate::results::progress::Progress;
use crate::results::rows::{self, RowWriter, SavedRows};
use crate::results::summary::{Sample, Sentences, Startup};
use crate::results::{MetricsRow, Phase, RunFolder, Status, Summary, TimingRow, atomic, memory};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: f64 = (1 << 20) as f64;

/// The files and the progress display of one run.
pub struct Recorder {
    folder: RunFolder,
    plan: Arc<Plan>,
    metrics: RowWriter<MetricsRow>,
    timing: RowWriter<TimingRow>,
    store: Store,
    meta: Meta,
    summary: Summary,
    progress: Progress,
    started: Instant,
    wall_before: f64,
    steps_here: usize,
    tok_s: f64,
    planned_bytes: u64,
    /// Model FLOPs per token, forward and backward.
    flops_per_token: f64,
    judge: bool,
    gauges: Option<Gauges>,
    /// Sums over steps of the fraction in which each rank was busy.
    busy: Vec<f64>,
    /// The last step with a row.
    step: u64,
    /// The step of the newest checkpoint; 0 without one.
    saved_step: u64,
    /// The end of the last save, failed or not; the start of this process before the first.
    last_save: Instant,
    /// The error of the last save, if it failed.
    unsaved: Option<Error>,
    /// The first error of writing rows, samples or the log: the run stops after one last save.
    write_error: Option<Error>,
}

/// Inputs of [`Recorder::new`].
pub struct RecorderInputs {
    /// The run's folder, locked.
    pub folder: RunFolder,
    /// The plan.
    pub plan: Arc<Plan>,
    /// Metadata for checkpoints; step and tokens are filled in.
    pub meta: Meta,
    /// The summary so far.
    pub summary: Summary,
    /// Progress on the terminal.
    pub progress: Progress,
    /// The step to continue from.
    pub from_step: u64,
    /// True if the folder has the rows of the earlier steps.
    pub resumed: bool,
    /// What the checkpoint to resume knows of the row files; `None` where there is none, or one of another run.
    pub saved_rows: Option<BTreeMap<String, FileRecord>>,
    /// Bytes of state and arena.
    pub planned_bytes: u64,
    /// True if generated sentences are checked against the grammar of the built-in stories.
    pub judge: bool,
}

impl Recorder {
    /// Checks that checkpoints can be written, opens the row files at a step, and truncates the rows beyond it.
    ///
    /// # Errors
    /// When the folder cannot be written, or lacks rows up to the step.
    pub fn new(parts: RecorderInputs) -> Result<Self> {
        let RecorderInputs {
            folder,
            plan,
            meta,
            mut summary,
            progress,
            from_step,
            resumed,
            saved_rows,
            planned_bytes,
            judge,
        } = parts;
        // Before any row is dropped: on a disk that is still full, nothing changes.
        let store = Store::open(&folder.checkpoints()?, plan.intervals.keep)?;
        store.probe()?;
        let saved = |file: &str| {
            let FileRecord { bytes, blake3 } = saved_rows.as_ref()?.get(file)?.clone();
            Some(SavedRows { bytes, blake3 })
        };
        let (saved_metrics, saved_timing) = (saved(METRICS), saved(TIMING));
        if let Some(saved) = &saved_timing {
            // Before `metrics.csv` is cut.
            saved.verify(&folder.path().join(TIMING), from_step)?;
        }
        let (metrics, kept) = folder.resume_rows::<MetricsRow>(METRICS, from_step, saved_metrics.as_ref())?;
        let last = kept.last.map_or(0, |row| row.step);
        if resumed && last != from_step {
            return Err(Error::failed(format!(
                "{} ends at step {last}, and the checkpoint is of step {from_step}: rows were lost. Restore the file, or \
                 start a new run from the checkpoint with `xrun resume RUN --fork`",
                folder.path().join(METRICS).display()
            )));
        }
        let (timing, cut) = folder.resume_rows::<TimingRow>(TIMING, from_step, saved_timing.as_ref())?;
        summary.samples.retain(|sample| sample.step <= from_step);
        summary.status = Status::Running;
        summary.reason = None;
        folder.write_summary(&summary)?;
        let wall_before = cut.last.map_or(0.0, |row| row.wall_s);
        let mut recorder = Self {
            flops_per_token: flops_per_token(&plan).value,
            folder,
            plan,
            metrics,
            timing,
            store,
            meta,
            summary,
            progress,
            started: Instant::now(),
            wall_before,
            steps_here: 0,
            tok_s: f64::NAN,
            planned_bytes,
            judge,
            gauges: None,
            busy: Vec::new(),
            step: from_step,
            saved_step: from_step,
            last_save: Instant::now(),
            unsaved: None,
            write_error: None,
        };
        if saved_rows.is_some() && (saved_metrics.is_none() || saved_timing.is_none()) {
            recorder.note(&format!(
                "the checkpoint of step {from_step} is of an earlier version, without hashes of {METRICS} and {TIMING}: \
                 their rows up to this step are taken over as they are"
            ))?;
        }
        if let Some((first, last)) = kept.steps_cut {
            let start = match from_step {
                0 => "there is no checkpoint to continue from: this starts at step 0".to_owned(),
                step => format!("the newest checkpoint is of step {step}"),
            };
            recorder.warn(&format!(
                "{start}, and drops {} rows, of steps {first} to {last}, which are trained again",
                kept.rows_cut
            ))?;
        }
        Ok(recorder)
    }

    /// Prints a note with the progress display, and writes it to the log.
    ///
    /// # Errors
    /// When the log cannot be written.
    pub fn note(&mut self, text: &str) -> Result<()> {
        self.progress.note(text);
        let logged = self.folder.log(text);
        self.or_stop(logged)
    }

    /// Prints a warning, even where progress is not shown, and writes it to the log.
    ///
    /// # Errors
    /// When the log cannot be written.
    pub fn warn(&mut self, text: &str) -> Result<()> {
        let text = format!("warning: {text}");
        self.progress.warn(&text);
        let logged = self.folder.log(&text);
        self.or_stop(logged)
    }

    /// Turns an error of writing results into a request to stop after one last save. A run without checkpoints, and one
    /// that has trained no step yet, has nothing to save and ends at once.
    fn or_stop(&mut self, written: Result<()>) -> Result<()> {
        let Err(e) = written else { return Ok(()) };
        if !self.saves() || self.steps_here == 0 {
            return Err(e);
        }
        if self.write_error.is_none() {
            self.progress.warn(&format!("warning: {e}; the run stops after one last save"));
            self.write_error = Some(e);
        }
        Ok(())
    }

    /// Returns the error because of which the run must stop.
    pub(super) fn write_error(&self) -> Option<&Error> {
        self.write_error.as_ref()
    }

    /// Returns the error of the last save; `None` if it succeeded.
    pub(super) fn unsaved(&self) -> Option<&Error> {
        self.unsaved.as_ref()
    }

    /// Returns the step of the newest checkpoint, 0 without one.
    pub(super) fn saved_step(&self) -> u64 {
        self.saved_step
    }

    /// Returns the last step with a row.
    pub(super) fn step(&self) -> u64 {
        self.step
    }

    /// Returns the run's folder.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Records that a step was trained in `took`.
    pub(super) fn trained(&mut self, report: &StepReport, took: Duration) -> Result<()> {
        self.steps_here += 1;
        let phase = if self.steps_here <= self.plan.intervals.warmup { Phase::Warmup } else { Phase::Train };
        self.tok_s = self.plan.batch.tokens_per_step() as f64 / took.as_secs_f64();
        let flops = self.flops_per_token;
        if phase == Phase::Train {
            self.busy.resize(report.busy.len(), 0.0);
            self.busy.iter_mut().zip(&report.busy).for_each(|(sum, busy)| *sum += busy);
        }
        let row = self.timing_row(report.step, phase, took);
        let per_device = self.tok_s / self.plan.batch.world_size as f64;
        let utilization = self.gauges.as_ref().and_then(|g| g.utilization(per_device * flops, took));
        let written = self.timing.append(&TimingRow {
            data_wait_ms: Some(report.data_wait.as_secs_f64() * 1e3),
            tok_s: Some(self.tok_s),
            tok_s_per_device: Some(per_device),
            tflops_per_device: Some(per_device * flops / 1e12),
            mfu_pct: utilization.map(|(mfu, _)| mfu),
            hfu_pct: utilization.map(|(_, hfu)| hfu),
            communication_ms: report.communicated.map(|c| c.total.as_secs_f64() * 1e3),
            exposed_communication_ms: report.communicated.map(|c| c.exposed.as_secs_f64() * 1e3),
            slowest_rank: report.slowest.map(|rank| rank as u64),
            ..row
        });
        self.or_stop(written)
    }

    /// Records that the held-out data was evaluated in `took`.
    pub(super) fn evaluated(&mut self, step: u64, took: Duration) -> Result<()> {
        self.time(step, Phase::Eval, took)
    }

    /// Records that the ranks compared their parameters in `took`.
    pub(super) fn compared(&mut self, step: u64, took: Duration) -> Result<()> {
        self.time(step, Phase::Check, took)
    }

    /// Writes the step's row, and updates the progress display when it is due.
    pub(super) fn row(&mut self, report: &StepReport, val_loss: Option<f64>) -> Result<()> {
        let row = MetricsRow {
            step: report.step,
            tokens_seen: report.step * self.plan.batch.tokens_per_step() as u64,
            loss: report.loss,
            val_loss: val_loss.map(|loss| loss as f32),
            lr: report.lr,
            grad_norm: report.grad_norm,
        };
        self.step = report.step;
        let written = self.metrics.append(&row).and_then(|()| fault::inject_disk_fault(report.step));
        self.or_stop(written)?;
        let interval = self.plan.intervals.metrics.max(1) as u64;
        if row.step.is_multiple_of(interval) || row.val_loss.is_some() || row.step == 1 {
            self.progress.step(&row, self.tok_s);
        }
        Ok(())
    }

    /// Returns true if the run saves checkpoints.
    pub(super) fn saves(&self) -> bool {
        self.plan.intervals.keep > 0
    }

    /// Saves a checkpoint, if the run saves any. If saving fails, earlier checkpoints stay as they are, and
    /// training continues with a warning; if it was the last save, the run ends as `unsaved`.
    pub(super) fn save(&mut self, rank: &Rank) -> Result<()> {
        if !self.saves() {
            return Ok(());
        }
        let started = Instant::now();
        match self.save_now(rank) {
            Ok(warnings) => {
                (self.saved_step, self.unsaved) = (rank.done(), None);
                for warning in warnings {
                    self.warn(&warning)?;
                }
            }
            Err(e) => {
                let text = e.message().to_owned();
                self.summary.notes.push(text.clone());
                self.unsaved = Some(e);
                self.warn(&text)?;
            }
        }
        self.last_save = Instant::now();
        self.time(rank.done(), Phase::Save, started.elapsed())
    }

    /// Returns true if the run saves by time and the last save is long enough ago.
    pub(super) fn save_is_due(&self) -> bool {
        match self.plan.intervals.checkpoint {
            CheckpointInterval::Time(period) => self.saves() && self.last_save.elapsed() >= period,
            CheckpointInterval::Steps(_) => false,
        }
    }

    /// Saves a checkpoint; returns warnings.
    fn save_now(&mut self, rank: &Rank) -> Result<Vec<String>> {
        // A checkpoint must never be ahead of its rows.
        let synced = self.metrics.sync().and_then(|()| self.timing.sync());
        synced.map_err(|e| e.context(format_args!("checkpoint of step {} not saved", rank.done())))?;
        self.meta.step = rank.done();
        self.meta.tokens_seen = rank.done() * self.plan.batch.tokens_per_step() as u64;
        self.meta.rows = [(METRICS, self.metrics.content()), (TIMING, self.timing.content())]
            .map(|(file, SavedRows { bytes, blake3 })| (file.to_owned(), FileRecord { bytes, blake3 }))
            .into();
        let mut warnings = self.store.save(&self.meta, &rank.snapshot())?.warnings;
        let tidied = self.metrics.saved(rank.done()).and_then(|()| self.timing.saved(rank.done()));
        warnings.extend(tidied.err().map(|e| e.to_string()));
        Ok(warnings)
    }

    /// Generates samples and writes them to the run's folder.
    pub(super) fn generate(&mut self, rank: &mut Rank) -> Result<()> {
        let started = Instant::now();
        let texts = rank.generate()?;
        if texts.is_empty() {
            return Ok(());
        }
        let step = rank.done();
        let prompt = &self.plan.generation.prompt;
        let mut sentences = Sentences::default();
        let mut written = Ok(());
        for text in texts {
            let whole = format!("{prompt}{text}");
            written = written.and(self.folder.log(&format!("sample after step {step}: {whole}")));
            let judged = judge(&whole);
            sentences.seen += judged.sentences;
            sentences.parsed += judged.parsed;
            self.summary.samples.push(Sample { step, prompt: prompt.clone(), text });
        }
        if let Some(sample) = self.summary.samples.last() {
            self.progress.note(&format!("sample after step {step}: {}{}", sample.prompt, sample.text));
        }
        if self.judge {
            let Sentences { seen, parsed } = sentences;
            self.progress.note(&format!("{parsed} of {seen} sampled sentences follow the grammar"));
            self.summary.sentences = Some(sentences);
        }
        let written = written.and_then(|()| self.folder.write_summary(&self.summary));
        self.or_stop(written)?;
        self.time(step, Phase::Sample, started.elapsed())
    }

    /// Closes the run: reads its files back and writes the summary with its status.
    ///
    /// # Errors
    /// When the files cannot be read back or written. A run that trained well is `unsaved` then, and its summary says so
    /// if the disk takes that much.
    pub fn finish(mut self, status: Status, reason: Option<String>) -> Result<(RunFolder, Summary)> {
        let trained = matches!(status, Status::Ok | Status::Interrupted | Status::Unsaved);
        let synced = self.metrics.sync().and_then(|()| self.timing.sync());
        let (status, reason) = match &synced {
            Err(e) if trained => (Status::Unsaved, Some(e.message().to_owned())),
            _ => (status, reason),
        };
        if let Some(reason) = &reason {
            // Where the log takes it: the summary and the process say the same.
            let _ = self.folder.log(&format!("{}: {reason}", status.as_str()));
        }
        let path = self.folder.path().display().to_string();
        let closed = self.close(status, reason);
        if closed.is_err() {
            // The error that is returned matters more than one of this last attempt.
            let left = if trained { Status::Unsaved } else { status };
            let _ = overwrite_running(self.folder.path(), left);
        }
        match synced.and(closed) {
            Ok(()) => {
                self.progress.finish(&self.summary);
                Ok((self.folder, self.summary))
            }
            Err(e) if trained => Err(Error::new(
                ErrorKind::Unsaved,
                format!(
                    "the results of the run are not complete: {e}. Free space, then `xrun resume {path}`"
                ),
            )),
            Err(e) => Err(e),
        }
    }

    /// Reads the files back and writes the summary.
    fn close(&mut self, status: Status, reason: Option<String>) -> Result<()> {
        if status == Status::Ok {
            // A run without checkpoints has all its rows again here.
            self.metrics.saved(self.step)?;
            self.timing.saved(self.step)?;
        }
        let metrics: Vec<MetricsRow> = rows::read(&self.folder.path().join(METRICS))?;
        let timing: Vec<TimingRow> = rows::read(&self.folder.path().join(TIMING))?;
        self.summary.status = status;
        self.summary.reason = reason;
        self.summary.measure(&metrics, &timing, self.plan.intervals.warmup);
        self.summary.memory.peak_rss_bytes = memory::peak_rss_bytes();
        let counted = self.steps_here.saturating_sub(self.plan.intervals.warmup).max(1) as f64;
        self.summary.rank_busy_pct = self.busy.iter().map(|sum| 100.0 * sum / counted).collect();
        if let Some(gauges) = &self.gauges {
            let gpu = gauges.summary().merge_earlier(self.summary.gpu.as_ref());
            if let Some(reason) = gpu.contended_because.as_ref().filter(|_| gpu.contended == Some(true)) {
                let note =
                    format!("contended: {reason}; its times are not of this GPU alone at its own pace");
                if !self.summary.notes.contains(&note) {
                    self.summary.notes.push(note);
                }
            }
            self.summary.gpu = Some(gpu);
        }
        if let Some(worse) = self.summary.worse_than_guessing() {
            let logged = self.folder.log(&format!("warning: {worse}"));
            self.or_stop(logged)?;
        }
        self.folder.write_summary(&self.summary)
    }

    /// Writes the table of matrix-product algorithms to the run's folder; checkpoints record its hash.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn algorithms(&mut self, table: &Algorithms) -> Result<()> {
        self.meta.algorithms = Some(table.hash());
        atomic::write(&self.folder.path().join(ALGORITHMS), table.to_json().as_bytes())
    }

    /// Records the startup times for the summary.
    pub(super) fn startup(&mut self, startup: Startup) {
        self.summary.startup = startup;
    }

    /// Records the bytes that the engine has allocated, for the summary. Call it before the engine is
    /// dropped.
    pub fn allocated(&mut self, bytes: u64) {
        self.summary.memory.allocated_bytes = Some(bytes);
        if let Some(gauges) = &self.gauges {
            let parts = gauges.besides_plan();
            self.summary.memory.besides_plan_bytes = parts.total();
            self.summary.memory.besides_plan = Some(parts);
        }
    }

    /// Sets the gauges to read the GPU with; `None` on the CPU.
    pub(super) fn watch(&mut self, gauges: Option<Gauges>) {
        self.gauges = gauges;
    }

    /// Writes the time that something besides a step took.
    fn time(&mut self, step: u64, phase: Phase, took: Duration) -> Result<()> {
        let row = self.timing_row(step, phase, took);
        let written = self.timing.append(&row);
        self.or_stop(written)
    }

    fn timing_row(&mut self, step: u64, phase: Phase, took: Duration) -> TimingRow {
        let mib = |bytes: u64| bytes as f64 / MIB;
        let wall_s = self.wall_before + self.started.elapsed().as_secs_f64();
        let mut row = TimingRow {
            plan_mem_mib: Some(mib(self.planned_bytes)),
            rss_mib: memory::rss_bytes().map(mib),
            peak_mem_mib: memory::peak_rss_bytes().map(mib),
            ..TimingRow::timed(step, phase, wall_s, took.as_secs_f64() * 1e3)
        };
        if let Some(gauges) = &mut self.gauges {
            gauges.fill(&mut row);
        }
        row
    }
}
