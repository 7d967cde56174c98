//! Finds the first difference between a row file and its repetition. If a run is reproduced, its cells are
//! the same. What differs between two runs of any recipes, and by how much, is in
//! [`collection`](crate::results::collection).

use serde::Serialize;
use std::cmp::Ordering;
use std::fmt;

/// The column that identifies a row.
const STEP: &str = "step";

/// A row file whose cells are kept as written, whichever version of xrun wrote them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowCells {
    columns: Vec<String>,
    /// Step and cells of each row, in ascending order of steps.
    rows: Vec<(u64, Vec<String>)>,
}

/// The first difference between two row files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum RowDifference {
    /// The second file lacks a column that the first one has.
    MissingColumn { column: String },
    /// A cell differs.
    Value {
        /// The step of the row.
        step: u64,
        column: String,
        /// The value in the first file as written; empty for a blank.
        first: String,
        /// The value in the second file.
        second: String,
    },
    /// The second file lacks a row that the first one has.
    MissingRow {
        /// The step of the row.
        step: u64,
    },
    /// The second file has a row that the first lacks.
    ExtraRow {
        /// The step of the row.
        step: u64,
    },
}

impl RowCells {
    /// Parses a row file, which must have a column `step`. Skips an incomplete last line, which a killed run
    /// may leave.
    ///
    /// # Errors
    /// The reason and the line, if the file is not a table or its steps do not ascend.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut reader = csv::Reader::from_reader(&bytes[..end]);
        let columns: Vec<String> =
            reader.headers().map_err(|e| e.to_string())?.iter().map(str::to_owned).collect();
        let at = columns.iter().position(|name| name == STEP).ok_or("line 1: there is no column `step`")?;
        let mut rows: Vec<(u64, Vec<String>)> = Vec::new();
        for record in reader.records() {
            let record = record.map_err(|e| e.to_string())?;
            let line = record.position().map_or(0, csv::Position::line);
            let step = record.get(at).unwrap_or_default();
            let step: u64 = step.parse().map_err(|_| format!("line {line}: `{step}` is not a step"))?;
            if let Some((last, _)) = rows.last().filter(|(last, _)| *last >= step) {
                return Err(format!("line {line}: step {step} comes after step {last}"));
            }
            rows.push((step, record.iter().map(str::to_owned).collect()));
        }
        Ok(Self { columns, rows })
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns true if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the step of the last row; `None` if there are no rows.
    pub fn last_step(&self) -> Option<u64> {
        self.rows.last().map(|(step, _)| *step)
    }

    /// Returns the cells of a column as written, with their steps; `None` if there is no such column.
    pub fn cells(&self, column: &str) -> Option<impl Iterator<Item = (u64, &str)>> {
        let at = self.columns.iter().position(|name| name == column)?;
        Some(self.rows.iter().map(move |(step, cells)| (*step, cells.get(at).map_or("", String::as_str))))
    }

    /// Returns the numbers of a column with their steps, without blanks. A missing column has none.
    pub fn numbers(&self, column: &str) -> Vec<(u64, f64)> {
        let cells = self.cells(column).into_iter().flatten();
        cells.filter_map(|(step, cell)| Some((step, cell.parse().ok()?))).collect()
    }
}

/// Returns the first difference between two row files; `None` if `second` has every value in `first`, bit for
/// bit, and no additional row. Columns that only `second` has are not compared, because earlier versions had
/// fewer.
pub fn first_difference(first: &RowCells, second: &RowCells) -> Option<RowDifference> {
    let mut places = Vec::new();
    for column in &first.columns {
        match second.columns.iter().position(|name| name == column) {
            Some(at) => places.push(at),
            None => return Some(RowDifference::MissingColumn { column: column.clone() }),
        }
    }
    let (mut ours, mut theirs) = (first.rows.iter(), second.rows.iter());
    loop {
        let ((step, cells), (other_step, other)) = match (ours.next(), theirs.next()) {
            (None, None) => return None,
            (Some((step, _)), None) => return Some(RowDifference::MissingRow { step: *step }),
            (None, Some((step, _))) => return Some(RowDifference::ExtraRow { step: *step }),
            (Some(row), Some(other)) => (row, other),
        };
        match step.cmp(other_step) {
            Ordering::Less => return Some(RowDifference::MissingRow { step: *step }),
            Ordering::Greater => return Some(RowDifference::ExtraRow { step: *other_step }),
            Ordering::Equal => {}
        }
        for ((column, cell), at) in first.columns.iter().zip(cells).zip(&places) {
            let second = other.get(*at).map_or("", String::as_str);
            if !is_same(cell, second) {
                let (column, first, second) = (column.clone(), cell.clone(), second.to_owned());
                return Some(RowDifference::Value { step: *step, column, first, second });
            }
        }
    }
}

/// Returns true if two cells have the same bits: the same text, or two spellings of one number. Numbers are
/// written in their shortest form that reads back to the same bits. NaN equals NaN.
fn is_same(a: &str, b: &str) -> bool {
    let bits = |text: &str| text.parse::<f64>().ok().map(f64::to_bits);
    a == b || bits(a).is_some_and(|a| Some(a) == bits(b))
}

