//! Checks rows against the recipe: the rates of the schedule, the steps that are evaluated, the phases of
//! steps, the losses that are possible; and the copy of the recipe against the resolved one.

use super::files::RunFiles;
use crate::recipe::{COPY_HEADER, Schedule};
use crate::results::held_out::MAIN_SET;
use crate::results::names::{METRICS, RECIPE, RESOLVED, SUMMARY, TIMING};
use crate::results::rows::Phase;
use std::collections::BTreeSet;

/// The largest relative difference between a learning rate and the schedule's: the last digits of a cosine
/// differ between versions of the C library.
const RATE_TOLERANCE: f64 = 1e-9;

/// How many standard errors a loss on held-out text may lie below the entropy of its source, if a token's
/// loss varies by as much as the entropy itself. Less than one text of a million lies lower.
const MAX_STANDARD_ERRORS: f64 = 5.0;

/// Returns a sentence for each contradiction.
pub fn differences(run: &RunFiles) -> Vec<String> {
    let one =
        [rates(run), losses(run), phases(run), speeds(run), writes(run), samples(run), sizes(run), copy(run)];
    one.into_iter().flatten().chain(evaluations(run)).collect()
}

/// Checks that every step had the learning rate of the recipe's schedule. Recipes that this version cannot
/// load have keys that it does not know, and with them perhaps another schedule.
fn rates(run: &RunFiles) -> Option<String> {
    let values = run.loaded.as_ref()?.values();
    let (lr, steps, shape) = (values.optimizer.lr, values.training.steps, values.lr_scheduler.clone());
    let schedule = Schedule { lr, steps, shape };
    let expected = |step: u64| schedule.at(usize::try_from(step).unwrap_or(usize::MAX));
    let differs = |row: &&crate::results::rows::MetricsRow| {
        let rate = expected(row.step);
        // A NaN rate is never near the expected one.
        let difference = (row.lr - rate).abs();
        difference.is_nan() || difference > RATE_TOLERANCE * rate.abs()
    };
    let row = run.metrics.iter().find(differs)?;
    Some(format!(
        "{METRICS} has lr = {} at step {}, but the schedule in {RESOLVED} gives {}",
        row.lr,
        row.step,
        expected(row.step)
    ))
}

/// Checks that no loss is below what a loss can be: zero, and on text of a known source its entropy.
fn losses(run: &RunFiles) -> Option<String> {
    let planned = || run.keys.value("data.validation_tokens")?.parse::<u64>().ok();
    let tokens = run.summary.held_out.get(MAIN_SET).and_then(|set| set.tokens).or_else(planned).unwrap_or(0);
    let share = (1.0 - MAX_STANDARD_ERRORS / (tokens.max(1) as f64).sqrt()).max(0.5);
    let floor = run.summary.floor.unwrap_or(0.0).max(0.0) * share;
    run.metrics.iter().find_map(|row| {
        let further = row.further.iter().filter(|(name, _)| name.contains("loss"));
        let others = [("loss", Some(row.loss)), ("grad_norm", Some(row.grad_norm)), ("z_loss", row.z_loss)];
        let others = others.into_iter().chain(further.map(|(name, loss)| (name.as_str(), Some(*loss))));
        let on_floor = [("val_loss", row.val_loss), ("ema_val_loss", row.ema_val_loss)];
        let all = others.map(|one| (one, 0.0)).chain(on_floor.map(|one| (one, floor)));
        all.into_iter().find_map(|((column, value), least)| {
            let value = value.filter(|value| f64::from(*value) < least)?;
            Some(format!("{METRICS} has {column} = {value} at step {}, but it is at least {least}", row.step))
        })
    })
}

/// Checks that the steps with a loss on held-out text are those that `timing.csv` has evaluations of, and
/// that these are the steps that the recipe evaluates.
fn evaluations(run: &RunFiles) -> Vec<String> {
    let timed: BTreeSet<u64> =
        run.timing.iter().filter(|row| row.phase == Phase::Eval).map(|row| row.step).collect();
    let mut found = Vec::new();
    for row in &run.metrics {
        match (row.val_loss.is_some(), timed.contains(&row.step)) {
            (true, false) => {
                found.push(format!(
                    "{METRICS} has val_loss at step {}, but {TIMING} has no evaluation of it",
                    row.step
                ));
            }
            (false, true) => {
                found.push(format!(
                    "{TIMING} has an evaluation of step {}, but {METRICS} has no val_loss",
                    row.step
                ));
            }
            _ => {}
        }
    }
    let number = |key: &str| run.keys.value(key).and_then(|value| value.parse::<u64>().ok());
    if let (Some(interval), Some(steps)) = (number("validation.interval"), number("training.steps")) {
        let is_due = |step: u64| step == steps || (interval > 0 && step.is_multiple_of(interval));
        let odd = timed.iter().find(|step| !is_due(**step));
        found.extend(odd.map(|step| {
            format!("{TIMING} has an evaluation of step {step}, which {RESOLVED} does not evaluate")
        }));
        // A run without held-out text evaluates nothing.
        let mut due = run.metrics.iter().filter(|row| !timed.is_empty() && is_due(row.step));
        let left_out = due.find(|row| row.val_loss.is_none());
        found.extend(left_out.map(|row| {
            format!("{METRICS} has no val_loss at step {}, which {RESOLVED} evaluates", row.step)
        }));
    }
    // One sentence says enough.
    found.truncate(1);
    found
}

