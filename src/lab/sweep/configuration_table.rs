//! Writes the configurations of a sweep into its folder when the sweep ends: `configurations.json`, `.csv`
//! and `.md`.

use super::cell::Cell;
use super::table::{csv_bytes, text};
use crate::error::Result;
use crate::format::plural;
use crate::results::atomic;
use crate::results::columns::Figures;
use crate::results::configurations::{CONFIGURATIONS, CellOutcome, Configuration, Configurations};
use crate::results::folder::read_summary;
use crate::results::ledger::{Attempt, CellStatus, Ledger};
use crate::results::markdown::{self, plain};
use crate::results::run_figure::RunFigure;
use crate::statistics::{Direction, Interval};
use std::path::Path;

/// Number of best configurations to name in a message.
const NAMED: usize = 3;

/// What configurations are compared by.
#[derive(Clone, Debug)]
pub struct Measure {
    /// The figure of a run.
    pub figure: RunFigure,
    /// Probability that the intervals and the best set are right.
    pub confidence: f64,
}

impl Measure {
    /// Returns the value of an attempt, in the metric's unit; `None` unless it trained all its steps.
    pub fn value(&self, line: &Attempt, results: &Path) -> Option<f64> {
        if line.status != CellStatus::Ok {
            return None;
        }
        let metric = self.figure.metric();
        let stored = match metric.ledger {
            Some((_, key)) => line.measured.get(key),
            None => {
                let summary = read_summary(&results.join(line.run.as_ref()?)).ok()?;
                self.figure.value(&Figures::as_printed(&summary))
            }
        };
        stored.map(|value| value / metric.divisor)
    }
}

/// Summarizes the cells of a sweep from the last lines of the ledger.
pub fn summarize(
    recipe: &str,
    keys: &[String],
    measure: &Measure,
    cells: &[Cell],
    ledger: &Ledger,
    results: &Path,
) -> Configurations {
    let outcomes: Vec<CellOutcome<'_>> = cells
        .iter()
        .map(|cell| {
            let last = ledger.row(&cell.key);
            let value = last.and_then(|last| measure.value(last, results));
            CellOutcome { settings: &cell.settings, status: last.map(|last| last.status), value }
        })
        .collect();
    Configurations::from_cells(recipe, keys, &measure.figure, measure.confidence, &outcomes)
}

/// Writes the three files. `confirmation` is a sentence below the table.
///
/// # Errors
/// If the folder cannot be written.
pub fn write(
    folder: &Path,
    found: &Configurations,
    measure: &Measure,
    confirmation: Option<&str>,
) -> Result<()> {
    let path = folder.join(CONFIGURATIONS);
    atomic::write(&path, &atomic::json(found)?)?;
    atomic::write(&path.with_extension("csv"), &csv(found)?)?;
    let text = markdown(found, measure.figure.metric().decimals, confirmation);
    atomic::write(&path.with_extension("md"), text.as_bytes())
}

/// Describes the best set, as in `best set by val_loss (95 %): 2 of 9 configurations: …`, with what it does
/// not tell; `None` if nothing was compared.
pub fn best_in_words(found: &Configurations) -> Option<String> {
    let ranked = found.ranked();
    if found.configurations.len() < 2 || ranked.is_empty() {
        return None;
    }
    let (measure_name, of) = (&found.measure, found.configurations.len());
    if found.not_compared.is_some() {
        let reason = if found.seeds.len() < 2 { " (one seed each)" } else { "" };
        let best = if found.caveat.is_some() { found.set_name.as_str() } else { "best" };
        let named = ranked[0].name(&found.keys);
        return Some(format!("{best} by {measure_name}{reason}: {named}{}", caveat(found)));
    }
    let best = found.best_set();
    let mut names: Vec<String> = best.iter().take(NAMED).map(|one| one.name(&found.keys)).collect();
    if best.len() > NAMED {
        names.push(format!("and {} more", best.len() - NAMED));
    }
    Some(format!(
        "{} by {measure_name} ({} %): {} of {of} configuration{}: {}{}",
        found.set_name,
        100.0 * found.confidence,
        best.len(),
        plural(of),
        names.join("; "),
        caveat(found)
    ))
}

