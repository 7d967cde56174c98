//! Writes the results on rank 0 during training: rows, progress, checkpoints, samples.

mod clock;
mod close;
mod files;
mod run_tasks;
mod save;
mod saves;
mod tasks;

pub(super) use save::DueSave;

use super::job::Job;
use super::rank::{Evaluation, Rank, ScoredWeights, StepReport};
use super::start::Start;
use crate::checkpoint::Meta;
use crate::data::stories::judge;
use crate::device::cuda::Algorithms;
use crate::error::{Error, Result};
use crate::forecast::Saving;
use crate::forecast::memory::peak_bytes;
use crate::metrics::{Fp8Health, HeldOutColumn, PairMeans, source_column};
use crate::plan::Plan;
use crate::policy::CorpusSource;
use crate::results::folder::{ALGORITHMS, DOCUMENTS, METRICS, SUMMARY, TIMING};
use crate::results::held_out::MAIN_SET;
use crate::results::progress::Progress;
use crate::results::summary::{LossAt, Sample, Sentences};
use crate::results::{MetricsRow, Phase, RunFolder, Status, Summary, TimingRow, atomic};
use clock::Clock;
use files::{EarlierRows, RowFiles};
use run_tasks::RunTasks;
pub(super) use run_tasks::task_entries;
use saves::Saves;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between writes of the summary, in addition to the writes after evaluations.
const SUMMARY_PERIOD: Duration = Duration::from_secs(5);

/// Time between progress lines in the log, in addition to the lines of evaluations.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// Key in [`Meta::extra`] for the hash of the samples up to the checkpoint.
const SAMPLES: &str = "samples";

/// Returns a hash of samples, in hexadecimal.
fn samples_hash(samples: &[Sample]) -> String {
    let mut hasher = blake3::Hasher::new();
    for Sample { step, prompt, text } in samples {
        hasher.update(&step.to_le_bytes());
        for part in [prompt, text] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
    }
    hasher.finalize().to_hex().to_string()
}

/// What was measured after a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found<'a> {
    /// Losses on held-out text, if they were measured.
    pub evaluation: Option<&'a Evaluation>,
    /// Scores on tasks; empty if there are none.
    pub scored: &'a [ScoredWeights],
}

/// The files and the progress display of one run.
pub struct Recorder {
    pub(super) folder: RunFolder,
    plan: Arc<Plan>,
    files: RowFiles,
    /// The tasks on which the model is scored; `None` without tasks.
    tasks: Option<RunTasks>,
    pub(super) saves: Saves,
    pub(super) clock: Clock,
    pub(super) summary: Summary,
    progress: Progress,
    /// True if generated sentences are checked against the grammar of the built-in stories.
    checks_grammar: bool,
    /// The last step with a row.
    pub(super) step: u64,
    /// The step at which this process began, and the tokens trained on before it. A fork's parent may have
    /// had a different batch, so these tokens cannot be computed from the step.
    start_step_and_tokens: (u64, u64),
    /// When the summary was last written.
    last_summary: Instant,
    /// When the last progress line was logged.
    last_logged: Instant,
    /// The first step that may bring the next warning of 8-bit floats.
    next_saturation_warning: u64,
    /// The first error of writing rows, samples or the log. The run stops after one last save.
    pub(super) write_error: Option<Error>,
}

