//! The words of a verdict, with everything that must be read with it.

use super::standing::{NOT_RECORDED, Standing};
use super::{Design, Experiment, Finding};
use crate::results::measure::Measure;
use crate::statistics::Verdict;

/// The word for an answer without a verdict.
const EXPLORATORY: &str = "exploratory, no verdict";

/// What stands for the verdict of a measure by which the arms cannot be compared.
pub const NO_VERDICT: &str = "no verdict";

impl Experiment {
    /// Returns why there is no verdict; empty for a confirmatory answer and for records without a standing.
    pub fn exploratory_reasons(&self) -> &[String] {
        match &self.standing {
            Some(Standing::Exploratory { reasons }) => reasons,
            Some(Standing::Confirmatory) | None => &[],
        }
    }

    /// Returns the standing in words, with its reasons.
    pub fn standing_words(&self) -> String {
        match (&self.standing, self.exploratory_reasons()) {
            (None, _) => NOT_RECORDED.to_owned(),
            (Some(standing), []) => standing.as_str().to_owned(),
            (Some(standing), reasons) => format!("{}: {}", standing.as_str(), reasons.join("; ")),
        }
    }

    /// Returns the words of a verdict: the `verdict` itself, or that and why there is none, and everything
    /// that must be read with it.
    pub fn words(&self, verdict: &str) -> String {
        let reasons = self.exploratory_reasons();
        let mut words = if reasons.is_empty() {
            verdict.to_owned()
        } else {
            format!("{EXPLORATORY} ({})", reasons.join("; "))
        };
        for qualifier in &self.qualifiers {
            words += ", ";
            words += qualifier;
        }
        words
    }

    /// Returns the words of a finding's verdict; see [`words`](Self::words). Equal bits are a fact, which no
    /// question can spoil.
    pub fn finding_words(&self, finding: &Finding) -> String {
        match finding.verdict {
            Verdict::SameBits => finding.verdict.words().to_owned(),
            verdict if self.has_trials() => self.words(verdict.speed_words()),
            verdict => self.words(&finding.withheld_words().unwrap_or_else(|| verdict.words().to_owned())),
        }
    }

    /// Takes verdicts and the outcome of the prediction away from an exploratory answer.
    pub fn withhold_verdicts(&mut self) {
        if self.exploratory_reasons().is_empty() {
            return;
        }
        for finding in &mut self.findings {
            // Equal bits, and how far curves are apart, are facts that no question can spoil.
            if finding.verdict != Verdict::SameBits && finding.measure != Measure::LossCurves {
                finding.verdict = Verdict::Inconclusive;
            }
        }
        if let Some(joint) = &mut self.joint {
            (joint.verdict, joint.found) = (Verdict::Inconclusive, EXPLORATORY.to_owned());
        }
        if let Design::Sequential { looks, .. } = &mut self.design {
            looks
                .iter_mut()
                .flat_map(|look| look.verdicts.values_mut())
                .for_each(|one| *one = Verdict::Inconclusive);
        }
        if let Some(prediction) = &mut self.prediction {
            prediction.held = None;
        }
    }
}

impl Finding {
    /// Returns that there is no verdict, and why; `None` if there may be one.
    pub fn withheld_words(&self) -> Option<String> {
        self.withheld.as_ref().map(|why| format!("{NO_VERDICT} ({why})"))
    }
}
