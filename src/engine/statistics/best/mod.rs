//! Compares the cells of a sweep over its seeds: their means with intervals, and the set that may contain the
//! best.

mod dunnett;
mod model;

use super::interval::Interval;
use super::sample::variance;
use super::student::two_sided_quantile;
use super::verdict::Direction;
use model::TwoWayModel;
use serde::{Deserialize, Serialize};

pub use model::NotComparable;

/// Cells compared with the best of the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellComparison {
    /// One entry per cell, in order; blank for a cell without a value.
    pub cells: Vec<Option<CellEstimate>>,
    /// Standard deviation of a run once its cell and its seed are accounted for, pooled over all cells.
    pub residual_deviation: f64,
    /// Degrees of freedom of the residual deviation.
    pub freedom: usize,
    /// Dunnett's one-sided critical value: how many standard errors the intervals of differences reach.
    pub critical_value: f64,
}

/// A cell of a sweep over seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellEstimate {
    /// Number of runs with a value.
    pub runs: usize,
    /// Standard deviation of the values over the seeds; blank for a single run.
    pub deviation: Option<f64>,
    /// Mean over all seeds of the sweep, with Student's interval from the pooled deviation. For a seed that
    /// the cell lacks, the effect that the seed had in the other cells is used. The interval holds for these
    /// seeds only.
    pub mean: Interval,
    /// The cell's mean minus the best mean of the other cells, with Hsu's simultaneous interval. One end of
    /// it is at most 0, the other at least 0.
    pub difference_to_best: Interval,
    /// True if the interval does not rule out that the cell is the best.
    pub in_best_set: bool,
}

/// Compares cells with the best. In `values[cell][seed]`, a run without a finite value is missing.
///
/// The model is value = cell + seed + normal error, with one deviation for all errors, fitted by least
/// squares. A cell is in the best set unless it is worse than another cell by more than d standard errors of
/// their difference, where d is Dunnett's one-sided critical value. With probability at least `confidence`,
/// the set contains the best cell and all intervals are right (Hsu, "Simultaneous Confidence Intervals for
/// all Distances from the 'Best'", 1981, and "Constrained Simultaneous Confidence Intervals for Multiple
/// Comparisons with the Best", 1984). If runs are missing, the differences are not all equally correlated; d
/// assumes a correlation of 1/2, so it is then an approximation.
///
/// # Errors
///
/// [`NotComparable`] says what is missing.
pub fn compare_cells(
    values: &[Vec<Option<f64>>],
    confidence: f64,
    direction: Direction,
) -> Result<CellComparison, NotComparable> {
    let present: Vec<usize> =
        (0..values.len()).filter(|&cell| finite(&values[cell]).next().is_some()).collect();
    let runs: Vec<(usize, usize, f64)> = present
        .iter()
        .enumerate()
        .flat_map(|(row, &cell)| finite(&values[cell]).map(move |(seed, value)| (row, seed, value)))
        .collect();
    let model = TwoWayModel::fit(&runs)?;
    let freedom = model.freedom as f64;
    let critical_value = dunnett::one_sided(present.len() - 1, freedom, confidence);
    let student = two_sided_quantile(freedom, confidence);
    let distances = distances_to_best(&model, critical_value, direction);
    let mut cells = vec![None; values.len()];
    for (row, (&cell, (difference_to_best, in_best_set))) in present.iter().zip(distances).enumerate() {
        let own: Vec<f64> = finite(&values[cell]).map(|(_, value)| value).collect();
        cells[cell] = Some(CellEstimate {
            runs: own.len(),
            deviation: (own.len() > 1).then(|| variance(&own).sqrt()),
            mean: Interval::symmetric(model.means[row], student * model.mean_error(row)),
            difference_to_best,
            in_best_set,
        });
    }
    Ok(CellComparison {
        cells,
        residual_deviation: model.residual_deviation,
        freedom: model.freedom,
        critical_value,
    })
}

/// Returns the finite values of a cell, with the indices of their seeds.
fn finite(values: &[Option<f64>]) -> impl Iterator<Item = (usize, f64)> + '_ {
    values
        .iter()
        .enumerate()
        .filter_map(|(seed, value)| Some((seed, (*value)?)))
        .filter(|(_, x)| x.is_finite())
}

/// Returns each cell's mean minus the best mean of the others, with Hsu's constrained interval, and whether
/// the cell is in the best set.
fn distances_to_best(model: &TwoWayModel, critical: f64, direction: Direction) -> Vec<(Interval, bool)> {
    let cells = model.means.len();
    let advantage = |i: usize, j: usize| direction.goodness(model.means[i] - model.means[j]);
    let reach = |i: usize, j: usize| critical * model.difference_error(i, j);
    let least = |i: usize, over: &dyn Fn(usize) -> f64| {
        (0..cells).filter(|&j| j != i).map(over).fold(f64::INFINITY, f64::min)
    };
    // How much better than all others a cell may be. Hsu's set requires more than 0, but cells with identical
    // values and no scatter are exactly at 0.
    let highest: Vec<f64> = (0..cells).map(|i| least(i, &|j| advantage(i, j) + reach(i, j))).collect();
    let in_set: Vec<bool> = highest.iter().map(|highest| *highest >= 0.0).collect();
    let alone = in_set.iter().filter(|cell| **cell).count() == 1;
    let distance = |i: usize| {
        let estimate = least(i, &|j| advantage(i, j));
        let rival = |j: usize| if in_set[j] { advantage(i, j) - reach(i, j) } else { f64::INFINITY };
        let low = if alone && in_set[i] { 0.0 } else { least(i, &rival).min(0.0) };
        let high = highest[i].max(0.0);
        let interval = match direction {
            Direction::HigherIsBetter => Interval { estimate, low, high },
            Direction::LowerIsBetter => Interval { estimate: -estimate, low: -high, high: -low },
        };
        (interval, in_set[i])
    };
    (0..cells).map(distance).collect()
}

#[cfg(test)]
mod tests;
