//! Compares the cells of a sweep over its seeds: their means with intervals, and the set that may contain the
//! best.

mod model;

use super::interval::Interval;
use super::sample::{mean, variance};
use super::student::{two_sided_quantile, upper_quantile};
use super::verdict::Direction;
use serde::{Deserialize, Serialize};

pub use model::NotComparable;

/// Cells compared with the best of the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellComparison {
    /// One entry per cell, in order; blank for a cell that is not compared: it has fewer than two values, or
    /// shares fewer than two seeds with another one.
    pub cells: Vec<Option<CellEstimate>>,
    /// Number of one-sided comparisons that share the error.
    pub comparisons: usize,
}

/// A cell of a sweep over seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellEstimate {
    /// Number of runs with a value.
    pub runs: usize,
    /// Standard deviation of the values over the seeds.
    pub deviation: f64,
    /// Mean over all seeds of the sweep, with Student's interval from this cell's own deviation over seeds.
    /// For a seed that the cell lacks, the effect that the seed had in the other cells is used.
    pub mean: Interval,
    /// The cell's mean minus the best mean of the other cells, with a simultaneous interval. Each is a mean
    /// difference over the seeds that both cells have. One end of the interval is at most 0, the other at
    /// least 0.
    pub difference_to_best: Interval,
    /// True if the interval does not rule out that the cell is the best.
    pub in_best_set: bool,
}

/// How the cells that are compared were chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// All cells of the sweep are compared.
    All,
    /// They are what is left of this many cells. The others were dropped by earlier losses of the same seeds.
    Finalists(usize),
}

/// Compares cells with the best. In `values[cell][seed]`, a run without a finite value is missing.
///
/// Two cells are compared by their differences over the seeds that both have: whatever a seed does to both
/// alike cancels. Student's one-sided interval of each mean difference has its own deviation, so cells may
/// scatter differently, and a seed may suit one cell and not another. A cell is in the best set unless
/// another one is better by such an interval. Only the comparisons of the best cell with the others can lose
/// it, so each of k - 1 has the error (1 - `confidence`) / (k - 1) (Bonferroni), and the set contains the
/// best cell with probability at least `confidence`. Then all intervals are right too (Hsu, "Constrained
/// Simultaneous Confidence Intervals for Multiple Comparisons with the Best", 1984).
///
/// Finalists were chosen by the same seeds, so which of them is the best is chance too. There, all pairs of
/// the k cells share the error, k (k - 1) / 2 comparisons, which holds for every choice.
///
/// # Errors
///
/// [`NotComparable`] says what is missing.
pub fn compare_cells(
    values: &[Vec<Option<f64>>],
    confidence: f64,
    direction: Direction,
    chosen: Chosen,
) -> Result<CellComparison, NotComparable> {
    let present = comparable(values)?;
    let runs: Vec<(usize, usize, f64)> = present
        .iter()
        .enumerate()
        .flat_map(|(row, &cell)| finite(&values[cell]).map(move |(seed, value)| (row, seed, value)))
        .collect();
    let means = model::means(&runs)?;
    let comparisons = match chosen {
        Chosen::All => present.len() - 1,
        Chosen::Finalists(of) => of.max(present.len()) * (of.max(present.len()) - 1) / 2,
    };
    let tail = (1.0 - confidence) / comparisons as f64;
    let seeds = values.iter().map(Vec::len).max().unwrap_or(0);
    let quantiles: Vec<f64> = (0..=seeds).map(|n| upper_quantile(n as f64 - 1.0, tail)).collect();
    let rows = present.iter().map(|&one| {
        let others = present.iter();
        others
            .map(|&other| Advantage::between([&values[one], &values[other]], &quantiles, direction))
            .collect()
    });
    let advantages: Vec<Vec<Advantage>> = rows.collect();
    let mut cells = vec![None; values.len()];
    for (row, (&cell, (difference_to_best, in_best_set))) in
        present.iter().zip(distances_to_best(&advantages, direction)).enumerate()
    {
        let own: Vec<f64> = finite(&values[cell]).map(|(_, value)| value).collect();
        let (runs, deviation) = (own.len(), variance(&own).sqrt());
        let reach = two_sided_quantile((runs - 1) as f64, confidence) * deviation / (runs as f64).sqrt();
        cells[cell] = Some(CellEstimate {
            runs,
            deviation,
            mean: Interval::symmetric(means[row], reach),
            difference_to_best,
            in_best_set,
        });
    }
    Ok(CellComparison { cells, comparisons })
}

