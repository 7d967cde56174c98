//! `summary.json`: the result of a run.

use super::held_out::{HeldOutSet, MAIN_SET};
pub use super::losses::{HeldOutPart, LossAt, Losses, SmoothedLoss, TrainingLosses};
use super::rows::{MetricsRow, Phase, TimingRow};
use super::scored_tasks::ScoredTask;
pub use super::source_losses::SourceLosses;
use super::steady::{SteadyState, steady_state};
use crate::format::{short, thousands};
use clap::ValueEnum;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The beginning of the note about a run whose step time never settled.
pub const UNSETTLED: &str = "unsettled: ";

words! {
    /// The status of a run. In a summary, `running` also stands for a run that was killed before it could
    /// record that; lists check the folder's lock to tell which.
    #[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Status {
        /// Every planned step was trained.
        Ok = "ok",
        /// A process works on the run.
        #[default]
        Running = "running",
        /// The run stopped after saving a checkpoint.
        Interrupted = "interrupted",
        /// The run's process ended without recording a status: SIGKILL, out of memory, or a power cut.
        #[serde(skip)]
        Killed = "killed",
        /// The run's last state or its results could not be saved.
        Unsaved = "unsaved",
        /// An error stopped the run.
        Failed = "failed",
        /// An allocation failed.
        Oom = "oom",
        /// The loss or the gradient became NaN or infinite.
        Diverged = "diverged",
    }
}

impl Status {
    /// Returns true if resuming could continue the run.
    pub fn is_unfinished(self) -> bool {
        !matches!(self, Status::Ok | Status::Diverged)
    }

    /// Returns the status of a run that no process works on, from the status in its summary.
    pub fn without_process(self) -> Self {
        if self == Status::Running { Status::Killed } else { self }
    }
}

/// Planned and measured memory, in bytes; `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// State and transient arena, as planned.
    pub planned_bytes: Option<u64>,
    /// State and transient arena, as allocated. Any difference from the plan is a bug.
    pub allocated_bytes: Option<u64>,
    /// Resident memory before the run allocated anything.
    pub baseline_rss_bytes: Option<u64>,
    /// Peak resident memory of the process.
    pub peak_rss_bytes: Option<u64>,
    /// Device memory outside the plan: the sum of the parts that were measured. `None` on the CPU.
    pub besides_plan_bytes: Option<i64>,
    /// The parts of `besides_plan_bytes`.
    pub besides_plan: Option<BesidesPlan>,
}

/// Device memory besides state and arena, in bytes: how much the free memory shrank, minus what xrun
/// allocated. `None` if it was not measured, negative if memory was freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BesidesPlan {
    /// The context, before anything was allocated.
    pub context_bytes: Option<i64>,
    /// Kernels, and what the driver allocates when they first run.
    pub kernels_bytes: Option<i64>,
    /// The workspace of cuBLASLt.
    pub workspace_bytes: Option<i64>,
    /// Memory lost to the rounding of allocations.
    pub rounding_bytes: Option<i64>,
    /// Captured graphs.
    pub graphs_bytes: Option<i64>,
    /// Everything allocated later.
    pub rest_bytes: Option<i64>,
}

impl BesidesPlan {
    /// Returns the sum of the measured parts; `None` if none was measured.
    pub fn total(&self) -> Option<i64> {
        let Self { context_bytes, kernels_bytes, workspace_bytes, rounding_bytes, graphs_bytes, rest_bytes } =
            self;
        let parts = [context_bytes, kernels_bytes, workspace_bytes, rounding_bytes, graphs_bytes, rest_bytes];
        let known: Vec<i64> = parts.into_iter().flatten().copied().collect();
        (!known.is_empty()).then(|| known.iter().sum())
    }
}

/// The GPU of a run, and whether it was used exclusively.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// The model's name, as the driver reports it.
    pub name: String,
    /// The driver's version.
    pub driver: Option<String>,
    /// Memory of the card, in bytes.
    pub memory_bytes: Option<u64>,
    /// True if times do not represent this GPU alone, because other processes computed on it or it throttled
    /// for a reason other than its power limit. `None` if it was not monitored.
    pub contended: Option<bool>,
    /// Why the GPU was contended.
    pub contended_because: Option<String>,
}

impl Gpu {
    /// Merges the result of an earlier process of the run. The run is contended if any part of it was.
    pub fn merge_earlier(mut self, earlier: Option<&Gpu>) -> Self {
        if let Some(earlier) = earlier.filter(|gpu| gpu.contended == Some(true)) {
            self.contended = Some(true);
            self.contended_because = match (self.contended_because, &earlier.contended_because) {
                (Some(now), Some(before)) if now != *before => Some(format!("{before}; later {now}")),
                (now, before) => now.or_else(|| before.clone()),
            };
        }
        self
    }
}