/// Checks that the first steps of every process, and no others, are warm-up: `metrics.warmup` of them.
fn phases(run: &RunFiles) -> Option<String> {
    let warmup: usize = run.keys.value("metrics.warmup")?.parse().ok()?;
    let steps: Vec<_> = run.timing.iter().filter(|row| row.phase.is_step()).collect();
    // The lengths of the parts that are warm-up.
    let parts: Vec<usize> = steps
        .chunk_by(|a, b| a.phase == b.phase)
        .filter(|part| part[0].phase == Phase::Warmup)
        .map(<[_]>::len)
        .collect();
    let processes = run.processes;
    let begins = steps.first().is_none_or(|row| (row.phase == Phase::Warmup) == (warmup > 0));
    // A resume cuts rows off behind a checkpoint, so what is left of a process may be shorter than its
    // warm-up, and two warm-ups may touch.
    let is_possible = |length: usize| match processes {
        1 => length == warmup.min(steps.len()),
        _ => length <= warmup.saturating_mul(processes),
    };
    let is_right = begins && parts.len() <= processes && parts.iter().all(|length| is_possible(*length));
    (!is_right).then(|| {
        format!(
            "{TIMING} has {} steps of warm-up in {} parts, but {processes} process{} with metrics.warmup = {warmup} ran",
            parts.iter().sum::<usize>(),
            parts.len(),
            if processes == 1 { "" } else { "es" }
        )
    })
}

/// Checks that every step of a run has a speed: without one it would leave the median.
fn speeds(run: &RunFiles) -> Option<String> {
    let row = run.timing.iter().find(|row| row.phase.is_step() && row.tok_s.is_none())?;
    Some(format!("{TIMING} has no tok_s at step {}", row.step))
}

/// Checks that a step beside the write of a checkpoint follows the copy of the state that is written, and
/// that no step between the two is without it.
fn writes(run: &RunFiles) -> Option<String> {
    let mut copied = None;
    let mut is_over = false;
    for row in &run.timing {
        if row.phase == Phase::Snapshot {
            (copied, is_over) = (Some(row.step), false);
        } else if row.phase.is_step() {
            match row.written_step {
                Some(step) if copied != Some(step) || is_over => {
                    return Some(format!(
                        "{TIMING} says that the checkpoint of step {step} was written during step {}, but not that the \
                         state was copied for it just before",
                        row.step
                    ));
                }
                Some(_) => {}
                None => is_over = true,
            }
        }
    }
    None
}

/// Checks that every sample was generated after a step that has the time of it.
fn samples(run: &RunFiles) -> Option<String> {
    let timed = |step: u64| run.timing.iter().any(|row| row.phase == Phase::Sample && row.step == step);
    let sample = run.summary.samples.iter().find(|sample| !timed(sample.step))?;
    Some(format!("{SUMMARY} has a sample of step {}, but {TIMING} has no time of it", sample.step))
}

/// Checks numbers of the summary of which one is a part of the other or the same by design.
fn sizes(run: &RunFiles) -> Option<String> {
    let number = |path: &str| run.printed.pointer(path).and_then(serde_json::Value::as_u64);
    let whole = [("/parameters_core", "/parameters"), ("/sentences/parsed", "/sentences/seen")];
    let is_more =
        |(part, whole): &&(&str, &str)| matches!((number(part), number(whole)), (Some(a), Some(b)) if a > b);
    if let Some((part, whole)) = whole.iter().find(is_more) {
        return Some(format!("{SUMMARY} has more {part} than {whole}"));
    }
    let memory = run.summary.memory;
    let (planned, allocated) = (memory.planned_bytes?, memory.allocated_bytes?);
    (planned != allocated).then(|| {
        format!("{SUMMARY} has {planned} planned bytes and {allocated} allocated ones, which are the same in every run")
    })
}

/// Checks that the copy of the recipe sets what the resolved recipe has.
fn copy(run: &RunFiles) -> Option<String> {
    let text = run.recipe_copy.as_deref().filter(|text| text.starts_with(COPY_HEADER))?;
    let Ok(table) = text.parse::<toml::Table>() else { return Some(format!("{RECIPE} is not TOML")) };
    let mut open: Vec<(String, &toml::Value)> =
        table.iter().map(|(name, value)| (name.clone(), value)).collect();
    while let Some((path, value)) = open.pop() {
        let stored =
            run.keys.value(&path).and_then(|text| format!("value = {text}").parse::<toml::Table>().ok());
        match (stored.as_ref().and_then(|table| table.get("value")), value) {
            (None, toml::Value::Table(inner)) => {
                open.extend(inner.iter().map(|(name, value)| (format!("{path}.{name}"), value)));
            }
            (Some(stored), set) if !is_same(stored, set) => {
                return Some(format!("{RECIPE} sets {path} = {set}, but {RESOLVED} has {stored}"));
            }
            _ => {}
        }
    }
    None
}

/// Returns true for values that are equal as numbers, or of which one was a word such as `"auto"` or a path
/// that the run resolved.
fn is_same(stored: &toml::Value, set: &toml::Value) -> bool {
    let number =
        |value: &toml::Value| value.as_float().or_else(|| value.as_integer().map(|value| value as f64));
    match (number(stored), number(set)) {
        (Some(a), Some(b)) => a == b,
        _ => match (stored.as_str(), set.as_str()) {
            (Some(stored), Some(set)) => stored == set || stored.contains('/') || set == "auto",
            (None, Some(_)) => true,
            _ => stored == set,
        },
    }
}