/// Returns the finite values of a cell, with the indices of their seeds.
fn finite(values: &[Option<f64>]) -> impl Iterator<Item = (usize, f64)> + '_ {
    values
        .iter()
        .enumerate()
        .filter_map(|(seed, value)| Some((seed, (*value)?)))
        .filter(|(_, x)| x.is_finite())
}

/// Returns the values of two cells at the seeds that both have.
fn shared<'a>(one: &'a [Option<f64>], other: &'a [Option<f64>]) -> impl Iterator<Item = (f64, f64)> + 'a {
    one.iter()
        .zip(other)
        .filter_map(|(a, b)| Some(((*a)?, (*b)?)))
        .filter(|(a, b)| a.is_finite() && b.is_finite())
}

/// Returns the cells of which any two share two seeds. While two do not, the one with fewer values is left
/// out.
fn comparable(values: &[Vec<Option<f64>>]) -> Result<Vec<usize>, NotComparable> {
    let count = |cell: usize| finite(&values[cell]).count();
    let with_values = (0..values.len()).filter(|&cell| count(cell) > 0).count();
    let mut present: Vec<usize> = (0..values.len()).filter(|&cell| count(cell) > 1).collect();
    if with_values < 2 {
        return Err(NotComparable::FewerThanTwoCells);
    } else if present.len() < 2 {
        return Err(NotComparable::TooFewRuns);
    }
    loop {
        let apart = |&cell: &usize| {
            present.iter().any(|&other| shared(&values[cell], &values[other]).take(2).count() < 2)
        };
        // Of equally many values, the later cell goes.
        match present.iter().copied().filter(apart).min_by_key(|&cell| (count(cell), std::cmp::Reverse(cell)))
        {
            None => return Ok(present),
            Some(_) if present.len() == 2 => return Err(NotComparable::NoSharedSeeds),
            Some(least) => present.retain(|&cell| cell != least),
        }
    }
}

/// How much better one cell is than another, over the seeds that both have.
#[derive(Clone, Copy, Debug)]
struct Advantage {
    mean: f64,
    /// Reach of the one-sided interval.
    reach: f64,
}

impl Advantage {
    /// `quantiles[n]` is the one-sided quantile for n shared seeds.
    fn between([one, other]: [&[Option<f64>]; 2], quantiles: &[f64], direction: Direction) -> Self {
        let differences: Vec<f64> = shared(one, other).map(|(a, b)| direction.goodness(a - b)).collect();
        let error = (variance(&differences) / differences.len() as f64).sqrt();
        let reach = if error > 0.0 { quantiles[differences.len()] * error } else { 0.0 };
        Self { mean: mean(&differences), reach }
    }
}

/// Returns each cell's mean minus the best mean of the others, with Hsu's constrained interval, and whether
/// the cell is in the best set.
fn distances_to_best(advantages: &[Vec<Advantage>], direction: Direction) -> Vec<(Interval, bool)> {
    let cells = advantages.len();
    let least = |i: usize, over: &dyn Fn(usize) -> f64| {
        (0..cells).filter(|&j| j != i).map(over).fold(f64::INFINITY, f64::min)
    };
    // How much better than all others a cell may be. Hsu's set requires more than 0, but cells with identical
    // values and no scatter are exactly at 0.
    let highest: Vec<f64> =
        (0..cells).map(|i| least(i, &|j| advantages[i][j].mean + advantages[i][j].reach)).collect();
    let in_set: Vec<bool> = highest.iter().map(|highest| *highest >= 0.0).collect();
    let alone = in_set.iter().filter(|cell| **cell).count() == 1;
    let distance = |i: usize| {
        let estimate = least(i, &|j| advantages[i][j].mean);
        let rival =
            |j: usize| if in_set[j] { advantages[i][j].mean - advantages[i][j].reach } else { f64::INFINITY };
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