impl Recorder {
    /// Checks that checkpoints can be written, opens the row files at the step where the run starts, and
    /// drops the rows beyond it. `meta` describes checkpoints.
    ///
    /// # Errors
    /// If the folder cannot be written, or lacks rows up to the step.
    pub(super) fn open(
        (job, start): (&Job, &Start),
        folder: RunFolder,
        mut summary: Summary,
        meta: Meta,
        progress: Progress,
    ) -> Result<Self> {
        let (plan, step) = (&job.plan, start.step());
        let background = Saving::new(plan, &job.programs, &job.machine).beside_training;
        // Comes before any row is dropped: if the disk is still full, nothing may change.
        let saves = Saves::open(&folder, plan, meta, start, background)?;
        let loaded = start.loaded.as_ref().filter(|_| start.is_own);
        let saved = loaded.map(|loaded| &loaded.meta().rows);
        let (mut files, earlier) = RowFiles::open(&folder, plan, &summary, step, saved)?;
        summary.samples.retain(|sample| sample.step <= step);
        // The rows are verified, but nothing else tells whether the texts are those that were generated.
        let samples = loaded.and_then(|loaded| loaded.meta().extra.get(SAMPLES));
        let changed_samples = samples.is_some_and(|hash| *hash != samples_hash(&summary.samples));
        if changed_samples {
            summary.samples.clear();
        }
        summary.status = Status::Running;
        summary.reason = None;
        summary.steps = step;
        summary.tokens_seen = start.tokens();
        folder.write_summary(&summary)?;
        if plan.intervals.metrics.tensorboard {
            files.begin_events(&folder, &summary.samples)?;
        }
        let tasks = RunTasks::open(job, folder.path(), job.recipe.name(), step)?;
        let planned_bytes = peak_bytes(plan, &job.programs) as u64;
        let mut recorder = Self {
            clock: Clock::start(plan, planned_bytes, earlier.wall_s),
            folder,
            plan: Arc::clone(plan),
            files,
            tasks,
            saves,
            summary,
            progress,
            checks_grammar: job.recipe.values().data.corpus == CorpusSource::Stories,
            step,
            start_step_and_tokens: (step, start.tokens()),
            last_summary: Instant::now(),
            last_logged: Instant::now(),
            next_saturation_warning: 0,
            write_error: None,
        };
        recorder.note_rows(&earlier, start)?;
        if changed_samples {
            recorder.warn(&format!(
                "the samples in {SUMMARY} were changed since the checkpoint of step {step}, so they are left out; the log \
                 has them as they were generated"
            ))?;
        }
        for warning in recorder.saves.store.repair() {
            recorder.warn(&format!("checkpoints of an earlier process: {warning}"))?;
        }
        Ok(recorder)
    }

    /// Reports which rows of an earlier process are kept unchecked, and which are dropped.
    fn note_rows(&mut self, earlier: &EarlierRows, start: &Start) -> Result<()> {
        let (from_step, kept) = (self.step, &earlier.metrics);
        if earlier.are_unchecked {
            self.note(&format!(
                "the checkpoint of step {from_step} was written by an earlier version, without hashes of {METRICS} and {TIMING}: \
                 their rows up to this step are kept unchecked"
            ))?;
        }
        if let Some((first, last)) = kept.steps_cut {
            let dropped = match kept.rows_cut {
                1 => format!("the row of step {first} is dropped and trained again"),
                rows => format!("the {rows} rows of steps {first} to {last} are dropped and trained again"),
            };
            match (from_step, start.is_own) {
                (0, _) => self.warn(&format!(
                    "there is no checkpoint to continue from, so the run starts at step 0; {dropped}"
                ))?,
                (step, false) => self.warn(&format!(
                    "the fork has no checkpoint of its own to continue from, so it begins again at step {step}; {dropped}"
                ))?,
                (step, true) => self.note(&format!("resuming from step {step}; {dropped}"))?,
            }
        }
        let damaged = [(METRICS, &kept.damage), (TIMING, &earlier.damaged_timing)];
        for (file, damage) in damaged.into_iter().filter_map(|(file, damage)| Some((file, damage.as_ref()?)))
        {
            self.warn(&format!(
                "{damage}. This line and those after it are behind the checkpoint, so they are dropped with its rows; \
                 unsaved-{file} holds a copy until a checkpoint reaches them"
            ))?;
        }
        Ok(())
    }

    /// Prints a note with the progress display, and writes it to the log.
    ///
    /// # Errors
    /// If the log cannot be written.
    pub fn note(&mut self, text: &str) -> Result<()> {
        self.progress.note(text);
        self.log(text)
    }

    /// Prints a warning, even if progress is hidden, and writes it to the log.
    ///
    /// # Errors
    /// If the log cannot be written.
    pub fn warn(&mut self, text: &str) -> Result<()> {
        let text = format!("warning: {text}");
        self.progress.warn(&text);
        self.log(&text)
    }

