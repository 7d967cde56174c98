//! The figure of one measure of a quality comparison: both values of every pair, and their differences with
//! the mean, its interval and the smallest difference that matters.

use super::text::interval;
use crate::curve::{Points, Scale as Axis, finite_range};
use crate::error::Result;
use crate::format::{decimal, shortened, significant};
use crate::report::axis::pad;
use crate::report::chart::{Figure, Look, Mark, Panel, Series};
use crate::report::picture::Svgs;
use crate::report::theme::Hue;
use crate::results::experiment::{Experiment, Finding};
use crate::results::folder::PLOTS;
use crate::results::measure::Scale;
use crate::results::names::file_part;
use std::path::{Path, PathBuf};

/// Characters of an arm's label in the legend.
const MAX_LABEL: usize = 22;

/// The most pairs whose numbers fit below the figure.
const MAX_TICKS: usize = 30;

/// Returns the path of the figure of a measure, without theme and extension.
pub fn stem(folder: &Path, judged: &Finding) -> PathBuf {
    folder.join(PLOTS).join(format!("pairs-{}", file_part(&judged.measure.to_string())))
}

/// Draws the figure in every theme. Returns `None` if no pair has a value of both arms.
pub fn pairs(comparison: &Experiment, judged: &Finding) -> Option<Result<Svgs>> {
    let text = judged.measure.to_string();
    let pairs = both_values(comparison, judged);
    if pairs.is_empty() {
        return None;
    }
    let pair_count = comparison.pairs().count();
    let count = pair_count as f64;
    let mut panels = vec![values(comparison, judged, &pairs)];
    panels.extend(differences(judged, &pairs, count));
    let mut parts = vec![comparison.id.clone(), comparison.finding_words(judged)];
    parts.extend(
        judged
            .interval
            .map(|found| format!("mean difference {}", interval(found, |value| shown(judged.scale, value)))),
    );
    parts.extend(judged.p.map(|p| format!("p = {}", p_shown(p))));
    let figure = Figure {
        title: format!("{}: {text} of every pair", comparison.name),
        subtitle: parts.join("  ·  "),
        panels,
        x_name: match judged.interval {
            Some(_) => "pair; right of them the mean difference with its interval".to_owned(),
            None => "pair".to_owned(),
        },
        x: (0.5, count + if judged.interval.is_some() { 2.5 } else { 0.5 }),
        x_at: (pair_count <= MAX_TICKS)
            .then(|| (1..=pair_count).map(|at| (at as f64, at.to_string())).collect()),
    };
    Some(figure.draw())
}

/// Returns the number of each pair that has a value of both arms, and these values.
pub fn both_values(comparison: &Experiment, judged: &Finding) -> Vec<(f64, [f64; 2])> {
    let pairs = comparison.pairs().enumerate();
    pairs
        .filter_map(|(at, pair)| match pair.values(&judged.measure) {
            [Some(baseline), Some(candidate)] => Some((at as f64 + 1.0, [baseline, candidate])),
            _ => None,
        })
        .collect()
}

/// Returns the panel of the values of both arms.
fn values(comparison: &Experiment, judged: &Finding, pairs: &[(f64, [f64; 2])]) -> Panel {
    let arms = [("baseline", Hue::Blue), ("candidate", Hue::Orange)].into_iter().zip(&comparison.arms);
    let series = arms.enumerate().map(|(at, ((name, hue), arm))| {
        let points = pairs.iter().map(|(number, both)| (*number, both[at])).collect();
        Series::new(format!("{name}: {}", shortened(&arm.label, MAX_LABEL)), hue, Look::Dots, points)
    });
    let y = padded(pairs.iter().flat_map(|(_, both)| *both));
    Panel::new(format!("{} ({})", judged.measure, judged.unit), y, tick, series.collect())
}

/// Returns the panel of the differences, their mean and its interval, or `None` if ranks are compared.
fn differences(judged: &Finding, pairs: &[(f64, [f64; 2])], count: f64) -> Option<Panel> {
    let interval = judged.interval?;
    let points: Points = pairs
        .iter()
        .map(|(at, [baseline, candidate])| match judged.scale {
            Scale::Difference => (*at, candidate - baseline),
            Scale::Ratio => (*at, candidate / baseline - 1.0),
        })
        .collect();
    let end = count + 2.5;
    let mut series = Vec::new();
    let mut ends = vec![0.0, interval.low, interval.high];
    if let Some(effect) = judged.min_effect {
        let corners = [(0.5, effect), (end, effect), (end, -effect), (0.5, -effect)];
        ends.extend([effect, -effect]);
        let name = format!("± {} does not matter", effect_shown(judged.scale, effect));
        series.push(Series::new(name, Hue::Green, Look::Band, corners.to_vec()));
    }
    ends.extend(points.iter().map(|point| point.1));
    let mean = count + 1.5;
    // These series need no legend entry, because the axes name them.
    let one = |look, points| Series::new("", Hue::Purple, look, points);
    series.push(one(Look::Dots, points));
    series.push(one(Look::Bold, vec![(mean, interval.low), (mean, interval.high)]));
    series.push(one(Look::Bold, vec![(mean - 0.3, interval.estimate), (mean + 0.3, interval.estimate)]));
    let name = match judged.scale {
        Scale::Difference => format!("candidate - baseline ({})", judged.unit),
        Scale::Ratio => "candidate ÷ baseline - 1".to_owned(),
    };
    let marks = vec![Mark { value: 0.0, name: "equal", label: "0".to_owned(), from_x: 0.5 }];
    Some(Panel { marks, ..Panel::new(name, padded(ends), tick, series) })
}

/// Returns the range of values, with room at both ends.
fn padded(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    pad(finite_range(values).unwrap_or((0.0, 1.0)), Axis::Linear, 0.12, 0.12)
}

/// Formats a difference: in the measure's unit, or as a percentage.
pub fn shown(scale: Scale, value: f64) -> String {
    match scale {
        Scale::Difference => digits(value),
        Scale::Ratio => format!("{} %", digits(100.0 * value)),
    }
}

/// Formats a smallest effect with the digits in which it was set.
pub fn effect_shown(scale: Scale, effect: f64) -> String {
    match scale {
        Scale::Difference => significant(effect),
        Scale::Ratio => format!("{} %", significant(100.0 * effect)),
    }
}

/// Formats a number with four decimals, or with three significant digits if the decimals would be zeros.
fn digits(value: f64) -> String {
    if value != 0.0 && value.abs() < 1e-3 {
        return significant(value);
    }
    decimal(Some(value), 4)
}

/// Formats a p-value, never as 0.
pub fn p_shown(p: f64) -> String {
    if p < 1e-4 { format!("{p:.0e}") } else { decimal(Some(p), 4) }
}

fn tick(value: f64) -> String {
    let text = significant(value);
    if value != 0.0 && value.abs() < 1e-12 { "0".to_owned() } else { text }
}
