//! Comparisons of speed and of quality, with their pairs and verdicts.

use super::number::or_null;
use crate::compare::quality::after_pairs;
use crate::error::Result;
use crate::results::comparison::{COMPARISON, Comparison, Trial};
use crate::results::measure::Scale;
use crate::results::names::QUALITY;
use crate::results::quality::{JudgedMeasure, Pair, QualityComparison};
use crate::results::quantiles::median;
use crate::results::regular;
use crate::statistics::Interval;
use crate::view::folder::{read_json, version};
use serde_json::{Value, json};
use std::path::Path;

/// A comparison of either kind.
enum Read {
    Quality(Box<QualityComparison>),
    Speed(Box<Comparison>),
}

impl Read {
    fn of_folder(folder: &Path) -> Result<Self> {
        Ok(match regular::is_file(&folder.join(QUALITY)) {
            true => Self::Quality(Box::new(read_json(folder, QUALITY)?)),
            false => Self::Speed(Box::new(read_json(folder, COMPARISON)?)),
        })
    }

    /// Returns the verdict as it is stored, and in words.
    fn verdict(&self) -> (Value, &'static str) {
        match self {
            Self::Quality(quality) => (quality.verdict().as_str().into(), quality.verdict().words()),
            Self::Speed(speed) => {
                (serde_json::to_value(speed.verdict).unwrap_or_default(), speed.verdict.as_str())
            }
        }
    }
}

/// Returns the line of a comparison in the document `comparisons`; with the reason where it cannot be read.
pub fn line(id: &str, folder: &Path) -> Value {
    let version = version(folder, [QUALITY, COMPARISON]);
    let read = match Read::of_folder(folder) {
        Ok(read) => read,
        Err(e) => return json!({"id": id, "name": id, "version": version, "damaged": e.message()}),
    };
    let (verdict, words) = read.verdict();
    let (kind, name, began, finished) = match &read {
        Read::Quality(of) => ("quality", &of.name, Some(&of.provenance.began), of.finished),
        Read::Speed(of) => ("speed", &of.name, None, of.finished),
    };
    let (pairs, trials) = match &read {
        Read::Quality(of) => (Some(of.pairs.len()), None),
        Read::Speed(of) => (None, Some(of.trials.len())),
    };
    json!({
        "id": id,
        "kind": kind,
        "name": name,
        "began": began,
        "finished": finished,
        "verdict": verdict,
        "verdict_words": words,
        "pairs": pairs,
        "trials": trials,
        "version": version,
    })
}

/// Returns the document `comparison` of a folder.
///
/// # Errors
/// When its file cannot be read.
pub fn document(id: &str, folder: &Path) -> Result<Value> {
    let version = version(folder, [QUALITY, COMPARISON]);
    let read = Read::of_folder(folder)?;
    let (verdict, words) = read.verdict();
    let mut document = json!({"id": id, "version": version, "verdict": verdict, "verdict_words": words});
    let of_kind = match &read {
        Read::Quality(quality) => json!({
            "kind": "quality",
            "comparison": quality,
            "measures": measures(quality),
        }),
        Read::Speed(speed) => json!({
            "kind": "speed",
            "comparison": speed,
            "ratio": speed.ratio,
            "min_effect": speed.min_effect,
            "trials": speed.trials.iter().map(|trial| of_trial(trial, speed)).collect::<Vec<_>>(),
        }),
    };
    if let (Value::Object(document), Value::Object(of_kind)) = (&mut document, of_kind) {
        document.extend(of_kind);
    }
    Ok(document)
}

/// Returns the measures with their pairs, and how their intervals closed.
fn measures(comparison: &QualityComparison) -> Vec<Value> {
    let with_history = comparison.measures.iter().zip(histories(comparison));
    with_history.map(|(judged, history)| measure(judged, &comparison.pairs, history)).collect()
}

/// Returns the interval of each measure after each number of pairs that has one, by the rule of the
/// comparison: of a sequential design from its first look on, of ranks none.
fn histories(comparison: &QualityComparison) -> Vec<Vec<Value>> {
    let mut histories = vec![Vec::new(); comparison.measures.len()];
    let ended = comparison.pairs.iter().filter(|pair| pair.has_ended()).count();
    for pairs in 2..=ended {
        for (history, judged) in histories.iter_mut().zip(after_pairs(comparison, pairs).measures) {
            let Some(Interval { estimate, low, high }) = judged.interval else { continue };
            history.push(json!({"pairs": pairs, "estimate": estimate, "low": low, "high": high}));
        }
    }
    histories
}

/// Returns a measure with its pairs and the history of its interval.
fn measure(judged: &JudgedMeasure, pairs: &[Pair], history: Vec<Value>) -> Value {
    let name = judged.measure.to_string();
    let value = |pair: &Pair, arm: usize| pair.runs()[arm].values.get(&name).and_then(|value| value.value());
    // As intervals state it: candidate - baseline, or candidate / baseline - 1.
    let difference = |pair: &Pair| -> Option<f64> {
        let (baseline, candidate) = (value(pair, 0)?, value(pair, 1)?);
        let difference = match judged.scale {
            Scale::Difference => candidate - baseline,
            Scale::Ratio => candidate / baseline - 1.0,
        };
        difference.is_finite().then_some(difference)
    };
    let rows = pairs.iter().map(|pair| {
        json!({
            "seed": pair.baseline.seed.to_string(),
            "baseline": or_null(value(pair, 0)),
            "candidate": or_null(value(pair, 1)),
            "difference": or_null(difference(pair)),
            "runs": pair.runs().map(|run| &run.run),
        })
    });
    let rows: Vec<Value> = rows.collect();
    json!({
        "unit": judged.unit,
        "direction": judged.direction,
        "scale": judged.scale,
        "min_effect": judged.min_effect,
        "confidence": judged.confidence,
        "interval": judged.interval,
        "verdict": judged.verdict.as_str(),
        "verdict_words": judged.verdict.words(),
        "because": judged.because,
        "history": history,
        "pairs": rows,
        "name": name,
    })
}

fn of_trial(trial: &Trial, speed: &Comparison) -> Value {
    let (arm, label) = match trial.is_candidate {
        true => ("candidate", &speed.candidate.label),
        false => ("baseline", &speed.baseline.label),
    };
    json!({
        "arm": arm,
        "label": label,
        "run": trial.run,
        "status": trial.status,
        "blocks": trial.blocks,
        "median": or_null(median(trial.blocks.iter().copied())),
    })
}
