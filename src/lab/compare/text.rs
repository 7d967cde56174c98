//! Prints a comparison: a table of its runs, then the findings in sentences.

mod pairs;
mod trials;

use crate::format::{printable, significant};
use crate::results::experiment::{Experiment, Finding};
use crate::results::measure::Measure;
pub use trials::trial;

/// Returns the report, the table first.
pub fn report(experiment: &Experiment) -> String {
    let has_trials = experiment.has_trials();
    let mut lines: Vec<(&str, String)> = Vec::new();
    lines.extend(experiment.changes.iter().map(|change| ("changed", change.clone())));
    if has_trials && trials::arms_are_equal(experiment) {
        lines.push(("changed", "nothing: both arms are the same, and what differs is chance".to_owned()));
    }
    lines.extend(experiment.shared_randomness.iter().map(|shared| ("seeds", shared.clone())));
    lines.extend(experiment.hypothesis.iter().map(|hypothesis| ("hypothesis", hypothesis.clone())));
    lines.extend(experiment.findings.iter().map(|finding| {
        let found = describe(finding, experiment);
        match finding.measure {
            Measure::LossCurves => ("loss gate", found),
            _ if has_trials => ("verdict", found),
            _ => ("verdict", format!("{}: {found}", finding.measure)),
        }
    }));
    let joint = experiment.joint.iter().map(|joint| match experiment.exploratory_reasons() {
        [] => format!("{}: {}", experiment.verdict_words(), joint.found),
        _ => experiment.verdict_words(),
    });
    lines.extend(joint.map(|said| ("together", said)));
    lines.extend(experiment.diverged.iter().map(|runs| ("diverged", pairs::diverged(runs))));
    lines.extend(experiment.confirms.iter().map(|confirmed| ("confirms", confirmed.clone())));
    lines.extend(experiment.prediction.iter().map(|prediction| {
        let width = experiment
            .prediction_width()
            .map(|width| format!("; the range is {} times as wide as the interval", significant(width)));
        let held = held_in_words(prediction.held);
        ("prediction", format!("`{}`: {held}{}", prediction.text, width.unwrap_or_default()))
    }));
    if !has_trials || !experiment.history.is_empty() {
        lines.push(("history", pairs::history(experiment)));
    }
    lines.extend(experiment.contended.iter().map(|reason| ("contended", reason.clone())));
    lines.extend(experiment.notes.iter().map(|note| ("note", note.clone())));
    let mut text = if has_trials { trials::table(experiment) } else { pairs::table(experiment) };
    text.push('\n');
    for (name, value) in lines {
        text += &format!("{name:<12}{}\n", printable(&value));
    }
    text
}

/// Describes a finding in a sentence, without naming the measure.
pub fn describe(finding: &Finding, experiment: &Experiment) -> String {
    match finding.measure {
        Measure::LossCurves => {
            let holds = match finding.holds() {
                Some(true) => "holds",
                Some(false) => "FAILS",
                None => "open",
            };
            format!("{holds}: {}", finding.because.as_deref().unwrap_or("no reason is known"))
        }
        _ if experiment.has_trials() => trials::describe(finding, experiment),
        _ => pairs::describe(finding, experiment),
    }
}

/// Returns whether a prediction held, in one word.
pub fn held_in_words(held: Option<bool>) -> &'static str {
    match held {
        Some(true) => "held",
        Some(false) => "falsified",
        None => "open",
    }
}
