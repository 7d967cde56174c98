//! Prints trials: a table of mean figures, and the speed in a sentence.

use crate::compare::measured::{Columns, SPEED, STEP_TIME, TRAIN_LOSS};
use crate::format::{Column, Table, short, shortened, significant, wall_time};
use crate::metrics;
use crate::results::columns;
use crate::results::experiment::{Experiment, Finding};
use crate::statistics::Verdict;

/// Columns at the top of the table; they matter most in a comparison of speed.
const FIRST: [&str; 3] = [SPEED, STEP_TIME, TRAIN_LOSS];

/// The longest label of an arm that heads a column, in characters. The label of stored runs names them all.
const LONGEST_LABEL: usize = 48;

/// Describes the result of a trial in a line.
pub fn trial(columns: &Columns) -> String {
    let mut parts = Vec::new();
    parts.extend(columns.get(SPEED).map(|speed| format!("{} tok/s", short(*speed))));
    parts.extend(columns.get(TRAIN_LOSS).map(|loss| format!("training loss {loss:.4}")));
    parts.extend(columns.get("wall_s").map(|seconds| wall_time(*seconds)));
    parts.join(", ")
}

/// Returns true if both arms have the same program and recipe.
pub fn arms_are_equal(experiment: &Experiment) -> bool {
    let [before, after] = [experiment.baseline(), experiment.candidate()];
    let is_same = before.recipe_hash.is_some() && before.recipe_hash == after.recipe_hash;
    experiment.changes.is_empty() && is_same && before.binary == after.binary
}

/// Describes the finding on speed in a sentence.
pub fn describe(speed: &Finding, experiment: &Experiment) -> String {
    let verdict = experiment.words(speed.verdict.speed_words());
    let Some(interval) = speed.interval else {
        let why =
            if experiment.finished { "speeds of both arms are missing" } else { "not every trial finished" };
        return format!("{verdict}: {why}");
    };
    let percent = |change: f64| format!("{:+.1} %", 100.0 * change);
    let [estimate, low, high] = [interval.estimate, interval.low, interval.high].map(percent);
    let effect = significant(100.0 * speed.min_effect.unwrap_or_default());
    let why = match speed.verdict {
        _ if !experiment.exploratory_reasons().is_empty() => String::new(),
        Verdict::Inconclusive if !experiment.contended.is_empty() => {
            ", but times are not comparable".to_owned()
        }
        Verdict::Inconclusive if experiment.has_single_run() => {
            ", but one run does not show how the runs of an arm differ; use several per arm".to_owned()
        }
        Verdict::Inconclusive if !interval.excludes_zero() => {
            format!(", which includes no difference but is not within ±{effect} %; more --repeats narrow it")
        }
        Verdict::Inconclusive => {
            format!(", which may be more or less than ±{effect} %; more --repeats narrow it")
        }
        Verdict::NoDifference => format!(", within ±{effect} %"),
        _ => String::new(),
    };
    format!("{verdict}: {estimate} tok/s (95 %: {low} to {high}){why}")
}

/// Builds the table of both arms' figures and their change.
pub fn table(experiment: &Experiment) -> String {
    let (baseline, candidate) = (experiment.baseline(), experiment.candidate());
    let count = |arm: usize| experiment.runs_in(arm).filter(|run| run.status.is_some()).count().to_string();
    let mut table = Table::new(&[Column::Left, Column::Right, Column::Right, Column::Right]);
    let [from, to] = [baseline, candidate].map(|arm| shortened(&arm.label, LONGEST_LABEL));
    table.row(["mean over trials", &from, &to, "change"]);
    table.row(["trials".to_owned(), count(0), count(1)]);
    let mut names: Vec<&String> = baseline.measured.keys().chain(candidate.measured.keys()).collect();
    names.sort();
    names.dedup();
    names.sort_by_key(|name| FIRST.iter().position(|first| first == name).unwrap_or(FIRST.len()));
    for name in names {
        let value = |arm: &Columns| arm.get(name).map_or("-".to_owned(), |value| shown(name, *value));
        let change = match (baseline.measured.get(name), candidate.measured.get(name)) {
            _ if experiment.incomparable.contains(name) => String::new(),
            (Some(old), Some(new)) if *old != 0.0 => format!("{:+.1} %", 100.0 * (new / old - 1.0)),
            _ => String::new(),
        };
        table.row([name.clone(), value(&baseline.measured), value(&candidate.measured), change]);
    }
    table.render(0)
}

/// Formats a value with the digits and the unit of its column.
fn shown(name: &str, value: f64) -> String {
    match metrics::find(name) {
        // The column is named in bytes but shown in MiB, so say so.
        Some(metric) if metric.unit == "MiB" => format!("{} MiB", columns::shown(metric, value)),
        Some(metric) => columns::shown(metric, value),
        None => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use crate::compare::tests::trials;
    use crate::compare::{describe, report};
    use crate::results::experiment::RegisteredPrediction;
    use crate::statistics::{Interval, Verdict};

    #[test]
    fn a_report_says_verdict_gate_and_prediction() {
        let mut found = trials();
        found.findings[0].interval = Some(Interval { estimate: -0.1, low: -0.12, high: -0.08 });
        found.findings[0].verdict = Verdict::Worse;
        found.arms[0].measured.insert("tok_s".into(), 1000.0);
        found.arms[1].measured.insert("tok_s".into(), 900.0);
        found.prediction = Some(RegisteredPrediction { text: "faster".into(), held: Some(false) });
        found.findings[1].verdict = Verdict::SameBits;
        found.findings[1].because = Some("the same bits over 3 steps".into());
        let text = report(&found);
        assert!(text.contains("slower: -10.0 % tok/s (95 %: -12.0 % to -8.0 %)"), "{text}");
        assert!(text.contains("holds: the same bits"), "{text}");
        assert!(text.contains("`faster`: falsified"), "{text}");
        let speeds = text.lines().find(|line| line.starts_with("tok_s")).unwrap();
        assert_eq!(speeds.split_whitespace().collect::<Vec<_>>(), ["tok_s", "1000", "900", "-10.0", "%"]);
    }

    #[test]
    fn an_open_verdict_says_why() {
        let mut found = trials();
        let describe = |found: &crate::results::experiment::Experiment| describe(&found.findings[0], found);
        assert!(describe(&found).contains("inconclusive"));
        found.findings[0].interval = Some(Interval { estimate: 0.0, low: -0.1, high: 0.1 });
        assert!(describe(&found).contains("more --repeats"));
        found.contended.push("x".into());
        assert!(describe(&found).contains("not comparable"));
    }
}
