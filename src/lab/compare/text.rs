//! Prints a comparison: a table of its runs, then the findings in sentences.

mod pairs;
mod trials;

use crate::format::printable;
use crate::results::experiment::{Experiment, Finding};
use crate::results::measure::Measure;
use std::fmt::Write;
pub use trials::trial;

/// Returns the report, the table first.
pub fn report(experiment: &Experiment) -> String {
    let has_trials = experiment.has_trials();
    let mut text = if has_trials { trials::table(experiment) } else { pairs::table(experiment) };
    text.push('\n');
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<12}{}", printable(value));
    };
    for change in &experiment.changes {
        line("changed", change);
    }
    if has_trials && trials::arms_are_equal(experiment) {
        line("changed", "nothing: both arms are the same, and what differs is chance");
    }
    if let Some(shared) = &experiment.shared_randomness {
        line("seeds", shared);
    }
    if let Some(hypothesis) = &experiment.hypothesis {
        line("hypothesis", hypothesis);
    }
    for finding in &experiment.findings {
        match finding.measure {
            Measure::LossCurves => line("loss gate", &describe(finding, experiment)),
            _ if has_trials => line("verdict", &describe(finding, experiment)),
            _ => line("verdict", &format!("{}: {}", finding.measure, describe(finding, experiment))),
        }
    }
    if let Some(joint) = &experiment.joint {
        line("together", &format!("{}: {}", joint.verdict.words(), joint.found));
    }
    if let Some(runs) = &experiment.diverged {
        line("diverged", &pairs::diverged(runs));
    }
    if let Some(confirmed) = &experiment.confirms {
        line("confirms", confirmed);
    }
    if let Some(prediction) = &experiment.prediction {
        line("prediction", &format!("`{}`: {}", prediction.text, held_in_words(prediction.held)));
    }
    if !has_trials {
        line("history", &pairs::history(experiment));
    }
    for reason in &experiment.contended {
        line("contended", reason);
    }
    for note in &experiment.notes {
        line("note", note);
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
