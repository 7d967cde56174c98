//! Trains cooldowns from one trunk: cells that differ only in the step at which their learning rate starts to
//! fall share the steps before it.
//!
//! A. Hägele et al., "Scaling laws and compute-optimal training beyond fixed training durations", NeurIPS
//! 2024. Every cell is a complete training with its own recipe, and so its own key in the ledger. The longest
//! cell that has to be trained saves its state at the steps where the others start to fall, and these start
//! there, with the same bits. A cell that finds no such state trains from step 0.

use super::cell::Cell;
use super::cooldowns::KEYS;
use super::work::Work;
use crate::error::Result;
use crate::format::{plural, thousands};
use crate::policy::Decay;
use crate::results::configurations::Settings;
use std::collections::BTreeMap;

/// Rejects a schedule under which cells of different lengths share no steps.
fn check(work: &Work) -> Result<()> {
    let schedule = &work.recipe.values().lr_scheduler;
    if schedule.decay != Decay::Wsd {
        return Err(work.recipe.error(
            &["sweep.cooldowns", "lr_scheduler.decay"],
            format!(
                "with decay = \"{}\" the rate falls from the start, so cells share no steps",
                schedule.decay
            ),
            "set lr_scheduler.decay = \"wsd\"",
        ));
    }
    if work.recipe.written().lr_scheduler.warmup_ratio.is_some() {
        return Err(work.recipe.error(
            &["sweep.cooldowns", "lr_scheduler.warmup_ratio"],
            "a warm-up that is a fraction of the length differs between cells, so they share no steps",
            "set lr_scheduler.warmup_steps instead",
        ));
    }
    Ok(())
}

/// The cells of a sweep with cooldowns, by their trunk.
#[derive(Debug)]
pub struct Trunks {
    /// Each cell's trunk and its last step before the rate falls; `None` for a cell without work.
    branches: Vec<Option<Branch>>,
}

/// Where the next attempt at a cell starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartPoint {
    /// At step 0.
    Start,
    /// Where this run was stopped.
    Stopped(String),
    /// From the state that another cell's run saved at a step.
    Trunk {
        /// `RECIPE/RUN`.
        run: String,
        /// The step.
        step: u64,
    },
    /// Not yet; another cell is still training to that state.
    Later,
}

/// Where a cell leaves its trunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Branch {
    trunk: usize,
    step: u64,
}

impl Trunks {
    /// Finds the trunks of cells, and makes each cell save its state where shorter ones leave its trunk.
    ///
    /// # Errors
    /// A usage error if a cell's rate is not constant before it falls, or if its warm-up is a fraction of its
    /// length.
    pub fn new(cells: &mut [Cell]) -> Result<Self> {
        for work in cells.iter().filter_map(|cell| cell.work.as_ref().ok()) {
            check(work)?;
        }
        let mut known: BTreeMap<Vec<(String, String)>, usize> = BTreeMap::new();
        let mut branch = |cell: &Cell| {
            let step = step_of(&cell.settings).filter(|_| cell.work.is_ok())?;
            let others = cell.settings.iter().filter(|(key, _)| !KEYS.contains(&key.as_str()));
            let others = others.map(|(key, value)| (key.clone(), value.clone())).collect();
            let next = known.len();
            Some(Branch { trunk: *known.entry(others).or_insert(next), step })
        };
        let trunks = Self { branches: cells.iter().map(&mut branch).collect() };
        for (at, cell) in cells.iter_mut().enumerate() {
            cell.saved_steps = trunks.shorter(at);
        }
        Ok(trunks)
    }

    /// Returns the step after which a cell's rate falls.
    pub fn step(&self, cell: usize) -> Option<u64> {
        Some((*self.branches.get(cell)?)?.step)
    }

    /// Returns the cells on a cell's trunk, including the cell itself, and the steps after which their rates
    /// fall.
    pub fn on_same_trunk(&self, cell: usize) -> impl Iterator<Item = (usize, u64)> {
        let own = self.branches.get(cell).copied().flatten();
        self.branches.iter().enumerate().filter_map(move |(at, other)| {
            let (own, other) = own.zip(*other)?;
            (other.trunk == own.trunk).then_some((at, other.step))
        })
    }

    /// Returns the cells that stay on a cell's trunk longer than the cell itself.
    pub fn longer(&self, cell: usize) -> impl Iterator<Item = usize> {
        let own = self.step(cell);
        self.on_same_trunk(cell).filter(move |(_, step)| Some(*step) > own).map(|(at, _)| at)
    }

    /// Returns the steps at which shorter cells leave a cell's trunk.
    fn shorter(&self, cell: usize) -> Vec<u64> {
        let own = self.step(cell);
        let steps = self.on_same_trunk(cell).map(|(_, step)| step);
        let mut steps: Vec<u64> = steps.filter(|step| Some(*step) < own).collect();
        steps.sort_unstable();
        steps
    }

    /// Describes how many steps are trained, compared with cells that share none.
    pub fn in_words(&self, cells: &[Cell]) -> String {
        let steps = |at: usize| cells[at].work.as_ref().map_or(0, |work| work.plan.steps as u64);
        let branches = || (0..self.branches.len()).filter(|&at| self.branches[at].is_some());
        let alone: u64 = branches().map(steps).sum();
        let shared =
            |at: usize| if self.longer(at).next().is_some() { self.step(at).unwrap_or(0) } else { 0 };
        let trained: u64 = branches().map(|at| steps(at) - shared(at)).sum();
        let trunks = branches().filter(|&at| self.longer(at).next().is_none()).count();
        let count = branches().count();
        format!(
            "{count} cooldown{} from {trunks} trunk{}: {} steps, {:.0} % of what separate trainings take",
            plural(count),
            plural(trunks),
            thousands(trained as usize),
            100.0 * trained as f64 / alone.max(1) as f64
        )
    }
}

/// Returns the last step before the rate falls, for a cell with these settings.
fn step_of(settings: &Settings) -> Option<u64> {
    let [steps, decay] = KEYS.map(|key| settings.get(key).and_then(|value| value.parse::<u64>().ok()));
    steps?.checked_sub(decay?)
}
