//! Prints pairs: a table of their values, and findings in sentences.

use crate::format::{BLANK, Column, Table, decimal, percent_change, plural, significant};
use crate::results::experiment::{
    Design, DivergedRuns, Experiment, ExperimentRun, Finding, NO_VERDICT, VerdictBasis,
};
use crate::results::measure::{Measure, MeasureValue, Scale};
use crate::statistics::{Direction, Verdict, unseen_rate};

/// Describes the counts of diverged runs in a sentence.
pub fn diverged(runs: &DivergedRuns) -> String {
    format!(
        "{} runs of the baseline and {} of the candidate, of {} pairs, p = {}",
        runs.baseline,
        runs.candidate,
        runs.pairs,
        format_p(runs.p)
    )
}

/// Describes the earlier comparisons of the change in a sentence.
pub fn history(comparison: &Experiment) -> String {
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
    let relations: std::collections::BTreeSet<&str> = comparison
        .history
        .iter()
        .filter_map(|earlier| earlier.relation.as_deref())
        .filter(|relation| *relation != "the same arms")
        .collect();
    let relations = match relations.is_empty() {
        true => String::new(),
        false => format!(" ({})", relations.into_iter().collect::<Vec<_>>().join("; ")),
    };
    let newest = comparison.history.last().map_or(String::new(), |newest| {
        let shared = match newest.shared_seeds {
            0 => String::new(),
            shared => format!(" on {shared} of these seeds"),
        };
        format!("; the newest{shared} is {}", newest.comparison)
    });
    format!(
        "{count} earlier comparison{} of this change{relations}: {}{newest}",
        plural(count),
        each.join(", ")
    )
}

/// Describes a verdict in a sentence, without naming the measure.
pub fn describe(judged: &Finding, comparison: &Experiment) -> String {
    let qualifiers: String = comparison.qualifiers.iter().map(|one| format!(", {one}")).collect();
    let reasons = comparison.exploratory_reasons();
    let is_open = reasons.is_empty() && judged.withheld.is_none();
    if is_open || judged.verdict == Verdict::SameBits {
        let qualifiers = if judged.verdict == Verdict::SameBits { "" } else { &qualifiers };
        return describe_found(judged, comparison, qualifiers);
    }
    let found = judged.interval.map_or(String::new(), |interval| {
        format!(
            ": {} ({} %: {} to {}) over {} pair{}",
            size(interval.estimate, judged, true),
            significant(100.0 * judged.confidence),
            size(interval.low, judged, false),
            size(interval.high, judged, false),
            judged.pairs,
            plural(judged.pairs)
        )
    });
    let what = if reasons.is_empty() { NO_VERDICT } else { "exploratory, no verdict" };
    let why: Vec<&str> = reasons.iter().chain(&judged.withheld).map(String::as_str).collect();
    format!("{what}{found}; {}{qualifiers}", why.join("; "))
}

/// Describes a verdict; `qualifiers` follow it.
fn describe_found(judged: &Finding, comparison: &Experiment, qualifiers: &str) -> String {
    let pairs = format!("over {} pair{}", judged.pairs, plural(judged.pairs));
    let p = judged.p.map(|p| format!(", p = {}", format_p(p))).unwrap_or_default();
    let because = judged.because.as_ref().map(|why| format!("; {why}")).unwrap_or_default();
    let verdict = judged.verdict.words();
    if !comparison.finished && matches!(comparison.design, Design::Pairs { .. }) {
        return "not judged before the last pair".to_owned();
    }
    match (judged.basis, judged.interval) {
        (VerdictBasis::SameBits, _) => {
            let n = comparison.pairs().count();
            format!("{verdict} in {n} of {n} pairs")
        }
        (VerdictBasis::DivergedRuns, _) => format!("{verdict}, by diverged runs{qualifiers}{because}"),
        (VerdictBasis::Ranks, _) => format!("{verdict}{p}, by exact ranks{qualifiers}{because}"),
        (VerdictBasis::Nothing | VerdictBasis::Trials | VerdictBasis::Curves, _) | (_, None) => {
            format!("{verdict}: {} pair{} with a value{because}", judged.pairs, plural(judged.pairs))
        }
        (VerdictBasis::Differences | VerdictBasis::Sequential, Some(interval)) => {
            // The words better and worse already say which way, so the number needs no sign.
            let towards_better = match judged.direction {
                Direction::LowerIsBetter => -1.0,
                Direction::HigherIsBetter => 1.0,
            };
            let sign = match judged.verdict {
                Verdict::Better => towards_better,
                Verdict::Worse => -towards_better,
                _ => 1.0,
            };
            let ends = [sign * interval.low, sign * interval.high];
            let low = ends[0].min(ends[1]);
            let high = ends[0].max(ends[1]);
            let by = if sign == 1.0 && !is_decided(judged.verdict) { "" } else { "by " };
            let confidence = significant(100.0 * judged.confidence);
            let sequential = if judged.basis == VerdictBasis::Sequential { ", sequential" } else { "" };
            format!(
                "{verdict}{} {by}{} ({confidence} %: {} to {}){p}, {pairs}{sequential}{qualifiers}{}{because}",
                if is_decided(judged.verdict) { "" } else { ":" },
                size(sign * interval.estimate, judged, true),
                size(low, judged, false),
                size(high, judged, false),
                effect_note(judged)
            )
        }
    }
}

