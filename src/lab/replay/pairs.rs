//! Replays a stored comparison of pairs: every run of every pair. The new runs are judged by the comparison's
//! own rule.

use super::binary::Binaries;
use super::comparison::{RepeatedInterval, ReplayedRuns, StoredComparison};
use super::outcome::{Outcome, Replay};
use super::run;
use super::setting::Setting;
use crate::compare::{self, judge};
use crate::error::Result;
use crate::format::significant;
use crate::results::experiment::{Design, Experiment, NO_VERDICT};
use crate::results::measure::{Measure, MeasuredRun};
use crate::results::progress::eprint_line;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Replays every run of a comparison. If the bits differ and are allowed to, the mean difference of each
/// measure is checked against the recorded interval.
///
/// # Errors
/// The same as for [`super::replay`].
pub(super) fn replay(
    stored: &StoredComparison,
    setting: &Setting<'_>,
    binaries: &mut Binaries,
) -> Result<Replay> {
    let recorded = &stored.experiment;
    let names = recorded.run_names();
    let (mut replayed, mut findings) = (ReplayedRuns::default(), Vec::new());
    let mut folders: BTreeMap<&str, PathBuf> = BTreeMap::new();
    for (at, name) in names.iter().copied().enumerate() {
        eprint_line(&format!("run {} of {}: {name}", at + 1, names.len()));
        let Some(run) = stored.runs.get(name) else {
            findings.push(format!("{name} is not stored here"));
            continue;
        };
        let replay = run::replay(run, setting, binaries)?;
        match &replay.difference {
            _ if replay.outcome == Outcome::SameBits => {}
            Some(difference) => findings.push(format!("{name}: {difference}")),
            None => findings.extend(replay.findings.iter().map(|finding| format!("{name}: {finding}"))),
        }
        replayed.add(&replay);
        folders.extend(replay.folder.map(|folder| (name, folder)));
    }
    let same = replayed.count(Outcome::SameBits);
    findings.insert(0, format!("the same bits in {same} of {} runs", names.len()));
    let new = judged_again(recorded, &folders)?;
    let intervals = RepeatedInterval::between(recorded, &new);
    findings.extend(intervals.iter().map(in_words));
    let outcome = outcome(&replayed, names.len(), RepeatedInterval::are_within(&intervals));
    Ok(replayed.conclude(&stored.id, outcome, findings))
}

/// Decides the outcome for a comparison of `runs` runs. `are_within` says whether the new estimates lie
/// within the recorded intervals; `None` if there are none.
fn outcome(replayed: &ReplayedRuns, runs: usize, are_within: Option<bool>) -> Outcome {
    let has = |outcome| replayed.outcomes.contains(&outcome);
    match are_within {
        _ if has(Outcome::Differs) => Outcome::Differs,
        _ if has(Outcome::Failed) || replayed.outcomes.len() < runs || runs == 0 => Outcome::Failed,
        Some(false) => Outcome::NotReproduced,
        _ if replayed.count(Outcome::SameBits) == runs => Outcome::SameBits,
        Some(true) => Outcome::Reproduced,
        None => Outcome::NotJudged,
    }
}

/// Returns a comparison with the values of new runs, whose folders are listed by the name of the stored run.
/// All pairs are judged at once, even if the recorded ones were judged one after the other: stopping again
/// would leave replayed pairs out of the estimate. Other runs have no values.
///
/// # Errors
/// If a new run cannot be read.
fn judged_again(recorded: &Experiment, folders: &BTreeMap<&str, PathBuf>) -> Result<Experiment> {
    let mut new = recorded.clone();
    let measures: Vec<Measure> = recorded.findings.iter().map(|finding| finding.measure.clone()).collect();
    for run in &mut new.runs {
        run.values.clear();
        if let Some(folder) = run.run.as_deref().and_then(|name| folders.get(name)) {
            MeasuredRun::open(folder)?;
            *run = compare::with_values(std::mem::take(run), folder, &measures);
        }
    }
    new.design = Design::Pairs { pairs: new.pairs().count() };
    judge::judge(&mut new);
    Ok(new)
}

fn in_words(measure: &RepeatedInterval<'_>) -> String {
    let RepeatedInterval { finding, recorded, new } = measure;
    let [estimate, low, high] = [recorded.estimate, recorded.low, recorded.high].map(significant);
    format!(
        "{}: mean difference recorded {estimate} ({low} to {high}; {}), now {}: {}",
        finding.measure,
        finding.withheld.as_ref().map_or(finding.verdict.words(), |_| NO_VERDICT),
        significant(new.estimate),
        measure.place(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::experiment::example::experiment;
    use crate::results::experiment::{ExperimentRun, Finding};
    use crate::results::measure::MeasureValue;

    /// Makes a comparison of a measure from the values of both arms, pair by pair.
    fn comparison(measure: &Measure, pairs: &[[f64; 2]]) -> Experiment {
        let run = |(arm, value): (usize, &f64)| {
            let values = [(measure.to_string(), MeasureValue::Value(*value))].into();
            ExperimentRun { arm, status: Some("ok".to_owned()), values, ..ExperimentRun::default() }
        };
        let runs = pairs.iter().flat_map(|pair| pair.iter().enumerate().map(run)).collect();
        let findings = vec![Finding::unjudged(measure.clone(), measure.default_min_effect(), 0.95)];
        experiment(Design::Pairs { pairs: pairs.len() }, findings, runs)
    }

    #[test]
    fn the_mean_difference_follows_the_scale() {
        let estimate = |measure: &Measure, pairs: &[[f64; 2]]| {
            let mut judged = comparison(measure, pairs);
            judge::judge(&mut judged);
            judged.findings[0].interval.map(|interval| interval.estimate)
        };
        let loss: Measure = "val_loss".parse().unwrap();
        assert_eq!(estimate(&loss, &[[2.0, 2.5], [4.0, 4.25]]), Some(0.375));
        let ratio = estimate(&Measure::SPEED, &[[100.0, 200.0], [100.0, 50.0]]).unwrap();
        assert!(ratio.abs() < 1e-12, "{ratio}");
        assert_eq!(estimate(&Measure::SPEED, &[]), None);
    }

    #[test]
    fn runs_that_were_not_replayed_have_no_values() {
        let recorded = comparison(&Measure::SPEED, &[[100.0, 200.0], [100.0, 50.0]]);
        let new = judged_again(&recorded, &BTreeMap::new()).unwrap();
        assert!(new.findings[0].interval.is_none() && new.runs.iter().all(|run| run.values.is_empty()));
    }

    #[test]
    fn bits_come_before_means_and_failures_before_both() {
        let of = |outcomes: &[Outcome], are_within: Option<bool>| {
            let replayed = ReplayedRuns { outcomes: outcomes.to_vec(), ..ReplayedRuns::default() };
            outcome(&replayed, 2, are_within)
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
