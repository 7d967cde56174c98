//! The figure of one measure of a quality comparison: both values of every pair, and their differences with
//! the mean, its interval and the smallest difference that matters.

use crate::curve::{Points, Scale as Axis};
use crate::error::Result;
use crate::format::{decimal, significant};
use crate::report::axis::pad;
use crate::report::chart::{self, Figure, Look, Mark, Panel, Series};
use crate::report::theme::{Hue, THEMES};
use crate::results::experiment::{Experiment, Finding};
use crate::results::folder::PLOTS;
use crate::results::measure::Scale;
use std::path::{Path, PathBuf};

/// Characters of an arm's label in the legend.
const MAX_LABEL: usize = 22;

/// The most pairs whose numbers fit below the figure.
const MAX_TICKS: usize = 30;

/// Returns the path of the figure of a measure, without theme and extension.
pub fn stem(folder: &Path, judged: &Finding) -> PathBuf {
    let name = judged.measure.to_string();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    folder.join(PLOTS).join(format!("pairs-{}", name.chars().map(plain).collect::<String>()))
}

/// Draws the figure in every theme. Returns `None` if no pair has a value of both arms.
pub fn pairs(comparison: &Experiment, judged: &Finding) -> Option<Result<Vec<(&'static str, String)>>> {
    let text = judged.measure.to_string();
    let pairs: Vec<(f64, (f64, f64))> = comparison
        .pairs()
        .enumerate()
        .filter_map(|(at, pair)| {
            let [baseline, candidate] = pair.values(&judged.measure);
            Some((at as f64 + 1.0, baseline.zip(candidate)?))
        })
        .collect();
    if pairs.is_empty() {
        return None;
    }
    let pair_count = comparison.pairs().count();
    let count = pair_count as f64;
    let mut panels = vec![values(comparison, judged, &pairs)];
    panels.extend(differences(judged, &pairs, count));
    let mut parts = vec![comparison.id.clone(), judged.verdict.words().to_owned()];
    parts.extend(judged.interval.map(|interval| {
        let shown = |value: f64| shown(judged.scale, value);
        format!(
            "mean difference {} ({} to {})",
            shown(interval.estimate),
            shown(interval.low),
            shown(interval.high)
        )
    }));
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
    Some(THEMES.iter().map(|theme| Ok((theme.name, chart::svg(&figure, theme)?))).collect())
}

/// Returns the panel of the values of both arms.
fn values(comparison: &Experiment, judged: &Finding, pairs: &[(f64, (f64, f64))]) -> Panel {
    let arm = |name: &str, label: &str, hue, value: fn((f64, f64)) -> f64| Series {
        name: format!("{name}: {}", cut(label)),
        hue,
        look: Look::Dots,
        points: pairs.iter().map(|(at, both)| (*at, value(*both))).collect(),
    };
    let series = vec![
        arm("baseline", &comparison.baseline().label, Hue::Blue, |both| both.0),
        arm("candidate", &comparison.candidate().label, Hue::Orange, |both| both.1),
    ];
    let range = range(series.iter().flat_map(|series| series.points.iter().map(|point| point.1)));
    Panel {
        y_name: format!("{} ({})", judged.measure, judged.unit),
        y: pad(range, Axis::Linear, 0.12, 0.12),
        scale: Axis::Linear,
        y_label: tick,
        series,
        marks: Vec::new(),
    }
}

/// Returns the panel of the differences, their mean and its interval, or `None` if ranks are compared.
fn differences(judged: &Finding, pairs: &[(f64, (f64, f64))], count: f64) -> Option<Panel> {
    let interval = judged.interval?;
    let points: Points = pairs
        .iter()
        .map(|(at, (baseline, candidate))| match judged.scale {
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
        series.push(Series {
            name: format!("± {} does not matter", effect_shown(judged.scale, effect)),
            hue: Hue::Green,
            look: Look::Band,
            points: corners.to_vec(),
        });
    }
    ends.extend(points.iter().map(|point| point.1));
    let mean = count + 1.5;
    let one = |name: &str, look, points| Series { name: name.to_owned(), hue: Hue::Purple, look, points };
    // These series need no legend entry, because the axes name them.
    series.push(one("", Look::Dots, points));
    series.push(one("", Look::Bold, vec![(mean, interval.low), (mean, interval.high)]));
    series.push(one("", Look::Bold, vec![(mean - 0.3, interval.estimate), (mean + 0.3, interval.estimate)]));
    let name = match judged.scale {
        Scale::Difference => format!("candidate - baseline ({})", judged.unit),
        Scale::Ratio => "candidate ÷ baseline - 1".to_owned(),
    };
    Some(Panel {
        y_name: name,
        y: pad(range(ends.into_iter()), Axis::Linear, 0.12, 0.12),
        scale: Axis::Linear,
        y_label: tick,
        series,
        marks: vec![Mark { value: 0.0, name: "equal", label: "0".to_owned(), from_x: 0.5 }],
    })
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let finite = values.filter(|value| value.is_finite());
    let range = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), y| (low.min(y), high.max(y)));
    if range.0 <= range.1 { range } else { (0.0, 1.0) }
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

fn cut(label: &str) -> String {
    match label.char_indices().nth(MAX_LABEL) {
        Some((end, _)) => format!("{}…", &label[..end]),
        None => label.to_owned(),
    }
}
