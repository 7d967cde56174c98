//! The text form of a comparison of quality: a table of pairs, and the verdicts in sentences.

use crate::format::{BLANK, Column, Table, plural, printable, significant};
use crate::results::measure::{Measure, MeasureValue, Scale};
use crate::results::quality::{Design, JudgedMeasure, Pair, PairedRun, QualityComparison, VerdictBasis};
use crate::statistics::{Direction, QualityVerdict};
use std::fmt::Write;

/// Returns the table and the sentences.
pub fn report(comparison: &QualityComparison) -> String {
    let mut text = table(comparison);
    text.push('\n');
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<12}{}", printable(value));
    };
    for change in &comparison.changes {
        line("changed", change);
    }
    if let Some(shared) = &comparison.shared_randomness {
        line("seeds", shared);
    }
    if let Some(hypothesis) = &comparison.hypothesis {
        line("hypothesis", hypothesis);
    }
    for judged in &comparison.measures {
        line("verdict", &format!("{}: {}", judged.measure, describe(judged, comparison)));
    }
    if let Some(joint) = &comparison.joint {
        line("together", &format!("{}: {}", joint.verdict.words(), joint.found));
    }
    if let Some(runs) = &comparison.diverged {
        line(
            "diverged",
            &format!(
                "{} runs of the baseline and {} of the candidate, of {} pairs, p = {}",
                runs.baseline,
                runs.candidate,
                runs.pairs,
                p_text(runs.p)
            ),
        );
    }
    if let Some(confirmed) = &comparison.confirms {
        line("confirms", confirmed);
    }
    if let Some(predicts) = &comparison.predicts {
        let held = match comparison.prediction_held {
            Some(true) => "held",
            Some(false) => "falsified",
            None => "open",
        };
        line("prediction", &format!("`{predicts}`: {held}"));
    }
    line("history", &history(comparison));
    for note in &comparison.notes {
        line("note", note);
    }
    text
}

/// Returns the sentence on earlier comparisons of the change.
fn history(comparison: &QualityComparison) -> String {
    let count = comparison.history.len();
    if count == 0 {
        return "no earlier comparison of this change is stored".to_owned();
    }
    let mut ends: Vec<(&str, usize)> = Vec::new();
    for earlier in &comparison.history {
        match ends.iter_mut().find(|(ended, _)| *ended == earlier.ended) {
            Some((_, times)) => *times += 1,
            None => ends.push((&earlier.ended, 1)),
        }
    }
    let each: Vec<String> = ends.iter().map(|(ended, times)| format!("{times} × {ended}")).collect();
    let newest = comparison.history.last().map_or(String::new(), |newest| {
        let shared = match newest.shared_seeds {
            0 => String::new(),
            shared => format!(" on {shared} of these seeds"),
        };
        format!("; the newest{shared} is {}", newest.comparison)
    });
    format!("{count} earlier comparison{} of this change: {}{newest}", plural(count), each.join(", "))
}

/// Returns a verdict in a sentence, without the measure.
pub fn describe(judged: &JudgedMeasure, comparison: &QualityComparison) -> String {
    let pairs = format!("over {} pair{}", judged.pairs, plural(judged.pairs));
    let p = judged.p.map(|p| format!(", p = {}", p_text(p))).unwrap_or_default();
    let because = judged.because.as_ref().map(|why| format!("; {why}")).unwrap_or_default();
    let verdict = judged.verdict.words();
    if !comparison.finished && matches!(comparison.design, Design::Fixed { .. }) {
        return "not judged before the last pair".to_owned();
    }
    match (judged.basis, judged.interval) {
        (VerdictBasis::SameBits, _) => {
            let n = comparison.pairs.len();
            format!("{verdict} in {n} of {n} pairs")
        }
        (VerdictBasis::DivergedRuns, _) => format!("{verdict}, by diverged runs{because}"),
        (VerdictBasis::Ranks, _) => format!("{verdict}{p}, by exact ranks{because}"),
        (VerdictBasis::Nothing, _) | (_, None) => {
            format!("{verdict}: {} pair{} with a value{because}", judged.pairs, plural(judged.pairs))
        }
        (VerdictBasis::Differences | VerdictBasis::Sequential, Some(interval)) => {
            // The side of the sign is in the word where there is one.
            let towards_better = match judged.direction {
                Direction::LowerIsBetter => -1.0,
                Direction::HigherIsBetter => 1.0,
            };
            let sign = match judged.verdict {
                QualityVerdict::Better => towards_better,
                QualityVerdict::Worse => -towards_better,
                _ => 1.0,
            };
            let ends = [sign * interval.low, sign * interval.high];
            let low = ends[0].min(ends[1]);
            let high = ends[0].max(ends[1]);
            let by = if sign == 1.0 && !is_decided(judged.verdict) { "" } else { "by " };
            let confidence = significant(100.0 * judged.confidence);
            let sequential = if judged.basis == VerdictBasis::Sequential { ", sequential" } else { "" };
            format!(
                "{verdict}{} {by}{} ({confidence} %: {} to {}){p}, {pairs}{sequential}{}{because}",
                if is_decided(judged.verdict) { "" } else { ":" },
                size(sign * interval.estimate, judged, true),
                size(low, judged, false),
                size(high, judged, false),
                beyond(judged)
            )
        }
    }
}