impl fmt::Display for RowDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_blank = |value: &String| if value.is_empty() { "blank".to_owned() } else { value.clone() };
        match self {
            Self::MissingColumn { column } => write!(f, "column {column}: stored, but not in the new rows"),
            Self::Value { step, column, first, second } => {
                write!(f, "step {step}, {column}: stored {}, new {}", or_blank(first), or_blank(second))
            }
            Self::MissingRow { step } => write!(f, "step {step}: stored, but not in the new rows"),
            Self::ExtraRow { step } => write!(f, "step {step}: in the new rows, but not stored"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "step,tokens_seen,loss,val_loss,lr,grad_norm\n";
    const ROWS: [&str; 3] =
        ["1,64,4.5,,0.001,2.25\n", "2,128,4.25,4.125,0.002,NaN\n", "3,192,inf,,1e-8,1.5\n"];

    fn cells(text: &str) -> RowCells {
        RowCells::parse(text.as_bytes()).unwrap()
    }

    fn table(rows: &[&str]) -> String {
        HEADER.to_owned() + &rows.concat()
    }

    fn difference(first: &str, second: &str) -> Option<String> {
        first_difference(&cells(first), &cells(second)).map(|found| found.to_string())
    }

    #[test]
    fn equal_rows_have_no_difference_and_nan_equals_nan() {
        assert_eq!(difference(&table(&ROWS), &table(&ROWS)), None);
        let spelled = table(&ROWS).replace("1e-8", "0.00000001").replace("NaN", "nan");
        assert_eq!(difference(&table(&ROWS), &spelled), None, "two spellings of one number");
    }

    #[test]
    fn a_planted_difference_is_found_in_each_column() {
        let columns: Vec<&str> = HEADER.trim().split(',').collect();
        let second: Vec<&str> = ROWS[1].trim().split(',').collect();
        for (at, column) in columns.iter().enumerate().skip(1) {
            for planted in ["77", "", "-0.0", "inf"] {
                let mut row = second.clone();
                row[at] = planted;
                let changed = table(&[ROWS[0], &(row.join(",") + "\n"), ROWS[2]]);
                let or_blank =
                    |value: &str| if value.is_empty() { "blank".to_owned() } else { value.to_owned() };
                let expected = format!("step 2, {column}: stored {}, new {}", second[at], or_blank(planted));
                assert_eq!(difference(&table(&ROWS), &changed), Some(expected));
            }
        }
        // Differences of one unit in the last place, and of the sign of zero.
        let near = table(&ROWS).replace("4.125", "4.1250005");
        assert!(difference(&table(&ROWS), &near).unwrap().contains("val_loss: stored 4.125, new 4.1250005"));
        let (zero, negative) = (table(&["1,64,0.0,,0,0\n"]), table(&["1,64,-0.0,,0,0\n"]));
        assert_eq!(difference(&zero, &negative).unwrap(), "step 1, loss: stored 0.0, new -0.0");
        let numbers = table(&ROWS).replace("NaN", "2.0");
        assert_eq!(difference(&table(&ROWS), &numbers).unwrap(), "step 2, grad_norm: stored NaN, new 2.0");
    }

    #[test]
    fn the_first_of_several_differences_is_named() {
        let changed = table(&ROWS).replace("4.125", "4").replace("inf", "9");
        assert!(difference(&table(&ROWS), &changed).unwrap().starts_with("step 2, val_loss"));
    }

    #[test]
    fn rows_and_columns_that_one_file_lacks_are_named() {
        let missing = table(&[ROWS[0], ROWS[2]]);
        let said = |first: &str, second: &str| difference(first, second).unwrap();
        assert_eq!(said(&table(&ROWS), &missing), "step 2: stored, but not in the new rows");
        assert_eq!(said(&missing, &table(&ROWS)), "step 2: in the new rows, but not stored");
        assert_eq!(said(&table(&ROWS), &table(&ROWS[..2])), "step 3: stored, but not in the new rows");
        assert_eq!(said(&table(&ROWS[..2]), &table(&ROWS)), "step 3: in the new rows, but not stored");
        assert_eq!(said(&table(&ROWS), &table(&[])), "step 1: stored, but not in the new rows");
        // A later version may add columns and order them differently.
        let (old, new) = ("step,loss\n1,2.5\n", "loss,step,val_loss/news\n2.5,1,3\n");
        assert_eq!(difference(old, new), None);
        assert_eq!(said(new, old), "column val_loss/news: stored, but not in the new rows");
    }

    #[test]
    fn a_torn_last_row_is_left_out_and_other_damage_is_an_error() {
        let torn = table(&ROWS) + "4,256,1";
        assert_eq!(difference(&torn, &table(&ROWS)), None);
        assert_eq!((cells(&torn).len(), cells(HEADER).is_empty()), (3, true));
        for (damaged, said) in [
            ("", "there is no column `step`"),
            ("a,b\n1,2\n", "there is no column `step`"),
            ("step,loss\n1\n", "line: 2"),
            ("step,loss\n1,2\n1,2\n", "line 3: step 1 comes after step 1"),
            ("step,loss\nx,2\n", "line 2: `x` is not a step"),
        ] {
            let why = RowCells::parse(damaged.as_bytes()).unwrap_err();
            assert!(why.contains(said), "{damaged:?}: {why}");
        }
    }

    #[test]
    fn numbers_of_a_column_leave_out_blanks() {
        assert_eq!(cells(&table(&ROWS)).numbers("val_loss"), [(2, 4.125)]);
        assert_eq!(cells(&table(&ROWS)).numbers("none"), []);
    }
}
