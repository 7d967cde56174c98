//! Figures of a sweep, drawn from its `configurations.json`: the measure along every axis, with intervals,
//! and a heat map of two axes.

use super::axis::{pad, ticks};
use super::chart::{Figure, Look, Panel, Series};
use super::heat_map::{self, HeatCell, HeatMap};
use super::picture::{Picture, in_themes, write};
use super::plots::{decimal, named_with_scale};
use super::theme::{HUES, Hue};
use crate::curve::{Points, Scale, finite_range};
use crate::error::{Error, Result};
use crate::format::{plural, shortened};
use crate::metrics;
use crate::regular;
use crate::results::configurations::{CONFIGURATIONS, Configuration, Configurations};
use std::collections::BTreeMap;
use std::path::Path;

/// Most values of an axis that each get a label. With more values, round numbers are labeled instead.
const MAX_LABELS: usize = 8;

/// Most rows and columns of a heat map with readable figures.
const MAX_SIDE: usize = 12;

/// Most characters of a legend entry.
const MAX_NAME: usize = 32;

/// Draws the sweep in a folder into `plots/NAME-THEME.svg`. Draws nothing if no axis has two measured values.
///
/// # Errors
/// If a file cannot be read or written.
pub fn render(sweep: &Path) -> Result<()> {
    let path = sweep.join(CONFIGURATIONS);
    let bytes = regular::read(&path, regular::MAX_TEXT)?;
    let found: Configurations = serde_json::from_slice(&bytes)
        .map_err(|e| Error::failed(format!("{}: not the configurations of a sweep: {e}", path.display())))?;
    write(sweep, &draw(&found)?)
}

/// Draws the figures.
///
/// # Errors
/// If a text cannot be drawn.
pub fn draw(found: &Configurations) -> Result<Vec<Picture>> {
    let measured: Vec<&Configuration> =
        found.configurations.iter().filter(|one| one.mean.is_some()).collect();
    let axes: Vec<Axis> = found.keys.iter().filter_map(|key| Axis::new(key, &measured)).collect();
    let mut pictures = Vec::new();
    for axis in &axes {
        let svgs = along(axis, &axes, found, &measured).draw()?;
        pictures.push(Picture { name: axis.key.clone(), svgs });
    }
    if let [x, y] = &axes[..]
        && let Some(map) = heat_map(x, y, found, &measured)
    {
        let svgs = in_themes(|theme| heat_map::svg(&map, theme))?;
        pictures.push(Picture { name: "heat-map".to_owned(), svgs });
    }
    Ok(pictures)
}

/// A key that varies, with the positions of its values.
#[derive(Debug)]
struct Axis {
    key: String,
    /// Values in the order of the axis, with their positions.
    values: Vec<(String, f64)>,
    /// Its name, with its scale.
    name: String,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Returns the axis of a key, or `None` if it has fewer than two values.
    fn new(key: &str, measured: &[&Configuration]) -> Option<Self> {
        let mut texts: Vec<String> = Vec::new();
        for text in measured.iter().filter_map(|one| one.settings.get(key)) {
            if !texts.contains(text) {
                texts.push(text.clone());
            }
        }
        if texts.len() < 2 {
            return None;
        }
        let number = |text: &String| text.parse::<f64>().ok().filter(|number| number.is_finite());
        let numbers: Option<Vec<f64>> = texts.iter().map(number).collect();
        let Some(numbers) = numbers else {
            let values: Vec<(String, f64)> =
                texts.into_iter().enumerate().map(|(at, text)| (text, at as f64)).collect();
            let ticks = values.iter().map(|(text, at)| (*at, label(text))).collect();
            return Some(Self { key: key.to_owned(), values, name: key.to_owned(), ticks });
        };
        let (low, high) = finite_range(numbers.iter().copied())?;
        // Use a log scale if positive numbers span a decade or more.
        let scale = if low > 0.0 && high >= 10.0 * low { Scale::Log } else { Scale::Linear };
        let mut values: Vec<(String, f64)> =
            texts.into_iter().zip(numbers).map(|(text, number)| (text, scale.place(number))).collect();
        values.sort_by(|(_, one), (_, other)| one.total_cmp(other));
        let ticks = match values.len() <= MAX_LABELS {
            true => values.iter().map(|(text, at)| (*at, label(text))).collect(),
            false => ticks(low, high, scale, MAX_LABELS)
                .into_iter()
                .map(|tick| (scale.place(tick), decimal(tick)))
                .collect(),
        };
        Some(Self { key: key.to_owned(), values, name: named_with_scale(key, scale), ticks })
    }

    /// Returns the position of a configuration.
    fn place(&self, one: &Configuration) -> Option<f64> {
        let text = one.settings.get(&self.key)?;
        self.values.iter().find(|(value, _)| value == text).map(|(_, place)| *place)
    }

    /// Returns the range of positions, with room at both ends.
    fn range(&self) -> (f64, f64) {
        let (low, high) = finite_range(self.values.iter().map(|(_, place)| *place)).unwrap_or_default();
        let room = 0.06 * (high - low);
        (low - room, high + room)
    }
}

