//! The curves of a run: columns of its rows over steps, tokens and seconds.

use super::number::{number, number_of_row, or_null};
use super::thinning::{Spread, buckets, kept, smoothed};
use crate::metrics::{self, Metric, MetricsRow, TimingRow};
use crate::view::known_rows::RunRows;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};

/// The fewest and the most points that may be asked for, and how many there are without a word.
pub const POINTS: RangeInclusive<usize> = 16..=20_000;
pub const USUAL_POINTS: usize = 1000;

/// Without a word, curves are smoothed over this part of their rows where they are written to a file.
const SMOOTHED_PART: usize = 50;

/// Columns that are axes.
const AXES: [&str; 3] = ["step", "tokens_seen", "wall_s"];

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// The columns; `None` for all.
    pub columns: Option<Vec<String>>,
    /// About how many points of each.
    pub points: usize,
    /// The steps.
    pub steps: RangeInclusive<u64>,
    /// How the steps are spread over the plot.
    pub spread: Spread,
    /// What is smoothed over.
    pub smoothing: Smoothing,
}

/// How many rows curves are smoothed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Smoothing {
    /// None.
    Off,
    /// So many.
    Rows(usize),
    /// A part of all.
    Usual,
}

impl Default for Asked {
    /// Returns what the document without parameters has.
    fn default() -> Self {
        Self {
            columns: None,
            points: USUAL_POINTS,
            steps: 0..=u64::MAX,
            spread: Spread::Linear,
            smoothing: Smoothing::Off,
        }
    }
}

/// A column of rows.
struct Column {
    name: String,
    /// Its entry in the table of metrics; of a held-out set, that of the loss.
    metric: &'static Metric,
    file: &'static str,
}

/// The points of a column over the whole run.
struct Points {
    steps: Vec<u64>,
    values: Vec<f64>,
}

impl Points {
    /// Returns those of a column: blanks are none.
    fn new(rows: &RunRows, column: &Column) -> Self {
        let known = values(rows, column).filter_map(|(step, value)| Some((step, value?)));
        let (steps, values) = known.unzip();
        Self { steps, values }
    }

    /// Returns the places of the points at these steps.
    fn places(&self, asked: &RangeInclusive<u64>) -> Range<usize> {
        let is_asked = |step: &u64| asked.contains(step);
        let from = self.steps.iter().position(is_asked).unwrap_or_default();
        let last = self.steps.iter().rposition(is_asked);
        from..last.map_or(from, |last| last + 1)
    }
}

/// Returns the columns of a run that have a value, as the page lists them.
pub fn metrics(rows: &RunRows) -> Vec<Value> {
    let with_values = columns(rows).into_iter().filter(|column| {
        let mut values = values(rows, column);
        values.any(|(_, value)| value.is_some())
    });
    let entry = |column: Column| {
        json!({
            "name": column.name,
            "heading": if column.metric.heading.is_empty() { column.name.as_str() } else { column.metric.heading },
            "unit": column.metric.unit,
            "file": column.file,
            "decimals": column.metric.decimals,
            "meaning": column.metric.meaning,
        })
    };
    with_values.map(entry).collect()
}

/// Returns the document `curves` of a run.
pub fn document(id: &str, version: &str, rows: &RunRows, asked: &Asked) -> Value {
    let is_asked = |column: &Column| asked.columns.as_ref().is_none_or(|names| names.contains(&column.name));
    let axes = Axes::new(rows);
    let mut metrics = Map::new();
    for column in columns(rows).into_iter().filter(is_asked) {
        let points = Points::new(rows, &column);
        let places = points.places(&asked.steps);
        if !places.is_empty() {
            metrics.insert(column.name, curve(&points, places, column.metric, &axes, asked));
        }
    }
    let mut steps = rows.metrics().iter().map(|row| row.step).filter(|step| asked.steps.contains(step));
    let from = steps.next();
    json!({"id": id, "version": version, "from": from, "to": steps.next_back().or(from), "metrics": metrics})
}

