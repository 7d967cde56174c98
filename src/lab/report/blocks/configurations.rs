//! Blocks of sweeps over seeds: the configurations, the best set, and the measure along every key.

use super::page_context::{PageContext, Rendered};
use super::spec::Spec;
use super::sweep::{self, SelectedCells, setting};
use super::text::{code, did_you_mean, interval, plain, table};
use super::why::Why;
use crate::format::{BLANK, decimal, plural};
use crate::metrics::{self, Metric};
use crate::report::picture::Picture;
use crate::report::sweep_plots;
use crate::results::configurations::{CellOutcome, Configuration, Configurations};
use crate::results::folder::PLOTS;
use crate::results::ledger::{Attempt, CellStatus};
use crate::results::run_figure::RunFigure;

/// Confidence level of intervals and of the best set, the same as in sweeps by default.
const CONFIDENCE: f64 = 0.95;

/// Renders a table of the configurations of a sweep, best first, and its figures.
pub fn render(context: &PageContext<'_>, spec: &Spec, column: &str) -> Result<Rendered, Vec<Why>> {
    let (key, metric) = measure(column)?;
    let [_] = &spec.select[..] else {
        return Err(vec![Why::fixed_by("a block of configurations shows one sweep", "name one in `select`")]);
    };
    let SelectedCells { cells, keys, differences, mut rendered, .. } = sweep::select(context, spec)?;
    let outcome = |cell: &'_ Attempt| cell.measured.get(key).map(|value| value / metric.divisor);
    let outcomes: Vec<CellOutcome<'_>> = cells
        .iter()
        .map(|cell| CellOutcome {
            settings: &cell.settings,
            status: Some(cell.status),
            value: outcome(cell).filter(|_| cell.status == CellStatus::Ok),
        })
        .collect();
    let recipe = cells.first().map_or("", |cell| cell.recipe.as_str());
    let found = Configurations::from_cells(recipe, &keys, &RunFigure::Metric(metric), CONFIDENCE, &outcomes);

    // The first source is the sweep; its runs follow.
    let plots = rendered.sources.first().map(|source| source.folder.join(PLOTS)).unwrap_or_default();
    let drawn = sweep_plots::draw(&found).map_err(|e| vec![Why::stale(e.message())])?;
    rendered.text = format!("{}\n{}\n", rows(&found, metric), conclusion(&found));
    for Picture { name, svgs } in drawn {
        let said = format!("{} by {name}: {}", found.measure, best(&found));
        let stem = plots.join(format!("{column}-{name}"));
        rendered.add_figure(context, &stem, Ok(svgs), spec.alt.as_ref().unwrap_or(&said))?;
    }
    rendered.end(&sweep::origin(&rendered.sources, &cells, context), differences);
    Ok(rendered)
}

/// Returns a measure that a ledger has for every cell, with its ledger key.
fn measure(column: &str) -> Result<(&'static str, &'static Metric), Vec<Why>> {
    let all = metrics::ledger_metrics();
    all.iter().find(|(_, metric)| metric.name == column).copied().ok_or_else(|| {
        let names = all.iter().map(|(_, metric)| metric.name);
        let near = did_you_mean(column, names.clone());
        let why =
            format!("ledgers have no `{column}`; they have {}{near}", names.collect::<Vec<_>>().join(", "));
        vec![Why::fixed_by(why, "correct `column`")]
    })
}

/// Returns a row per configuration: first those with a mean, best first, then the others.
fn rows(found: &Configurations, metric: &Metric) -> String {
    let shown = |value: Option<f64>| decimal(value, metric.decimals);
    let estimated = |found| interval(found, |value| shown(Some(value)));
    let mut headings: Vec<String> = found.keys.iter().map(|key| code(key)).collect();
    let percent = decimal(Some(100.0 * found.confidence), 0);
    headings.push(format!(">{} ({percent} % interval)", metric.heading));
    headings.push(">deviation over seeds".to_owned());
    headings.push(">difference to the best of the others".to_owned());
    headings.extend([&found.set_name, ">runs", "remarks"].map(str::to_owned));
    let ranked = found.ranked();
    let others = found.configurations.iter().filter(|one| one.mean.is_none());
    let row = |one: &Configuration| {
        let mut row: Vec<String> = found.keys.iter().map(|key| setting(&one.settings, key)).collect();
        row.push(one.estimate.map_or_else(|| shown(one.mean), |estimate| estimated(estimate.mean)));
        row.push(shown(one.deviation));
        row.push(one.estimate.map_or(BLANK.to_owned(), |estimate| estimated(estimate.difference_to_best)));
        row.push(match one.in_best_set() {
            Some(true) => "**yes**".to_owned(),
            Some(false) => "no".to_owned(),
            None => BLANK.to_owned(),
        });
        row.push(one.values.iter().flatten().count().to_string());
        row.push(if one.others.is_empty() { String::new() } else { plain(&one.remarks()) });
        row
    };
    table(&headings, &ranked.into_iter().chain(others).map(row).collect::<Vec<_>>())
}

/// Returns the best set in a sentence, with the number of seeds and what it does not tell.
fn conclusion(found: &Configurations) -> String {
    let seeds = found.seeds.iter().filter(|seed| !seed.is_empty()).count().max(1);
    let basis = match found.not_compared {
        None => format!("; over {seeds} seed{}, by differences within seeds", plural(seeds)),
        Some(_) => String::new(),
    };
    let caveat = found.caveat.iter().map(|caveat| format!(" {}.", plain(&capitalized(caveat))));
    format!("{}{basis}.{}\n", capitalized(&best(found)), caveat.collect::<String>())
}

/// Returns which configurations may be the best, or why that is unknown.
fn best(found: &Configurations) -> String {
    if let Some(why) = &found.not_compared {
        return format!("no {}: {}", found.set_name, plain(why));
    }
    let best = found.best_set();
    let names: Vec<String> = best.iter().map(|one| code(&one.name(&found.keys))).collect();
    format!(
        "the {} has {} of {} configuration{}: {}",
        found.set_name,
        best.len(),
        found.configurations.len(),
        plural(found.configurations.len()),
        names.join(", ")
    )
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}
