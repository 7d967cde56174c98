//! The results that rank 0 writes during training: rows, progress, checkpoints, samples.

mod close;
mod save;

pub(super) use save::DueSave;

use super::gauges::Gauges;
use super::held::HeldSnapshot;
use super::rank::{Evaluation, Rank, StepReport};
use super::time_left::TimeLeft;
use crate::checkpoint::{BackgroundWriter, FileRecord, Meta, Store};
use crate::data::stories::judge;
use crate::device::cuda::Algorithms;
use crate::error::{Error, Result};
use crate::model::flops_per_token;
use crate::plan::Plan;
use crate::ranks::fault;
use crate::results::folder::{ALGORITHMS, METRICS, TIMING};
use crate::results::held_out::MAIN_SET;
use crate::results::progress::{Pace, Progress};
use crate::results::rows::{ResumedRows, RowWriter, SavedRows};
use crate::results::summary::{LossAt, Sample, Sentences, Startup};
use crate::results::tensorboard::EventFile;
use crate::results::{MetricsRow, Phase, RunFolder, Status, Summary, TimingRow, atomic, documents, memory};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: f64 = (1 << 20) as f64;

/// Time between writes of the summary during a run, besides those after evaluations.
const SUMMARY_PERIOD: Duration = Duration::from_secs(5);

/// Time between lines of progress in the log, besides those of evaluations.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// The files and the progress display of one run.
pub struct Recorder {
    folder: RunFolder,
    plan: Arc<Plan>,
    metrics: RowWriter<MetricsRow>,
    timing: RowWriter<TimingRow>,
    store: Arc<Store>,
    /// Writes checkpoints beside training.
    writer: BackgroundWriter<HeldSnapshot>,
    /// Memory for the next copy of the state.
    held: Option<HeldSnapshot>,
    /// True if checkpoints are written beside training.
    background: bool,
    /// The lowest validation loss of a checkpoint, in nats per token, where the best is kept.
    best_loss: Option<f32>,
    /// The newest evaluation: its step, and the validation loss in nats per token.
    evaluated: Option<(u64, f32)>,
    /// The event file, where the recipe asks for one.
    events: Option<EventFile>,
    meta: Meta,
    summary: Summary,
    progress: Progress,
    started: Instant,
    wall_before: f64,
    steps_here: usize,
    time_left: TimeLeft,
    planned_bytes: u64,
    /// Model FLOPs per token, forward and backward.
    flops_per_token: f64,
    judge: bool,
    gauges: Option<Gauges>,
    /// Sums over steps of the fraction in which each rank was busy.
    busy: Vec<f64>,
    /// The last step with a row.
    step: u64,
    /// The step that this process began at, and the tokens trained on until then.
    began: (u64, u64),
    /// The step of the newest checkpoint; 0 without one.
    saved_step: u64,
    /// The end of the last save, failed or not; the start of this process before the first.
    last_save: Instant,
    /// The error of the last save, if it failed.
    unsaved: Option<Error>,
    /// The end of the last write of the summary.
    last_summary: Instant,
    /// The end of the last line of progress in the log.
    last_logged: Instant,
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
    /// Tokens trained on until then; a fork may have had another batch.
    pub from_tokens: u64,
    /// True if the folder has the rows of the earlier steps.
    pub resumed: bool,
    /// What the checkpoint to resume knows of the row files; `None` where there is none, or one of another
    /// run.
    pub saved_rows: Option<BTreeMap<String, FileRecord>>,
    /// Bytes of state and arena.
    pub planned_bytes: u64,
    /// True if checkpoints are written beside training.
    pub background: bool,
    /// True if generated sentences are checked against the grammar of the built-in stories.
    pub judge: bool,
}