fn is_decided(verdict: QualityVerdict) -> bool {
    matches!(verdict, QualityVerdict::Better | QualityVerdict::Worse)
}

/// Returns what the smallest difference makes of the verdict.
fn beyond(judged: &JudgedMeasure) -> String {
    let Some(min_effect) = judged.min_effect else { return String::new() };
    let effect = size(min_effect, judged, false);
    match judged.verdict {
        QualityVerdict::NoDifference => format!(", within ±{effect}"),
        QualityVerdict::Inconclusive if judged.because.is_none() => {
            format!(
                "; it includes no difference, and is not within ±{effect}: more pairs narrow it, in a new comparison"
            )
        }
        _ => String::new(),
    }
}

/// Returns a difference with its unit: five decimals of a loss, percent of a ratio.
fn size(value: f64, judged: &JudgedMeasure, with_unit: bool) -> String {
    match judged.scale {
        Scale::Ratio => format!("{:.2} %", 100.0 * value),
        Scale::Difference if with_unit => format!("{} {}", difference(value), judged.unit),
        Scale::Difference => difference(value),
    }
}

/// Returns a difference of losses with as many digits as its size asks for, at least four decimals.
fn difference(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        small if small < 1e-3 => significant(value),
        _ => format!("{value:.4}"),
    }
}

/// Returns a p-value.
fn p_text(p: f64) -> String {
    match p {
        p if p < 1e-4 => format!("{p:.0e}"),
        p if p < 0.1 => format!("{p:.4}"),
        p => format!("{p:.2}"),
    }
}

/// Returns the table of pairs: their seeds, and of each measure both values and the difference.
fn table(comparison: &QualityComparison) -> String {
    let disjoint = comparison.pairs.iter().any(|pair| pair.baseline.seed != pair.candidate.seed);
    let mut columns = vec![Column::Right];
    columns.extend(std::iter::repeat_n(Column::Right, 3 * comparison.measures.len()));
    let mut table = Table::new(&columns);
    let mut header = vec![if disjoint { "SEEDS" } else { "SEED" }.to_owned()];
    for judged in &comparison.measures {
        header.extend([judged.measure.to_string(), String::new(), "DIFFERENCE".to_owned()]);
    }
    table.row(header);
    let mut arms = vec![String::new()];
    for _ in &comparison.measures {
        arms.extend(["baseline".to_owned(), "candidate".to_owned(), String::new()]);
    }
    table.row(arms);
    for pair in &comparison.pairs {
        let [baseline, candidate] = pair.runs().map(|run| run.seed);
        let mut row = vec![match baseline == candidate {
            true => baseline.to_string(),
            false => format!("{baseline}, {candidate}"),
        }];
        for judged in &comparison.measures {
            let runs = pair.runs();
            row.extend(runs.map(|run| shown(run, &judged.measure)));
            row.push(if pair.has_same_bits() && !judged.measure.is_timed() {
                "same bits".to_owned()
            } else {
                of_pair(pair, judged)
            });
        }
        table.row(row);
    }
    let means: Vec<String> = comparison
        .measures
        .iter()
        .flat_map(|judged| {
            let of = |value: Option<f64>| value.map_or(BLANK.to_owned(), |x| value_text(x, &judged.measure));
            let estimate = judged.interval.map(|interval| signed(interval.estimate, judged.scale));
            [of(judged.baseline), of(judged.candidate), estimate.unwrap_or_default()]
        })
        .collect();
    if comparison.finished || matches!(comparison.design, Design::Sequential { .. }) {
        table.row(std::iter::once("mean".to_owned()).chain(means));
    }
    table.render(0)
}

/// Returns the value of a run, or how it ended.
fn shown(run: &PairedRun, measure: &Measure) -> String {
    match run.values.get(&measure.to_string()) {
        Some(MeasureValue::Value(value)) => value_text(*value, measure),
        Some(MeasureValue::NeverReached(after)) => format!("> {}", value_text(*after, measure)),
        Some(MeasureValue::Diverged) => "diverged".to_owned(),
        Some(MeasureValue::Missing(_)) => "missing".to_owned(),
        None => run.status.as_deref().filter(|status| *status != "ok").unwrap_or(BLANK).to_owned(),
    }
}

fn value_text(value: f64, measure: &Measure) -> String {
    match measure {
        Measure::Until { .. } => significant(value),
        Measure::Final { .. } if measure.is_speed() => significant(value),
        Measure::Final { .. } => format!("{value:.5}"),
    }
}

fn of_pair(pair: &Pair, judged: &JudgedMeasure) -> String {
    let name = judged.measure.to_string();
    let [baseline, candidate] = pair.runs().map(|run| run.values.get(&name).and_then(MeasureValue::value));
    match (baseline, candidate, judged.scale) {
        (Some(baseline), Some(candidate), Scale::Difference) => signed(candidate - baseline, judged.scale),
        (Some(baseline), Some(candidate), Scale::Ratio) => signed(candidate / baseline - 1.0, judged.scale),
        _ => BLANK.to_owned(),
    }
}

fn signed(value: f64, scale: Scale) -> String {
    match scale {
        Scale::Difference => format!("{value:+.5}"),
        Scale::Ratio => format!("{:+.2} %", 100.0 * value),
    }
}