/// A text generated by the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The step after which the text was generated.
    pub step: u64,
    pub prompt: String,
    /// The generated text, without the prompt.
    pub text: String,
}

/// Counts of sampled sentences, and of the grammatical ones among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sentences {
    /// Complete sentences in the samples of one evaluation.
    pub seen: usize,
    /// Sentences that the corpus's grammar derives.
    pub parsed: usize,
}

/// Startup times of the run's last process, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Startup {
    /// Time to open or build the corpus, to plan, and to record the programs.
    pub corpus_s: Option<f64>,
    /// Time to open the GPU; `None` on the CPU.
    pub device_s: Option<f64>,
    /// Time to compile or load every kernel and to choose algorithms for matrix products; `None` on the CPU.
    pub kernels_s: Option<f64>,
    /// Time to allocate memory and to set the parameters.
    pub state_s: Option<f64>,
}

/// Seconds that a run spent in each phase, over all its processes; `None` for a phase that it never entered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseSeconds {
    /// Training steps, including warm-up.
    pub train: Option<f64>,
    /// Evaluations.
    pub eval: Option<f64>,
    /// Comparisons of the parameters between ranks.
    pub check: Option<f64>,
    /// Writing checkpoints.
    pub save: Option<f64>,
    /// Generating text.
    pub sample: Option<f64>,
    /// Scoring the model on tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<f64>,
}

impl PhaseSeconds {
    /// Adds up the rows of `timing.csv`.
    fn from_rows(timing: &[TimingRow]) -> Self {
        let mut sums = Self::default();
        for row in timing {
            let sum = sums.phase_mut(row.phase);
            *sum = Some(sum.unwrap_or(0.0) + row.step_ms / 1e3);
        }
        sums
    }

    pub fn get(mut self, phase: Phase) -> Option<f64> {
        *self.phase_mut(phase)
    }

    fn phase_mut(&mut self, phase: Phase) -> &mut Option<f64> {
        match phase {
            Phase::Warmup | Phase::Train => &mut self.train,
            Phase::Eval => &mut self.eval,
            Phase::Check => &mut self.check,
            Phase::Save | Phase::Snapshot => &mut self.save,
            Phase::Sample => &mut self.sample,
            Phase::Tasks => &mut self.tasks,
        }
    }
}

/// A corpus file, as a run found it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorpusFile {
    /// Path of the file.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// When it was last written.
    pub modified: Timestamp,
}

impl fmt::Display for CorpusFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, written at {}", thousands(self.bytes as usize), self.modified)
    }
}

/// The Hugging Face model folder whose weights a run starts from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BegunWith {
    /// Path of the folder.
    pub folder: String,
    /// BLAKE3 of the configuration and the weights, in hexadecimal.
    pub blake3: String,
}

/// Where a fork begins: a checkpoint of another run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkedFrom {
    /// The name of the parent run's folder.
    pub run: String,
    /// Steps of the parent run before the fork.
    pub step: u64,
    /// Tokens that those steps trained on.
    pub tokens_seen: u64,
}

/// A source of a mixture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceRecord {
    /// Hash of its tokens, in hexadecimal.
    pub hash: String,
    /// Tokens to train on; `None` if they were not all made when the run began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_tokens: Option<u64>,
    /// Passes over it in all steps of the recipe.
    pub epochs: Option<f64>,
    /// Origin and licence of its text, as `data.sources.NAME.card` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub card: Option<String>,
}