/// Returns the measure along an axis: a line for each combination of the other keys if these are few,
/// otherwise a point for each configuration.
fn along(axis: &Axis, axes: &[Axis], found: &Configurations, measured: &[&Configuration]) -> Figure {
    let others: Vec<&Axis> = axes.iter().filter(|other| other.key != axis.key).collect();
    let mut groups: BTreeMap<Vec<&str>, Vec<&Configuration>> = BTreeMap::new();
    for &one in measured {
        let key = others.iter().map(|other| one.settings.get(&other.key).map_or("", String::as_str));
        groups.entry(key.collect()).or_default().push(one);
    }
    let is_drawn_as_lines = groups.len() <= HUES.len() && groups.values().all(|group| group.len() > 1);
    let mut series = Vec::new();
    if is_drawn_as_lines {
        for ((values, group), hue) in groups.iter().zip(HUES) {
            let named = others.iter().zip(values).map(|(other, value)| {
                let key = other.key.rsplit('.').next().unwrap_or(&other.key);
                format!("{key}={}", value.trim_matches('"'))
            });
            let name = match &others[..] {
                [] => "mean".to_owned(),
                _ => shortened(&named.collect::<Vec<_>>().join(" "), MAX_NAME),
            };
            series.extend(points_with_intervals(name, hue, Look::Dotted, axis, group));
        }
    } else {
        let (best, rest): (Vec<&Configuration>, Vec<&Configuration>) =
            measured.iter().copied().partition(|one| one.in_best_set() == Some(true));
        let groups = [("configurations", rest), (found.set_name.as_str(), best)];
        for ((name, group), hue) in groups.into_iter().zip(HUES).filter(|((_, group), _)| !group.is_empty()) {
            series.extend(points_with_intervals(name.to_owned(), hue, Look::Dots, axis, &group));
        }
    }
    let shown = measured.iter().filter_map(|one| {
        let mean = one.mean?;
        Some(one.estimate.map_or([mean; 2], |estimate| [estimate.mean.low, estimate.mean.high]))
    });
    let range = finite_range(shown.flatten()).unwrap_or_default();
    Figure {
        title: format!("{}: {} by {}", found.recipe, found.measure, axis.key),
        subtitle: subtitle(found),
        panels: vec![Panel::new(measure_name(found), pad(range, Scale::Linear, 0.08, 0.08), decimal, series)],
        x_name: axis.name.clone(),
        x: axis.range(),
        x_at: Some(axis.ticks.clone()),
    }
}

/// Returns the means of configurations, and their intervals, which have no legend entry.
fn points_with_intervals(
    name: String,
    hue: Hue,
    look: Look,
    axis: &Axis,
    group: &[&Configuration],
) -> Vec<Series> {
    let mut placed: Vec<(f64, &Configuration)> =
        group.iter().filter_map(|&one| Some((axis.place(one)?, one))).collect();
    placed.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let means: Points = placed.iter().filter_map(|(x, one)| Some((*x, one.mean?))).collect();
    // Each interval is a line; a value that is not finite separates them.
    let intervals: Points = placed
        .iter()
        .filter_map(|(x, one)| Some((*x, one.estimate?.mean)))
        .flat_map(|(x, mean)| [(x, mean.low), (x, mean.high), (x, f64::NAN)])
        .collect();
    let mut series = vec![Series::new(name, hue, look, means)];
    if !intervals.is_empty() {
        series.push(Series::new("", hue, Look::ErrorBar, intervals));
    }
    series
}

/// Returns the heat map of two axes, or `None` if they have many values or most combinations were not
/// measured.
fn heat_map(x: &Axis, y: &Axis, found: &Configurations, measured: &[&Configuration]) -> Option<HeatMap> {
    let (width, height) = (x.values.len(), y.values.len());
    if width.max(height) > MAX_SIDE || 2 * measured.len() < width * height {
        return None;
    }
    let decimals = metrics::find(&found.measure).map_or(3, |metric| metric.decimals);
    let ranked = found.ranked();
    let at = |column: &str, row: &str| -> Option<HeatCell> {
        let is_there = |one: &&&Configuration| {
            one.settings.get(&x.key).is_some_and(|value| value == column)
                && one.settings.get(&y.key).is_some_and(|value| value == row)
        };
        let rank = ranked.iter().position(|one| is_there(&one))?;
        let one = ranked[rank];
        Some(HeatCell {
            goodness: 1.0 - rank as f64 / (ranked.len().max(2) - 1) as f64,
            label: format!("{:.decimals$}", one.mean?),
            is_marked: one.in_best_set() == Some(true),
        })
    };
    let cells = y.values.iter().map(|(row, _)| x.values.iter().map(|(column, _)| at(column, row)).collect());
    let names = |axis: &Axis| axis.values.iter().map(|(text, _)| label(text)).collect::<Vec<String>>();
    Some(HeatMap {
        title: format!("{}: {} by {} and {}", found.recipe, measure_name(found), x.key, y.key),
        subtitle: format!("{}  ·  shade by rank, the {} outlined", subtitle(found), found.set_name),
        x_name: x.key.clone(),
        y_name: y.key.clone(),
        columns: names(x),
        rows: names(y),
        cells: cells.collect(),
    })
}

fn measure_name(found: &Configurations) -> String {
    match found.unit.as_str() {
        "" => found.measure.clone(),
        unit => format!("{} ({unit})", found.measure),
    }
}

fn subtitle(found: &Configurations) -> String {
    let seeds = found.seeds.len();
    let mut parts = vec![match seeds {
        1 => "one seed each".to_owned(),
        seeds => format!("means over {seeds} seeds"),
    }];
    if found.not_compared.is_none() {
        parts.push(format!("{} % intervals", 100.0 * found.confidence));
        let (best, of) = (found.best_set().len(), found.configurations.len());
        parts.push(format!("{}: {best} of {of} configuration{}", found.set_name, plural(of)));
    }
    parts.join("  ·  ")
}

/// Returns the label of a value, which is TOML.
fn label(value: &str) -> String {
    shortened(value.trim_matches('"'), MAX_NAME)
}

#[cfg(test)]
mod tests;
