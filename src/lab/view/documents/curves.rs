//! The curves of a run: columns of its rows over steps, tokens and seconds.

use super::number::{or_null, row_number};
use crate::curve::{self, CurveRow, Points, Scale, buckets, extremes, medians, whole_windows};
use crate::metrics::{self, Metric, MetricsRow, ScoreColumn, TimingRow, source_of_column};
use crate::view::known_rows::RunRows;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};

/// How many points may be requested, and the default.
pub const POINTS: RangeInclusive<usize> = 16..=20_000;
pub const USUAL_POINTS: usize = 1000;

/// The files that columns come from, as the page names them.
const METRICS_FILE: &str = "metrics";
const TIMING_FILE: &str = "timing";

/// Columns that are axes.
const AXES: [&str; 3] = ["step", "tokens_seen", "wall_s"];

/// What a request asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct CurvesRequest {
    /// The columns; `None` for all.
    pub columns: Option<Vec<String>>,
    /// Approximate number of points per column.
    pub points: usize,
    /// The steps to cover.
    pub steps: RangeInclusive<u64>,
    /// The scale on which the points are spread evenly.
    pub scale: Scale,
    pub smoothing: Smoothing,
}

/// How many rows each point of a smoothed curve is the median of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Smoothing {
    /// No smoothed curve.
    Off,
    /// A window of this width.
    Rows(usize),
    /// The window that plots use, [`curve::window`].
    Usual,
}

impl Default for CurvesRequest {
    /// Returns what a request without parameters asks for.
    fn default() -> Self {
        Self {
            columns: None,
            points: USUAL_POINTS,
            steps: 0..=u64::MAX,
            scale: Scale::Linear,
            smoothing: Smoothing::Off,
        }
    }
}

/// A column of rows.
struct Column {
    name: String,
    /// Its entry in the table of metrics. Columns of held-out sets and sources use the entry of their loss.
    metric: &'static Metric,
    file: &'static str,
}

impl Column {
    /// Returns the heading. That of a task's figure names the task.
    fn heading(&self) -> String {
        match (ScoreColumn::parse(&self.name), self.metric.heading) {
            (Some(score), _) => score.heading(),
            (None, "") => self.name.clone(),
            (None, heading) => heading.to_owned(),
        }
    }

    /// Returns the points of the whole run.
    fn points<'a>(&'a self, rows: &'a RunRows) -> Box<dyn Iterator<Item = (f64, f64)> + 'a> {
        match self.file {
            TIMING_FILE => Box::new(rows.timing.iter().filter_map(|row| row.point(&self.name))),
            _ => Box::new(rows.metrics.iter().filter_map(|row| row.point(&self.name))),
        }
    }
}

/// Returns the index range of the points at these steps.
fn places(points: &[(f64, f64)], steps: &RangeInclusive<u64>) -> Range<usize> {
    let from = points.partition_point(|point| (point.0 as u64) < *steps.start());
    let to = points.partition_point(|point| point.0 as u64 <= *steps.end());
    from..to.max(from)
}

/// Returns the columns of a run that have a value, as the page lists them.
pub fn metrics(rows: &RunRows) -> Vec<Value> {
    let entry = |column: Column| {
        json!({
            "name": column.name,
            "heading": column.heading(),
            "unit": column.metric.unit,
            "file": column.file,
            "decimals": column.metric.decimals,
            "meaning": column.metric.meaning,
        })
    };
    columns(rows).into_iter().filter(|column| column.points(rows).next().is_some()).map(entry).collect()
}

/// Returns the document `curves` of a run.
pub fn document(id: &str, version: &str, rows: &RunRows, asked: &CurvesRequest) -> Value {
    let is_asked = |column: &Column| asked.columns.as_ref().is_none_or(|names| names.contains(&column.name));
    let axes = Axes::new(rows);
    let mut metrics = Map::new();
    for column in columns(rows).into_iter().filter(is_asked) {
        let points: Points = column.points(rows).collect();
        let places = places(&points, &asked.steps);
        if !places.is_empty() {
            metrics.insert(column.name, curve(&points, places, column.metric, &axes, asked));
        }
    }
    let mut steps = rows.metrics.iter().map(|row| row.step).filter(|step| asked.steps.contains(step));
    let from = steps.next();
    json!({"id": id, "version": version, "from": from, "to": steps.next_back().or(from), "metrics": metrics})
}

