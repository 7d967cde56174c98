//! Replays a stored comparison of pairs: every run of every pair, and the measures of the new runs.

use super::binary::Binaries;
use super::conditions::Conditions;
use super::outcome::{Outcome, Replay};
use super::recording::Recording;
use super::run;
use super::setting::Setting;
use super::stored_run::comparison_runs;
use crate::error::Result;
use crate::format::{plural, significant};
use crate::results::experiment::{Experiment, ExperimentRun, Finding};
use crate::results::measure::{MeasuredRun, Scale};
use crate::results::names::COMPARISONS;
use crate::results::progress::eprint_line;
use crate::statistics::{self, Interval};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Returns what is known about a comparison before it runs.
///
/// # Errors
/// If a file cannot be read.
pub(super) fn recording(folder: &Path, results: &Path) -> Result<Recording> {
    let comparison = Experiment::read(folder)?;
    let runs = comparison_runs(folder, results)?;
    let (pairs, count) = (comparison.pairs().count(), comparison.run_names().len());
    let parts = format!("{count} runs of {pairs} pair{}", plural(pairs));
    let device = comparison.provenance.device.as_deref().unwrap_or("an unrecorded device");
    let id = format!("{COMPARISONS}/{}", comparison.full_name());
    Ok(Recording::new(&id, &parts, count, runs.values(), device))
}

/// Replays every run of a comparison. If the bits differ and are allowed to, the mean difference of each
/// measure is checked against the recorded interval.
///
/// # Errors
/// The same as for [`super::replay`].
pub(super) fn replay(folder: &Path, setting: &Setting<'_>, binaries: &mut Binaries) -> Result<Replay> {
    let recorded = Experiment::read(folder)?;
    let runs = comparison_runs(folder, setting.results)?;
    let id = format!("{COMPARISONS}/{}", recorded.full_name());
    let names = recorded.run_names();
    let mut replayed = ReplayedRuns::default();
    for (at, name) in names.iter().enumerate() {
        eprint_line(&format!("run {} of {}: {name}", at + 1, names.len()));
        let Some(stored) = runs.get(*name) else {
            replayed.findings.push(format!("{name} is not stored here"));
            continue;
        };
        replayed.add(name, run::replay(&stored.folder, setting, binaries)?);
    }
    let measures = Measures::between(&recorded, &replayed.folders)?;
    let outcome = replayed.outcome(names.len(), &measures);
    let mut findings = vec![format!("the same bits in {} of {} runs", replayed.same, names.len())];
    findings.extend(replayed.findings);
    findings.extend(measures.found);
    let conditions = Conditions { build: replayed.conditions, ..Conditions::default() };
    Ok(Replay { difference: replayed.difference, ..Replay::new(&id, outcome, &conditions, findings) })
}

/// The replayed runs of a comparison.
#[derive(Default)]
struct ReplayedRuns {
    /// The new folders, by the name of the stored run.
    folders: BTreeMap<String, PathBuf>,
    /// Number of runs with the same bits.
    same: usize,
    outcomes: Vec<Outcome>,
    difference: Option<super::difference::Difference>,
    conditions: Vec<String>,
    findings: Vec<String>,
}

impl ReplayedRuns {
    fn add(&mut self, name: &str, replay: Replay) {
        if replay.outcome == Outcome::SameBits {
            self.same += 1;
        } else if let Some(difference) = &replay.difference {
            self.findings.push(format!("{name}: {difference}"));
        } else {
            self.findings.extend(replay.findings.iter().map(|finding| format!("{name}: {finding}")));
        }
        self.outcomes.push(replay.outcome);
        self.difference = self.difference.take().or(replay.difference);
        if self.conditions.is_empty() {
            self.conditions = replay.conditions;
        }
        self.folders.extend(replay.folder.map(|folder| (name.to_owned(), folder)));
    }

    fn outcome(&self, runs: usize, measures: &Measures) -> Outcome {
        let has = |outcome| self.outcomes.contains(&outcome);
        match measures.are_within {
            _ if has(Outcome::Differs) => Outcome::Differs,
            _ if has(Outcome::Failed) || self.outcomes.len() < runs || runs == 0 => Outcome::Failed,
            Some(false) => Outcome::NotReproduced,
            _ if self.same == runs => Outcome::SameBits,
            Some(true) => Outcome::Reproduced,
            None => Outcome::NotJudged,
        }
    }
}

