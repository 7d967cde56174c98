//! The means of cells over seeds, some of them missing, by least squares.

use std::fmt;

/// Why cells are not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotComparable {
    /// Fewer than two cells have values.
    FewerThanTwoCells,
    /// Fewer than two cells have two values, so nothing shows how much they scatter.
    TooFewRuns,
    /// No two cells share two seeds.
    NoSharedSeeds,
}

impl fmt::Display for NotComparable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FewerThanTwoCells => "fewer than two cells have values",
            Self::TooFewRuns => {
                "the cells have too few runs to show how much runs scatter: that takes at least two seeds"
            }
            Self::NoSharedSeeds => "no two cells share two seeds",
        })
    }
}

/// Returns the mean of each cell over all seeds, from runs `(cell, seed, value)`: the least-squares fit of
/// value = mean of the cell + effect of the seed, where the effects of the seeds sum to 0. Every cell from 0
/// to the highest must have a run.
///
/// # Errors
///
/// [`NotComparable`] says what is missing.
pub fn means(runs: &[(usize, usize, f64)]) -> Result<Vec<f64>, NotComparable> {
    let mut seeds: Vec<usize> = runs.iter().map(|run| run.1).collect();
    seeds.sort_unstable();
    seeds.dedup();
    let cells = runs.iter().map(|run| run.0 + 1).max().unwrap_or(0);
    if cells < 2 {
        return Err(NotComparable::FewerThanTwoCells);
    }
    let parameters = cells + seeds.len() - 1;
    // A run's row in the design matrix: its cell, then its seed. The last seed is minus the sum of the
    // others.
    let row = |&(cell, seed, _): &(usize, usize, f64)| {
        let mut row = vec![0.0; parameters];
        row[cell] = 1.0;
        match seeds.binary_search(&seed) {
            Ok(at) if cells + at < parameters => row[cells + at] = 1.0,
            _ => row[cells..].fill(-1.0),
        }
        row
    };
    // Center the values, so that small differences of large values keep their digits when squared.
    let center = runs.iter().map(|run| run.2).sum::<f64>() / runs.len() as f64;
    let mut normal = vec![vec![0.0; parameters]; parameters];
    let mut right = vec![0.0; parameters];
    for run in runs {
        let row = row(run);
        let filled: Vec<usize> = (0..parameters).filter(|&k| row[k] != 0.0).collect();
        for &i in &filled {
            right[i] += row[i] * (run.2 - center);
            filled.iter().for_each(|&j| normal[i][j] += row[i] * row[j]);
        }
    }
    let covariance = inverse(normal).ok_or(NotComparable::NoSharedSeeds)?;
    let solution: Vec<f64> = covariance.iter().map(|line| dot(line, &right)).collect();
    Ok(solution[..cells].iter().map(|mean| mean + center).collect())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// Inverts a symmetric positive definite matrix by its Cholesky factor. `None` if it is singular, which
/// happens if part of a design shares no seed with the rest.
fn inverse(mut matrix: Vec<Vec<f64>>) -> Option<Vec<Vec<f64>>> {
    let n = matrix.len();
    for j in 0..n {
        let (above, rest) = matrix.split_at_mut(j + 1);
        let line = &mut above[j];
        let pivot = line[j] - dot(&line[..j], &line[..j]);
        // The entries are counts of runs, so a pivot from rounding errors is far smaller, and a true one far
        // larger.
        if pivot <= 1e-9 * line[j] {
            return None;
        }
        line[j] = pivot.sqrt();
        for other in rest {
            other[j] = (other[j] - dot(&other[..j], &line[..j])) / line[j];
        }
    }
    let mut inverse = vec![vec![0.0; n]; n];
    for column in 0..n {
        // Solve L y = e, then Lᵀ x = y.
        let mut x = vec![0.0; n];
        for i in column..n {
            let unit = f64::from(i == column);
            x[i] = (unit - dot(&matrix[i][column..i], &x[column..i])) / matrix[i][i];
        }
        for i in (0..n).rev() {
            let below: f64 = (i + 1..n).map(|k| matrix[k][i] * x[k]).sum();
            x[i] = (x[i] - below) / matrix[i][i];
        }
        inverse[column] = x;
    }
    Some(inverse)
}
