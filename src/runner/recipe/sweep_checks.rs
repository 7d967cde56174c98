//! Checks of `[sweep]`: a key varies in only one way, and the compared figure exists.

use super::diagnostic::Diagnostic;
use super::loaded::Recipe;
use crate::metrics::{self, ScoreColumn};
use crate::suggest::nearest;

const SEED: &str = "training.seed";

/// Reports keys that `[sweep]` varies in two ways, and a figure that no run has.
pub(super) fn contradictions(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let sweep = &recipe.values().sweep;
    let in_pairs = |key: &str| sweep.pairs.iter().any(|pair| pair.contains_key(key));
    for key in sweep.grid.keys().filter(|key| in_pairs(key)) {
        found.push(recipe.diagnostic(
            &["sweep.pairs", "sweep.grid"],
            format!("{key} is in the grid and in a pair"),
            "keep one of them: a pair is combined with every point of the grid",
        ));
    }
    let ranges = sweep.range.keys().map(|key| (key, "sweep.range"));
    for (key, range) in ranges.chain(sweep.log_range.keys().map(|key| (key, "sweep.log_range"))) {
        let others = [
            ("sweep.grid", sweep.grid.contains_key(key)),
            ("sweep.pairs", in_pairs(key)),
            ("sweep.log_range", range == "sweep.range" && sweep.log_range.contains_key(key)),
        ];
        for (other, _) in others.into_iter().filter(|(_, has)| *has) {
            found.push(recipe.diagnostic(
                &[range, other],
                format!("{key} is in {range} and in {other}"),
                "keep one of them: a sample is combined with every point of the grid",
            ));
        }
    }
    let is_score = ScoreColumn::parse(&sweep.on).is_some();
    if !is_score && metrics::run_metrics().all(|metric| metric.name != sweep.on) {
        let help = match nearest(&sweep.on, metrics::run_metrics().map(|metric| metric.name)) {
            Some(near) => format!("did you mean {near:?}?"),
            None => "docs/reports.md lists the figures of runs".to_owned(),
        };
        let message = format!("no run has a figure {:?} to compare configurations by", sweep.on);
        found.push(recipe.diagnostic(&["sweep.on"], message, help));
    }
    let varied = [
        ("sweep.grid", sweep.grid.contains_key(SEED)),
        ("sweep.pairs", in_pairs(SEED)),
        ("sweep.range", sweep.range.contains_key(SEED)),
        ("sweep.log_range", sweep.log_range.contains_key(SEED)),
    ];
    for (other, _) in varied.into_iter().filter(|(_, has)| *has && sweep.seeds > 1) {
        found.push(recipe.diagnostic(
            &["sweep.seeds", other],
            format!("{SEED} is in {other}, and sweep.seeds sets it too"),
            "keep one of them",
        ));
    }
}
