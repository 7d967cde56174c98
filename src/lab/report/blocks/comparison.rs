//! Blocks of kept comparisons.

use super::kept::KeptRun;
use super::kept_comparison::{self, KeptComparison, predicted};
use super::page_context::{PageContext, Rendered};
use super::spec::Spec;
use super::text::{did_you_mean, interval, plain, table};
use super::why::Why;
use super::{alike, columns, figure};
use crate::format::{BLANK, decimal};
use crate::results::experiment::{Arm, Average, Experiment, Finding, TrainLoss};
use crate::results::folder::PLOTS;
use crate::statistics::Interval;
use std::collections::BTreeSet;

/// The quantity in the first row.
const SPEED: &str = "tok_s";

/// The validation loss; the runs tell which text it was measured on.
const VAL_LOSS: &str = "val_loss";

/// The training loss; the comparison tells how it was taken.
const TRAIN_LOSS: &str = "train_loss";

/// Renders the comparisons that a block selects, the newest of each name.
pub fn render(
    context: &PageContext<'_>,
    spec: &Spec,
    columns: Option<&[String]>,
) -> Result<Rendered, Vec<Why>> {
    let newest = |name: &String| KeptComparison::newest(context, name, Experiment::has_trials);
    let comparisons = spec.select.iter().map(newest).collect::<Result<Vec<_>, _>>()?;
    let mut rendered = kept_comparison::sources(&comparisons);
    for (at, kept) in comparisons.iter().enumerate() {
        let found = &kept.found;
        let (differences, faults) = unlike(kept, &spec.across);
        rendered.faults.extend(faults);
        rendered.commits.extend(found.arms.iter().filter_map(|arm| arm.commit.clone()));
        if at > 0 {
            rendered.text.push('\n');
        }
        rendered.text += &kept.heading(context, comparisons.len() == 1);
        rendered.text += &measured_table(kept, columns)?;
        rendered.text.push('\n');
        rendered.text += &findings(kept);
        rendered.text.extend(differences.map(|sentence| format!("- {sentence}")));
        rendered.text.push('\n');
        if let Some(drawn) = figure::blocks(found) {
            let alt = format!("Tokens per second of {}, before and after, trial by trial", found.name);
            let stem = kept.source.folder.join(PLOTS).join(figure::BLOCKS);
            rendered.add_figure(context, &stem, drawn, &alt)?;
        }
    }
    rendered.text += &kept_comparison::origin(context, &comparisons);
    Ok(rendered)
}

/// Compares the arms, which may differ only in the keys that the comparison names as changed, and in
/// `across`.
pub fn unlike(kept: &KeptComparison, across: &[String]) -> (Option<String>, Vec<Why>) {
    let across = alike::across(across, kept.changed_keys());
    // The device of an external command may be unknown.
    let arm = |arm: &Arm| alike::Row {
        facts: arm.device.iter().map(|device| ("device".to_owned(), device.clone())).collect(),
        complete: false,
    };
    let (mut sentence, mut faults) =
        alike::compare(&[arm(kept.found.baseline()), arm(kept.found.candidate())], &across);
    let rows: Vec<alike::Row> = kept.runs.values().map(alike::run_facts).collect();
    let (run_differences, run_faults) = alike::compare(&rows, &across);
    sentence = run_differences.or(sentence);
    if faults.is_empty() {
        faults = run_faults;
    }
    (sentence, faults)
}

