//! Finds the first difference between a stored run and its replay: first in figures that tell the cause, then
//! in rows, in tensors, and in the resulting figures.

use super::stored_run::StoredRun;
use crate::checkpoint;
use crate::compare::judge::curves::{LossGap, LossPoint, largest_gap};
use crate::error::Result;
use crate::format::{plural, significant};
use crate::results::difference::{self, RowCells, RowDifference};
use crate::results::names::METRICS;
use serde_json::Value;
use std::fmt;

/// Summary figures that say what was trained. If one of these differs, so does everything else.
const CAUSES: [&str; 3] = ["corpus_hash", "parameters", "parameters_core"];

/// Summary figures that the training determines.
const RESULTS: [&str; 14] = [
    "steps",
    "tokens_seen",
    "train_loss",
    "source_losses",
    "val_loss",
    "ema_val_loss",
    "val_part",
    "held_out",
    "bits_per_byte",
    "uniform_loss",
    "floor",
    "val_loss_over_floor",
    "samples",
    "sentences",
];

/// Characters of a value that messages show.
const SHOWN: usize = 80;

/// A difference between a stored run and its replay.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    /// A figure in the summary.
    Figure {
        /// Its path in the JSON, joined by `.`.
        figure: String,
        /// The stored value, as JSON.
        stored: String,
        /// The new value, as JSON.
        new: String,
    },
    /// A row in `metrics.csv`.
    Row(RowDifference),
    /// A tensor in the checkpoint of a step.
    Tensor {
        /// The step of the checkpoint.
        step: u64,
        /// The tensor, its first element that differs, and both values, in words.
        found: String,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &str| value.chars().take(SHOWN).collect::<String>();
        match self {
            Self::Figure { figure, stored, new } => {
                write!(f, "{figure}: stored {}, new {}", shown(stored), shown(new))
            }
            Self::Row(row) => write!(f, "{METRICS}, {row}"),
            Self::Tensor { step, found } => write!(f, "checkpoint of step {step}: {found} (stored and new)"),
        }
    }
}

/// What was compared, and the first difference.
#[derive(Clone, Debug)]
pub struct Compared {
    /// The first difference; `None` if all bits are the same.
    pub difference: Option<Difference>,
    /// Number of stored rows.
    pub rows: usize,
    /// The step of the checkpoint that was compared; `None` if the runs share none.
    pub checkpoint: Option<u64>,
}

impl Compared {
    /// Compares everything that a stored run has with a new run. If the stored run ended early, only its rows
    /// and a checkpoint are compared, not the figures that depend on all rows.
    ///
    /// # Errors
    /// If a checkpoint cannot be read.
    pub fn between(stored: &StoredRun, new: &StoredRun) -> Result<Self> {
        let checkpoint = common_checkpoint(stored, new)?;
        let rows = stored.rows.as_ref().map_or(0, RowCells::len);
        let mut difference = figures(&CAUSES, stored, new).or_else(|| row(stored, new).map(Difference::Row));
        if let (None, Some(step)) = (&difference, checkpoint) {
            let at = |run: &StoredRun| checkpoint::at_step(&run.checkpoints(), step);
            let found = checkpoint::first_difference(&at(stored)?, &at(new)?)?;
            difference = found.map(|found| Difference::Tensor { step, found });
        }
        if difference.is_none() && stored.is_whole() {
            difference = figures(&RESULTS, stored, new);
        }
        Ok(Self { difference, rows, checkpoint })
    }

    /// Describes what was found to be the same.
    pub fn in_words(&self) -> String {
        let rows = format!("{} row{} of {METRICS}", self.rows, plural(self.rows));
        match self.checkpoint {
            Some(step) => format!("{rows}, and the checkpoint of step {step}"),
            None => format!("{rows}; no checkpoint is stored"),
        }
    }
}

fn row(stored: &StoredRun, new: &StoredRun) -> Option<RowDifference> {
    let (Some(first), Some(second)) = (&stored.rows, &new.rows) else {
        let first = stored.rows.as_ref()?;
        return first.numbers("step").first().map(|(step, _)| RowDifference::MissingRow { step: *step });
    };
    let last = first.numbers("step").last().map_or(0, |(step, _)| *step);
    difference::first_difference(first, second).filter(|found| {
        let goes_on = matches!(found, RowDifference::ExtraRow { step } if *step > last);
        stored.is_whole() || !goes_on
    })
}

/// Returns the first figure in the stored summary that the new summary has with another value, or lacks.
fn figures(names: &[&str], stored: &StoredRun, new: &StoredRun) -> Option<Difference> {
    names.iter().find_map(|name| figure(name, stored.printed.get(*name)?, new.printed.get(*name)))
}

/// Compares a value in two summaries. Members that the stored object lacks are not compared.
fn figure(path: &str, stored: &Value, new: Option<&Value>) -> Option<Difference> {
    match (stored, new) {
        (Value::Object(stored), Some(Value::Object(new))) => {
            stored.iter().find_map(|(name, value)| figure(&format!("{path}.{name}"), value, new.get(name)))
        }
        (Value::Array(stored), Some(Value::Array(new))) if stored.len() == new.len() => {
            let mut values = stored.iter().zip(new).enumerate();
            values.find_map(|(at, (value, new))| figure(&format!("{path}[{at}]"), value, Some(new)))
        }
        (stored, Some(new)) if stored == new => None,
        (stored, new) => Some(Difference::Figure {
            figure: path.to_owned(),
            stored: stored.to_string(),
            new: new.map_or("nothing".to_owned(), Value::to_string),
        }),
    }
}

