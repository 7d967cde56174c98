//! Sizes of activations, and of their changes, across model widths: the files of `xrun coordinates`.
//!
//! `RESULTS/coordinates/NAME/<UTC>-<hash8>/` holds `coordinates.csv`, with a row for every quantity, step,
//! width and seed, `coordinates.json` with the fitted slopes, the recipe, the environment, and pictures.

use super::atomic::{self, json, parse_json};
use crate::error::Result;
use crate::regular;
use serde::{Deserialize, Serialize};
use std::path::Path;

pub use super::names::{COORDINATE_ROWS, COORDINATES, COORDINATES_JSON};

/// Largest absolute slope of log RMS over log width that counts as flat: 7 % between a width and four times
/// that width.
pub const MAX_FLAT_SLOPE: f64 = 0.05;

/// The size of one kind of activation after a step, at one width and seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Coordinate {
    /// The parametrization, as recipes write it.
    pub parametrization: String,
    /// Width of the residual stream.
    pub width: usize,
    /// `training.seed`.
    pub seed: u64,
    /// Optimizer steps done; 0 is before the first step.
    pub step: usize,
    /// Kind of activation.
    pub quantity: String,
    /// Root mean square of the activation's elements on the first batch.
    pub rms: f64,
    /// Root mean square of the elements' change since step 0, on the same batch.
    pub change_rms: f64,
}

/// Slopes of the logarithm of a quantity over the logarithm of the width, after one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slope {
    /// The parametrization.
    pub parametrization: String,
    /// Kind of activation.
    pub quantity: String,
    /// Optimizer steps done.
    pub step: usize,
    /// Slope of the size; `None` if the size is zero or not finite at some width.
    pub rms: Option<f64>,
    /// Slope of the change since step 0; `None` likewise, and always before the first step.
    pub change_rms: Option<f64>,
}

/// The result of an `xrun coordinates` command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Coordinates {
    /// Name of the recipe.
    pub recipe: String,
    /// Hash of the resolved recipe at its own width.
    pub recipe_hash: String,
    pub optimizer: String,
    /// The widths, in ascending order.
    pub widths: Vec<usize>,
    /// The base width; `None` if only the standard parametrization was measured.
    pub base_dim: Option<usize>,
    /// Optimizer steps at each width.
    pub steps: usize,
    pub seeds: Vec<u64>,
    /// Rows (tokens) of the batch that were measured.
    pub rows: usize,
    /// Largest absolute slope that counts as flat.
    pub flat: f64,
    /// True once everything has been measured.
    pub finished: bool,
    /// The slopes, in measurement order.
    pub slopes: Vec<Slope>,
}

/// Returns the distinct values of a field, in the order of their first rows.
fn distinct<T: PartialEq>(rows: &[Coordinate], field: impl Fn(&Coordinate) -> T) -> Vec<T> {
    let mut found = Vec::new();
    for row in rows {
        let value = field(row);
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

/// Fits the slopes of all quantities after every step, by least squares over all widths and seeds.
pub fn slopes(rows: &[Coordinate]) -> Vec<Slope> {
    let mut slopes = Vec::new();
    for parametrization in distinct(rows, |row| row.parametrization.clone()) {
        for quantity in distinct(rows, |row| row.quantity.clone()) {
            for step in distinct(rows, |row| row.step) {
                let here = |row: &&Coordinate| {
                    row.parametrization == parametrization && row.quantity == quantity && row.step == step
                };
                let fit = |value: fn(&Coordinate) -> f64| {
                    let points = rows.iter().filter(here);
                    slope(&points.map(|row| (row.width as f64, value(row))).collect::<Vec<_>>())
                };
                slopes.push(Slope {
                    rms: fit(|row| row.rms),
                    change_rms: fit(|row| row.change_rms),
                    parametrization: parametrization.clone(),
                    quantity: quantity.clone(),
                    step,
                });
            }
        }
    }
    slopes
}

/// Returns the least-squares slope of ln y over ln x; `None` with fewer than two different x, or if a y has
/// no logarithm.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    if logs.iter().any(|(_, y)| !y.is_finite()) {
        return None;
    }
    let n = logs.len() as f64;
    let (mean_x, mean_y) =
        (logs.iter().map(|p| p.0).sum::<f64>() / n, logs.iter().map(|p| p.1).sum::<f64>() / n);
    let (xx, xy) = logs
        .iter()
        .fold((0.0, 0.0), |(xx, xy), (x, y)| (xx + (x - mean_x).powi(2), xy + (x - mean_x) * (y - mean_y)));
    (xx > 0.0).then(|| xy / xx)
}