/// Returns the columns that rows may have values of: those of both files, and of held-out sets.
fn columns(rows: &RunRows) -> Vec<Column> {
    let fixed = |metric: &'static Metric, file| Column { name: metric.name.to_owned(), metric, file };
    let is_axis = |metric: &&Metric| AXES.contains(&metric.name);
    let mut found: Vec<Column> =
        MetricsRow::METRICS.iter().filter(|m| !is_axis(m)).map(|metric| fixed(metric, "metrics")).collect();
    let further: BTreeSet<&String> = rows.metrics().iter().flat_map(|row| row.held_out.keys()).collect();
    for name in further {
        let of = name.split('/').next().unwrap_or_default();
        let metric = metrics::all().find(|metric| metric.name == of);
        found.extend(metric.map(|metric| Column { name: name.clone(), metric, file: "metrics" }));
    }
    found.extend(TimingRow::METRICS.iter().filter(|m| !is_axis(m)).map(|metric| fixed(metric, "timing")));
    found
}

/// Returns the values of a column with their steps; `None` for a blank.
fn values<'a>(rows: &'a RunRows, column: &'a Column) -> Box<dyn Iterator<Item = (u64, Option<f64>)> + 'a> {
    let name = column.name.as_str();
    if column.file == "timing" {
        return Box::new(rows.steps().map(move |row| (row.step, row.number(name))));
    }
    Box::new(rows.metrics().iter().map(move |row| (row.step, row.value(name))))
}

/// Tokens and seconds at the ends of steps.
struct Axes {
    tokens: Vec<(u64, u64)>,
    seconds: Vec<(u64, f64)>,
}

impl Axes {
    fn new(rows: &RunRows) -> Self {
        Self {
            tokens: rows.metrics().iter().map(|row| (row.step, row.tokens_seen)).collect(),
            seconds: rows.steps().map(|row| (row.step, row.wall_s)).collect(),
        }
    }

    /// Returns what a step has on an axis, where it is known.
    fn at<T: Copy>(axis: &[(u64, T)], step: u64) -> Option<T> {
        let place = axis.binary_search_by_key(&step, |(known, _)| *known).ok()?;
        axis.get(place).map(|(_, value)| *value)
    }

    /// Returns the axes of points at these steps, by their names.
    fn at_steps(&self, steps: &[u64]) -> Map<String, Value> {
        let tokens: Vec<Option<u64>> = steps.iter().map(|step| Self::at(&self.tokens, *step)).collect();
        let seconds: Vec<Value> = steps.iter().map(|step| or_null(Self::at(&self.seconds, *step))).collect();
        [("step", json!(steps)), ("tokens", json!(tokens)), ("seconds", seconds.into())]
            .into_iter()
            .map(|(name, axis)| (name.to_owned(), axis))
            .collect()
    }
}

/// Returns the curve of the points at `range`. Their means are over points of the whole run, which `rows`
/// counts: both are the same whatever part is asked for.
fn curve(points: &Points, range: Range<usize>, metric: &Metric, axes: &Axes, asked: &Asked) -> Value {
    let (steps, values) = (&points.steps[range.clone()], &points.values[range.clone()]);
    let found = buckets(steps, (asked.points / 2).max(1), asked.spread);
    let is_exact = values.len() <= asked.points;
    let places: Vec<usize> = match is_exact {
        true => (0..values.len()).collect(),
        false => found.iter().flat_map(|bucket| kept(values, bucket.clone())).collect(),
    };
    let steps_of = |places: &[usize]| places.iter().map(|place| steps[*place]).collect::<Vec<u64>>();
    let mut curve = axes.at_steps(&steps_of(&places));
    let shown: Vec<Value> = places.iter().map(|place| number_of_row(values[*place])).collect();
    curve.insert("value".to_owned(), shown.into());
    curve.insert("unit".to_owned(), metric.unit.into());
    curve.insert("rows".to_owned(), points.values.len().into());
    curve.insert("exact".to_owned(), is_exact.into());
    let smooth = window(asked.smoothing, points.values.len()).map(|window| {
        let means = &smoothed(&points.values, window)[range];
        let ends: Vec<usize> = match is_exact {
            true => places.clone(),
            false => found.iter().map(|bucket| bucket.end - 1).collect(),
        };
        let mut smooth = axes.at_steps(&steps_of(&ends));
        let values: Vec<Value> = ends.iter().map(|place| number(means[*place])).collect();
        smooth.insert("value".to_owned(), values.into());
        Value::Object(smooth)
    });
    curve.insert("smooth".to_owned(), smooth.unwrap_or_default());
    Value::Object(curve)
}

/// Returns how many of a run's rows a mean is over; `None` where none is asked for.
fn window(smoothing: Smoothing, rows: usize) -> Option<usize> {
    match smoothing {
        Smoothing::Off => None,
        Smoothing::Rows(rows) => Some(rows),
        Smoothing::Usual => Some((rows / SMOOTHED_PART).max(1)),
    }
}
