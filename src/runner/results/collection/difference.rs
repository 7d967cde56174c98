//! Finds everything that differs between two runs, even of different recipes: keys, environments, curves and
//! figures. Each column of their rows is compared over the steps that both runs have, to show where it begins
//! to differ and by how much. [`results::difference`](crate::results::difference) instead finds the first
//! cell that differs between a file and its repetition.

use super::location::locate;
use crate::error::{Error, Result};
use crate::metrics::{self, Metric, MetricsRow, ScoreColumn};
use crate::recipe::{StoredChange, StoredKeys, stored_diff};
use crate::results::columns::Figures;
use crate::results::folder::{ENVIRONMENT, METRICS, RESOLVED, read_summary};
use crate::results::provenance::Environment;
use crate::results::{rows, stored};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Parts of an environment that do not affect how a run was computed: its time, and the command line, whose
/// settings are recipe keys anyway.
const NOT_COMPARED: [&str; 2] = ["started", "command"];

/// The differences between two runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunDifference {
    /// `RECIPE/RUN` of each run.
    pub runs: [String; 2],
    /// Keys that differ.
    pub keys: Vec<StoredChange>,
    /// Facts in `env.json` that differ, and the device class and the corpus if they differ.
    pub environment: Vec<NamedDifference>,
    /// Columns of `metrics.csv`, over the steps that both runs have.
    pub curves: Vec<CurveDifference>,
    /// Number of steps that both runs have rows for.
    pub common_steps: usize,
    /// Number of steps that only one run has rows for, for each run.
    pub lone_steps: [usize; 2],
    /// The figures that either run has.
    pub figures: Vec<FigurePair>,
}

/// A fact with different values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamedDifference {
    /// Name of the fact, as in `env.json`.
    pub name: String,
    /// Both values; `None` if the fact is not recorded.
    pub values: [Option<String>; 2],
}

/// A column of `metrics.csv` in both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CurveDifference {
    pub column: String,
    /// The first step at which the bits differ, and both values; `None` if they never differ.
    pub first: Option<PointPair>,
    /// The step with the largest difference. A difference that is not a number counts as the largest.
    pub largest: Option<PointPair>,
    /// The last step at which both runs have a value.
    pub last: Option<PointPair>,
}

/// Both values of a column at one step; `None` for a run that has no value there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PointPair {
    pub step: u64,
    pub values: [Option<f64>; 2],
}

/// One figure in both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FigurePair {
    /// Name of the figure: the metric, or `METRIC/NAME` for a held-out set.
    pub name: String,
    /// Both values, in their stored unit.
    pub values: [Option<f64>; 2],
    /// How the figure is shown.
    #[serde(skip)]
    pub metric: &'static Metric,
}

impl PointPair {
    /// Returns the second value minus the first.
    pub fn difference(&self) -> Option<f64> {
        Some(self.values[1]? - self.values[0]?)
    }
}

impl RunDifference {
    /// Compares two runs.
    ///
    /// # Errors
    /// If a summary or another existing file cannot be read.
    pub fn between(runs: [&Path; 2]) -> Result<Self> {
        let [a, b] = [Side::read(runs[0])?, Side::read(runs[1])?];
        let keys = match (&a.keys, &b.keys) {
            (Some(a), Some(b)) => stored_diff(a, b),
            _ => Vec::new(),
        };
        let Curves { columns, common, lone } = Curves::between(&a.rows, &b.rows);
        let figures = [&a.figures, &b.figures];
        let figure = |metric: &'static Metric| FigurePair {
            name: metric.name.to_owned(),
            values: figures.map(|side| side.get(metric)),
            metric,
        };
        let set_figure = |set: &str, metric: &'static Metric| FigurePair {
            name: format!("{}/{set}", metric.name),
            values: figures.map(|side| side.get_for_set(metric, set)),
            metric,
        };
        let sets: BTreeSet<&str> = figures.iter().flat_map(|side| side.sets()).collect();
        let set_figures =
            sets.iter().flat_map(|set| metrics::set_metrics().map(|metric| set_figure(set, metric)));
        let scores: BTreeSet<String> = figures.iter().flat_map(|side| side.scores()).collect();
        let score = |column: &String| {
            let metric = &ScoreColumn::parse(column)?.score_figure()?.metric;
            let values = figures.map(|side| side.score(column));
            Some(FigurePair { name: column.clone(), values, metric })
        };
        let scores = scores.iter().filter_map(score);
        let figures = metrics::run_metrics().map(figure).chain(set_figures).chain(scores);
        Ok(Self {
            keys,
            environment: differing(&a.facts, &b.facts),
            curves: columns,
            common_steps: common,
            lone_steps: lone,
            figures: figures.filter(|pair| pair.values != [None; 2]).collect(),
            runs: [a.id, b.id],
        })
    }
}

