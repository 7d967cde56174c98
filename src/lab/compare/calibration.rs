//! How the predictions of all stored comparisons came out.

use crate::error::Result;
use crate::format::{plural, significant};
use crate::recipe::{Predicted, Prediction};
use crate::results::experiment::Experiment;
use crate::results::find;
use crate::results::quantiles::median;
use std::path::Path;

/// Counts of predictions by how they came out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    /// Predicted words: held, falsified, open.
    pub words: [usize; 3],
    /// Predicted ranges: held, falsified, open.
    pub ranges: [usize; 3],
    /// Width of every range over the width of the interval that it was compared with.
    pub widths: Vec<f64>,
}

impl Calibration {
    /// Reads all comparisons below a results folder and judges their predictions by today's rules. A record
    /// that cannot be read is left out.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn read(results: &Path) -> Result<Self> {
        let mut counted = Self::default();
        for folder in find::comparisons(results)? {
            Experiment::read(&folder).iter().for_each(|experiment| counted.add(experiment));
        }
        Ok(counted)
    }

    /// Counts the prediction of a comparison that has finished.
    pub fn add(&mut self, experiment: &Experiment) {
        let Some(prediction) = experiment.prediction.as_ref().filter(|_| experiment.finished) else { return };
        let Ok(parsed) = prediction.text.parse::<Prediction>() else { return };
        let at = match experiment.prediction_held() {
            Some(true) => 0,
            Some(false) => 1,
            None => 2,
        };
        match parsed.of {
            Predicted::Range { .. } | Predicted::Difference { .. } => {
                self.ranges[at] += 1;
                self.widths.extend(experiment.prediction_width());
            }
            _ => self.words[at] += 1,
        }
    }

    /// Describes the counts; `None` without a prediction.
    pub fn in_words(&self) -> Option<String> {
        let counts = |name: &str, [held, falsified, open]: [usize; 3]| {
            let all = held + falsified + open;
            (all > 0).then(|| {
                format!("{all} {name}{}: {held} held, {falsified} falsified, {open} open", plural(all))
            })
        };
        let mut parts: Vec<String> =
            [counts("word", self.words), counts("range", self.ranges)].into_iter().flatten().collect();
        let width = median(self.widths.iter().copied());
        parts.extend(width.map(|width| {
            format!("a range is {} times as wide as its interval in the median", significant(width))
        }));
        (!parts.is_empty()).then(|| format!("predictions stored here: {}", parts.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::tests::trials;
    use crate::results::experiment::RegisteredPrediction;
    use crate::statistics::{Interval, Verdict};

    #[test]
    fn predictions_are_counted_with_their_widths() {
        let mut counted = Calibration::default();
        assert_eq!(counted.in_words(), None);
        for text in
            ["faster", "slower", "tok_s +1..+21%", "tok_s -900..+900%", "tok_s +5..+6%", "tok_s +50..+60%"]
        {
            let mut found = trials();
            found.findings[0].verdict = Verdict::Better;
            found.findings[0].interval = Some(Interval { estimate: 0.1, low: 0.05, high: 0.15 });
            found.prediction = Some(RegisteredPrediction { text: text.into(), held: None });
            counted.add(&found);
            found.finished = false;
            counted.add(&found);
        }
        assert_eq!((counted.words, counted.ranges), ([1, 1, 0], [2, 1, 1]));
        let widths: Vec<f64> = counted.widths.iter().map(|width| (10.0 * width).round() / 10.0).collect();
        assert_eq!(widths, [2.0, 180.0, 0.1, 1.0]);
        let said = counted.in_words().unwrap();
        assert!(
            said.contains("4 ranges: 2 held, 1 falsified, 1 open; a range is 1.5 times as wide"),
            "{said}"
        );
    }
}
