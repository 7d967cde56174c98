//! Judges a prediction that was stored before the first run.

use crate::recipe::{Predicted, Prediction};
use crate::results::measure::Scale;
use crate::results::quality::{JudgedMeasure, QualityComparison};
use crate::statistics::{Interval, QualityVerdict};

/// Returns true if the prediction of a comparison held; `None` without one, and where that cannot be judged.
///
/// A word is compared with the verdict, and stays open if that is inconclusive; the same bits are no
/// difference. A range is compared with the interval: the estimate decides, unless the verdict is
/// inconclusive; then the whole interval must lie inside the range, or outside. Nothing is judged of an
/// unfinished comparison.
pub fn held(comparison: &QualityComparison) -> Option<bool> {
    let prediction: Prediction = comparison.predicts.as_ref()?.parse().ok()?;
    if !comparison.finished {
        return None;
    }
    let verdict = Some(comparison.verdict()).filter(|verdict| *verdict != QualityVerdict::Inconclusive);
    let no_difference = [QualityVerdict::NoDifference, QualityVerdict::SameBits];
    match &prediction.of {
        Predicted::Better => verdict.map(|verdict| verdict == QualityVerdict::Better),
        Predicted::Worse => verdict.map(|verdict| verdict == QualityVerdict::Worse),
        Predicted::NoDifference => verdict.map(|verdict| no_difference.contains(&verdict)),
        Predicted::Faster | Predicted::Slower => None,
        Predicted::Difference { measure, low, high } => {
            let judged = find(comparison, measure)?;
            within(judged, judged.interval.filter(|_| judged.scale == Scale::Difference)?, *low, *high)
        }
        Predicted::Range { column, low, high } => {
            let judged = find(comparison, column)?;
            let interval = judged.interval?;
            let share = match judged.scale {
                Scale::Ratio => interval,
                Scale::Difference => {
                    let baseline = judged.baseline.filter(|baseline| *baseline > 0.0)?;
                    let of = |x: f64| x / baseline;
                    Interval {
                        estimate: of(interval.estimate),
                        low: of(interval.low),
                        high: of(interval.high),
                    }
                }
            };
            within(judged, share, *low, *high)
        }
    }
}

fn find<'a>(comparison: &'a QualityComparison, name: &str) -> Option<&'a JudgedMeasure> {
    comparison.measures.iter().find(|judged| judged.measure.to_string() == name)
}

fn within(judged: &JudgedMeasure, interval: Interval, low: f64, high: f64) -> Option<bool> {
    let contains = |x: f64| (low..=high).contains(&x);
    match judged.verdict {
        QualityVerdict::Inconclusive if contains(interval.low) && contains(interval.high) => Some(true),
        QualityVerdict::Inconclusive if interval.high < low || interval.low > high => Some(false),
        QualityVerdict::Inconclusive => None,
        _ => Some(contains(interval.estimate)),
    }
}
