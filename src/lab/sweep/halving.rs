//! Successive halving: all configurations train up to a rung, and the best of them continue.
//!
//! K. Jamieson and A. Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization",
//! AISTATS 2016. Every cell has the schedule of its full length and continues from its checkpoint with the
//! same bits. Which cells continue depends only on losses in the ledger, so a sweep that is killed and
//! restarted decides the same.

use super::cell::Cell;
use super::work::Work;
use crate::error::Result;
use crate::plan::Plan;
use crate::results::configurations;
use crate::results::run_figure::RunFigure;
use crate::statistics::Direction;

/// The rungs of a sweep, and the configurations that compete at them.
#[derive(Debug)]
pub struct Halving {
    /// Steps of the rungs, ascending.
    rungs: Vec<u64>,
    /// One in `eta` configurations continues.
    eta: usize,
    /// The cells of each configuration, one per seed.
    configurations: Vec<Vec<usize>>,
    /// What configurations are ranked by at a rung.
    pub by: RankedBy,
}

/// What configurations are ranked by at a rung.
#[derive(Clone, Debug, PartialEq)]
pub enum RankedBy {
    /// The validation loss.
    ValidationLoss,
    /// A figure of a task.
    Score {
        /// Its column in `metrics.csv`.
        column: String,
        /// 1, or -1 if higher values are better: what values are multiplied by, so that the lowest rank
        /// first.
        sign: f64,
    },
}

impl RankedBy {
    /// Returns what a sweep by this figure ranks by: the figure of a task, or else the validation loss.
    fn new(figure: &RunFigure) -> Self {
        match figure {
            RunFigure::Metric(_) => Self::ValidationLoss,
            RunFigure::Score { column, .. } => {
                let sign = if figure.direction() == Direction::HigherIsBetter { -1.0 } else { 1.0 };
                Self::Score { column: column.clone(), sign }
            }
        }
    }

    /// Returns the key of the steps between evaluations, and those of a plan; 0 if there is one at the end
    /// only.
    fn interval(&self, plan: &Plan) -> (&'static str, u64) {
        match self {
            Self::ValidationLoss => ("validation.interval", plan.intervals.validation.interval as u64),
            Self::Score { .. } => ("evaluation.interval", plan.intervals.tasks.unwrap_or(0) as u64),
        }
    }
}

/// What is known about a cell at a rung or at the end of training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CellResult {
    /// What it is ranked by, lowest first: its validation loss, in nats per token, or a figure of a task with
    /// the sign of [`RankedBy::Score`].
    Loss(f64),
    /// The cell ended before and has no loss here.
    Ended,
    /// The cell has yet to be trained up to here.
    Open,
}

/// How far a sweep with rungs has come.
#[derive(Debug, PartialEq)]
pub struct HalvingProgress {
    /// The rung that cells are being trained to; `None` for the end of training.
    pub rung: Option<u64>,
    /// Cells that have yet to be trained up to it.
    pub open: Vec<usize>,
    /// Cells that were dropped at an earlier rung, and why.
    pub dropped: Vec<(usize, String)>,
}

/// A part of the training of a sweep with rungs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalvingStage {
    /// The step that cells are trained from.
    pub from: u64,
    /// The rung that they are trained to; `None` for the end of training.
    pub rung: Option<u64>,
    /// The number of cells.
    pub cells: usize,
}

impl Halving {
    /// Checks the rungs of a sweep; `None` if it has none.
    ///
    /// # Errors
    /// A usage error if a cell has no evaluation at a rung, or if a rung is not before a cell's last step.
    pub fn new(rungs: &[usize], eta: usize, figure: &RunFigure, cells: &[Cell]) -> Result<Option<Self>> {
        if rungs.is_empty() {
            return Ok(None);
        }
        let by = RankedBy::new(figure);
        let mut rungs: Vec<u64> = rungs.iter().map(|&rung| rung as u64).collect();
        rungs.sort_unstable();
        for work in cells.iter().filter_map(|cell| cell.work.as_ref().ok()) {
            check(&rungs, &by, work)?;
        }
        let all = configurations::group(cells.iter().map(|cell| &cell.settings));
        let runs = |configuration: &Vec<usize>| configuration.iter().any(|&at| cells[at].work.is_ok());
        let configurations = all.into_iter().filter(runs).collect();
        Ok(Some(Self { rungs, eta: eta.max(2), configurations, by }))
    }

