//! The order of a list of runs.

use super::field::{Cell, Field, Word};
use super::read::{Collection, Run};
use crate::error::Result;
use std::cmp::Ordering;

/// Sorts runs by a field: losses, times and settings from the lowest, speeds from the highest.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// The field to sort by.
    pub field: Field,
    is_descending: bool,
}

impl Order {
    /// Parses the name of a field, or `-` and a name for the opposite direction. `loss` means the loss in the
    /// list, which is the training loss over the last steps.
    ///
    /// # Errors
    /// A usage error if no field has this name.
    pub fn parse(text: &str, collection: &Collection) -> Result<Self> {
        let (name, is_reversed) = text.strip_prefix('-').map_or((text, false), |name| (name, true));
        let name = if name == "loss" { "train_loss" } else { name };
        let field = Field::parse(name, collection)?;
        Ok(Self { is_descending: field.is_highest_first() != is_reversed, field })
    }

    /// Creates the order by a field in this direction.
    pub fn by(field: Field, is_descending: bool) -> Self {
        Self { field, is_descending }
    }

    /// Sorts runs, which must come newest first; equal runs stay in that order. Runs without a value come
    /// last in either direction.
    pub fn sort(&self, runs: &mut Vec<&Run>) {
        if self.field == Field::Word(Word::Started) {
            // Their order on entry also separates runs that began in the same minute.
            if !self.is_descending {
                runs.reverse();
            }
            runs.sort_by_key(|run| run.started().is_none());
            return;
        }
        let mut keyed: Vec<(Cell<'_>, &Run)> = runs.iter().map(|run| (self.field.value(run), *run)).collect();
        keyed.sort_by(|(a, _), (b, _)| self.compare(a, b));
        *runs = keyed.into_iter().map(|(_, run)| run).collect();
    }

    fn compare(&self, a: &Cell<'_>, b: &Cell<'_>) -> Ordering {
        let place = |cell: &Cell<'_>| match cell {
            Cell::Number(value) if value.is_finite() => 0,
            Cell::Text(_) => 1,
            Cell::Unset => 2,
            Cell::Number(_) | Cell::Blank => 3,
        };
        let values = match (a, b) {
            (Cell::Number(a), Cell::Number(b)) if a.is_finite() && b.is_finite() => a.total_cmp(b),
            (Cell::Text(a), Cell::Text(b)) => a.cmp(b),
            _ => Ordering::Equal,
        };
        let values = if self.is_descending { values.reverse() } else { values };
        place(a).cmp(&place(b)).then(values)
    }
}

#[cfg(test)]
mod tests {
    use super::super::read::{add_set, sample};
    use super::*;

    #[test]
    fn blanks_and_nan_come_last_in_either_direction() {
        let figures: [&[(&str, f64)]; 6] = [
            &[("val_loss", f64::NAN), ("tok_s", 2.0)],
            &[("val_loss", 1.5), ("tok_s", 1.0)],
            &[],
            &[("val_loss", 1.0), ("tok_s", 3.0)],
            &[("val_loss", f64::NEG_INFINITY)],
            &[("val_loss", 1.5), ("tok_s", 2.0)],
        ];
        let mut collection = sample(&figures);
        for (at, bits) in [(1, 0.75), (3, f64::NAN), (4, 0.5)] {
            add_set(&mut collection.runs[at], "news", &[("bits_per_byte", bits)]);
        }
        let sorted = |text: &str| -> Vec<usize> {
            let mut runs: Vec<&Run> = collection.runs.iter().collect();
            Order::parse(text, &collection).unwrap().sort(&mut runs);
            let place = |run: &&Run| collection.runs.iter().position(|other| other.id == run.id).unwrap();
            runs.iter().map(place).collect()
        };
        assert_eq!(sorted("val_loss"), [3, 1, 5, 0, 2, 4], "equal ones stay newest first");
        assert_eq!(sorted("-val_loss"), [1, 5, 3, 0, 2, 4]);
        assert_eq!(sorted("tok-s"), [3, 0, 5, 1, 2, 4]);
        assert_eq!(sorted("-tok_s"), [1, 0, 5, 3, 2, 4]);
        assert_eq!(sorted("bits_per_byte/news"), [4, 1, 0, 2, 3, 5], "the lowest first");
        assert_eq!(sorted("-bits_per_byte/news"), [1, 4, 0, 2, 3, 5]);
        assert_eq!(sorted("started"), [0, 1, 2, 3, 4, 5]);
        assert_eq!(sorted("-started"), [5, 4, 3, 2, 1, 0]);
        assert_eq!(sorted("optimizer.lr"), [0, 1, 2, 3, 4, 5], "nobody has one");
        let loss = Order::parse("-loss", &collection).unwrap();
        assert_eq!((loss.field.to_string(), loss.is_descending), ("train_loss".to_owned(), true));
        assert!(Order::parse("-zebra", &collection).is_err());
    }

    #[test]
    fn runs_of_an_unknown_time_come_last_in_either_direction() {
        let mut collection = sample(&[&[], &[], &[]]);
        collection.runs[2].began = None;
        for (text, expected) in [("started", [0, 1, 2]), ("-started", [1, 0, 2])] {
            let mut runs: Vec<&Run> = collection.runs.iter().collect();
            Order::parse(text, &collection).unwrap().sort(&mut runs);
            let expected = expected.map(|at: usize| collection.runs[at].id.as_str());
            assert_eq!(runs.iter().map(|run| run.id.as_str()).collect::<Vec<_>>(), expected, "{text}");
        }
    }
}
