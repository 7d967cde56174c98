//! The result of a replay.

use super::conditions::Conditions;
use super::difference::Difference;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

/// The conclusion of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Every stored value of the training was reproduced to the bit.
    SameBits,
    /// A value differs although the bits should be the same.
    Differs,
    /// A value differs, but the sources, the instruction set or a library differ from the recording.
    DiffersUnderOtherConditions,
    /// For a comparison: the ratio lies within the recorded interval, and on the recorded device class the
    /// verdict is the same.
    Reproduced,
    /// For a comparison: the ratio lies outside the recorded interval, or the verdict differs.
    NotReproduced,
    /// Nothing can be judged: a run on another device class, or a comparison without a ratio.
    NotJudged,
    /// The replay could not be run.
    Failed,
}

impl Outcome {
    /// Returns true if the outcome contradicts what is stored.
    pub fn is_difference(self) -> bool {
        matches!(self, Self::Differs | Self::DiffersUnderOtherConditions | Self::NotReproduced)
    }

    fn in_words(self, conditions: &Conditions) -> &'static str {
        match self {
            Self::SameBits => "the same bits",
            Self::Differs => "differs",
            Self::DiffersUnderOtherConditions if conditions.build.is_empty() => {
                "differs, under another instruction set or other libraries"
            }
            Self::DiffersUnderOtherConditions => "differs, under another build",
            Self::Reproduced => "reproduced",
            Self::NotReproduced => "not reproduced",
            Self::NotJudged => "not judged",
            Self::Failed => "failed",
        }
    }
}

/// A replay that has ended.
#[derive(Clone, Debug, Serialize)]
pub struct Replay {
    /// `RECIPE/RUN`, or `comparisons/NAME/ID`.
    pub id: String,
    /// The conclusion.
    pub outcome: Outcome,
    /// The conclusion in words.
    pub says: String,
    /// The first difference; for a comparison, the first in any of its runs.
    pub difference: Option<Difference>,
    /// How build, libraries and device differ from the recording; in files, one sentence each.
    pub conditions: Conditions,
    /// What was found, and remarks on the stored files, one sentence each.
    pub findings: Vec<String>,
    /// The folder of the new run or comparison; blank if nothing ran.
    pub folder: Option<PathBuf>,
}

impl Replay {
    /// Makes a replay with this outcome.
    pub(super) fn new(id: &str, outcome: Outcome, conditions: &Conditions, findings: Vec<String>) -> Self {
        Self {
            id: id.to_owned(),
            outcome,
            says: outcome.in_words(conditions).to_owned(),
            difference: None,
            conditions: conditions.clone(),
            findings,
            folder: None,
        }
    }

    /// Makes a replay that could not be run, after these findings.
    pub(super) fn failed(id: &str, mut findings: Vec<String>, why: impl Into<String>) -> Self {
        findings.push(why.into());
        Self::new(id, Outcome::Failed, &Conditions::default(), findings)
    }

    /// Makes a replay that was not run because the recording cannot be judged here.
    pub fn not_run(id: &str, why: impl Into<String>) -> Self {
        Self::new(id, Outcome::NotJudged, &Conditions::default(), vec![why.into()])
    }

    /// Returns the conclusion in a line, with the findings in lines below it.
    pub fn in_words(&self) -> String {
        let mut text = format!("{}: {}\n", self.id, self.says);
        let difference = self.difference.iter().map(ToString::to_string);
        for line in difference.chain(self.findings.iter().cloned()).chain(self.conditions.in_words()) {
            let _ = writeln!(text, "  {line}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_the_conditions_that_are_others() {
        let build =
            Conditions { build: vec!["commit: recorded a, here b".to_owned()], ..Conditions::default() };
        let machine = Conditions { machine: vec!["driver: …".to_owned()], ..Conditions::default() };
        let says = |conditions| {
            Replay::new("r/1", Outcome::DiffersUnderOtherConditions, conditions, vec!["found".to_owned()])
        };
        assert_eq!(
            says(&build).in_words(),
            "r/1: differs, under another build\n  found\n  commit: recorded a, here b\n"
        );
        assert!(says(&machine).says.ends_with("instruction set or other libraries"));
        assert!(Outcome::Differs.is_difference() && Outcome::NotReproduced.is_difference());
        assert!(!Outcome::NotJudged.is_difference() && !Outcome::Failed.is_difference());
    }
}
