//! Figures of comparisons: the step blocks of every trial in the order of execution, and several comparisons
//! by the value of a key.

use super::kept_comparison::KeptComparison;
use crate::curve::{Points, Scale, finite_range};
use crate::error::Result;
use crate::format::{decimal, short};
use crate::report::axis::pad;
use crate::report::chart::{Figure, Look, Mark, Panel, Series};
use crate::report::picture::Svgs;
use crate::report::theme::Hue;
use crate::results::experiment::{Experiment, ExperimentRun, Finding};
use crate::results::quantiles;

/// A comparison at one value of the key that orders a series.
pub struct Member {
    /// The key's value.
    pub at: f64,
    pub kept: KeptComparison,
}

/// The name of the figure of a comparison's step blocks, without theme and extension.
pub const BLOCKS: &str = "blocks";

/// Half of the width of a trial, in trials.
const HALF_TRIAL_WIDTH: f64 = 0.36;

/// Draws the step blocks of every trial, in every theme. Returns `None` if no trial has any.
pub fn blocks(comparison: &Experiment) -> Option<Result<Svgs>> {
    let range = finite_range(comparison.runs.iter().flat_map(|trial| &trial.blocks).copied())?;
    // If the arms differ little, the axis shows only a part of its range so that they can be told apart.
    let is_cut = range.0 > 0.5 * range.1;
    let mut series = Vec::new();
    let arms = [
        ("before", &comparison.baseline().label, Hue::Blue),
        ("after", &comparison.candidate().label, Hue::Orange),
    ];
    for (at, (arm, label, hue)) in arms.into_iter().enumerate() {
        let trials = || comparison.runs.iter().enumerate().filter(move |(_, trial)| trial.arm == at);
        let dots: Points = trials().flat_map(|(index, trial)| dots(index, trial)).collect();
        let medians: Points = trials().flat_map(|(index, trial)| median(index, trial)).collect();
        series.push(Series::new(arm_name(arm, label), hue, Look::Dots, dots));
        series.push(Series::new("median", hue, Look::Bold, medians));
    }
    let mut parts = vec![comparison.id.clone()];
    parts.extend(comparison.speed().and_then(Finding::ratio).map(|ratio| {
        format!("after ÷ before {:.3} ({:.3} to {:.3})", ratio.estimate, ratio.low, ratio.high)
    }));
    parts.push(comparison.verdict_words());
    let y = if is_cut { pad(range, Scale::Linear, 0.08, 0.08) } else { (0.0, 1.08 * range.1) };
    let y_name = format!("tokens per second in blocks of steps{}", if is_cut { CUT } else { "" });
    let figure = Figure {
        title: format!("{}: before and after", comparison.name),
        subtitle: parts.join("  ·  "),
        panels: vec![Panel::new(y_name, y, whole, series)],
        x_name: "trial".to_owned(),
        x: (0.5, comparison.runs.len() as f64 + 0.5),
        x_at: None,
    };
    Some(figure.draw())
}

/// Draws, in every theme, both arms of comparisons by the value of a key above, and their ratios with 95 %
/// intervals below.
pub fn series(members: &[Member], over: &str) -> Result<Svgs> {
    let lines = lines(members);
    let points = |value: &dyn Fn(&Experiment) -> Option<f64>| -> Points {
        let of = |line: &Vec<&Member>| -> Points {
            let points = line.iter().filter_map(|member| Some((member.at, value(&member.kept.found)?)));
            points.chain([(f64::NAN, f64::NAN)]).collect()
        };
        lines.iter().flat_map(of).collect()
    };
    let before = points(&|comparison| comparison.baseline().measured.get("tok_s").copied());
    let after = points(&|comparison| comparison.candidate().measured.get("tok_s").copied());
    let fastest = before.iter().chain(&after).map(|point| point.1).fold(0.0, f64::max);
    let ratios = points(&|comparison| Some(comparison.speed()?.ratio()?.estimate));
    let ranges = members.iter().filter_map(|member| Some((member.at, member.kept.found.speed()?.ratio()?)));
    let bars: Points =
        ranges.flat_map(|(at, ratio)| [(at, ratio.low), (at, ratio.high), (at, f64::NAN)]).collect();
    let ends = bars.iter().map(|point| point.1).filter(|end| end.is_finite());
    let (low, high) = ends.fold((1.0_f64, 1.0_f64), |(low, high), end| (low.min(end), high.max(end)));
    let ends = finite_range(members.iter().map(|member| member.at)).unwrap_or_default();
    let x = pad(ends, Scale::Linear, 0.08, 0.08);
    let mut at: Vec<f64> = members.iter().map(|member| member.at).collect();
    at.dedup();
    let mut names: Vec<&str> = lines.concat().iter().map(|member| member.kept.found.name.as_str()).collect();
    names.dedup();
    let speeds = vec![
        Series::new("before", Hue::Blue, Look::Dotted, before),
        Series::new("after", Hue::Orange, Look::Dotted, after),
    ];
    let ratios = vec![
        Series::new("ratio", Hue::Purple, Look::Dots, ratios),
        Series::new("its 95 % interval", Hue::Purple, Look::Bold, bars),
    ];
    let from_zero = (0.0, pad((0.0, fastest), Scale::Linear, 0.0, 0.1).1);
    let y = pad((low, high), Scale::Linear, 0.15, 0.1);
    let figure = Figure {
        title: format!("{}: before and after", names.join(", ")),
        subtitle: format!("by {over}"),
        panels: vec![
            Panel::new("tokens per second", from_zero, short, speeds),
            Panel {
                marks: vec![Mark { value: 1.0, name: "equal", label: "1".to_owned(), from_x: x.0 }],
                ..Panel::new(format!("after ÷ before{CUT}"), y, whole, ratios)
            },
        ],
        x_name: over.to_owned(),
        x,
        x_at: Some(at.into_iter().map(|tick| (tick, tick.to_string())).collect()),
    };
    figure.draw()
}

