//! The power plan: how many pairs it takes to see the smallest difference that matters, and what they cost.

use super::pairs::PairRuns;
use super::question::Question;
use super::setting::StoredExperiment;
use crate::error::Result;
use crate::format::{metric, plural, wall_time};
use crate::results::experiment::{Design, Experiment, ExperimentPlan, Finding, MeasurePlan, differences};
use crate::results::measure::{MeasuredRun, Scale};
use crate::statistics::{Deviation, Looks, PowerPlan};
use std::path::Path;

/// Distance of pilot seeds above the recipes' seeds. It is fixed, so that a plan and the comparison after it
/// share one pilot.
const PILOT_DISTANCE: u64 = 1_000_000;

/// The fewest pairs that a deviation is estimated from.
const FEWEST_PAIRS: usize = 3;

/// Returns the seeds of `count` pilot pairs.
///
/// # Errors
/// A usage error if a seed would exceed the largest.
pub fn pilot_seeds(question: &Question, count: usize) -> Result<Vec<[u64; 2]>> {
    let [base, other] = question.base_seeds;
    let first = base.max(other).saturating_add(PILOT_DISTANCE);
    (0..count as u64).map(|i| super::seeds::pair_of(first.saturating_add(i), base, other)).collect()
}

/// Plans a comparison from its pilot pairs or, without any, from the most similar stored comparison.
pub fn plan(
    question: &Question,
    comparison: &Experiment,
    stored: &[StoredExperiment],
    runs: &PairRuns<'_>,
    results: &Path,
) -> Result<ExperimentPlan> {
    let pairs = question.seeds.len();
    let looks = match comparison.design {
        Design::Sequential { .. } => Looks::EveryPair,
        Design::Trials { .. } | Design::Pairs { .. } => Looks::Once,
    };
    let power = comparison.findings.iter().filter_map(|judged| {
        let min_effect = judged.min_effect?;
        let (deviation, source) =
            pilot_deviation(comparison, judged).or_else(|| similar_deviation(comparison, judged, stored))?;
        let min_effect = judged.scale.to_differences(min_effect);
        let given = Some(pairs).filter(|pairs| *pairs >= 2);
        let plan = PowerPlan::new(deviation, min_effect, judged.confidence, given, looks)?;
        Some(MeasurePlan { measure: judged.measure.clone(), source, plan })
    });
    let power = power.collect();
    let stored_runs = runs.stored()?;
    let to_run = (2 * pairs).saturating_sub(stored_runs) as f64;
    let is_positive = |_: &f64| to_run > 0.0;
    let seconds = seconds_per_pair(runs).map(|seconds| 0.5 * seconds * to_run).filter(is_positive);
    let joules =
        joules_per_run(comparison, stored, results).map(|joules| joules * to_run).filter(is_positive);
    Ok(ExperimentPlan { power, runs: 2 * pairs, stored_runs, seconds, joules })
}

/// Returns the predicted time of both runs of a pair, one after the other, in seconds.
pub fn seconds_per_pair(runs: &PairRuns<'_>) -> Option<f64> {
    let cells = runs.first_pair()?;
    cells.iter().map(|cell| Some(cell.work.fit().ok()?.needs.time?.total_s)).sum()
}

/// Returns the deviation of the pilot's paired differences, and what it comes from.
fn pilot_deviation(comparison: &Experiment, judged: &Finding) -> Option<(Deviation, String)> {
    let differences = differences(&comparison.pilot, &judged.measure);
    let first = comparison.pilot.first()?.seed?;
    let pairs = differences.len();
    let source = format!("{pairs} pilot pair{} with seeds from {first} on", plural(pairs));
    Some((Deviation::from_differences(&differences)?, source))
}

/// Returns how different two comparisons are, 0 to 2; `None` if they have too little in common.
fn distance(comparison: &Experiment, other: &Experiment) -> Option<usize> {
    let keys = |comparison: &Experiment| -> Vec<String> {
        let keys =
            comparison.changes.iter().map(|change| change.split(':').next().unwrap_or_default().to_owned());
        keys.collect()
    };
    match () {
        // The same change, whatever the seeds.
        () if comparison.change() == other.change() => Some(0),
        // Other values of the same keys, in the same recipe.
        () if keys(comparison) == keys(other)
            && comparison.baseline().seedless_hash == other.baseline().seedless_hash =>
        {
            Some(1)
        }
        // The same keys in another recipe with the same name and corpus, for example with other steps.
        () if keys(comparison) == keys(other)
            && comparison.baseline().recipe == other.baseline().recipe
            && comparison.provenance.corpus_hashes == other.provenance.corpus_hashes =>
        {
            Some(2)
        }
        () => None,
    }
}