/// Returns what the best set does not tell, to be put behind it.
fn caveat(found: &Configurations) -> String {
    found.caveat.iter().map(|caveat| format!(". {caveat}")).collect()
}

/// Formats a number; one that rounds to zero has no sign.
fn rounded(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    match text.strip_prefix('-') {
        Some(zero) if zero.bytes().all(|byte| byte == b'0' || byte == b'.') => zero.to_owned(),
        _ => text,
    }
}

fn csv(found: &Configurations) -> Result<Vec<u8>> {
    let mut header = found.keys.clone();
    header.extend(
        [
            "cells",
            "mean",
            "low",
            "high",
            "deviation",
            "difference_to_best",
            "difference_low",
            "difference_high",
            &found.set_name.replace(' ', "_"),
            "remarks",
        ]
        .map(str::to_owned),
    );
    header.extend(found.seeds.iter().map(|seed| format!("seed_{seed}").trim_end_matches('_').to_owned()));
    let row = |one: &Configuration| {
        let interval = one.estimate.map(|estimate| estimate.mean);
        let difference = one.estimate.map(|estimate| estimate.difference_to_best);
        let numbers = [
            one.mean,
            interval.map(|i| i.low),
            interval.map(|i| i.high),
            one.deviation,
            difference.map(|i| i.estimate),
            difference.map(|i| i.low),
            difference.map(|i| i.high),
        ];
        let mut row: Vec<String> = found.keys.iter().map(|key| text(one.settings.get(key))).collect();
        row.push(one.cells.to_string());
        row.extend(numbers.map(text));
        row.extend([text(one.in_best_set()), one.remarks()]);
        row.extend(one.values.iter().map(|value| text(*value)));
        row
    };
    csv_bytes(&header, found.configurations.iter().map(row))
}

fn markdown(found: &Configurations, decimals: usize, confirmation: Option<&str>) -> String {
    let better = match found.direction {
        Direction::LowerIsBetter => "lower",
        Direction::HigherIsBetter => "higher",
    };
    let unit = if found.unit.is_empty() { String::new() } else { format!("{}, ", found.unit) };
    let mut text = format!("`{}` ({unit}{better} is better), the best first", found.measure);
    text += &match &found.not_compared {
        None => format!("; {} seeds, intervals of {} %", found.seeds.len(), 100.0 * found.confidence),
        Some(why) => format!("; no intervals: {why}"),
    };
    text += &format!("{}.\n\n", caveat(found));
    let mut header: Vec<String> = found.keys.iter().map(|key| format!("`{key}`")).collect();
    header.extend(
        ["mean", "interval", "deviation", "difference to the best other", &found.set_name, "remarks"]
            .map(str::to_owned),
    );
    let unranked = found.configurations.iter().filter(|one| one.mean.is_none());
    let row = |one: &Configuration| {
        let number = |value: f64| rounded(value, decimals);
        let range = |interval: Interval| format!("{} to {}", number(interval.low), number(interval.high));
        let shown = |value: Option<f64>| value.map(number).unwrap_or_default();
        let mut row: Vec<String> = found
            .keys
            .iter()
            .map(|key| plain(one.settings.get(key).map_or("", String::as_str).trim_matches('"')))
            .collect();
        let estimate = one.estimate;
        row.extend([
            shown(one.mean),
            estimate.map(|estimate| range(estimate.mean)).unwrap_or_default(),
            shown(one.deviation),
            estimate.map(|estimate| range(estimate.difference_to_best)).unwrap_or_default(),
            if one.in_best_set() == Some(true) { "yes".to_owned() } else { String::new() },
            plain(&one.remarks()),
        ]);
        row
    };
    let rows: Vec<Vec<String>> = found.ranked().into_iter().chain(unranked).map(row).collect();
    text += &markdown::table(&header, &rows);
    if let Some(edges) = found.edges_in_words() {
        text += &format!("\n{}\n", plain(&edges));
    }
    if let Some(confirmation) = confirmation {
        text += &format!("\n{}\n", plain(confirmation));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_rounded_to_zero_has_no_sign() {
        let shown = [-0.00004, -0.0, 0.00004, -0.00006, -1.25].map(|value| rounded(value, 4));
        assert_eq!(shown, ["0.0000", "0.0000", "0.0000", "-0.0001", "-1.2500"]);
    }
}
