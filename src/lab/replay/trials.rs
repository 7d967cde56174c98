//! Replays a stored comparison of trials: the recorded recipes of both arms, with as many trials.

use super::binary::Binaries;
use super::comparison::{RepeatedInterval, ReplayedRuns, StoredComparison};
use super::outcome::{Outcome, Replay};
use super::run::{self, algorithms_for, say_conditions, settings};
use super::setting::Setting;
use super::stored_run::StoredRun;
use crate::compare::{
    self, Arms, FinishedComparison, Options, PlannedArm, Program, Question, SPEED_OF_TRIALS,
};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{decimal, plural};
use crate::ranks::environment;
use crate::results::experiment::{ARM_NAMES, BASELINE, CANDIDATE};
use crate::statistics::Interval;

/// Plans both arms as they were recorded.
///
/// # Errors
/// If they cannot be run, with the reason.
fn arms(stored: &StoredComparison, setting: &Setting<'_>, binaries: &mut Binaries) -> Result<Arms> {
    let [baseline, candidate] = [stored.experiment.baseline(), stored.experiment.candidate()];
    if baseline.binary != candidate.binary
        && baseline.commit.is_some()
        && candidate.commit.is_some()
        && !binaries.builds
    {
        return Err(Error::failed(
            "its arms ran different programs; use --build to build the commit of each",
        ));
    }
    let baseline = arm(BASELINE, stored, setting, binaries)?;
    let candidate = arm(CANDIDATE, stored, setting, binaries)?;
    Ok(Arms::from_planned(baseline, candidate))
}

fn arm(
    at: usize,
    stored: &StoredComparison,
    setting: &Setting<'_>,
    binaries: &mut Binaries,
) -> Result<PlannedArm> {
    let recorded = &stored.experiment.arms[at];
    if recorded.recipe_hash.is_none() {
        let command = &recorded.command;
        return match setting.runs_commands {
            true => Ok(PlannedArm::recorded(recorded, Program::Command(command.clone()))),
            false => Err(Error::failed(format!(
                "an arm is the command `{command}`, which is only run with --commands alone"
            ))),
        };
    }
    let run = stored.first_run(at).ok_or_else(|| {
        Error::failed(format!("no run of the {} is stored, so its recipe is unknown", ARM_NAMES[at]))
    })?;
    if let Some(why) = run.obstacle()? {
        return Err(Error::failed(format!("{}: {why}", run.id)));
    }
    let binary = binaries.binary_for(&run.environment.build)?;
    let settings = settings(run, binary.is_own);
    Ok(PlannedArm {
        recipe: Some(compare::load_stored(&run.folder)?),
        binary: Some(compare::hash_file(&binary.path)?),
        ..PlannedArm::recorded(
            recorded,
            Program::Xrun { binary: binary.path, recipe: run.recipe(), settings },
        )
    })
}