/// Returns the columns that rows may have values in, from both files, and from held-out sets and sources.
fn columns(rows: &RunRows) -> Vec<Column> {
    let fixed = |metric: &'static Metric, file| Column { name: metric.name.to_owned(), metric, file };
    let is_axis = |metric: &&Metric| AXES.contains(&metric.name);
    let mut found: Vec<Column> = MetricsRow::METRICS
        .iter()
        .filter(|m| !is_axis(m))
        .map(|metric| fixed(metric, METRICS_FILE))
        .collect();
    let further: BTreeSet<&String> = rows.metrics.iter().flat_map(|row| row.further.keys()).collect();
    for name in further {
        if let Some(score) = ScoreColumn::parse(name).and_then(|column| column.score_figure()) {
            found.push(Column { name: name.clone(), metric: &score.metric, file: METRICS_FILE });
            continue;
        }
        let of = match source_of_column(name) {
            // The table's `train_loss` is the mean of several steps.
            Some(_) => "loss",
            None => name.split('/').next().unwrap_or_default(),
        };
        let metric = metrics::all().find(|metric| metric.name == of);
        found.extend(metric.map(|metric| Column { name: name.clone(), metric, file: METRICS_FILE }));
    }
    found.extend(TimingRow::METRICS.iter().filter(|m| !is_axis(m)).map(|metric| fixed(metric, TIMING_FILE)));
    found
}

/// Tokens and seconds at the ends of steps.
struct Axes {
    tokens: Vec<(u64, u64)>,
    seconds: Vec<(u64, f64)>,
}

impl Axes {
    fn new(rows: &RunRows) -> Self {
        Self {
            tokens: rows.metrics.iter().map(|row| (row.step, row.tokens_seen)).collect(),
            seconds: rows.steps().map(|row| (row.step, row.wall_s)).collect(),
        }
    }

    /// Returns the value of an axis at a step, if it is known.
    fn at<T: Copy>(axis: &[(u64, T)], step: u64) -> Option<T> {
        let place = axis.binary_search_by_key(&step, |(known, _)| *known).ok()?;
        axis.get(place).map(|(_, value)| *value)
    }

    /// Returns points on every axis with their values.
    fn axes_and_values(&self, points: &[(f64, f64)]) -> Value {
        let steps = || points.iter().map(|point| point.0 as u64);
        json!({
            "step": steps().collect::<Vec<_>>(),
            "tokens": steps().map(|step| Self::at(&self.tokens, step)).collect::<Vec<_>>(),
            "seconds": steps().map(|step| or_null(Self::at(&self.seconds, step))).collect::<Vec<_>>(),
            "value": points.iter().map(|point| row_number(point.1)).collect::<Vec<_>>(),
        })
    }
}

/// Returns the curve of the points at `range`. The medians and the count `rows` always cover the whole run,
/// so they do not depend on the part requested.
fn curve(
    points: &[(f64, f64)],
    range: Range<usize>,
    metric: &Metric,
    axes: &Axes,
    asked: &CurvesRequest,
) -> Value {
    let part = &points[range.clone()];
    let found = buckets(part, (asked.points / 2).max(1), asked.scale);
    let is_exact = part.len() <= asked.points;
    let kept: Points = match is_exact {
        true => part.to_vec(),
        false => {
            found.iter().flat_map(|bucket| extremes(part, bucket.clone())).map(|place| part[place]).collect()
        }
    };
    let mut curve = axes.axes_and_values(&kept);
    curve["unit"] = metric.unit.into();
    curve["rows"] = points.len().into();
    curve["exact"] = is_exact.into();
    let smooth = window(asked.smoothing, points.len()).map(|window| {
        let whole = whole_windows(points.len(), window);
        let ends: Vec<usize> = match is_exact {
            true => range.collect(),
            false => found.iter().map(|bucket| range.start + bucket.end - 1).collect(),
        };
        let smooth = medians(points, window, ends.into_iter().filter(|place| whole.contains(place)));
        axes.axes_and_values(&smooth)
    });
    curve["smooth"] = smooth.unwrap_or_default();
    curve
}

/// Returns how many rows each median covers, or `None` if the curve is not smoothed.
fn window(smoothing: Smoothing, rows: usize) -> Option<usize> {
    match smoothing {
        Smoothing::Off => None,
        Smoothing::Rows(rows) => Some(rows),
        Smoothing::Usual => Some(curve::window(rows)).filter(|window| *window > 1),
    }
}
