//! The figure of a chain of comparisons: the measure of every recipe, and its speed.

use crate::curve::{Points, Scale as Axis, finite_range};
use crate::error::Result;
use crate::format::{short, significant};
use crate::report::axis::pad;
use crate::report::chart::{Figure, Look, Panel, Series};
use crate::report::picture::Svgs;
use crate::report::theme::Hue;
use crate::results::experiment::Finding;
use crate::results::measure::Scale;

/// A recipe of the chain, as measured by the comparison that introduces it.
pub(super) struct Step {
    /// The arm's label.
    pub label: String,
    /// Mean of the measure over the arm's runs.
    pub value: Option<f64>,
    /// Median of the runs' tokens per second in the steady state; `None` if one of them has none.
    pub tok_s: Option<f64>,
}

/// Draws the figure in every theme. Recipes stand in the order of the chain. The bar of a recipe is the
/// interval of its difference to the previous recipe, drawn from that recipe's mean.
pub(super) fn chain(judged: &[&Finding], steps: &[Step]) -> Result<Svgs> {
    let points = |value: &dyn Fn(&Step) -> Option<f64>| -> Points {
        let all = steps.iter().enumerate();
        all.filter_map(|(at, step)| Some((at as f64, value(step)?))).collect()
    };
    let values = points(&|step| step.value);
    let speeds = points(&|step| step.tok_s);
    let bars: Points = judged
        .iter()
        .enumerate()
        .filter_map(|(at, judged)| {
            let (baseline, interval) = (judged.baseline?, judged.interval?);
            let end = |difference: f64| match judged.scale {
                Scale::Difference => baseline + difference,
                Scale::Ratio => baseline * (1.0 + difference),
            };
            let x = at as f64 + 1.0;
            Some([(x, end(interval.low)), (x, end(interval.high)), (x, f64::NAN)])
        })
        .flatten()
        .collect();
    let range = finite_range(values.iter().chain(&bars).map(|point| point.1)).unwrap_or((0.0, 1.0));
    let fastest = speeds.iter().map(|point| point.1).fold(0.0, f64::max);
    let (name, unit) = judged
        .first()
        .map_or((String::new(), String::new()), |judged| (judged.measure.to_string(), judged.unit.clone()));
    let series = vec![
        Series::new("mean of the recipe's runs", Hue::Blue, Look::Dotted, values),
        Series::new("interval of the difference to the recipe before", Hue::Orange, Look::Bold, bars),
    ];
    let y = pad(range, Axis::Linear, 0.12, 0.12);
    let mut panels = vec![Panel::new(format!("{name} ({unit})"), y, significant, series)];
    if !speeds.is_empty() {
        let series = vec![Series::new("", Hue::Green, Look::Dotted, speeds)];
        panels.push(Panel::new("tokens per second", (0.0, 1.1 * fastest), short, series));
    }
    let last = steps.len().saturating_sub(1) as f64;
    let figure = Figure {
        title: format!("{name} from change to change"),
        subtitle: format!("{} recipes, each the one before with one change", steps.len()),
        panels,
        x_name: "row of the table".to_owned(),
        x: (-0.5, last + 0.5),
        x_at: Some((0..steps.len()).map(|at| (at as f64, at.to_string())).collect()),
    };
    figure.draw()
}
