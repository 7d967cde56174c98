//! Divides the cells of a sweep into tasks, and says what each task needs, from the plans of the cells.

use super::submission::TaskWork;
use crate::error::{Error, Result};
use crate::executor::TaskSettings;
use crate::executor::batch_system::TaskNeeds;
use crate::sweep::Sweep;
use crate::sweep::design::Design;
use crate::sweep::halving::{Halving, HalvingStage};
use crate::sweep::schedule::TaskStage;
use crate::sweep::work::{CellFit, Work};
use std::collections::BTreeMap;
use std::time::Duration;

/// The predicted time of a task is multiplied by this, because nodes differ and predictions err.
pub const TIME_MARGIN: f64 = 1.5;

/// Time for what the prediction leaves out: the start, a corpus that is not cached yet, kernels to compile.
pub const START_TIME: Duration = Duration::from_secs(10 * 60);

/// Host memory beside what the plan of a cell on the CPU needs.
const HOST_MEMORY_MIB: u64 = 2 << 10;

/// Host memory of a cell on a GPU: the corpus is mapped, and checkpoints are written in parts.
const HOST_MEMORY_WITH_GPU_MIB: u64 = 8 << 10;

/// CPU threads for each GPU: they read the corpus and write checkpoints.
const CPUS_WITH_GPU: usize = 8;

/// A cell to submit.
#[derive(Clone, Copy, Debug)]
pub struct SubmittedCell {
    /// Its index among the cells of the sweep.
    pub at: usize,
    /// What it needs if it is alone in a task. The time is that of training, with the margin.
    pub needs: TaskNeeds,
}

/// Tasks with equal needs.
#[derive(Debug)]
pub struct TaskGroup {
    /// What each needs.
    pub needs: TaskNeeds,
    /// What each runs.
    pub tasks: Vec<TaskWork>,
    /// They start when all tasks of lower stages have ended.
    pub stage: usize,
}

/// Returns what the run of a plan needs; `None` if it does not fit, which a task records. `name` is for
/// messages.
///
/// # Errors
/// A usage error if the time is neither predicted nor set.
pub fn needs_of(
    work: &Work,
    settings: &TaskSettings,
    name: impl FnOnce() -> String,
) -> Result<Option<TaskNeeds>> {
    let CellFit { planned_bytes, refusal: None, needs } = work.fit()? else { return Ok(None) };
    let execution = &work.plan.execution;
    let gpus = execution.gpus().count();
    let predicted = needs.time.map(|time| Duration::from_secs_f64(time.total_s * TIME_MARGIN));
    let is_needed = settings.has_time_limit && settings.minutes.is_none();
    let time = predicted.or((!is_needed).then_some(Duration::ZERO)).ok_or_else(|| {
        Error::usage(format!(
            "no time is predicted for {}, because the speed of the device is unknown; set executor.slurm.minutes",
            name()
        ))
    })?;
    let memory_mib = match gpus {
        0 => planned_bytes.div_ceil(1 << 20) * 5 / 4 + HOST_MEMORY_MIB,
        _ => HOST_MEMORY_WITH_GPU_MIB,
    };
    Ok(Some(TaskNeeds {
        gpus,
        cpus: settings.cpus.unwrap_or(if gpus == 0 { execution.threads } else { CPUS_WITH_GPU * gpus }),
        memory_mib: settings.memory_mib.unwrap_or(memory_mib),
        time,
        exclusive: false,
    }))
}

/// Divides cells into tasks.
pub fn divide(sweep: &Sweep, wanted: &[SubmittedCell], settings: &TaskSettings) -> Vec<TaskGroup> {
    match &sweep.design {
        Design::Grid => divide_independent(wanted, settings),
        Design::Cooldowns(trunks) => {
            // Cells of one trunk share its steps, so they are in one task.
            let trunk = |cell: &SubmittedCell| trunks.on_same_trunk(cell.at).next().map(|(first, _)| first);
            let mut by_trunk: BTreeMap<Option<usize>, Vec<SubmittedCell>> = BTreeMap::new();
            for cell in wanted {
                by_trunk.entry(trunk(cell)).or_default().push(*cell);
            }
            by_shape(by_trunk.values().map(Vec::as_slice), 1, settings)
        }
        Design::Halving(halving) => by_stage(sweep, halving, wanted, settings),
    }
}