/// The summary of a run. Fields are `null` if nothing is known, never zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub status: Status,
    /// Why the run did not end as planned, if it did not.
    pub reason: Option<String>,
    /// The recipe's name.
    pub recipe: String,
    /// The run folder's name.
    pub run: String,
    /// Hash of the resolved recipe, in hexadecimal.
    pub recipe_hash: String,
    /// Hash of the tokens that the run trained and evaluated on, in hexadecimal.
    pub corpus_hash: Option<String>,
    /// Origin and licence of the training text, as `data.card` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<String>,
    /// The sources of a mixture, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sources: BTreeMap<String, SourceRecord>,
    /// The corpus's files, unless there are more than a hundred.
    #[serde(default)]
    pub corpus_files: Vec<CorpusFile>,
    /// Number of parameters, including embedding and head.
    pub parameters: Option<u64>,
    /// Number of parameters without embedding and head.
    pub parameters_core: Option<u64>,
    /// The run and step that this one was forked from, if it is a fork. Summaries of earlier versions lack
    /// it.
    pub forked_from: Option<ForkedFrom>,
    /// Training losses of the parent's last steps before a fork, which the smoothed loss covers while the
    /// fork has trained fewer steps itself; `None` for a loss that is not finite.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub losses_before: Vec<Option<f32>>,
    /// The folder whose weights the run starts from, if the recipe names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begun_with: Option<BegunWith>,
    /// Steps that the recipe asks for, including those before a fork.
    pub steps_planned: u64,
    /// Steps done, including those before a fork.
    pub steps: u64,
    /// Tokens trained on, including those before a fork.
    pub tokens_seen: u64,
    /// Training loss, in nats per token.
    pub train_loss: TrainingLosses,
    /// Training loss on each source of a mixture, by name. Summaries of earlier versions lack it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub source_losses: BTreeMap<String, SourceLosses>,
    /// Loss on the held-out text, in nats per token.
    pub val_loss: Losses,
    /// Loss of the moving average of the weights on the held-out text, in nats per token, if it was
    /// evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema_val_loss: Option<Losses>,
    /// The part of the held-out text on which `val_loss` was measured; `None` if `validation.steps` does not
    /// limit it. Summaries of earlier versions lack it; those versions took the first batches.
    pub val_part: Option<HeldOutPart>,
    /// `val_loss` in bits per byte, if the bytes of the held-out text are known.
    pub bits_per_byte: Option<f64>,
    /// Every held-out set: the one from `data.validation` under the empty name, and those from
    /// `validation.sets`. Summaries of earlier versions lack them.
    #[serde(default)]
    pub held_out: BTreeMap<String, HeldOutSet>,
    /// The tasks that the model is scored on, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tasks: BTreeMap<String, ScoredTask>,
    /// The loss of a uniform guess: ln of the vocabulary size. Summaries of earlier versions lack it.
    pub uniform_loss: Option<f64>,
    /// The lowest held-out loss that any model can reach, in nats per token, if the corpus knows it.
    pub floor: Option<f64>,
    /// The final held-out loss divided by the floor.
    pub val_loss_over_floor: Option<f64>,
    /// Startup times.
    #[serde(default)]
    pub startup: Startup,
    /// Wall time of the run over all its processes, in seconds: training, evaluation, saving and generation.
    pub wall_s: Option<f64>,
    /// How that time is divided between phases. Summaries of earlier versions lack it.
    #[serde(default)]
    pub phase_s: PhaseSeconds,
    /// Median tokens per second in the steady state.
    pub tok_s: Option<f64>,
    /// Median model FLOPs utilization in the steady state, in percent; `None` if the device's peak is
    /// unknown.
    pub mfu_pct: Option<f64>,
    /// Median hardware FLOPs utilization in the steady state, in percent. Recomputation counts as work.
    pub hfu_pct: Option<f64>,
    /// Energy that this host's GPUs used over all processes of the run, in joules; `None` on the CPU, and if
    /// a GPU has no counter. The energy per step and per token is in the steady state.
    pub energy_j: Option<f64>,
    /// Time of a step according to the plan, in milliseconds, from the GPU's peaks. Compare it with
    /// `steady_state.step_ms`. `None` on the CPU, and if the GPU's peaks are unknown.
    pub predicted_step_ms: Option<f64>,
    /// Step times in the steady state, and the rule that selected it.
    pub steady_state: Option<SteadyState>,
    /// Planned and measured memory.
    pub memory: Memory,
    /// Percentage of the time in which each rank did not wait for others, after the last process's warm-up.
    /// Empty for a single rank.
    #[serde(default)]
    pub rank_busy_pct: Vec<f64>,
    /// The GPU; `None` on the CPU.
    pub gpu: Option<Gpu>,
    /// Generated texts.
    pub samples: Vec<Sample>,
    /// How many sentences in the last samples the corpus's grammar derives, if it has a grammar.
    pub sentences: Option<Sentences>,
    /// Remarks for the reader.
    pub notes: Vec<String>,
}

impl Summary {
    /// Returns the summary of a run that has just started.
    pub fn started(recipe: &str, run: &str, recipe_hash: &str, steps_planned: u64) -> Self {
        Self {
            recipe: recipe.to_owned(),
            run: run.to_owned(),
            recipe_hash: recipe_hash.to_owned(),
            steps_planned,
            ..Self::default()
        }
    }

