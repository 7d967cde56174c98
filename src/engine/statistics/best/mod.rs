//! Cells of a sweep over seeds: their means with intervals, and the set of those that may be the best.

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
    /// A cell each, in their order; blank for one without a value.
    pub cells: Vec<Option<CellEstimate>>,
    /// Standard deviation of a run after its cell and its seed are accounted for, pooled over all cells.
    pub residual_deviation: f64,
    /// Its degrees of freedom.
    pub freedom: usize,
    /// Dunnett's one-sided critical value: the intervals of differences reach so many of their standard
    /// errors.
    pub critical_value: f64,
}

/// A cell of a sweep over seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellEstimate {
    /// Number of its runs with a value.
    pub runs: usize,
    /// Standard deviation of their values, of any seed; blank for one run.
    pub deviation: Option<f64>,
    /// Mean over all seeds of the sweep, for these seeds: a seed that the cell lacks is accounted for by what
    /// it was in the other cells. With Student's interval from the pooled deviation.
    pub mean: Interval,
    /// The cell's mean minus the best mean of the other cells, with Hsu's simultaneous interval, one end of
    /// which is at most 0 and the other at least.
    pub difference_to_best: Interval,
    /// True if the cell may be the best: that interval does not rule it out.
    pub in_best_set: bool,
}

/// Compares cells with the best: `values[cell][seed]`, where a run that has no value, or one that is not
/// finite, is missing.
///
/// The model is value = cell + seed + normal error of one deviation for all, by least squares. A cell is in
/// the best set unless it is worse than another by more than d standard errors of their difference, with d
/// Dunnett's one-sided critical value: with probability `confidence` at least, the set holds the best cell,
/// and all intervals hold (Hsu, "Simultaneous Confidence Intervals for all Distances from the 'Best'", 1981,
/// and "Constrained Simultaneous Confidence Intervals for Multiple Comparisons with the Best", 1984). With
/// missing runs the differences are not all equally correlated, and d, which is that of a correlation of 1/2,
/// is an approximation.
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

/// The finite values of a cell, with their seeds.
fn finite(values: &[Option<f64>]) -> impl Iterator<Item = (usize, f64)> + '_ {
    values
        .iter()
        .enumerate()
        .filter_map(|(seed, value)| Some((seed, (*value)?)))
        .filter(|(_, x)| x.is_finite())
}

/// Returns for every cell its mean minus the best of the others, with Hsu's constrained interval, and whether
/// it is in the best set.
fn distances_to_best(model: &TwoWayModel, critical: f64, direction: Direction) -> Vec<(Interval, bool)> {
    let cells = model.means.len();
    let lead = |i: usize, j: usize| direction.goodness(model.means[i] - model.means[j]);
    let reach = |i: usize, j: usize| critical * model.difference_error(i, j);
    let least = |i: usize, over: &dyn Fn(usize) -> f64| {
        (0..cells).filter(|&j| j != i).map(over).fold(f64::INFINITY, f64::min)
    };
    // How much better than all others a cell may be. Hsu's set asks for more than 0; cells of the very same
    // values without any scatter are at 0.
    let highest: Vec<f64> = (0..cells).map(|i| least(i, &|j| lead(i, j) + reach(i, j))).collect();
    let in_set: Vec<bool> = highest.iter().map(|highest| *highest >= 0.0).collect();
    let alone = in_set.iter().filter(|cell| **cell).count() == 1;
    let distance = |i: usize| {
        let estimate = least(i, &|j| lead(i, j));
        let rival = |j: usize| if in_set[j] { lead(i, j) - reach(i, j) } else { f64::INFINITY };
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