    fn log(&mut self, text: &str) -> Result<()> {
        let logged = self.folder.log(text);
        self.stop_on_error(logged)
    }

    /// Turns an error of writing results into a request to stop after one last save. A run without
    /// checkpoints, or one that has not trained a step yet, has nothing to save and ends at once.
    fn stop_on_error(&mut self, written: Result<()>) -> Result<()> {
        let Err(e) = written else { return Ok(()) };
        if !self.saves() || self.clock.steps_here == 0 {
            return Err(e);
        }
        if self.write_error.is_none() {
            self.progress.warn(&format!("warning: {e}; the run stops after one last save"));
            self.write_error = Some(e);
        }
        Ok(())
    }

    /// Returns the number of tokens trained on up to a step.
    fn tokens_at(&self, step: u64) -> u64 {
        let (from_step, from_tokens) = self.start_step_and_tokens;
        let tokens_of_first = |steps| self.plan.batch.tokens_in_first_steps(steps);
        from_tokens + (tokens_of_first(step) - tokens_of_first(from_step))
    }

    /// Records that a step was trained in `took`.
    pub(super) fn trained(&mut self, report: &StepReport, took: Duration) -> Result<()> {
        let written_step = self.collect_write()?;
        let row = self.clock.trained(report, took);
        self.append_timing(&TimingRow { written_step, ..row })
    }

    /// Writes a row of `timing.csv` and its event.
    fn append_timing(&mut self, row: &TimingRow) -> Result<()> {
        let written = self.files.timing(row);
        self.stop_on_error(written)
    }

    /// Shows the progress of an evaluation.
    pub(super) fn evaluating(&mut self, done: usize, of: usize) {
        self.progress.pause(Phase::Eval, done as u64, of as u64);
    }

    /// Writes the step's row with what was `found` after the step, and updates the progress display if it is
    /// due.
    pub(super) fn row(&mut self, report: &StepReport, found: Found<'_>) -> Result<()> {
        let Found { evaluation, scored } = found;
        let mut row = MetricsRow {
            step: report.step,
            tokens_seen: self.tokens_at(report.step),
            loss: report.loss,
            lr: report.lr,
            grad_norm: report.grad_norm,
            z_loss: report.z_loss,
            smoothing_loss: report.smoothing_loss,
            ..MetricsRow::default()
        };
        let of_sources = report.source_losses.iter().map(|(source, &loss)| (source_column(source), loss));
        row.further.extend(of_sources);
        let of_pairs = report.pairs.iter().flat_map(PairMeans::columns);
        row.further.extend(of_pairs.map(|(column, value)| (column.to_owned(), value)));
        row.further.extend(
            report.fp8.iter().flat_map(Fp8Health::columns).map(|(name, value)| (name.to_owned(), value)),
        );
        self.warn_of_saturation(report)?;
        if let Some(evaluation) = evaluation {
            for (is_average, evaluated) in [(false, &evaluation.sets), (true, &evaluation.ema)] {
                for ((set, known), found) in self.summary.held_out.iter_mut().zip(evaluated) {
                    (known.tokens, known.bytes) = (Some(found.tokens), found.bytes);
                    for (&figure, &value) in &found.figures {
                        row.set_figure(HeldOutColumn { figure, set, is_average }, value as f32);
                    }
                }
            }
            self.saves.evaluated = row.val_loss.map(|loss| (report.step, loss));
        }
        self.add_scores(&mut row, scored);
        if let Some(Evaluation { documents, .. }) = evaluation.filter(|found| !found.documents.is_empty()) {
            let written = atomic::write_csv(&self.folder.path().join(DOCUMENTS), documents);
            self.stop_on_error(written)?;
        }
        self.step = report.step;
        let written = self.files.metrics(&row);
        self.stop_on_error(written)?;
        let interval = self.plan.intervals.metrics.interval.max(1) as u64;
        let due = row.step.is_multiple_of(interval) || row.step == 1 || row.step == self.plan.steps as u64;
        let pace = self.clock.pace(row.step);
        let is_evaluated = row.val_loss.is_some() || !scored.is_empty();
        if due || is_evaluated {
            self.progress.step(&row, pace);
        }
        if is_evaluated || (due && self.last_logged.elapsed() >= LOG_PERIOD) {
            self.last_logged = Instant::now();
            let line =
                format!("step {}/{}  {}", row.step, self.plan.steps, self.progress.describe(&row, pace));
            self.log(&line)?;
        }
        self.update_summary(&row, is_evaluated)
    }

