//! The text form of a comparison: a compact table and the verdict in a sentence.

use super::measured::{Columns, SPEED, STEP_TIME, TRAIN_LOSS};
use crate::format::{short, significant, wall_time};
use crate::metrics;
use crate::results::columns;
use crate::results::comparison::{CompareVerdict, Comparison, RatioInterval};
use std::fmt::Write;

/// Columns at the top of the table: those that a comparison is about.
const FIRST: [&str; 3] = [SPEED, STEP_TIME, TRAIN_LOSS];

/// Returns the result of a trial in a line.
pub(super) fn trial(columns: &Columns) -> String {
    let mut parts = Vec::new();
    parts.extend(columns.get(SPEED).map(|speed| format!("{} tok/s", short(*speed))));
    parts.extend(columns.get(TRAIN_LOSS).map(|loss| format!("training loss {loss:.4}")));
    parts.extend(columns.get("wall_s").map(|seconds| wall_time(*seconds)));
    parts.join(", ")
}

/// Returns the table and the sentences.
pub fn report(comparison: &Comparison) -> String {
    let mut text = table(comparison);
    text.push('\n');
    for change in &comparison.changes {
        let _ = writeln!(text, "changed     {change}");
    }
    let [before, after] = [&comparison.baseline, &comparison.candidate];
    let is_same = before.recipe_hash.is_some() && before.recipe_hash == after.recipe_hash;
    if comparison.changes.is_empty() && is_same && before.binary == after.binary {
        text.push_str("changed     nothing: both arms are the same, and what differs is chance\n");
    }
    if let Some(hypothesis) = &comparison.hypothesis {
        let _ = writeln!(text, "hypothesis  {hypothesis}");
    }
    let _ = writeln!(text, "verdict     {}", describe(comparison));
    let gate = match comparison.gate.holds {
        Some(true) => "holds",
        Some(false) => "FAILS",
        None => "open",
    };
    let _ = writeln!(text, "loss gate   {gate}: {}", comparison.gate.found);
    if let Some(predicts) = &comparison.predicts {
        let held = match comparison.prediction_held {
            Some(true) => "held",
            Some(false) => "falsified",
            None => "open",
        };
        let _ = writeln!(text, "prediction  `{predicts}`: {held}");
    }
    for reason in &comparison.contended {
        let _ = writeln!(text, "contended   {reason}");
    }
    for note in &comparison.notes {
        let _ = writeln!(text, "note        {note}");
    }
    text
}

/// Returns the verdict in a sentence.
pub fn describe(comparison: &Comparison) -> String {
    let Some(RatioInterval { estimate, low, high }) = comparison.ratio else {
        let why =
            if comparison.finished { "speeds of both arms are missing" } else { "not every trial finished" };
        return format!("{}: {why}", comparison.verdict.as_str());
    };
    let percent = |ratio: f64| format!("{:+.1} %", 100.0 * (ratio - 1.0));
    let sizes = format!("{} tok/s (95 %: {} to {})", percent(estimate), percent(low), percent(high));
    let effect = significant(100.0 * comparison.min_effect);
    let why = match comparison.verdict {
        CompareVerdict::Inconclusive if !comparison.contended.is_empty() => {
            ", but times are not comparable".to_owned()
        }
        CompareVerdict::Inconclusive if comparison.has_single_run() => {
            ", but an arm of one run does not show how its runs differ; several of each arm do".to_owned()
        }
        CompareVerdict::Inconclusive if low <= 1.0 && high >= 1.0 => {
            format!(
                ", which includes no difference, and is not known to ±{effect} %; more --repeats narrow it"
            )
        }
        CompareVerdict::Inconclusive => {
            format!(", which may be more or less than ±{effect} %; more --repeats narrow it")
        }
        CompareVerdict::NoDifference => format!(", within ±{effect} %"),
        CompareVerdict::Faster | CompareVerdict::Slower => String::new(),
    };
    format!("{}: {sizes}{why}", comparison.verdict.as_str())
}

/// Returns the figures of both arms with their change.
fn table(comparison: &Comparison) -> String {
    let Comparison { baseline, candidate, trials, .. } = comparison;
    let count = |arm: bool| trials.iter().filter(|trial| trial.is_candidate == arm).count().to_string();
    let mut rows = vec![
        ["mean over trials".to_owned(), baseline.label.clone(), candidate.label.clone(), "change".to_owned()],
        ["trials".to_owned(), count(false), count(true), String::new()],
    ];
    let mut names: Vec<&String> = baseline.measured.keys().chain(candidate.measured.keys()).collect();
    names.sort();
    names.dedup();
    names.sort_by_key(|name| FIRST.iter().position(|first| first == name).unwrap_or(FIRST.len()));
    for name in names {
        let value = |arm: &Columns| arm.get(name).map_or("-".to_owned(), |value| shown(name, *value));
        let change = match (baseline.measured.get(name), candidate.measured.get(name)) {
            _ if comparison.incomparable.contains(name) => String::new(),
            (Some(old), Some(new)) if *old != 0.0 => format!("{:+.1} %", 100.0 * (new / old - 1.0)),
            _ => String::new(),
        };
        rows.push([name.clone(), value(&baseline.measured), value(&candidate.measured), change]);
    }
    let widths: Vec<usize> =
        (0..4).map(|c| rows.iter().map(|row| row[c].chars().count()).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = format!("{:<width$}", row[0], width = widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            let _ = write!(line, "  {cell:>width$}");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Returns a value with the digits and the unit of its column.
fn shown(name: &str, value: f64) -> String {
    match metrics::find(name) {
        // The name says bytes.
        Some(metric) if metric.unit == "MiB" => format!("{} MiB", columns::shown(metric, value)),
        Some(metric) => columns::shown(metric, value),
        None => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::tests::comparison;

    #[test]
    fn a_report_says_verdict_gate_and_prediction() {
        let mut found = comparison();
        found.ratio = Some(RatioInterval { estimate: 0.9, low: 0.88, high: 0.92 });
        found.verdict = CompareVerdict::Slower;
        found.baseline.measured.insert("tok_s".into(), 1000.0);
        found.candidate.measured.insert("tok_s".into(), 900.0);
        found.predicts = Some("faster".into());
        found.prediction_held = Some(false);
        found.gate.holds = Some(true);
        found.gate.found = "the same bits over 3 steps".into();
        let text = report(&found);
        assert!(text.contains("slower: -10.0 % tok/s (95 %: -12.0 % to -8.0 %)"), "{text}");
        assert!(text.contains("holds: the same bits"), "{text}");
        assert!(text.contains("`faster`: falsified"), "{text}");
        let speeds = text.lines().find(|line| line.starts_with("tok_s")).unwrap();
        assert_eq!(speeds.split_whitespace().collect::<Vec<_>>(), ["tok_s", "1000", "900", "-10.0", "%"]);
    }

    #[test]
    fn an_open_verdict_says_why() {
        let mut found = comparison();
        assert!(describe(&found).contains("inconclusive"));
        found.ratio = Some(RatioInterval { estimate: 1.0, low: 0.9, high: 1.1 });
        assert!(describe(&found).contains("more --repeats"));
        found.contended.push("x".into());
        assert!(describe(&found).contains("not comparable"));
    }
}
