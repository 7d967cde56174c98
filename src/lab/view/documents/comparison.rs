//! Comparisons with their runs, pairs and verdicts.

use super::number::or_null;
use crate::compare::judge::{ClosingInterval, closing};
use crate::error::Result;
use crate::regular;
use crate::results::experiment::{ARM_NAMES, EXPERIMENT, Experiment, ExperimentRun, Finding, RunPair};
use crate::results::measure::Measure;
use crate::results::quantiles::median;
use crate::view::folder::version;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn read(folder: &Path) -> Result<Experiment> {
    let path = folder.join(EXPERIMENT);
    Experiment::parse(&regular::read(&path, regular::MAX_TEXT)?, &path)
}

/// Returns the document `comparisons` of these ids and folders.
pub fn list(found: &[(String, PathBuf)]) -> Value {
    json!({"comparisons": found.iter().map(|(id, folder)| line(id, folder)).collect::<Vec<_>>()})
}

/// Returns the line of a comparison in the document `comparisons`, or the reason if it cannot be read.
fn line(id: &str, folder: &Path) -> Value {
    let version = version(folder, [EXPERIMENT]);
    let experiment = match read(folder) {
        Ok(experiment) => experiment,
        Err(e) => return json!({"id": id, "name": id, "version": version, "damaged": e.message()}),
    };
    let ended = experiment.runs.iter().filter(|run| run.status.is_some()).count();
    let has_trials = experiment.has_trials();
    json!({
        "id": id,
        "kind": kind(&experiment),
        "name": experiment.name,
        "began": experiment.provenance.began,
        "finished": experiment.finished,
        "verdict": experiment.verdict().as_str(),
        "verdict_words": experiment.verdict_words(),
        "pairs": (!has_trials).then(|| experiment.pairs().count()),
        "trials": has_trials.then_some(ended),
        "version": version,
    })
}

/// Returns the document `comparison` of a folder.
///
/// # Errors
/// If its record cannot be read.
pub fn document(id: &str, folder: &Path) -> Result<Value> {
    let version = version(folder, [EXPERIMENT]);
    let experiment = read(folder)?;
    let ended = experiment.runs.iter().filter(|run| run.status.is_some() && experiment.has_trials());
    let findings = experiment.findings.iter().zip(closing(&experiment));
    let judged = findings.filter(|(finding, _)| finding.measure != Measure::LossCurves);
    Ok(json!({
        "id": id,
        "version": version,
        "kind": kind(&experiment),
        "verdict": experiment.verdict().as_str(),
        "verdict_words": experiment.verdict_words(),
        "comparison": experiment,
        "curves": experiment.curves().and_then(|curves| curves.because.as_ref()),
        "interval": experiment.speed().and_then(|speed| speed.interval),
        "min_effect": experiment.speed().and_then(|speed| speed.min_effect),
        "measures": judged.map(|(finding, closing)| measure(finding, &experiment, closing)).collect::<Vec<_>>(),
        "trials": ended.map(|run| trial(run, &experiment)).collect::<Vec<_>>(),
    }))
}

fn kind(experiment: &Experiment) -> &'static str {
    if experiment.has_trials() { "speed" } else { "quality" }
}

/// Returns a measure with its pairs and the history of its interval.
fn measure(finding: &Finding, experiment: &Experiment, closing: Vec<ClosingInterval>) -> Value {
    let row = |pair: RunPair<'_>| {
        let [baseline, candidate] = pair.values(&finding.measure);
        json!({
            "seed": pair.baseline.seed.map(|seed| seed.to_string()),
            "baseline": or_null(baseline),
            "candidate": or_null(candidate),
            "difference": or_null(pair.difference(finding)),
            "runs": pair.runs().map(|run| &run.run),
        })
    };
    let history = closing.into_iter().map(|ClosingInterval { pairs, interval }| {
        json!({"pairs": pairs, "estimate": interval.estimate, "low": interval.low, "high": interval.high})
    });
    json!({
        "unit": finding.unit,
        "direction": finding.direction,
        "scale": finding.scale,
        "min_effect": finding.min_effect,
        "confidence": finding.confidence,
        "interval": finding.interval,
        "verdict": finding.verdict.as_str(),
        "verdict_words": experiment.finding_words(finding),
        "because": finding.because,
        "history": history.collect::<Vec<_>>(),
        "pairs": experiment.pairs().map(row).collect::<Vec<_>>(),
        "name": finding.measure.to_string(),
    })
}

fn trial(run: &ExperimentRun, experiment: &Experiment) -> Value {
    json!({
        "arm": ARM_NAMES.get(run.arm),
        "label": experiment.arms.get(run.arm).map(|arm| &arm.label),
        "run": run.run,
        "status": run.status,
        "blocks": run.blocks,
        "median": or_null(median(run.blocks.iter().copied())),
    })
}