fn is_decided(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Better | Verdict::Worse)
}

/// Describes how the interval compares with the smallest difference that matters.
fn effect_note(judged: &Finding) -> String {
    let Some(min_effect) = judged.min_effect else { return String::new() };
    let effect = size(min_effect, judged, false);
    match judged.verdict {
        Verdict::NoDifference => format!(
            ", within ±{effect}; an event in up to {} % of seeds may be unseen",
            decimal(Some(100.0 * unseen_rate(judged.pairs, 0.95)), 0)
        ),
        Verdict::Inconclusive if judged.because.is_none() => {
            format!(
                "; the interval includes 0 and is not within ±{effect}; a new comparison with more pairs \
                 narrows it"
            )
        }
        _ => String::new(),
    }
}

/// Formats a difference with its unit; a ratio is in percent.
fn size(value: f64, judged: &Finding, with_unit: bool) -> String {
    match judged.scale {
        Scale::Ratio => percent_change(value),
        Scale::Difference if with_unit && !judged.unit.is_empty() => {
            format!("{} {}", format_loss_difference(value), judged.unit)
        }
        Scale::Difference => format_loss_difference(value),
    }
}

/// Formats a difference of losses with four decimals, or below 0.001 with its significant digits.
fn format_loss_difference(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        small if small < 1e-3 => significant(value),
        _ => format!("{value:.4}"),
    }
}

/// Formats a p-value.
fn format_p(p: f64) -> String {
    match p {
        p if p < 1e-4 => format!("{p:.0e}"),
        p if p < 0.1 => format!("{p:.4}"),
        p => format!("{p:.2}"),
    }
}

/// Builds the table of pairs: their seeds and, for each measure, both values and their difference.
pub fn table(comparison: &Experiment) -> String {
    let disjoint = comparison.pairs().any(|pair| pair.baseline.seed != pair.candidate.seed);
    let findings = &comparison.findings;
    let mut table = Table::new(&vec![Column::Right; 1 + 3 * findings.len()]);
    let seeds = if disjoint { "SEEDS" } else { "SEED" };
    let names = findings
        .iter()
        .flat_map(|judged| [judged.measure.to_string(), String::new(), "DIFFERENCE".to_owned()]);
    table.row(std::iter::once(seeds.to_owned()).chain(names));
    let arms = findings.iter().flat_map(|_| ["baseline", "candidate", ""]);
    table.row(std::iter::once("").chain(arms));
    for pair in comparison.pairs() {
        let [baseline, candidate] = pair.seeds().map(Option::unwrap_or_default);
        let mut row = vec![match baseline == candidate {
            true => baseline.to_string(),
            false => format!("{baseline}, {candidate}"),
        }];
        for judged in &comparison.findings {
            let runs = pair.runs();
            row.extend(runs.map(|run| shown(run, &judged.measure)));
            row.push(if pair.has_same_bits() && !judged.measure.is_timed() {
                "same bits".to_owned()
            } else {
                let difference = pair.difference(judged);
                difference.map_or(BLANK.to_owned(), |difference| signed(difference, judged.scale))
            });
        }
        table.row(row);
    }
    let means: Vec<String> = comparison
        .findings
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

/// Returns the value of a run, or else how the run ended.
fn shown(run: &ExperimentRun, measure: &Measure) -> String {
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
        Measure::Final { .. } | Measure::LossCurves => format!("{value:.5}"),
    }
}

fn signed(value: f64, scale: Scale) -> String {
    match scale {
        Scale::Difference => format!("{value:+.5}"),
        Scale::Ratio => format!("{}{}", if value < 0.0 { "" } else { "+" }, percent_change(value)),
    }
}
