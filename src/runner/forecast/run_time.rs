//! Predicts the time of a whole run on this machine: steps, evaluations, checkpoints and samples.

use super::Saving;
use super::node_pace::NodePace;
use super::time::sum_over_step;
use crate::data::TaskFacts;
use crate::exec::Section;
use crate::format::wall_time;
use crate::machine::Machine;
use crate::model::{Generator, Programs, ScoringPrograms};
use crate::plan::{Plan, times_due};
use serde::Serialize;

/// If the slowest measured step took more than this times the fastest, the time is shown as a range, because
/// other programs use the machine.
const STEADY: f64 = 1.15;

/// Seconds from program start to the first step of a run on generated text, and seconds to draw its plots, on
/// a Xeon server.
const START_S: f64 = 0.25;
const PLOTS_S: f64 = 0.5;

/// The predicted time of a run, in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunTime {
    /// One optimizer step, after any ramp of the batch.
    pub step_s: f64,
    /// All steps.
    pub training_s: f64,
    /// Number of evaluations.
    pub evaluations: u64,
    /// All evaluations.
    pub evaluating_s: f64,
    /// Number of checkpoints written.
    pub checkpoints: u64,
    /// Saves that training waits for; `None` if the speed of the disk is unknown.
    pub saving_s: Option<f64>,
    /// Number of times that the model is scored on tasks.
    #[serde(skip_serializing_if = "is_zero")]
    pub task_evaluations: u64,
    /// All scores on tasks; the items are estimated to fill the batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scoring_s: Option<f64>,
    /// All samples.
    pub sampling_s: f64,
    /// Opening the corpus, planning, and drawing the plots.
    pub around_s: f64,
    /// The total.
    pub total_s: f64,
    /// The total at the pace of the fastest and of the slowest measured step; both equal the total on a GPU.
    pub range_s: (f64, f64),
    /// What the prediction is based on.
    pub basis: Basis,
}

/// What a prediction of time is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Measurements of ops in small models on this CPU.
    MeasuredCpu,
    /// The GPU's published peaks, and the fractions of them that ops reached on an H200.
    GpuPeaks,
}

impl RunTime {
    /// Predicts a run on the machine that the plan is for; `None` if its speed is unknown. `plots` is true if
    /// the run draws plots.
    pub fn new(
        plan: &Plan,
        programs: &Programs,
        machine: &Machine,
        saving: &Saving,
        plots: bool,
    ) -> Option<Self> {
        let pace = NodePace::here(plan, machine)?;
        let seconds = |section: &Section| pace.section_seconds(section);
        let mut time = match &pace {
            NodePace::Peaks(_) => Self::from_sections(plan, programs, None, Basis::GpuPeaks, seconds),
            NodePace::Measured { pace, .. } => {
                let speed = Some(pace.write_bytes_per_s).filter(|speed| *speed > 0.0);
                let mut time = Self::from_sections(plan, programs, speed, Basis::MeasuredCpu, seconds);
                time.range_s = (time.total_s * pace.spread.0, time.total_s * pace.spread.1);
                time
            }
        };
        // Nothing is left to train during the last save, so it is not hidden.
        if let Some(saving_s) = time.saving_s.filter(|_| saving.beside_training && time.checkpoints > 1) {
            time.shorten(saving_s * (1.0 - 1.0 / time.checkpoints as f64));
        }
        time.around_s = START_S + if plots { PLOTS_S } else { 0.0 };
        time.total_s += time.around_s;
        time.range_s = (time.range_s.0 + time.around_s, time.range_s.1 + time.around_s);
        Some(time)
    }

    /// Removes seconds of saves that training does not wait for.
    fn shorten(&mut self, seconds: f64) {
        let share = 1.0 - seconds / self.total_s;
        self.saving_s = self.saving_s.map(|saving_s| saving_s - seconds);
        self.total_s -= seconds;
        self.range_s = (self.range_s.0 * share, self.range_s.1 * share);
    }

    /// Describes the time, as in `about 21 s`, with a range if the machine is not steady.
    pub fn in_words(&self) -> String {
        seconds_in_words(self.total_s, self.range_s)
    }