/// Returns true if a slope counts as flat. A quantity that is zero at every width has no slope and says
/// nothing.
pub fn is_flat(slope: f64) -> bool {
    slope.abs() <= MAX_FLAT_SLOPE
}

/// Writes the rows and the slopes into a folder.
///
/// # Errors
/// If a file cannot be written.
pub fn write(folder: &Path, found: &Coordinates, rows: &[Coordinate]) -> Result<()> {
    atomic::write_csv(&folder.join(COORDINATE_ROWS), rows)?;
    atomic::write(&folder.join(COORDINATES_JSON), &json(found)?)
}

/// Reads the files that [`write`] wrote.
///
/// # Errors
/// If a file is missing or has another format.
pub fn read(folder: &Path) -> Result<(Coordinates, Vec<Coordinate>)> {
    let path = folder.join(COORDINATES_JSON);
    let found = parse_json(&path, &regular::read(&path, regular::MAX_TEXT)?, "coordinates")?;
    Ok((found, atomic::read_csv(&folder.join(COORDINATE_ROWS))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(width: usize, seed: u64, step: usize, rms: f64) -> Coordinate {
        let (parametrization, quantity) = ("mup".to_owned(), "logits".to_owned());
        Coordinate { parametrization, width, seed, step, quantity, rms, change_rms: rms - 1.0 }
    }

    #[test]
    fn slopes_are_powers_of_the_width() {
        let rows: Vec<Coordinate> = [128, 256, 512]
            .into_iter()
            .flat_map(|width| {
                [(1, 1.0), (2, (width as f64 / 128.0).sqrt())].map(|(step, rms)| (width, step, rms))
            })
            .flat_map(|(width, step, rms)| {
                [(1, 0.5), (2, 2.0)].map(|(seed, noise)| row(width, seed, step, rms * noise))
            })
            .collect();
        let found = slopes(&rows);
        assert_eq!(found.iter().map(|slope| slope.step).collect::<Vec<_>>(), [1, 2]);
        let sizes: Vec<f64> = found.iter().map(|slope| slope.rms.unwrap()).collect();
        assert!(sizes[0].abs() < 1e-12 && (sizes[1] - 0.5).abs() < 1e-12, "{sizes:?}");
        assert!(is_flat(sizes[0]) && !is_flat(sizes[1]) && is_flat(-0.05) && !is_flat(-0.051));
        assert_eq!(found[0].change_rms, None, "half of 1 is less than nothing");
    }

    #[test]
    fn what_is_zero_or_has_one_width_has_no_slope() {
        assert_eq!(slope(&[(128.0, 0.0), (256.0, 0.0)]), None);
        assert_eq!(slope(&[(128.0, 1.0), (128.0, 2.0)]), None);
        assert_eq!(slope(&[(128.0, 1.0), (256.0, f64::NAN)]), None);
        assert_eq!(slope(&[]), None);
    }

    #[test]
    fn files_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let rows = vec![row(128, 0, 0, 1.25), row(256, 1, 3, 1e-9)];
        let found = Coordinates {
            recipe: "small".to_owned(),
            recipe_hash: "0".repeat(64),
            optimizer: "adamw".to_owned(),
            widths: vec![128, 256],
            base_dim: Some(128),
            steps: 3,
            seeds: vec![0, 1],
            rows: 1024,
            flat: MAX_FLAT_SLOPE,
            finished: true,
            slopes: slopes(&rows),
        };
        write(folder.path(), &found, &rows).unwrap();
        assert_eq!(read(folder.path()).unwrap(), (found, rows));
    }
}