/// Returns a table of the measurements of both arms.
fn measured_table(kept: &KeptComparison, columns: Option<&[String]>) -> Result<String, Vec<Why>> {
    let comparison = &kept.found;
    let (before, after) = (comparison.baseline(), comparison.candidate());
    let speed = comparison.speed().and_then(Finding::ratio);
    let names: BTreeSet<&str> =
        before.measured.keys().chain(after.measured.keys()).map(String::as_str).collect();
    let shown: Vec<&str> = match columns {
        Some(asked) => asked.iter().map(String::as_str).collect(),
        None => [SPEED].into_iter().chain(names.iter().copied().filter(|name| *name != SPEED)).collect(),
    };
    if let Some(unknown) = shown.iter().find(|name| **name != SPEED && !names.contains(*name)) {
        let near = did_you_mean(unknown, names.iter().copied());
        let all = names.iter().copied().collect::<Vec<_>>().join(", ");
        let why = format!("the comparison measured no `{unknown}`; it has {all}{near}");
        return Err(vec![Why::fixed_by(why, "correct `columns`")]);
    }
    let average = match comparison.average {
        Average::Median => "median over trials",
        Average::Mean => "mean over trials",
    };
    let over: BTreeSet<Option<String>> = kept.runs.values().map(KeptRun::validated_over).collect();
    let headings = [average, ">before", ">after", ">after ÷ before"].map(str::to_owned);
    let mut rows =
        vec![vec![String::new(), plain(&before.label), plain(&after.label), "(95 % interval)".to_owned()]];
    for name in shown {
        let (b, a) = (before.measured.get(name).copied(), after.measured.get(name).copied());
        let ratio = match (speed, b, a) {
            _ if comparison.incomparable.iter().any(|other| other == name) => BLANK.to_owned(),
            _ if name == VAL_LOSS && over.len() > 1 => BLANK.to_owned(),
            (Some(ratio), ..) if name == SPEED => speed_ratio(ratio),
            (_, Some(b), Some(a)) if name != SPEED && b != 0.0 => decimal(Some(a / b), 3),
            _ => BLANK.to_owned(),
        };
        let is_last_batch = name == TRAIN_LOSS && comparison.train_loss == TrainLoss::LastBatch;
        let figure = if is_last_batch { columns::LAST_BATCH } else { name };
        let mut heading = columns::heading(figure).trim_start_matches('>').to_owned();
        if let (VAL_LOSS, 1, Some(Some(over))) = (name, over.len(), over.first()) {
            heading += &format!(", {over}");
        }
        rows.push(vec![heading, columns::value(name, b), columns::value(name, a), ratio]);
    }
    Ok(table(&headings, &rows))
}

/// Formats the ratio of speeds with its interval.
pub fn speed_ratio(ratio: Interval) -> String {
    interval(ratio, |value| decimal(Some(value), 3))
}

/// Returns the outcome of the loss gate in words.
pub fn gate(comparison: &Experiment) -> &'static str {
    match comparison.curves().and_then(Finding::holds) {
        Some(true) => "holds",
        Some(false) => "**fails**",
        None => "could not be judged",
    }
}

/// Lists verdict, loss gate, prediction, changed keys and remarks.
fn findings(kept: &KeptComparison) -> String {
    let comparison = &kept.found;
    let min_effect = comparison.speed().and_then(|speed| speed.min_effect);
    let effect = decimal(min_effect.map(|effect| effect * 100.0), 1);
    let mut lines = vec![format!(
        "Verdict: **{}**; differences below {effect} % do not count.",
        comparison.verdict_words()
    )];
    let curves = comparison.curves();
    let allowed = match (curves.and_then(Finding::holds), curves.and_then(|curves| curves.min_effect)) {
        (_, Some(tolerance)) => format!(" (differences in loss up to {tolerance} allowed)"),
        (Some(_), None) => " (the same bits asked for)".to_owned(),
        (None, None) => String::new(),
    };
    let found = curves.and_then(|curves| curves.because.as_deref()).unwrap_or(BLANK);
    lines.push(format!("Loss gate {}: {}{allowed}.", gate(comparison), plain(found)));
    lines.extend(predicted(comparison).map(|one| format!("Prediction {one}.")));
    lines.extend(kept.changes().map(|changes| format!("Changed keys: {changes}.")));
    lines.extend(comparison.notes.iter().map(|note| format!("Note: {}.", plain(note))));
    if !comparison.finished {
        let ended = comparison.runs.iter().filter(|run| run.status.is_some()).count();
        lines.push(format!("**Not finished**: it ended after {ended} trials."));
    }
    if !comparison.contended.is_empty() {
        let why: Vec<String> = comparison.contended.iter().map(|why| plain(why)).collect();
        lines.push(format!("**Contended**: {}.", why.join("; ")));
    }
    let statuses = comparison.runs.iter().filter_map(|run| run.status.as_deref());
    let failed = statuses.filter(|status| *status != "ok").count();
    if failed > 0 {
        lines.push(format!("{failed} of {} trials did not end as `ok`.", comparison.runs.len()));
    }
    lines.iter().map(|line| format!("- {line}\n")).collect()
}