    fn from_sections(
        plan: &Plan,
        programs: &Programs,
        write_bytes_per_s: Option<f64>,
        basis: Basis,
        seconds: impl Fn(&Section) -> f64,
    ) -> Self {
        let steps = plan.steps as u64;
        let intervals = &plan.intervals;
        let step = |micro_steps| sum_over_step(programs, micro_steps, &seconds);
        let stages = plan.batch.stages(plan.steps);
        let training_s = stages.map(|stage| stage.steps as f64 * step(stage.micro_steps)).sum();
        let evaluations = times_due(intervals.validation.interval, 0, steps);
        // A section is one local batch per rank, so a global batch takes as many sections as a step has
        // micro-steps.
        let sections = plan.evaluated_weight_sets() * plan.total_evaluated_batches() * plan.batch.micro_steps;
        // The weights are swapped with the average and back.
        let swaps = programs.swap_ema.as_ref().map_or(0.0, |swap| 2.0 * seconds(swap));
        let evaluating_s = evaluations as f64 * (sections as f64 * seconds(&programs.evaluate) + swaps);
        let sampling_s = programs.prefill.as_ref().zip(programs.generate.as_ref()).map_or(0.0, |programs| {
            let (prefill, decode) = (seconds(&programs.0.section), seconds(programs.1));
            let tokens = plan.generation.tokens.min(plan.batch.seq_len) as f64;
            // Only rank 0 generates.
            let once = (prefill + (tokens - 1.0) * decode) / plan.batch.world_size.max(1) as f64;
            times_due(plan.generation.interval, 0, steps) as f64 * once
        });
        let task_evaluations = intervals.tasks.map_or(0, |interval| times_due(interval, 0, steps));
        let scoring_s = programs.scoring.as_ref().filter(|_| !plan.corpus.tasks.is_empty()).map(|scoring| {
            let weights = plan.evaluated_weight_sets() as f64;
            let once = scoring_seconds(plan, scoring, &seconds);
            task_evaluations as f64 * (weights * once + swaps)
        });
        let before_saving = training_s + evaluating_s + scoring_s.unwrap_or(0.0) + sampling_s;
        let checkpoints = intervals.checkpoints(steps, before_saving);
        let bytes = super::disk::checkpoint_bytes(programs) as f64;
        let saving_s = write_bytes_per_s.map(|speed| checkpoints as f64 * bytes / speed);
        let total_s = before_saving + saving_s.unwrap_or(0.0);
        Self {
            step_s: step(plan.batch.micro_steps),
            training_s,
            evaluations,
            evaluating_s,
            checkpoints,
            saving_s,
            task_evaluations,
            scoring_s,
            sampling_s,
            around_s: 0.0,
            total_s,
            range_s: (total_s, total_s),
            basis,
        }
    }
}

/// Predicts the seconds in which all ranks together score all tasks once. Requests begin at multiples of a
/// step, so each leaves half a step unused on average. Texts are taken to be as long as they may be, because
/// nobody knows where a model ends them.
fn scoring_seconds(plan: &Plan, scoring: &ScoringPrograms, seconds: &impl Fn(&Section) -> f64) -> f64 {
    let (shape, ranks) = (scoring.shape, plan.batch.world_size.max(1));
    let texts = |task: &TaskFacts, programs: &Generator| {
        let (items, of_item) = (task.items.max(1), task.items.max(1) as f64);
        let (prompt, tokens) = (task.tokens.div_ceil(items), task.generated as f64 / of_item);
        let prefill = programs.prefills.iter().find(|prefill| prefill.shape.rows >= prompt);
        let prefill = prefill.or(programs.prefills.last()).map_or(0.0, |prefill| seconds(&prefill.section));
        let batches = items.div_ceil(ranks).div_ceil(programs.samples);
        batches as f64 * (prefill + (tokens - 1.0) * seconds(&programs.decode))
    };
    let one = |task: &TaskFacts| {
        if let Some(programs) = scoring.texts.as_ref().filter(|_| task.generated > 0) {
            return texts(task, programs);
        }
        let rows = task.tokens + task.requests * shape.step / 2;
        let batches = rows.div_ceil(ranks).div_ceil(shape.rows());
        let heads = task.scored.div_ceil(ranks).div_ceil(shape.head_rows).max(batches);
        let head = scoring.heads.first().map_or(0.0, seconds);
        batches as f64 * seconds(&scoring.hidden) + heads as f64 * head
    };
    plan.corpus.tasks.iter().map(one).sum()
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Describes predicted seconds, with their range if it is wide.
pub(super) fn seconds_in_words(seconds: f64, (low, high): (f64, f64)) -> String {
    let range = match high > STEADY * low {
        true => format!(" ({} to {})", wall_time(low), wall_time(high)),
        false => String::new(),
    };
    format!("about {}{range}", wall_time(seconds))
}