/// Returns the deviation of the paired differences of the most similar comparison, and what it comes from.
fn similar_deviation(
    comparison: &Experiment,
    judged: &Finding,
    stored: &[StoredExperiment],
) -> Option<(Deviation, String)> {
    let candidates = stored.iter().map(|one| &one.experiment).filter_map(|other| {
        let distance = distance(comparison, other)?;
        let differences = differences(&other.runs, &judged.measure);
        (differences.len() >= FEWEST_PAIRS).then_some((distance, other, differences))
    });
    // Among the most similar comparisons, take the one with the most pairs.
    let (distance, other, differences) = candidates
        .min_by_key(|(distance, _, differences)| (*distance, std::cmp::Reverse(differences.len())))?;
    let similar = match distance {
        0 => "the same change",
        1 => "the same keys changed in the same recipe",
        _ => "the same keys changed in a recipe of the same name and corpus",
    };
    let pairs = differences.len();
    let source = format!("{} ({similar}, {pairs} pairs)", other.full_name());
    Some((Deviation::from_differences(&differences)?, source))
}

/// Returns the mean energy of a run, in joules, from this comparison's pilot and the latest earlier
/// comparison of the same change on the same device. `None` if no power was measured.
fn joules_per_run(comparison: &Experiment, stored: &[StoredExperiment], results: &Path) -> Option<f64> {
    let earlier = stored.iter().rev().map(|one| &one.experiment).find(|other| {
        other.change() == comparison.change() && other.provenance.device == comparison.provenance.device
    });
    let runs = comparison.pilot.iter().chain(earlier.iter().flat_map(|other| &other.runs));
    let runs = runs.filter_map(|run| run.run.as_deref());
    let joules: Vec<f64> =
        runs.filter_map(|run| MeasuredRun::open(&results.join(run)).ok()?.joules()).collect();
    (!joules.is_empty()).then(|| joules.iter().sum::<f64>() / joules.len() as f64)
}

/// Describes the plan, one line per fact.
pub fn describe_plan(
    comparison: &Experiment,
    plan: &ExperimentPlan,
    seconds_per_pair: Option<f64>,
) -> Vec<String> {
    let mut lines = Vec::new();
    for judged in &comparison.findings {
        let name = &judged.measure;
        match plan.power.iter().find(|planned| planned.measure == *name) {
            Some(planned) => {
                let unit = match judged.scale {
                    Scale::Difference => judged.unit.as_str(),
                    Scale::Ratio => "of the logarithm",
                };
                lines.push(format!("{name}, by {}:", planned.source));
                lines.extend(planned.plan.words(unit).into_iter().map(|line| format!("  {line}")));
                let needs = [planned.plan.pairs_to_see, planned.plan.pairs_to_show_equivalence];
                if let (Some(seconds), Some(pairs)) = (seconds_per_pair, needs.into_iter().flatten().max()) {
                    lines.push(format!(
                        "  {pairs} pairs are {} runs, about {} one after another",
                        2 * pairs,
                        wall_time(seconds * pairs as f64)
                    ));
                }
            }
            None if judged.min_effect.is_none() => {
                lines.push(format!("{name}: ranks have no power plan"));
            }
            None => lines.push(format!(
                "{name}: no stored comparison changed the same keys; --pilot 8 estimates the deviation of a pair first"
            )),
        }
    }
    let mut text = format!("{} runs", plan.runs);
    if plan.stored_runs > 0 {
        text += &format!(", {} of them stored already", plan.stored_runs);
    }
    text += &plan.seconds.map(|s| format!(", about {} one after another", wall_time(s))).unwrap_or_default();
    text += &plan.joules.map(|joules| format!(", about {}J", metric(joules))).unwrap_or_default();
    lines.push(text);
    lines
}