    /// Fills in what follows from the rows: progress, losses, their ratio to the floor, wall time, and the
    /// steady state without the first `warmup` steps. Set `floor` before.
    pub fn measure(&mut self, metrics: &[MetricsRow], timing: &[TimingRow], warmup: usize) {
        self.steps = metrics.last().map_or(0, |row| row.step);
        self.tokens_seen = metrics.last().map_or(0, |row| row.tokens_seen);
        self.train_loss = training_losses(metrics, &self.losses_before);
        self.source_losses.iter_mut().for_each(|(source, losses)| losses.measure(source, metrics));
        // Summaries of earlier versions have no held-out sets, so the main one is measured separately.
        let mut main = HeldOutSet::default();
        main.measure(MAIN_SET, metrics);
        (self.val_loss, self.ema_val_loss) = (main.losses, main.ema);
        self.held_out.iter_mut().for_each(|(name, set)| set.measure(name, metrics));
        self.bits_per_byte = self.held_out.get(MAIN_SET).and_then(|set| set.bits_per_byte);
        self.tasks.iter_mut().for_each(|(name, task)| task.measure(name, metrics));
        self.val_loss_over_floor = match (self.val_loss.last, self.floor) {
            (Some(last), Some(floor)) if floor > 0.0 => Some(f64::from(last.loss) / floor),
            _ => None,
        };
        self.wall_s = timing.last().map(|row| row.wall_s);
        self.phase_s = PhaseSeconds::from_rows(timing);
        self.energy_j = timing.iter().filter_map(|row| row.energy_j).reduce(|sum, joules| sum + joules);
        let steady = steady_state(timing, warmup);
        self.tok_s = steady.tok_s.map(|spread| spread.median);
        self.mfu_pct = steady.medians.get("mfu_pct");
        self.hfu_pct = steady.medians.get("hfu_pct");
        self.steady_state = Some(steady);
    }

    /// Returns true if the run ended as planned with all its steps, so that there is nothing to resume.
    pub fn is_finished(&self) -> bool {
        self.status == Status::Ok && self.steps == self.steps_planned
    }

    /// Returns the number of steps that this run trained itself, which for a fork excludes its parent's.
    pub fn own_steps(&self) -> u64 {
        self.steps.saturating_sub(self.forked_from.as_ref().map_or(0, |fork| fork.step))
    }

    /// Returns the number of tokens that this run trained on itself, which for a fork excludes its parent's.
    pub fn own_tokens(&self) -> u64 {
        self.tokens_seen.saturating_sub(self.forked_from.as_ref().map_or(0, |fork| fork.tokens_seen))
    }

    /// Returns true if the step time never settled, so that `tok_s` only covers the later half of the steps.
    pub fn never_settled(&self) -> bool {
        self.steady_state.as_ref().is_some_and(|steady| steady.settled == Some(false))
    }

    /// Returns the tokens per second over all training steps, slow and fast.
    pub fn overall_tok_s(&self) -> Option<f64> {
        let seconds = self.phase_s.train.filter(|seconds| *seconds > 0.0)?;
        Some(self.own_tokens() as f64 / seconds)
    }

    /// Returns the note about a run whose step time never settled.
    pub fn unsettled(&self) -> Option<String> {
        let overall = self.overall_tok_s().filter(|_| self.never_settled())?;
        Some(format!(
            "{UNSETTLED}the step time never settled; the speed is the median of the later half of the steps, and all \
             training steps make {} tok/s",
            short(overall)
        ))
    }

    /// Returns a sentence about the losses of a finished run that are above the loss of a uniform guess;
    /// `None` if there are none.
    pub fn worse_than_guessing(&self) -> Option<String> {
        let guess = self.uniform_loss.filter(|_| self.status == Status::Ok)?;
        let losses = [
            ("training", self.train_loss.smoothed.map(|smoothed| smoothed.loss)),
            ("validation", self.val_loss.last.map(|last| last.loss.into())),
        ];
        let worse: Vec<&str> = losses
            .iter()
            .filter(|(_, loss)| loss.is_some_and(|loss| loss > guess))
            .map(|(name, _)| *name)
            .collect();
        let verb = if worse.len() > 1 { "losses are" } else { "loss is" };
        (!worse.is_empty()).then(|| {
            format!(
                "worse than guessing: the {} {verb} above {guess:.4}, the loss of a uniform guess (ln of the vocabulary size); \
                 train for longer, or try a lower optimizer.lr or training.max_norm",
                worse.join(" and ")
            )
        })
    }
}