/// One of the two runs.
struct Side {
    id: String,
    keys: Option<StoredKeys>,
    facts: BTreeMap<String, String>,
    rows: Vec<MetricsRow>,
    figures: Figures,
}

impl Side {
    fn read(run: &Path) -> Result<Self> {
        let summary = read_summary(run)?;
        let wrong = |file: &str, why: String| Error::failed(format!("{}: {why}", run.join(file).display()));
        let bytes = |file: &str| match stored::is_file(&run.join(file)) {
            true => stored::read(&run.join(file)).map(Some),
            false => Ok(None),
        };
        let keys = bytes(RESOLVED)?.map(|bytes| {
            let text = String::from_utf8(bytes).map_err(|e| wrong(RESOLVED, e.to_string()))?;
            StoredKeys::parse(&text).map_err(|why| wrong(RESOLVED, why))
        });
        let mut facts = BTreeMap::new();
        if let Some(bytes) = bytes(ENVIRONMENT)? {
            let value: Value =
                serde_json::from_slice(&bytes).map_err(|e| wrong(ENVIRONMENT, e.to_string()))?;
            facts = facts_of_environment(value);
        }
        if let Some(corpus) = &summary.corpus_hash {
            facts.insert("corpus".to_owned(), corpus.clone());
        }
        let rows = bytes(METRICS)?.map_or(Ok(Vec::new()), |bytes| rows::parse(&run.join(METRICS), &bytes))?;
        let figures = Figures::as_printed(&summary);
        Ok(Self { id: locate(run)?.id, keys: keys.transpose()?, facts, rows, figures })
    }
}

/// Returns the facts in an `env.json` that tell how a run was computed, by name, including the device class.
pub fn facts_of_environment(value: Value) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    flatten("", &value, &mut facts);
    facts.retain(|name, _| !NOT_COMPARED.iter().any(|incidental| name.starts_with(incidental)));
    if let Ok(environment) = serde_json::from_value::<Environment>(value) {
        facts.insert("device class".to_owned(), environment.device_class());
    }
    facts
}

/// Adds every value in a JSON document under its path, with dots between names.
fn flatten(path: &str, value: &Value, facts: &mut BTreeMap<String, String>) {
    let inside = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(object) => object.iter().for_each(|(name, value)| flatten(&inside(name), value, facts)),
        Value::Null => {}
        Value::String(text) => _ = facts.insert(path.to_owned(), text.clone()),
        other => _ = facts.insert(path.to_owned(), other.to_string()),
    }
}

