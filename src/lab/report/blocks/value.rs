//! A single figure of a kept run or comparison, to show in a sentence.

use super::columns::{self, Column, NumberForm};
use super::comparison;
use super::kept::KeptRun;
use super::kept_comparison::{self, KeptComparison};
use super::page_context::{PageContext, Rendered};
use super::runs;
use super::spec::Spec;
use super::text::did_you_mean;
use super::why::Why;
use crate::format::{decimal, short};
use crate::metrics;
use crate::results::experiment::{Experiment, Finding};

/// Figures of comparisons as a whole. Figures of their arms are called `before.NAME` and `after.NAME`.
const COMPARISON_COLUMNS: [&str; 4] = ["ratio", "ratio_low", "ratio_high", "verdict"];

/// Decimals of a ratio.
const RATIO_DECIMALS: usize = 3;

/// Renders a figure of the selected run, which must be one.
pub fn render_run_value(
    context: &PageContext<'_>,
    spec: &Spec,
    column: &Column,
    form: NumberForm,
) -> Result<Rendered, Vec<Why>> {
    let runs = runs::select(context, spec)?;
    let [run] = &runs[..] else {
        let ids: Vec<&str> = runs.iter().map(|run| run.source.id.as_str()).collect();
        return Err(vec![correct(format!("a value shows one run, but several match: {}", ids.join(", ")))]);
    };
    if let Some(remark) = runs::remark(run) {
        let why = format!("a number in a sentence cannot show that {} is {remark}", run.source.id);
        return Err(vec![Why::fixed_by(why, "select another run, or show it in a table")]);
    }
    let text = match (column, form) {
        (Column::Named(name), form) if metrics::find(name).is_some() => {
            let figure = columns::run_figure(run, name).ok_or_else(|| vec![unmeasured(run, name)])?;
            shown(name, figure, form) + &columns::remark_on(run, name)
        }
        (Column::HeldOut { metric, set }, form) => {
            let figure = columns::held_out_figure(run, metric, set);
            shown(metric, figure.ok_or_else(|| vec![unmeasured(run, &format!("{metric}/{set}"))])?, form)
        }
        (Column::Score(name), NumberForm::Decimal(_)) if columns::score(run, name).is_none() => {
            return Err(vec![unmeasured(run, name)]);
        }
        (column, NumberForm::Decimal(None)) => columns::run_cell(run, column),
        _ => return Err(vec![correct("`digits` and `form` apply only to figures".to_owned())]),
    };
    let mut rendered = Rendered { text, ..Rendered::default() };
    rendered.add_runs(&runs);
    Ok(rendered)
}

/// Renders a figure of the newest selected comparison.
pub fn render_comparison_value(
    context: &PageContext<'_>,
    spec: &Spec,
    column: &str,
    form: NumberForm,
) -> Result<Rendered, Vec<Why>> {
    let [name] = &spec.select[..] else {
        return Err(vec![correct("a value shows one comparison".to_owned())]);
    };
    let kept = KeptComparison::newest(context, name, Experiment::has_trials)?;
    let mut rendered = kept_comparison::sources([&kept]);
    rendered.faults.extend(comparison::unlike(&kept, &spec.across).1);
    rendered.text = figure(&kept.found, column, form)?;
    Ok(rendered)
}

/// Formats a figure of a comparison.
fn figure(comparison: &Experiment, column: &str, form: NumberForm) -> Result<String, Vec<Why>> {
    let ratio = comparison.speed().and_then(Finding::ratio);
    let ratio = match column {
        "verdict" => return Ok(comparison.verdict_words()),
        "ratio" => ratio.map(|ratio| ratio.estimate),
        "ratio_low" => ratio.map(|ratio| ratio.low),
        "ratio_high" => ratio.map(|ratio| ratio.high),
        _ => {
            let arms = [("before", comparison.baseline()), ("after", comparison.candidate())];
            let (arm, name) = column.split_once('.').unwrap_or_default();
            let side = arms.iter().find(|(known, _)| *known == arm);
            if let Some(value) = side.and_then(|(_, side)| side.measured.get(name)) {
                return Ok(shown(name, *value, form));
            }
            let arm_columns = arms
                .iter()
                .flat_map(|(arm, side)| side.measured.keys().map(move |name| format!("{arm}.{name}")));
            let all: Vec<String> =
                COMPARISON_COLUMNS.iter().map(|name| (*name).to_owned()).chain(arm_columns).collect();
            let near = did_you_mean(column, all.iter().map(String::as_str));
            return Err(vec![correct(format!(
                "the comparison measured no `{column}`; it has {}{near}",
                all.join(", ")
            ))]);
        }
    };
    let ratio = ratio.ok_or_else(|| vec![correct("the comparison has no ratio".to_owned())])?;
    Ok(match form {
        NumberForm::Decimal(digits) => decimal(Some(ratio), digits.unwrap_or(RATIO_DECIMALS)),
        NumberForm::Short => short(ratio),
    })
}

/// Formats a figure that is given in its stored unit.
fn shown(name: &str, value: f64, form: NumberForm) -> String {
    let scaled = value / metrics::find(name).map_or(1.0, |metric| metric.divisor);
    match form {
        NumberForm::Decimal(None) => columns::value(name, Some(value)),
        NumberForm::Decimal(Some(digits)) => decimal(Some(scaled), digits),
        NumberForm::Short => short(scaled),
    }
}

fn unmeasured(run: &KeptRun, name: &str) -> Why {
    correct(format!("{} measured no `{name}`", run.source.id))
}

fn correct(why: String) -> Why {
    Why::fixed_by(why, "correct the marker's attributes, then render it")
}
