//! Recomputes the figures in a summary from the rows.

use super::files::RunFiles;
use crate::results::columns::printed;
use crate::results::names::{METRICS, RESOLVED, SUMMARY};
use crate::results::steady::warmup_in_rule;
use crate::results::summary::{Status, Summary};
use serde_json::Value;

/// The figures in a summary that follow from rows, as paths in its JSON.
const FIGURES: [&str; 16] = [
    "steps",
    "tokens_seen",
    "train_loss",
    "source_losses",
    "val_loss",
    "ema_val_loss",
    "val_loss_over_floor",
    "bits_per_byte",
    "held_out",
    "tasks",
    "wall_s",
    "energy_j",
    "tok_s",
    "mfu_pct",
    "hfu_pct",
    "steady_state",
];

/// The largest relative difference between two numbers that count as equal. Sums taken in another order
/// differ in the last digits.
const TOLERANCE: f64 = 1e-12;

/// Returns a sentence for each contradiction.
pub fn differences(run: &RunFiles) -> Vec<String> {
    let mut found = planned(run);
    found.extend(check_fork(run));
    found.extend(check_contention(&run.summary));
    if run.summary.status != Status::Ok && is_blank(run) {
        // The run ended, or was killed, before it could write more than its initial summary.
        return found;
    }
    let rule = run.summary.steady_state.as_ref().map(|steady| steady.rule.as_str());
    // A run has no steady state until it ends, so a killed run is checked without one.
    let has_speed = rule.is_some() || run.summary.status != Status::Running;
    let Some(warmup) = rule.map_or((!has_speed).then_some(0), warmup_in_rule) else {
        let rule = rule.unwrap_or("none");
        found.push(format!("{SUMMARY} has a steady-state rule that this version does not know: {rule:?}"));
        return found;
    };
    let mut derived = run.summary.clone();
    // The summary of a live run covers the rows up to the time when it was written.
    let until = if run.summary.status == Status::Running { run.summary.steps } else { u64::MAX };
    let metrics: Vec<_> = run.metrics.iter().filter(|row| row.step <= until).cloned().collect();
    let timing: Vec<_> = run.timing.iter().filter(|row| row.step <= until).cloned().collect();
    derived.measure(&metrics, &timing, warmup);
    if !has_speed {
        (derived.steady_state, derived.tok_s, derived.mfu_pct, derived.hfu_pct) = (None, None, None, None);
    }
    if let Some(steady) = &mut derived.steady_state {
        // The rule was checked above. Versions word it differently.
        rule.unwrap_or_default().clone_into(&mut steady.rule);
    }
    let derived = printed(&derived);
    for figure in FIGURES {
        compare(figure, run.printed.get(figure), &derived[figure], &mut found);
    }
    found
}

/// Returns true if a summary has no figures yet.
fn is_blank(run: &RunFiles) -> bool {
    let Summary { recipe, run: name, recipe_hash, steps_planned, .. } = &run.summary;
    let blank = printed(&Summary::started(recipe, name, recipe_hash, *steps_planned));
    let mut found = Vec::new();
    FIGURES.iter().for_each(|figure| compare(figure, run.printed.get(*figure), &blank[*figure], &mut found));
    found.is_empty()
}

/// Compares a figure in the summary with the same figure recomputed from the rows.
fn compare(path: &str, stored: Option<&Value>, derived: &Value, found: &mut Vec<String>) {
    match (stored, derived) {
        (Some(Value::Object(stored)), Value::Object(derived)) => {
            for (name, derived) in derived {
                compare(&format!("{path}.{name}"), stored.get(name), derived, found);
            }
        }
        // If it is missing, readers derive it from the rows.
        (None, _) if path == "train_loss.smoothed" => {}
        (None, Value::Null) => {}
        // Earlier versions had no further held-out sets.
        (None, Value::Object(derived)) if derived.is_empty() => {}
        (Some(stored), derived) if is_equal(stored, derived) => {}
        (stored, derived) => {
            let stored = stored.map_or("nothing".to_owned(), shown);
            found.push(format!("{SUMMARY} has {path} = {stored}, but the rows give {}", shown(derived)));
        }
    }
}

fn shown(value: &Value) -> String {
    value.to_string().chars().take(60).collect()
}

fn is_equal(stored: &Value, derived: &Value) -> bool {
    match (stored.as_f64(), derived.as_f64()) {
        (Some(a), Some(b)) => a == b || (a - b).abs() <= TOLERANCE * a.abs().max(b.abs()),
        _ => stored == derived,
    }
}

/// Checks the number of steps against the recipe.
fn planned(run: &RunFiles) -> Vec<String> {
    let Summary { status, steps_planned, .. } = run.summary;
    let mut found = Vec::new();
    let asked: Option<u64> = run.keys.value("training.steps").and_then(|steps| steps.parse().ok());
    if let Some(asked) = asked.filter(|asked| *asked != steps_planned) {
        found.push(format!(
            "{SUMMARY} has steps_planned = {steps_planned}, but {RESOLVED} has training.steps = {asked}"
        ));
    }
    let last = run.metrics.last().map_or(0, |row| row.step);
    if status == Status::Ok && steps_planned != last {
        found
            .push(format!("{SUMMARY} has status = ok, but {METRICS} ends at step {last} of {steps_planned}"));
    }
    found
}

/// Checks that a fork's rows continue where its summary says that it began.
fn check_fork(run: &RunFiles) -> Option<String> {
    let (fork, first) = (run.summary.forked_from.as_ref()?, run.metrics.first()?);
    let follows = fork.step.checked_add(1) == Some(first.step) && fork.tokens_seen < first.tokens_seen;
    (!follows).then(|| {
        format!(
            "{SUMMARY} has forked_from.step = {} after {} tokens, but {METRICS} begins with step {} after {}",
            fork.step, fork.tokens_seen, first.step, first.tokens_seen
        )
    })
}

/// Checks that a summary says everywhere that its GPU was contended, or nowhere.
fn check_contention(summary: &Summary) -> Option<String> {
    let gpu = summary.gpu.as_ref()?;
    let is_contended = gpu.contended == Some(true);
    let is_noted = summary.notes.iter().any(|note| note.starts_with("contended: "));
    (is_contended != gpu.contended_because.is_some() || is_contended != is_noted).then(|| {
        format!(
            "{SUMMARY} has gpu.contended = {}, the reason {:?}, and {} note of it",
            gpu.contended.map_or("null".to_owned(), |contended| contended.to_string()),
            gpu.contended_because.as_deref().unwrap_or("none"),
            if is_noted { "a" } else { "no" }
        )
    })
}