    /// Returns how far a sweep has come. `result` gives a cell's result at a rung, or at the end for `None`.
    pub fn standing(&self, result: impl Fn(usize, Option<u64>) -> CellResult) -> HalvingProgress {
        let open = |continuing: &[usize], rung| -> Vec<usize> {
            let cells = continuing.iter().flat_map(|&at| &self.configurations[at]).copied();
            cells.filter(|&cell| result(cell, rung) == CellResult::Open).collect()
        };
        let mut continuing: Vec<usize> = (0..self.configurations.len()).collect();
        let mut dropped = Vec::new();
        for &step in &self.rungs {
            let rung = Some(step);
            let open = open(&continuing, rung);
            if !open.is_empty() {
                return HalvingProgress { rung, open, dropped };
            }
            let mut ranked: Vec<(f64, usize)> = continuing
                .iter()
                .map(|&at| (mean(self.configurations[at].iter().map(|&cell| result(cell, rung))), at))
                .collect();
            // The sort is stable, so ties go to the first.
            ranked.sort_by(|(one, _), (other, _)| one.total_cmp(other));
            let kept = self.continuing_count(continuing.len());
            let (best, rest) = ranked.split_at(kept);
            let (best, unfit): (Vec<_>, Vec<_>) = best.iter().partition(|(loss, _)| loss.is_finite());
            let why = format!("not among the best {kept} of {} at step {step}", continuing.len());
            for &cell in unfit.into_iter().chain(rest).flat_map(|(_, at)| &self.configurations[*at]) {
                if matches!(result(cell, rung), CellResult::Loss(_)) {
                    dropped.push((cell, why.clone()));
                }
            }
            continuing = best.into_iter().map(|(_, at)| *at).collect();
            continuing.sort_unstable();
        }
        HalvingProgress { rung: None, open: open(&continuing, None), dropped }
    }

    /// Returns the rungs and the end of training, each with the step from which and the number of cells that
    /// are trained to it if every configuration has a loss.
    pub fn stages(&self) -> Vec<HalvingStage> {
        let seeds = self.configurations.first().map_or(1, Vec::len);
        let (mut count, mut from, mut stages) = (self.configurations.len(), 0, Vec::new());
        for rung in self.rungs.iter().copied().map(Some).chain([None]) {
            stages.push(HalvingStage { from, rung, cells: count * seeds });
            (count, from) = (self.continuing_count(count), rung.unwrap_or(from));
        }
        stages
    }

    /// Returns how many of `count` configurations continue from a rung.
    fn continuing_count(&self, count: usize) -> usize {
        (count / self.eta).max(1).min(count)
    }

    /// Describes how far how many configurations train, and their share of the whole grid's steps.
    pub fn in_words(&self, cells: &[Cell]) -> String {
        let steps_of = |configuration: &[usize]| -> u64 {
            let steps = |&cell: &usize| cells[cell].work.as_ref().map_or(0, |work| work.plan.steps as u64);
            configuration.iter().map(steps).sum()
        };
        let whole: u64 = self.configurations.iter().map(|one| steps_of(one)).sum();
        let seeds = self.configurations.first().map_or(1, Vec::len) as u64;
        let mean_steps = whole / (self.configurations.len().max(1) as u64 * seeds).max(1);
        let (mut trained, mut parts) = (0, Vec::new());
        for HalvingStage { from, rung, cells } in self.stages() {
            let count = cells as u64 / seeds.max(1);
            trained += cells as u64 * rung.unwrap_or(mean_steps).saturating_sub(from);
            parts.push(match rung {
                Some(rung) => format!("{count} to step {rung}"),
                None => format!("{count} to the end"),
            });
        }
        format!(
            "configurations: {}; {:.0} % of the steps of the whole grid",
            parts.join(", "),
            100.0 * trained as f64 / whole.max(1) as f64
        )
    }
}

/// Rejects a rung at which a cell has no evaluation, or that is not before a cell's last step.
fn check(rungs: &[u64], by: &RankedBy, work: &Work) -> Result<()> {
    let (key, interval) = by.interval(&work.plan);
    let steps = work.plan.steps as u64;
    let keys = ["sweep.rungs", key, "training.steps"];
    for &rung in rungs {
        if rung == 0 || rung >= steps {
            let message = format!("a rung at step {rung}, but training has {steps} steps");
            return Err(work.recipe.error(&keys, message, format!("name steps from 1 to {}", steps - 1)));
        }
        if interval == 0 || !rung.is_multiple_of(interval) {
            let message = format!("a rung at step {rung}, which has no evaluation to compare cells by");
            let help = format!("make every rung a multiple of {key}");
            return Err(work.recipe.error(&keys, message, help));
        }
    }
    Ok(())
}