    /// Warns of a step whose numbers did not fit into 8-bit floats: of the first one, and then after twice as
    /// many steps each time.
    fn warn_of_saturation(&mut self, report: &StepReport) -> Result<()> {
        let Some(fault) = report.fp8.as_ref().and_then(Fp8Health::fault) else { return Ok(()) };
        if report.step < self.next_saturation_warning {
            return Ok(());
        }
        self.next_saturation_warning = 2 * report.step;
        self.warn(&format!("step {}: {fault}", report.step))
    }

    /// Updates the summary, so that others can see the progress of the run.
    fn update_summary(&mut self, row: &MetricsRow, is_evaluated: bool) -> Result<()> {
        let summary = &mut self.summary;
        (summary.steps, summary.tokens_seen) = (row.step, row.tokens_seen);
        summary.wall_s = Some(self.clock.wall_s());
        summary.train_loss.add(LossAt { step: row.step, loss: row.loss });
        summary.source_losses.iter_mut().for_each(|(source, losses)| losses.add_row(source, row));
        if let Some(loss) = row.val_loss {
            summary.val_loss.add(LossAt { step: row.step, loss });
        }
        if let Some(loss) = row.ema_val_loss {
            summary.ema_val_loss.get_or_insert_default().add(LossAt { step: row.step, loss });
        }
        summary.held_out.iter_mut().for_each(|(name, set)| set.add_row(name, row));
        summary.bits_per_byte = summary.held_out.get(MAIN_SET).and_then(|set| set.bits_per_byte);
        summary.tasks.iter_mut().for_each(|(name, task)| task.add_row(name, row));
        if !is_evaluated && self.last_summary.elapsed() < SUMMARY_PERIOD {
            return Ok(());
        }
        self.last_summary = Instant::now();
        let written = self.folder.write_summary(&self.summary);
        self.stop_on_error(written)
    }

    /// Generates samples before the first step, to be compared with those after it. A run that begins again
    /// has them already.
    pub(super) fn generate_before(&mut self, rank: &mut Rank) -> Result<()> {
        match self.summary.samples.is_empty() {
            true => self.generate(rank),
            false => Ok(()),
        }
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
        if self.checks_grammar {
            let Sentences { seen, parsed } = sentences;
            self.progress.note(&format!("{parsed} of {seen} sampled sentences follow the grammar"));
            self.summary.sentences = Some(sentences);
        }
        let written = written.and_then(|()| self.folder.write_summary(&self.summary));
        let samples: Vec<&Sample> =
            self.summary.samples.iter().filter(|sample| sample.step == step).collect();
        let written = written.and_then(|()| self.files.samples(&samples));
        self.stop_on_error(written)?;
        self.time(step, Phase::Sample, started.elapsed())
    }

    /// Writes the table of matrix-product algorithms to the run's folder. Checkpoints record its hash.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn algorithms(&mut self, table: &Algorithms) -> Result<()> {
        self.saves.meta.algorithms = Some(table.hash());
        atomic::write(&self.folder.path().join(ALGORITHMS), table.to_json().as_bytes())
    }

    /// Records the bytes that the engine allocated, for the summary. Call it before the engine is dropped.
    pub fn allocated(&mut self, bytes: u64) {
        self.summary.memory.allocated_bytes = Some(bytes);
        if let Some(gauges) = &self.clock.gauges {
            let parts = gauges.besides_plan();
            self.summary.memory.besides_plan_bytes = parts.total();
            self.summary.memory.besides_plan = Some(parts);
        }
    }

    /// Writes the timing row of something other than a step.
    pub(super) fn time(&mut self, step: u64, phase: Phase, took: Duration) -> Result<()> {
        let row = self.clock.paused(step, phase, took);
        self.append_timing(&row)
    }
}