/// Divides cells that do not depend on each other into tasks.
pub fn divide_independent(wanted: &[SubmittedCell], settings: &TaskSettings) -> Vec<TaskGroup> {
    by_shape(wanted.chunks(1), per_task(wanted.len(), settings), settings)
}

/// Returns how many of `count` cells a task runs.
fn per_task(count: usize, settings: &TaskSettings) -> usize {
    settings.cells_per_task.unwrap_or(count.div_ceil(settings.most_tasks)).max(1)
}

/// Makes tasks of units that stay together, `per_task` units in each, group by group of units that need the
/// same devices.
fn by_shape<'a>(
    units: impl Iterator<Item = &'a [SubmittedCell]>,
    per_task: usize,
    settings: &TaskSettings,
) -> Vec<TaskGroup> {
    let mut shapes: BTreeMap<(usize, usize), Vec<&[SubmittedCell]>> = BTreeMap::new();
    for unit in units {
        let most = |get: fn(&TaskNeeds) -> usize| unit.iter().map(|cell| get(&cell.needs)).max().unwrap_or(0);
        shapes.entry((most(|needs| needs.gpus), most(|needs| needs.cpus))).or_default().push(unit);
    }
    let group = |units: Vec<&[SubmittedCell]>| {
        let tasks: Vec<Vec<SubmittedCell>> = units.chunks(per_task).map(|units| units.concat()).collect();
        let time = |task: &Vec<SubmittedCell>| task.iter().map(|cell| cell.needs.time).sum::<Duration>();
        let needs = task_needs(&units.concat(), tasks.iter().map(time).max().unwrap_or_default(), settings);
        let tasks = tasks.iter().map(|task| TaskWork::Cells(task.iter().map(|cell| cell.at).collect()));
        TaskGroup { needs, tasks: tasks.collect(), stage: 0 }
    };
    shapes.into_values().map(group).collect()
}

/// Makes the tasks of every rung, and of the end of training. When they are submitted, nobody knows which
/// cells they will train, so there are as many as cells can get there.
fn by_stage(
    sweep: &Sweep,
    halving: &Halving,
    wanted: &[SubmittedCell],
    settings: &TaskSettings,
) -> Vec<TaskGroup> {
    let steps =
        |cell: &SubmittedCell| sweep.cells[cell.at].work.as_ref().map_or(1, |work| work.plan.steps as u64);
    let group = |(stage, HalvingStage { from, rung, cells }): (usize, HalvingStage)| {
        let per_task = per_task(cells, settings);
        let time = |cell: &SubmittedCell| {
            let share = rung.unwrap_or(steps(cell)).saturating_sub(from) as f64 / steps(cell).max(1) as f64;
            cell.needs.time.mul_f64(share)
        };
        let longest = wanted.iter().map(time).max().unwrap_or_default();
        let needs = task_needs(wanted, longest * per_task as u32, settings);
        let work = TaskWork::Stage(TaskStage { rung, cells: per_task });
        TaskGroup { needs, tasks: vec![work; cells.div_ceil(per_task)], stage }
    };
    halving.stages().into_iter().enumerate().map(group).collect()
}

/// Returns what a task needs that may run any of the cells with these needs and trains for `time`.
fn task_needs(cells: &[SubmittedCell], time: Duration, settings: &TaskSettings) -> TaskNeeds {
    let each: Vec<TaskNeeds> = cells.iter().map(|cell| cell.needs).collect();
    TaskNeeds {
        time: settings.minutes.map_or(time + START_TIME, |minutes| Duration::from_secs(minutes * 60)),
        ..largest_needs(&each)
    }
}

/// Returns what is enough for each of several tasks.
pub fn largest_needs(each: &[TaskNeeds]) -> TaskNeeds {
    TaskNeeds {
        gpus: each.iter().map(|needs| needs.gpus).max().unwrap_or(0),
        cpus: each.iter().map(|needs| needs.cpus).max().unwrap_or(1),
        memory_mib: each.iter().map(|needs| needs.memory_mib).max().unwrap_or(0),
        time: each.iter().map(|needs| needs.time).max().unwrap_or_default(),
        exclusive: each.iter().any(|needs| needs.exclusive),
    }
}