/// Returns the training losses in these rows, which follow the losses of a parent's last steps.
pub(super) fn training_losses(metrics: &[MetricsRow], before: &[Option<f32>]) -> TrainingLosses {
    let series = metrics.iter().map(|row| LossAt { step: row.step, loss: row.loss });
    TrainingLosses::after(before, series)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::rows::Phase;

    fn metrics(step: u64, loss: f32, val_loss: Option<f32>) -> MetricsRow {
        MetricsRow {
            step,
            tokens_seen: step * 100,
            loss,
            val_loss,
            lr: 1e-3,
            grad_norm: 1.0,
            ..MetricsRow::default()
        }
    }

    fn timing(step: u64, wall_s: f64) -> TimingRow {
        TimingRow { tok_s: Some(200.0), ..TimingRow::timed(step, Phase::Train, wall_s, 500.0) }
    }

    #[test]
    fn losses_wall_time_and_speed_follow_from_the_rows() {
        let mut summary = Summary::started("quickstart", "20260102T030405Z-0123abcd", "0123abcd", 4);
        summary.floor = Some(1.25);
        let rows = [
            metrics(1, 5.0, None),
            metrics(2, 2.0, Some(1.5)),
            metrics(3, f32::NAN, Some(f32::INFINITY)),
            metrics(4, 2.5, Some(2.0)),
        ];
        summary.measure(&rows, &[timing(1, 1.0), timing(2, 2.0), timing(3, 2.5), timing(4, 3.5)], 1);
        assert_eq!((summary.steps, summary.tokens_seen), (4, 400));
        assert_eq!(summary.train_loss.last, Some(LossAt { step: 4, loss: 2.5 }));
        assert_eq!(summary.train_loss.best, Some(LossAt { step: 2, loss: 2.0 }));
        let smoothed = summary.train_loss.smoothed.unwrap();
        assert_eq!((smoothed.loss, smoothed.deviation, smoothed.steps), (2.5, None, 1));
        assert_eq!(summary.val_loss.last, Some(LossAt { step: 4, loss: 2.0 }));
        assert_eq!(summary.val_loss.best, Some(LossAt { step: 2, loss: 1.5 }));
        assert_eq!(summary.val_loss_over_floor, Some(1.6));
        assert_eq!(summary.wall_s, Some(3.5));
        assert_eq!(summary.tok_s, Some(200.0));
        assert_eq!((summary.mfu_pct, summary.energy_j), (None, None));
        let row =
            |step| TimingRow { energy_j: Some(2.5), j_per_token: Some(0.5), ..timing(step, step as f64) };
        summary.measure(&rows, &[row(1), timing(2, 2.0), row(3)], 0);
        assert_eq!(summary.energy_j, Some(5.0));
        assert_eq!(
            summary.steady_state.as_ref().and_then(|steady| steady.medians.get("j_per_token")),
            Some(0.5)
        );
        assert_eq!(summary.steady_state.unwrap().steps, 3);
    }

    #[test]
    fn reads_back_what_it_wrote_and_blanks_stay_blank() {
        let mut summary = Summary::started("a", "b", "c", 10);
        summary.measure(&[], &[], 5);
        let json = serde_json::to_string_pretty(&summary).unwrap();
        assert!(json.contains("\"status\": \"running\""));
        assert!(json.contains("\"mfu_pct\": null"));
        assert!(json.contains("\"final\": null"));
        assert_eq!(serde_json::from_str::<Summary>(&json).unwrap(), summary);
    }

    #[test]
    fn memory_besides_the_plan_is_the_sum_of_what_was_measured() {
        assert_eq!(BesidesPlan::default().total(), None);
        let parts = BesidesPlan { context_bytes: Some(500), rest_bytes: Some(-20), ..BesidesPlan::default() };
        assert_eq!(parts.total(), Some(480));
    }

    #[test]
    fn a_run_stays_contended_when_it_is_resumed() {
        let gpu = |because: Option<&str>| Gpu {
            contended: Some(because.is_some()),
            contended_because: because.map(str::to_owned),
            ..Gpu::default()
        };
        assert_eq!(gpu(None).merge_earlier(None), gpu(None));
        assert_eq!(gpu(None).merge_earlier(Some(&gpu(None))), gpu(None));
        assert_eq!(gpu(None).merge_earlier(Some(&gpu(Some("heat")))), gpu(Some("heat")));
        assert_eq!(gpu(Some("heat")).merge_earlier(Some(&gpu(Some("heat")))), gpu(Some("heat")));
        let both = gpu(Some("a stranger")).merge_earlier(Some(&gpu(Some("heat"))));
        assert_eq!(both.contended_because.as_deref(), Some("heat; later a stranger"));
    }

    #[test]
    fn a_status_reads_as_it_is_written() {
        for status in Status::ALL.iter().filter(|status| **status != Status::Killed) {
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
        }
        assert!(serde_json::from_str::<Status>("\"killed\"").is_err(), "no summary says so");
        assert!(!Status::Ok.is_unfinished() && !Status::Diverged.is_unfinished());
    }
}