fn differing(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> Vec<NamedDifference> {
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    names
        .into_iter()
        .map(|name| NamedDifference {
            name: name.clone(),
            values: [a.get(name).cloned(), b.get(name).cloned()],
        })
        .filter(|difference| difference.values[0] != difference.values[1])
        .collect()
}

/// The columns of both runs, compared.
struct Curves {
    columns: Vec<CurveDifference>,
    common: usize,
    lone: [usize; 2],
}

impl Curves {
    fn between(a: &[MetricsRow], b: &[MetricsRow]) -> Self {
        let b_by_step: BTreeMap<u64, &MetricsRow> = b.iter().map(|row| (row.step, row)).collect();
        let pairs: Vec<(&MetricsRow, &MetricsRow)> =
            a.iter().filter_map(|row| Some((row, *b_by_step.get(&row.step)?))).collect();
        let fixed = MetricsRow::COLUMNS.iter().filter(|column| **column != "step");
        let further: BTreeSet<&String> = a.iter().chain(b).flat_map(|row| row.further.keys()).collect();
        let columns = fixed.map(|column| (*column).to_owned()).chain(further.into_iter().cloned());
        let column = |column: String| {
            let point = |(a, b): &(&MetricsRow, &MetricsRow)| PointPair {
                step: a.step,
                values: [a.value(&column), b.value(&column)],
            };
            let points: Vec<PointPair> = pairs.iter().map(point).collect();
            let bits = |value: Option<f64>| value.map(f64::to_bits);
            let differs = |point: &&PointPair| bits(point.values[0]) != bits(point.values[1]);
            let size = |point: &PointPair| {
                let size = point.difference().map(f64::abs);
                size.map_or(f64::NEG_INFINITY, |size| if size.is_nan() { f64::INFINITY } else { size })
            };
            let larger =
                |best: PointPair, next: PointPair| if size(&next) > size(&best) { next } else { best };
            CurveDifference {
                first: points.iter().find(differs).copied(),
                largest: points.iter().filter(differs).copied().reduce(larger),
                last: points.iter().rfind(|point| point.values.iter().all(Option::is_some)).copied(),
                column,
            }
        };
        let has_values = |curve: &CurveDifference| curve.last.is_some() || curve.first.is_some();
        Self {
            columns: columns.map(column).filter(has_values).collect(),
            common: pairs.len(),
            lone: [a.len() - pairs.len(), b.len() - pairs.len()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(step: u64, loss: f32, val_loss: Option<f32>) -> MetricsRow {
        MetricsRow {
            step,
            tokens_seen: step * 10,
            loss,
            val_loss,
            lr: 1e-3,
            grad_norm: 1.0,
            ..MetricsRow::default()
        }
    }

    fn curve<'a>(curves: &'a Curves, column: &str) -> &'a CurveDifference {
        curves.columns.iter().find(|curve| curve.column == column).unwrap()
    }

    #[test]
    fn the_first_step_with_other_bits_is_found() {
        let next = f32::from_bits(2.0_f32.to_bits() + 1);
        let a = [row(1, 3.0, None), row(2, 2.0, Some(2.5)), row(3, 1.5, None), row(4, 1.0, Some(1.0))];
        let mut b = a.clone();
        (b[1].loss, b[2].loss) = (next, 1.75);
        let curves = Curves::between(&a, &b[..3]);
        assert_eq!((curves.common, curves.lone), (3, [1, 0]));
        let loss = curve(&curves, "loss");
        let first = loss.first.unwrap();
        assert_eq!((first.step, first.values), (2, [Some(2.0), Some(f64::from(next))]), "by one bit");
        assert_eq!((loss.largest.unwrap().step, loss.largest.unwrap().difference()), (3, Some(0.25)));
        assert_eq!(loss.last.unwrap().values, [Some(1.5), Some(1.75)]);
        let val = curve(&curves, "val_loss");
        assert_eq!((val.first, val.last.unwrap().step), (None, 2));
        assert_eq!(curve(&Curves::between(&a, &a), "loss").first, None);
    }

    #[test]
    fn losses_of_each_held_out_set_are_a_curve() {
        let row = |step, sets: &[(&str, f32)]| MetricsRow {
            further: sets.iter().map(|(name, loss)| (format!("val_loss/{name}"), *loss)).collect(),
            ..row(step, 1.0, Some(2.0))
        };
        let a = [row(1, &[("code", 4.0), ("news", 3.0)]), row(2, &[("code", 2.0), ("news", f32::NAN)])];
        let b = [row(1, &[("news", 3.0), ("wiki", 1.0)]), row(2, &[("news", 2.5)])];
        let curves = Curves::between(&a, &b);
        let columns: Vec<&str> = curves.columns.iter().map(|curve| curve.column.as_str()).collect();
        assert_eq!(columns[columns.len() - 3..], ["val_loss/code", "val_loss/news", "val_loss/wiki"]);
        let news = curve(&curves, "val_loss/news");
        assert_eq!((news.first.unwrap().step, news.last.unwrap().values[1]), (2, Some(2.5)));
        let (code, wiki) = (curve(&curves, "val_loss/code"), curve(&curves, "val_loss/wiki"));
        assert_eq!((code.first.unwrap().values, code.last), ([Some(4.0), None], None));
        assert_eq!((wiki.first.unwrap().values, wiki.last), ([None, Some(1.0)], None));
        let same = Curves::between(&a, &a);
        assert!(same.columns.iter().all(|curve| curve.first.is_none()));
    }

    #[test]
    fn nan_and_missing_values_differ_from_numbers_and_not_from_themselves() {
        let a = [row(1, f32::NAN, Some(1.0)), row(2, 1.0, None)];
        let b = [row(1, f32::NAN, None), row(2, f32::NAN, None)];
        assert_eq!(curve(&Curves::between(&a, &a), "loss").first, None);
        let curves = Curves::between(&a, &b);
        let loss = curve(&curves, "loss");
        assert_eq!((loss.first.unwrap().step, loss.largest.unwrap().step), (2, 2));
        assert!(loss.first.unwrap().difference().unwrap().is_nan());
        let val = curve(&curves, "val_loss");
        assert_eq!((val.first.unwrap().values, val.last), ([Some(1.0), None], None));
        assert_eq!(Curves::between(&a, &[]).lone, [2, 0]);
    }

    #[test]
    fn facts_are_named_by_their_path() {
        let facts = |text: &str| {
            let mut facts = BTreeMap::new();
            flatten("", &serde_json::from_str(text).unwrap(), &mut facts);
            facts
        };
        let a = facts(r#"{"build": {"commit": "1", "dirty": false}, "gpu": null, "cpu": {"threads": 2}}"#);
        let b = facts(
            r#"{"build": {"commit": "2", "dirty": false}, "gpu": {"name": "H"}, "cpu": {"threads": 2}}"#,
        );
        let found: Vec<(String, [Option<String>; 2])> =
            differing(&a, &b).into_iter().map(|found| (found.name, found.values)).collect();
        let value = |text: &str| Some(text.to_owned());
        assert_eq!(
            found,
            [
                ("build.commit".to_owned(), [value("1"), value("2")]),
                ("gpu.name".to_owned(), [None, value("H")])
            ]
        );
    }
}