/// Returns the last step that both runs have a checkpoint of.
fn common_checkpoint(stored: &StoredRun, new: &StoredRun) -> Result<Option<u64>> {
    let there = checkpoint::steps(&new.checkpoints())?;
    Ok(checkpoint::steps(&stored.checkpoints())?.into_iter().rev().find(|step| there.contains(step)))
}

/// Describes how far apart the losses of two runs are: the largest difference of training losses over the
/// steps that both have, and the last validation loss of each.
pub fn loss_distance(stored: &StoredRun, new: &StoredRun) -> Option<String> {
    let (first, second) = (stored.rows.as_ref()?, new.rows.as_ref()?);
    let curve = |rows: &RowCells| -> Vec<LossPoint> {
        rows.numbers("loss").into_iter().map(|(step, loss)| LossPoint::new(step, loss)).collect()
    };
    let LossGap { step, difference, .. } = largest_gap(&curve(second), &curve(first))?;
    let mut words =
        format!("training losses are at most {} nats/token apart, at step {step}", significant(difference));
    let last = |numbers: Vec<(u64, f64)>| numbers.last().map(|(_, loss)| *loss);
    if let (Some(old), Some(now)) = (last(first.numbers("val_loss")), last(second.numbers("val_loss"))) {
        words += &format!("; the last validation loss was {old} and is {now}");
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::provenance::Environment;
    use crate::results::summary::{Status, Summary};
    use serde_json::json;
    use std::path::PathBuf;

    const ROWS: &str = "step,loss,val_loss,grad_norm\n1,4.5,,1\n2,4.25,4.125,NaN\n3,4,,1\n";

    fn run(rows: &str, printed: Value) -> StoredRun {
        let mut summary = Summary::started("r", "1", "0", 3);
        (summary.status, summary.steps) = (Status::Ok, 3);
        StoredRun {
            folder: PathBuf::from("none"),
            id: "r/1".to_owned(),
            summary,
            printed,
            environment: Environment::detect(1, "2026-11-02T03:04:05Z".parse().unwrap()),
            rows: Some(RowCells::parse(rows.as_bytes()).unwrap()),
            remarks: Vec::new(),
        }
    }

    fn printed() -> Value {
        json!({
            "corpus_hash": "ab", "parameters": 12, "wall_s": 3.5,
            "val_loss": { "final": { "step": 2, "loss": 4.125 } },
            "samples": [{ "step": 3, "text": "Once" }],
        })
    }

    fn found(stored: &StoredRun, new: &StoredRun) -> Option<String> {
        Compared::between(stored, new).unwrap().difference.map(|found| found.to_string())
    }

    #[test]
    fn the_same_run_has_no_difference_and_measurements_do_not_count() {
        let mut slower = printed();
        slower["wall_s"] = json!(9.5);
        slower["floor"] = json!(1.0);
        let compared = Compared::between(&run(ROWS, printed()), &run(ROWS, slower)).unwrap();
        assert_eq!(compared.difference, None);
        assert_eq!(compared.in_words(), "3 rows of metrics.csv; no checkpoint is stored");
    }

    #[test]
    fn a_cause_comes_before_rows_and_a_result_after_them() {
        let stored = run(ROWS, printed());
        let rows = ROWS.replace("4.125", "4.5");
        let other = |path: &str, value: Value, rows: &str| {
            let mut changed = printed();
            *changed.pointer_mut(path).unwrap() = value;
            found(&stored, &run(rows, changed)).unwrap()
        };
        let row = "metrics.csv, step 2, val_loss: stored 4.125, new 4.5";
        assert_eq!(other("/corpus_hash", json!("cd"), &rows), r#"corpus_hash: stored "ab", new "cd""#);
        assert_eq!(other("/val_loss/final/loss", json!(4.5), &rows), row);
        assert_eq!(
            other("/val_loss/final/loss", json!(4.5), ROWS),
            "val_loss.final.loss: stored 4.125, new 4.5"
        );
        let text = other("/samples/0/text", json!("Twice"), ROWS);
        assert_eq!(text, r#"samples[0].text: stored "Once", new "Twice""#);
        let mut lost = printed();
        lost["samples"] = json!([]);
        assert!(found(&stored, &run(ROWS, lost)).unwrap().starts_with("samples: stored ["));
    }

    #[test]
    fn a_run_that_ended_early_is_compared_up_to_its_end() {
        let mut stored = run(&ROWS[..ROWS.rfind("3,4").unwrap()], printed());
        let new = run(ROWS, printed());
        assert_eq!(found(&stored, &new).unwrap(), "metrics.csv, step 3: in the new rows, but not stored");
        stored.summary.status = Status::Interrupted;
        assert_eq!(found(&stored, &new), None);
        assert!(found(&new, &stored).unwrap().contains("step 3: stored, but not in the new rows"));
    }

    #[test]
    fn the_loss_distance_is_the_largest_over_steps() {
        let far = ROWS.replace("4.25,4.125", "4.75,4");
        let words = loss_distance(&run(ROWS, printed()), &run(&far, printed())).unwrap();
        assert_eq!(
            words,
            "training losses are at most 0.5 nats/token apart, at step 2; \
             the last validation loss was 4.125 and is 4"
        );
        let nan = ROWS.replace("3,4", "3,NaN");
        assert!(loss_distance(&run(ROWS, printed()), &run(&nan, printed())).unwrap().contains("inf nats"));
    }
}