/// Replays a comparison and compares ratio, verdict and losses.
///
/// # Errors
/// The same as for [`super::replay`].
pub(super) fn replay(
    stored: &StoredComparison,
    setting: &Setting<'_>,
    binaries: &mut Binaries,
) -> Result<Replay> {
    let remarks = |run: &StoredRun| run.remarks.clone();
    let mut findings: Vec<String> = stored.runs.values().flat_map(remarks).collect();
    let arms = match arms(stored, setting, binaries) {
        Ok(arms) => arms,
        Err(error) => return Ok(Replay::failed(&stored.id, findings, error.message())),
    };
    let first = stored.first_run(CANDIDATE).or(stored.first_run(BASELINE));
    first.into_iter().for_each(|run| say_conditions(&run.environment, binaries.builds));
    let recorded = &stored.experiment;
    let repeats = [BASELINE, CANDIDATE].map(|arm| recorded.runs_in(arm).count());
    let min_effect = recorded.speed().and_then(|speed| speed.min_effect);
    let options = Options {
        on: Some(SPEED_OF_TRIALS.to_owned()),
        name: Some(recorded.name.clone()),
        repeats: Some(repeats[0].max(repeats[1]) as u64),
        min_effect: min_effect.map(|effect| effect.to_string()),
        tolerance: recorded.curves().and_then(|curves| curves.min_effect),
        hypothesis: recorded.hypothesis.clone(),
        predicts: recorded.prediction.as_ref().and_then(|prediction| prediction.text.parse().ok()),
        ..Options::default()
    };
    let question = Question::new(arms, &options)?;
    let how = compare::Setting {
        results: setting.into,
        machine: environment::machine(),
        jobs: 1,
        timeout: setting.timeout,
        pilot: 0,
        batch: None,
        algorithms_from: first.and_then(algorithms_for),
    };
    let FinishedComparison { folder, experiment: new, failed } =
        compare::run_until(&question, how, setting.stop)?;
    match failed {
        Some(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
        Some(error) => return Ok(Replay::failed(&stored.id, findings, error.message())),
        None => {}
    }
    let mut replayed = ReplayedRuns::default();
    for arm in [BASELINE, CANDIDATE] {
        for (trial, again) in recorded.runs_in(arm).zip(new.runs_in(arm)) {
            if let (Some(run), Some(id)) = (stored.run(trial), &again.run) {
                replayed.add(&run::compare(run, setting.into.join(id))?);
            }
        }
    }
    let (same, compared) = (replayed.count(Outcome::SameBits), replayed.outcomes.len());
    if compared > 0 {
        findings.push(format!("losses: the same bits in {same} of {compared} trial{}", plural(compared)));
    }
    let intervals = RepeatedInterval::between(recorded, &new);
    findings.extend(intervals.iter().map(in_words));
    let (old, now) = (recorded.verdict(), new.verdict());
    let (old_words, words) = (recorded.verdict_words(), new.verdict_words());
    findings.push(match old == now {
        true => format!("verdict: {words}, as recorded"),
        false => format!("verdict: recorded {old_words}, now {words}"),
    });
    findings.extend(new.contended.iter().map(|why| format!("contended: {why}")));
    let may_differ = replayed.conditions.device.is_some();
    let outcome = match RepeatedInterval::are_within(&intervals) {
        _ if replayed.outcomes.contains(&Outcome::Differs) => Outcome::Differs,
        None => Outcome::NotJudged,
        Some(true) if old == now || may_differ => Outcome::Reproduced,
        Some(_) => Outcome::NotReproduced,
    };
    Ok(Replay { folder: Some(folder), ..replayed.conclude(&stored.id, outcome, findings) })
}

fn in_words(speed: &RepeatedInterval<'_>) -> String {
    let ratio = |speed: &Interval| {
        let ends = [speed.estimate, speed.low, speed.high];
        let [estimate, low, high] = ends.map(|change| decimal(Some(1.0 + change), 3));
        format!("{estimate} ({low} to {high})")
    };
    let (old, now) = (ratio(&speed.recorded), ratio(&speed.new));
    format!("ratio of tokens per second: recorded {old}, now {now}: {}", speed.place())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::experiment::Finding;
    use crate::results::measure::Measure;

    #[test]
    fn a_ratio_is_within_the_recorded_interval_or_not() {
        let finding = Finding::unjudged(Measure::SPEED, Some(0.01), 0.95);
        let interval = |ratio: f64| Interval::symmetric(ratio - 1.0, 0.02);
        let at =
            |new: f64| RepeatedInterval { finding: &finding, recorded: interval(1.24), new: interval(new) };
        assert!(at(1.221).is_within() && at(1.259).is_within());
        assert!(!at(1.219).is_within() && !at(1.261).is_within() && !at(f64::NAN).is_within());
        assert_eq!(
            in_words(&at(1.3)),
            "ratio of tokens per second: recorded 1.240 (1.220 to 1.260), now 1.300 (1.280 to 1.320): \
             outside the recorded interval"
        );
    }
}
