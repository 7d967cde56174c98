//! Comparisons of speed and of quality, with their pairs and verdicts.

use super::number::or_null;
use crate::error::Result;
use crate::results::comparison::{COMPARISON, Comparison, Trial};
use crate::results::measure::Scale;
use crate::results::names::QUALITY;
use crate::results::quality::{JudgedMeasure, Pair, QualityComparison};
use crate::results::quantiles::median;
use crate::results::regular;
use crate::statistics::{Interval, paired_difference};
use crate::view::folder::{read_json, version};
use serde_json::{Value, json};
use std::path::Path;

/// The probability of intervals that a comparison has not judged yet.
const CONFIDENCE: f64 = 0.95;

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
    let (kind, name, began, finished, pairs) = match &read {
        Read::Quality(of) => ("quality", &of.name, Some(&of.provenance.began), of.finished, of.pairs.len()),
        Read::Speed(of) => ("speed", &of.name, None, of.finished, of.trials.len() / 2),
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
            "measures": quality.measures.iter().map(|judged| measure(judged, &quality.pairs)).collect::<Vec<_>>(),
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

/// Returns a measure with its pairs, and how its interval closed pair by pair.
fn measure(judged: &JudgedMeasure, pairs: &[Pair]) -> Value {
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
    let confidence = if judged.confidence > 0.0 { judged.confidence } else { CONFIDENCE };
    let differences: Vec<f64> = pairs.iter().filter_map(difference).collect();
    let history = (2..=differences.len()).filter_map(|count| {
        let Interval { estimate, low, high } = interval(&differences[..count], judged.scale, confidence)?;
        Some(json!({"pairs": count, "estimate": estimate, "low": low, "high": high}))
    });
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
        "history": history.collect::<Vec<_>>(),
        "pairs": rows,
        "name": name,
    })
}

/// Returns Student's interval of differences; of ratios, that of their logarithms.
fn interval(differences: &[f64], scale: Scale, confidence: f64) -> Option<Interval> {
    if scale == Scale::Difference {
        return Some(paired_difference(differences, confidence)?.interval);
    }
    let logarithms: Vec<f64> = differences.iter().map(|ratio| ratio.ln_1p()).collect();
    let Interval { estimate, low, high } = paired_difference(&logarithms, confidence)?.interval;
    Some(Interval { estimate: estimate.exp_m1(), low: low.exp_m1(), high: high.exp_m1() })
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