/// Returns the mean loss of a configuration; infinite if any cell ended without a loss or its loss is not
/// finite.
fn mean(results: impl Iterator<Item = CellResult>) -> f64 {
    let losses: Vec<f64> = results
        .map(|result| match result {
            CellResult::Loss(loss) if loss.is_finite() => loss,
            _ => f64::INFINITY,
        })
        .collect();
    losses.iter().sum::<f64>() / losses.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use CellResult::{Ended, Loss, Open};
    use std::collections::BTreeMap;

    /// Results by cell and rung; cells without one are open.
    type Results = BTreeMap<(usize, Option<u64>), CellResult>;

    fn halving(configurations: usize, seeds: usize) -> Halving {
        let cells = |at: usize| (at * seeds..(at + 1) * seeds).collect();
        let configurations = (0..configurations).map(cells).collect();
        Halving { rungs: vec![10, 30], eta: 3, configurations, by: RankedBy::ValidationLoss }
    }

    fn standing(halving: &Halving, results: &Results) -> HalvingProgress {
        halving.standing(|cell, rung| results.get(&(cell, rung)).copied().unwrap_or(Open))
    }

    /// Adds losses at a rung, cell by cell.
    fn add(results: &mut Results, rung: Option<u64>, losses: &[(usize, f64)]) {
        results.extend(losses.iter().map(|&(cell, loss)| ((cell, rung), Loss(loss))));
    }

    #[test]
    fn the_best_third_continue_from_each_rung() {
        let halving = halving(9, 1);
        let mut results = Results::new();
        let begun = standing(&halving, &results);
        assert_eq!((begun.rung, begun.open, begun.dropped), (Some(10), (0..9).collect(), vec![]));
        let losses: Vec<(usize, f64)> = (0..8).map(|cell| (cell, 9.0 - cell as f64)).collect();
        add(&mut results, Some(10), &losses);
        assert_eq!(standing(&halving, &results).open, [8], "nothing is decided before all are there");
        add(&mut results, Some(10), &[(8, 0.5)]);
        let second = standing(&halving, &results);
        assert_eq!((second.rung, &second.open[..]), (Some(30), &[6, 7, 8][..]));
        assert_eq!(second.dropped.iter().map(|(cell, _)| *cell).collect::<Vec<_>>(), [5, 4, 3, 2, 1, 0]);
        assert_eq!(second.dropped[0].1, "not among the best 3 of 9 at step 10");
        add(&mut results, Some(30), &[(6, 3.0), (7, 1.0), (8, 2.0)]);
        let last = standing(&halving, &results);
        assert_eq!((last.rung, &last.open[..]), (None, &[7][..]));
        assert_eq!(last.dropped.len(), 8);
        add(&mut results, None, &[(7, 1.0)]);
        assert!(standing(&halving, &results).open.is_empty());
    }

    #[test]
    fn seeds_are_averaged_and_whatever_is_not_finite_is_worst() {
        let halving = halving(3, 2);
        let mut results = Results::new();
        // The first configuration has the lowest single loss but a higher mean than the second.
        add(&mut results, Some(10), &[(0, 1.0), (1, 4.0), (2, 2.0), (3, 2.0), (4, 0.5), (5, f64::NAN)]);
        let second = standing(&halving, &results);
        assert_eq!((second.rung, &second.open[..]), (Some(30), &[2, 3][..]));
        results.insert((5, Some(10)), Ended);
        let ended = standing(&halving, &results);
        assert_eq!(ended.open, [2, 3]);
        // A cell that ended keeps its status; the other cell of its configuration is dropped.
        assert!(ended.dropped.iter().any(|(cell, _)| *cell == 4));
        assert!(ended.dropped.iter().all(|(cell, _)| *cell != 5));
        for cell in 0..6 {
            results.insert((cell, Some(10)), Ended);
        }
        assert_eq!(
            standing(&halving, &results),
            HalvingProgress { rung: None, open: vec![], dropped: vec![] },
            "nothing continues if nothing trained"
        );
    }

    #[test]
    fn ties_go_to_the_first() {
        let halving = halving(3, 1);
        let mut results = Results::new();
        add(&mut results, Some(10), &[(0, 2.0), (1, 1.0), (2, 1.0)]);
        assert_eq!(standing(&halving, &results).open, [1]);
    }

    #[test]
    fn one_continues_where_there_are_few() {
        for (count, kept) in [(27, 9), (9, 3), (10, 3), (2, 1), (1, 1)] {
            assert_eq!(halving(1, 1).continuing_count(count), kept, "{count}");
        }
    }

    #[test]
    fn a_task_ranks_with_the_sign_of_its_figure() {
        let by = |name: &str| RankedBy::new(&RunFigure::find(name).unwrap());
        let score = |column: &str, sign| RankedBy::Score { column: column.to_owned(), sign };
        assert_eq!(by("hellaswag/acc_norm"), score("hellaswag/acc_norm", -1.0));
        assert_eq!(by("mine/bits_per_byte"), score("mine/bits_per_byte", 1.0));
        // As before there were tasks.
        assert_eq!([by("tok_s"), by("val_loss")], [const { RankedBy::ValidationLoss }; 2]);
    }
}