impl Recorder {
    /// Checks that checkpoints can be written, opens the row files at a step, and truncates the rows beyond
    /// it.
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
            from_tokens,
            resumed,
            saved_rows,
            planned_bytes,
            background,
            judge,
        } = parts;
        // Before any row is dropped: on a disk that is still full, nothing changes.
        let store = Store::open(&folder.checkpoints()?, plan.intervals.keep)?;
        let store = store.keeping(&plan.intervals.kept_steps).keeping_best(plan.intervals.keep_best);
        store.probe()?;
        let store = Arc::new(store);
        let best_loss = if plan.intervals.keep_best { store.best_loss(from_step)? } else { None };
        let saved = |file: &str| {
            let FileRecord { bytes, blake3 } = saved_rows.as_ref()?.get(file)?.clone();
            Some(SavedRows { bytes, blake3 })
        };
        let (saved_metrics, saved_timing) = (saved(METRICS), saved(TIMING));
        if let Some(saved) = &saved_timing {
            // Before `metrics.csv` is cut.
            saved.verify(&folder.path().join(TIMING), from_step)?;
        }
        let sets = || summary.held_out.keys().filter(|name| *name != MAIN_SET);
        // Whether evaluations evaluate the average may change from one process of a run to the next.
        let of_average = sets().filter(|_| plan.ema.is_some()).map(|set| MetricsRow::ema_column_of_set(set));
        let columns: Vec<_> = of_average.chain(sets().map(|set| MetricsRow::column_of_set(set))).collect();
        let (metrics, kept) = folder.resume_metrics(from_step, saved_metrics.as_ref(), &columns)?;
        let last = kept.last.as_ref().map_or(0, |row| row.step);
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
        summary.steps = from_step;
        summary.tokens_seen = from_tokens;
        folder.write_summary(&summary)?;
        let create = |()| EventFile::create(folder.path(), &summary.samples);
        let events = plan.intervals.tensorboard.then_some(()).map(create).transpose()?;
        let wall_before = cut.last.map_or(0.0, |row| row.wall_s);
        let mut recorder = Self {
            flops_per_token: flops_per_token(&plan).value,
            time_left: TimeLeft::new(&plan),
            folder,
            plan,
            metrics,
            timing,
            writer: BackgroundWriter::new(Arc::clone(&store)),
            events,
            store,
            held: None,
            background,
            best_loss,
            evaluated: None,
            meta,
            summary,
            progress,
            started: Instant::now(),
            wall_before,
            steps_here: 0,
            planned_bytes,
            judge,
            gauges: None,
            busy: Vec::new(),
            step: from_step,
            began: (from_step, from_tokens),
            saved_step: from_step,
            last_save: Instant::now(),
            last_summary: Instant::now(),
            last_logged: Instant::now(),
            unsaved: None,
            write_error: None,
        };
        let hashes_missing = saved_rows.is_some() && (saved_metrics.is_none() || saved_timing.is_none());
        recorder.note_rows(hashes_missing, &kept)?;
        Ok(recorder)
    }

    /// Says which rows of an earlier process are taken over unchecked, and which are dropped.
    fn note_rows(&mut self, hashes_missing: bool, kept: &ResumedRows<MetricsRow>) -> Result<()> {
        let from_step = self.step;
        if hashes_missing {
            self.note(&format!(
                "the checkpoint of step {from_step} is of an earlier version, without hashes of {METRICS} and {TIMING}: \
                 their rows up to this step are taken over as they are"
            ))?;
        }
        if let Some((first, last)) = kept.steps_cut {
            let dropped = match kept.rows_cut {
                1 => format!("the row of step {first} is dropped and trained again"),
                rows => format!("the {rows} rows of steps {first} to {last} are dropped and trained again"),
            };
            match from_step {
                0 => self.warn(&format!(
                    "there is no checkpoint to continue from: this starts at step 0; {dropped}"
                ))?,
                step => self.note(&format!("resuming from step {step}; {dropped}"))?,
            }
        }
        Ok(())
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

    /// Turns an error of writing results into a request to stop after one last save. A run without
    /// checkpoints, and one that has trained no step yet, has nothing to save and ends at once.
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

    /// Returns the tokens trained on after a step.
    fn tokens_at(&self, step: u64) -> u64 {
        let (from_step, from_tokens) = self.began;
        let of_first = |steps| self.plan.batch.tokens_of_first(steps);
        from_tokens + (of_first(step) - of_first(from_step))
    }

    /// Records that a step was trained in `took`.
    pub(super) fn trained(&mut self, report: &StepReport, took: Duration) -> Result<()> {
        self.steps_here += 1;
        let phase = if self.steps_here <= self.plan.intervals.warmup { Phase::Warmup } else { Phase::Train };
        let batch = &self.plan.batch;
        let (tokens, micro_steps) = (batch.tokens_of(report.step), batch.micro_steps_of(report.step));
        let tok_s = tokens as f64 / took.as_secs_f64();
        let flops = self.flops_per_token;
        if phase == Phase::Train {
            self.busy.resize(report.busy.len(), 0.0);
            self.busy.iter_mut().zip(&report.busy).for_each(|(sum, busy)| *sum += busy);
        }
        self.time_left.trained(report.step, phase, took.as_secs_f64());
        let written_step = self.collect_write()?;
        let row = self.timing_row(report.step, phase, took);
        let per_device = tok_s / self.plan.batch.world_size as f64;
        let utilization =
            self.gauges.as_ref().and_then(|g| g.utilization(per_device * flops, micro_steps, took));
        self.append_timing(&TimingRow {
            data_wait_ms: Some(report.data_wait.as_secs_f64() * 1e3),
            tok_s: Some(tok_s),
            tok_s_per_device: Some(per_device),
            tflops_per_device: Some(per_device * flops / 1e12),
            mfu_pct: utilization.map(|(mfu, _)| mfu),
            hfu_pct: utilization.map(|(_, hfu)| hfu),
            communication_ms: report.communicated.map(|c| c.total.as_secs_f64() * 1e3),
            exposed_communication_ms: report.communicated.map(|c| c.exposed.as_secs_f64() * 1e3),
            slowest_rank: report.slowest.map(|rank| rank as u64),
            written_step,
            ..row
        })
    }

    /// Writes a row of `timing.csv`, and its event.
    fn append_timing(&mut self, row: &TimingRow) -> Result<()> {
        let written = self.timing.append(row);
        let written = written.and_then(|()| self.events.as_mut().map_or(Ok(()), |events| events.timing(row)));
        self.or_stop(written)
    }

    /// Shows how far an evaluation is.
    pub(super) fn evaluating(&mut self, done: usize, of: usize) {
        self.progress.pause(Phase::Eval, done as u64, of as u64);
    }

    /// Records that the held-out data was evaluated in `took`.
    pub(super) fn evaluated(&mut self, step: u64, took: Duration) -> Result<()> {
        self.time(step, Phase::Eval, took)
    }

    /// Records that the ranks compared their parameters in `took`.
    pub(super) fn compared(&mut self, step: u64, took: Duration) -> Result<()> {
        self.time(step, Phase::Check, took)
    }

    /// Writes the step's row, and updates the progress display when it is due; `evaluation` is that after the
    /// step, where there is one.
    pub(super) fn row(&mut self, report: &StepReport, evaluation: Option<&Evaluation>) -> Result<()> {
        let mut row = MetricsRow {
            step: report.step,
            tokens_seen: self.tokens_at(report.step),
            loss: report.loss,
            val_loss: None,
            lr: report.lr,
            grad_norm: report.grad_norm,
            z_loss: report.z_loss,
            smoothing_loss: report.smoothing_loss,
            ema_val_loss: None,
            set_losses: BTreeMap::new(),
            ema_set_losses: BTreeMap::new(),
        };
        let sets = evaluation.map_or(&[][..], |evaluation| &evaluation.sets);
        for ((name, set), evaluated) in self.summary.held_out.iter_mut().zip(sets) {
            let loss = evaluated.loss as f32;
            (set.tokens, set.bytes) = (Some(evaluated.tokens), evaluated.bytes);
            match name.as_str() {
                MAIN_SET => {
                    row.val_loss = Some(loss);
                    self.evaluated = Some((report.step, loss));
                }
                name => _ = row.set_losses.insert(name.to_owned(), loss),
            }
        }
        let of_average = evaluation.map_or(&[][..], |evaluation| &evaluation.ema);
        for (name, evaluated) in self.summary.held_out.keys().zip(of_average) {
            let loss = evaluated.loss as f32;
            match name.as_str() {
                MAIN_SET => row.ema_val_loss = Some(loss),
                name => _ = row.ema_set_losses.insert(name.to_owned(), loss),
            }
        }
        if let Some(Evaluation { documents, .. }) = evaluation.filter(|found| !found.documents.is_empty()) {
            let written = documents::write(self.folder.path(), documents);
            self.or_stop(written)?;
        }
        self.step = report.step;
        let written = self.metrics.append(&row).and_then(|()| fault::inject_disk_fault(report.step));
        let written =
            written.and_then(|()| self.events.as_mut().map_or(Ok(()), |events| events.metrics(&row)));
        self.or_stop(written)?;
        let interval = self.plan.intervals.metrics.max(1) as u64;
        let due = row.step.is_multiple_of(interval) || row.step == 1 || row.step == self.plan.steps as u64;
        let pace = Pace {
            tok_s: self.time_left.step_seconds().map(|s| self.plan.batch.tokens_per_step() as f64 / s),
            eta_s: self.time_left.after(row.step),
        };
        if due || row.val_loss.is_some() {
            self.progress.step(&row, pace);
        }
        if row.val_loss.is_some() || (due && self.last_logged.elapsed() >= LOG_PERIOD) {
            self.last_logged = Instant::now();
            let line =
                format!("step {}/{}  {}", row.step, self.plan.steps, self.progress.describe(&row, pace));
            let logged = self.folder.log(&line);
            self.or_stop(logged)?;
        }
        self.update_summary(&row)
    }

    /// Lets the summary follow the run, so that others can see how far it is.
    fn update_summary(&mut self, row: &MetricsRow) -> Result<()> {
        let summary = &mut self.summary;
        (summary.steps, summary.tokens_seen) = (row.step, row.tokens_seen);
        summary.wall_s = Some(self.wall_before + self.started.elapsed().as_secs_f64());
        summary.train_loss.add(LossAt { step: row.step, loss: row.loss });
        if let Some(loss) = row.val_loss {
            summary.val_loss.add(LossAt { step: row.step, loss });
        }
        if let Some(loss) = row.ema_val_loss {
            summary.ema_val_loss.get_or_insert_default().add(LossAt { step: row.step, loss });
        }
        for (name, set) in &mut summary.held_out {
            let loss = if name == MAIN_SET { row.val_loss } else { row.set_losses.get(name).copied() };
            loss.into_iter().for_each(|loss| set.add(LossAt { step: row.step, loss }));
            let loss =
                if name == MAIN_SET { row.ema_val_loss } else { row.ema_set_losses.get(name).copied() };
            loss.into_iter().for_each(|loss| set.add_of_average(LossAt { step: row.step, loss }));
        }
        summary.bits_per_byte = summary.held_out.get(MAIN_SET).and_then(|set| set.bits_per_byte);
        if row.val_loss.is_none() && self.last_summary.elapsed() < SUMMARY_PERIOD {
            return Ok(());
        }
        self.last_summary = Instant::now();
        let written = self.folder.write_summary(&self.summary);
        self.or_stop(written)
    }

    /// Generates samples and writes them to the run's folder.
    pub(super) fn generate(&mut self, rank: &mut Rank) -> Result<()> {
        let started = Instant::now();
        self.progress.pause(Phase::Sample, 0, 1);
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
        let samples: Vec<&Sample> =
            self.summary.samples.iter().filter(|sample| sample.step == step).collect();
        let written = written.and_then(|()| match &mut self.events {
            Some(events) => events.samples(&samples),
            None => Ok(()),
        });
        self.or_stop(written)?;
        self.time(step, Phase::Sample, started.elapsed())
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
        self.time_left.took(phase, took.as_secs_f64());
        let row = self.timing_row(step, phase, took);
        self.append_timing(&row)
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
            let tokens = match phase {
                Phase::Warmup | Phase::Train => self.plan.batch.tokens_of(step),
                _ => 0,
            };
            gauges.fill(&mut row, tokens);
        }
        row
    }
}