/// Added to the name of an axis that does not start at 0.
const CUT: &str = ", axis does not start at 0";

/// Most characters of an arm in a legend.
const MAX_LABEL: usize = 36;

/// Returns the legend entry of an arm, such as `before: engine.graph=false`.
fn arm_name(arm: &str, label: &str) -> String {
    if label.chars().count() <= MAX_LABEL {
        return format!("{arm}: {label}");
    }
    let shown: String = label.chars().take(MAX_LABEL - 1).collect();
    format!("{arm}: {shown}…")
}

/// Groups the comparisons that one line joins: all of one name, or all together if every name is different.
fn lines(members: &[Member]) -> Vec<Vec<&Member>> {
    let mut lines: Vec<Vec<&Member>> = Vec::new();
    for member in members {
        match lines.iter_mut().find(|line| line[0].kept.found.name == member.kept.found.name) {
            Some(line) => line.push(member),
            None => lines.push(vec![member]),
        }
    }
    if lines.iter().all(|line| line.len() == 1) { vec![lines.concat()] } else { lines }
}

/// Formats a value with all digits before the point, so that arms that differ little have different labels.
fn whole(value: f64) -> String {
    decimal(Some(value), if value != 0.0 && value.abs() < 100.0 { 2 } else { 0 })
}

/// Returns the step blocks of a trial side by side, in the order of execution.
fn dots(index: usize, trial: &ExperimentRun) -> Points {
    let count = trial.blocks.len() as f64;
    let x = |block: usize| index as f64 + 1.0 + HALF_TRIAL_WIDTH * ((2 * block + 1) as f64 / count - 1.0);
    trial.blocks.iter().enumerate().map(|(block, value)| (x(block), *value)).collect()
}

/// Returns a line at the median of a trial, and a gap after it.
fn median(index: usize, trial: &ExperimentRun) -> Points {
    let middle = index as f64 + 1.0;
    let Some(value) = quantiles::median(trial.blocks.iter().copied()) else { return Points::new() };
    let end = middle + HALF_TRIAL_WIDTH;
    vec![(middle - HALF_TRIAL_WIDTH, value), (end, value), (end, f64::NAN)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn comparison(trials: &[ExperimentRun]) -> Experiment {
        let arm = json!({"label": "", "command": "", "settings": [], "measured": {}});
        let speed = json!({
            "measure": "tok_s", "unit": "tokens per second", "direction": "higher_is_better", "scale": "ratio",
            "confidence": 0.95, "pairs": 3, "interval": {"estimate": 0.24, "low": 0.22, "high": 0.257},
            "basis": "trials", "verdict": "better",
        });
        let record = json!({
            "name": "fused", "id": "20261122T000000Z-7d757a20", "intent": "unknown", "confidence": 0.95,
            "design": {"kind": "trials", "trials": trials.len()}, "rule": "", "arms": [arm.clone(), arm],
            "average": "mean", "train_loss": "smoothed", "changes": [], "history": [],
            "provenance": {"corpus_hashes": []}, "runs": trials, "findings": [speed], "contended": [],
            "notes": [], "finished": true,
        });
        serde_json::from_value(record).unwrap()
    }

    fn trial(arm: usize, around: f64, blocks: u32) -> ExperimentRun {
        let blocks = (0..blocks).map(|block| around + f64::from(block * 7 % 20) * 40.0).collect();
        ExperimentRun { arm, status: Some("ok".to_owned()), blocks, ..ExperimentRun::default() }
    }

    #[test]
    fn every_block_is_a_dot_and_every_trial_has_a_median() {
        let around = |i: u32| 20_000.0 + f64::from(i % 2) * 4000.0 + f64::from(i) * 90.0;
        let trials: Vec<ExperimentRun> = (0..6).map(|i| trial(i as usize % 2, around(i), 20)).collect();
        let drawn = blocks(&comparison(&trials)).unwrap().unwrap();
        for svg in &drawn {
            assert_eq!(svg.matches("<circle").count(), 6 * 20 + 2, "blocks and the legend");
            assert!(svg.contains("fused: before and after") && svg.contains("1.240 (1.220 to 1.257)"));
        }
        assert!(blocks(&comparison(&[trial(0, 1.0, 0)])).is_none(), "nothing to draw");
    }
}
