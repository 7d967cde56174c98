//! Turns rows into points.

use super::Points;
use crate::metrics::{MetricsRow, TimingRow};
use crate::results::follow::NewRows;

/// A row that may hold a point of a curve.
pub trait CurveRow {
    /// Returns the step and the value in a column. `None` for a blank cell, a column that rows do not have,
    /// and a row that belongs to no step, such as a save.
    fn point(&self, column: &str) -> Option<(f64, f64)>;
}

impl CurveRow for MetricsRow {
    fn point(&self, column: &str) -> Option<(f64, f64)> {
        Some((self.step as f64, self.value(column)?))
    }
}

impl CurveRow for TimingRow {
    fn point(&self, column: &str) -> Option<(f64, f64)> {
        let value = if self.phase.is_step() { self.number(column) } else { None };
        Some((self.step as f64, value?))
    }
}

/// Returns the points of a column.
pub fn points<R: CurveRow>(rows: &[R], column: &str) -> Points {
    rows.iter().filter_map(|row| row.point(column)).collect()
}

/// The points of selected columns of a file that grows.
#[derive(Clone, Debug)]
pub struct GrowingCurves {
    columns: &'static [&'static str],
    points: Vec<Points>,
}

impl GrowingCurves {
    /// Creates empty curves of these columns.
    pub fn new(columns: &'static [&'static str]) -> Self {
        Self { columns, points: vec![Points::new(); columns.len()] }
    }

    /// Adds the points of new rows. If a resume cut the file back, it first drops all earlier points.
    pub fn add<R: CurveRow>(&mut self, new: &NewRows<R>) {
        for (column, points) in self.columns.iter().zip(&mut self.points) {
            if new.is_restarted {
                points.clear();
            }
            points.extend(new.rows.iter().filter_map(|row| row.point(column)));
        }
    }

    /// Returns the points of a column, which are empty for a column that this was not created with.
    pub fn column(&self, column: &str) -> &[(f64, f64)] {
        let at = self.columns.iter().position(|known| *known == column);
        at.map_or(&[], |at| &self.points[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Phase;

    fn loss(step: u64, loss: f32) -> MetricsRow {
        MetricsRow { step, loss, ..MetricsRow::default() }
    }

    #[test]
    fn blanks_are_no_points_and_neither_are_rows_of_other_phases() {
        let mut rows = [loss(1, 4.0), loss(2, f32::NAN), loss(3, 2.0)];
        rows[2].val_loss = Some(2.5);
        rows[2].further.insert("val_loss/news".to_owned(), 3.5);
        assert_eq!(points(&rows, "val_loss"), [(3.0, 2.5)]);
        assert_eq!(points(&rows, "val_loss/news"), [(3.0, 3.5)]);
        assert_eq!(points(&rows, "no such column"), []);
        let losses = points(&rows, "loss");
        assert!(losses.len() == 3 && losses[1].1.is_nan(), "a gap stays in place");
        let timed = |phase| TimingRow { tok_s: Some(8.0), ..TimingRow::timed(7, phase, 0.5, 1.0) };
        assert_eq!(points(&[timed(Phase::Warmup), timed(Phase::Save)], "tok_s"), [(7.0, 8.0)]);
    }

    #[test]
    fn a_resume_takes_the_points_that_it_cut_off() {
        let mut curves = GrowingCurves::new(&["loss", "val_loss"]);
        let new = |rows: Vec<MetricsRow>, is_restarted| NewRows { rows, is_restarted, has_more: false };
        curves.add(&new(vec![loss(1, 4.0), loss(2, 3.0)], false));
        curves.add(&new(vec![loss(3, 2.0)], false));
        assert_eq!(curves.column("loss"), [(1.0, 4.0), (2.0, 3.0), (3.0, 2.0)]);
        curves.add(&new(vec![loss(1, 4.0)], true));
        assert_eq!((curves.column("loss"), curves.column("val_loss")), (&[(1.0, 4.0)][..], &[][..]));
    }
}