/// The measures of the new runs, checked against the recorded intervals.
struct Measures {
    /// One sentence per measure.
    found: Vec<String>,
    /// True if every mean difference lies within its recorded interval; `None` if there is no interval.
    are_within: Option<bool>,
}

impl Measures {
    fn between(recorded: &Experiment, folders: &BTreeMap<String, PathBuf>) -> Result<Self> {
        let mut measured = BTreeMap::new();
        for (name, folder) in folders {
            measured.insert(name.as_str(), MeasuredRun::open(folder)?);
        }
        let mut measures = Self { found: Vec::new(), are_within: None };
        for judged in &recorded.findings {
            let Some(interval) = judged.interval else { continue };
            let value =
                |run: &ExperimentRun| measured.get(run.run.as_deref()?)?.measure(&judged.measure).value();
            let pairs = recorded.pairs().filter_map(|pair| value(pair.baseline).zip(value(pair.candidate)));
            let pairs: Vec<(f64, f64)> = pairs.collect();
            let Some(mean) = mean_difference(judged.scale, &pairs) else { continue };
            let is_within = (interval.low..=interval.high).contains(&mean);
            measures.are_within = Some(measures.are_within.unwrap_or(true) && is_within);
            measures.found.push(in_words(judged, &interval, mean, is_within));
        }
        Ok(measures)
    }
}

/// Returns the mean difference of pairs `(baseline, candidate)` in the form that comparisons store; `None`
/// without pairs.
fn mean_difference(scale: Scale, pairs: &[(f64, f64)]) -> Option<f64> {
    let mean = |difference: &dyn Fn(&(f64, f64)) -> f64| {
        statistics::mean(&pairs.iter().map(difference).collect::<Vec<f64>>())
    };
    (!pairs.is_empty()).then(|| match scale {
        Scale::Difference => mean(&|(baseline, candidate)| candidate - baseline),
        Scale::Ratio => mean(&|(baseline, candidate)| (candidate / baseline).ln()).exp_m1(),
    })
}

fn in_words(judged: &Finding, interval: &Interval, mean: f64, is_within: bool) -> String {
    let [estimate, low, high] = [interval.estimate, interval.low, interval.high].map(significant);
    format!(
        "{}: mean difference recorded {estimate} ({low} to {high}; {}), now {}: {} the recorded interval",
        judged.measure,
        judged.verdict.words(),
        significant(mean),
        if is_within { "within" } else { "outside" },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_difference_follows_the_scale() {
        let pairs = [(2.0, 2.5), (4.0, 4.25)];
        assert_eq!(mean_difference(Scale::Difference, &pairs), Some(0.375));
        let ratio = mean_difference(Scale::Ratio, &[(100.0, 200.0), (100.0, 50.0)]).unwrap();
        assert!(ratio.abs() < 1e-12, "{ratio}");
        assert_eq!(mean_difference(Scale::Ratio, &[]), None);
    }

    #[test]
    fn bits_come_before_means_and_failures_before_both() {
        let measures = |are_within| Measures { found: Vec::new(), are_within };
        let of = |outcomes: &[Outcome], are_within: Option<bool>| {
            let same = outcomes.iter().filter(|outcome| **outcome == Outcome::SameBits).count();
            ReplayedRuns { same, outcomes: outcomes.to_vec(), ..ReplayedRuns::default() }
                .outcome(2, &measures(are_within))
        };
        use Outcome::{Differs, DiffersUnderOtherConditions as Other, Failed, NotJudged, SameBits};
        assert_eq!(of(&[SameBits, SameBits], Some(true)), SameBits);
        assert_eq!(of(&[SameBits, SameBits], None), SameBits, "without an interval too");
        assert_eq!(of(&[SameBits, SameBits], Some(false)), Outcome::NotReproduced, "of a speed");
        assert_eq!(of(&[SameBits, Other], Some(true)), Outcome::Reproduced);
        assert_eq!(of(&[NotJudged, Other], Some(false)), Outcome::NotReproduced);
        assert_eq!(of(&[Other, Other], None), NotJudged);
        assert_eq!(of(&[SameBits, Differs], Some(true)), Differs);
        assert_eq!(of(&[SameBits, Failed], Some(true)), Failed);
        assert_eq!(of(&[SameBits], Some(true)), Failed, "a run that is not here");
    }
}
