//! Replays a stored comparison of trials: the recorded recipes of both arms, with as many trials.

use super::binary::Binaries;
use super::conditions::Conditions;
use super::difference::{Compared, Difference};
use super::outcome::{Outcome, Replay};
use super::recording::Recording;
use super::run::{algorithms_for, say_conditions, settings};
use super::setting::Setting;
use super::stored_run::{StoredRun, comparison_runs};
use crate::compare::{
    self, Arms, FinishedComparison, Options, PlannedArm, Program, Question, SPEED_OF_TRIALS,
};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{decimal, plural};
use crate::results::experiment::{
    ARM_NAMES, Arm, BASELINE, CANDIDATE, COMPARISONS, Experiment, ExperimentRun,
};
use crate::results::progress::Mode;
use crate::statistics::Interval;
use std::collections::BTreeMap;
use std::path::Path;

/// A stored comparison and its runs, as far as they are stored here.
#[derive(Clone, Debug)]
pub(super) struct StoredComparison {
    id: String,
    experiment: Experiment,
    /// The runs of the trials, by `RECIPE/RUN`.
    runs: BTreeMap<String, StoredRun>,
}

impl StoredComparison {
    /// Reads a comparison and its runs, which are beside it, in the results folder or among the kept runs.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn read(folder: &Path, results: &Path) -> Result<Self> {
        let experiment = Experiment::read(folder)?;
        let runs = comparison_runs(folder, results)?;
        let id = format!("{COMPARISONS}/{}", experiment.full_name());
        Ok(Self { id, experiment, runs })
    }

    /// Returns what is known about the comparison before it runs.
    pub fn recording(&self) -> Recording {
        let trials = &self.experiment.runs;
        let parts = format!("{} trial{}", trials.len(), plural(trials.len()));
        let runs = trials.iter().filter_map(|trial| self.run(trial));
        let device = self.experiment.candidate().device.as_deref().unwrap_or("an unrecorded device");
        Recording::new(&self.id, &parts, trials.len(), runs, device)
    }

    /// Returns the first stored run of an arm, which has the recipe, build and device of the arm's trials.
    fn first_run(&self, arm: usize) -> Option<&StoredRun> {
        self.experiment.runs_in(arm).find_map(|trial| self.run(trial))
    }

    fn run(&self, trial: &ExperimentRun) -> Option<&StoredRun> {
        self.runs.get(trial.run.as_ref()?)
    }

    /// Plans both arms as they were recorded, or returns why they cannot be run.
    fn arms(&self, setting: &Setting<'_>, binaries: &mut Binaries) -> Result<Arms, String> {
        let (baseline, candidate) = (self.experiment.baseline(), self.experiment.candidate());
        if baseline.binary != candidate.binary
            && baseline.commit.is_some()
            && candidate.commit.is_some()
            && !binaries.builds()
        {
            return Err("its arms ran different programs; use --build to build the commit of each".to_owned());
        }
        let baseline = self.arm(BASELINE, baseline, setting, binaries)?;
        let candidate = self.arm(CANDIDATE, candidate, setting, binaries)?;
        Ok(Arms::from_planned(baseline, candidate))
    }

    fn arm(
        &self,
        at: usize,
        recorded: &Arm,
        setting: &Setting<'_>,
        binaries: &mut Binaries,
    ) -> Result<PlannedArm, String> {
        let planned = |program, binary, recipe| PlannedArm {
            label: recorded.label.clone(),
            command: recorded.command.clone(),
            program,
            binary,
            recipe,
        };
        if recorded.recipe_hash.is_none() {
            if !setting.runs_commands {
                let command = &recorded.command;
                return Err(format!(
                    "an arm is the command `{command}`, which is only run with --commands \
                                    alone"
                ));
            }
            return Ok(planned(Program::Command(recorded.command.clone()), None, None));
        }
        let stored = self
            .first_run(at)
            .ok_or_else(|| format!("no run of the {} is stored, so its recipe is unknown", ARM_NAMES[at]))?;
        let said = |error: Error| error.message().to_owned();
        if let Some(why) = stored.obstacle().map_err(said)? {
            return Err(format!("{}: {why}", stored.id));
        }
        let binary = binaries.binary_for(&stored.environment.build).map_err(said)?;
        let recipe = compare::load_stored(&stored.folder).map_err(said)?;
        let mut arguments = vec![stored.recipe().to_string_lossy().into_owned()];
        arguments.extend(settings(stored, binary.is_own));
        let hash = compare::hash_file(&binary.path).map_err(said)?;
        Ok(planned(Program::Xrun { binary: binary.path, arguments }, Some(hash), Some(recipe)))
    }
}

/// Replays a comparison and compares ratio, verdict and losses.
///
/// # Errors
/// The same as for [`super::replay`].
pub(super) fn replay(folder: &Path, setting: &Setting<'_>, binaries: &mut Binaries) -> Result<Replay> {
    let stored = StoredComparison::read(folder, setting.results)?;
    let remarks = |run: &StoredRun| run.remarks.clone();
    let mut findings: Vec<String> = stored.runs.values().flat_map(remarks).collect();
    let arms = match stored.arms(setting, binaries) {
        Ok(arms) => arms,
        Err(why) => return Ok(Replay::failed(&stored.id, findings, why)),
    };
    let first = stored.first_run(CANDIDATE).or(stored.first_run(BASELINE));
    first.into_iter().for_each(|run| say_conditions(&run.environment, binaries.builds()));
    let recorded = &stored.experiment;
    let repeats = [BASELINE, CANDIDATE].map(|arm| recorded.runs_in(arm).count());
    let min_effect = recorded.speed().and_then(|speed| speed.min_effect);
    let options = Options {
        on: Some(SPEED_OF_TRIALS.to_owned()),
        name: Some(recorded.name.clone()),
        repeats: Some(repeats[0].max(repeats[1]).max(1)),
        min_effect: min_effect.map(|effect| effect.to_string()),
        tolerance: recorded.curves().and_then(|curves| curves.min_effect),
        hypothesis: recorded.hypothesis.clone(),
        predicts: recorded.prediction.as_ref().and_then(|prediction| prediction.text.parse().ok()),
        ..Options::default()
    };
    let question = Question::new(arms, &options)?;
    let how = compare::Setting {
        results: setting.into,
        jobs: 1,
        timeout: setting.timeout,
        pilot: 0,
        algorithms_from: first.and_then(algorithms_for),
        progress: Mode::Auto,
    };
    let FinishedComparison { folder, experiment: new, failed } =
        compare::run_until(&question, how, setting.stop)?;
    match failed {
        Some(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
        Some(error) => return Ok(Replay::failed(&stored.id, findings, error.message())),
        None => {}
    }
    let losses = Losses::between(&stored, &new, setting.into)?;
    findings.extend(losses.in_words());
    let ratio = Ratio::between(recorded, &new);
    findings.extend(ratio.iter().map(Ratio::in_words));
    let (old, now) = (recorded.verdict(), new.verdict());
    let (old_words, words) = (recorded.verdict_words(), new.verdict_words());
    findings.push(match old == now {
        true => format!("verdict: {words}, as recorded"),
        false => format!("verdict: recorded {old_words}, now {words}"),
    });
    findings.extend(new.contended.iter().map(|why| format!("contended: {why}")));
    let conditions = losses.conditions;
    let is_reproduced = |ratio: &Ratio| ratio.is_within() && (old == now || conditions.device.is_some());
    let outcome = match (&losses.difference, &ratio) {
        (Some(_), _) if conditions.are_same() => Outcome::Differs,
        (_, None) => Outcome::NotJudged,
        (_, Some(ratio)) if is_reproduced(ratio) => Outcome::Reproduced,
        _ => Outcome::NotReproduced,
    };
    Ok(Replay {
        difference: losses.difference,
        folder: Some(folder),
        ..Replay::new(&stored.id, outcome, &conditions, findings)
    })
}

/// Compares the losses of each trial and its replay.
struct Losses {
    /// Number of trials whose stored run was found.
    compared: usize,
    same: usize,
    difference: Option<Difference>,
    conditions: Conditions,
}

impl Losses {
    fn between(stored: &StoredComparison, new: &Experiment, into: &Path) -> Result<Self> {
        let mut losses = Self { compared: 0, same: 0, difference: None, conditions: Conditions::default() };
        for arm in [BASELINE, CANDIDATE] {
            for (trial, again) in stored.experiment.runs_in(arm).zip(new.runs_in(arm)) {
                let (Some(stored), Some(id)) = (stored.run(trial), &again.run) else { continue };
                let new = StoredRun::read(&into.join(id))?;
                if losses.compared == 0 {
                    losses.conditions = Conditions::between(&stored.environment, &new.environment);
                }
                losses.compared += 1;
                match Compared::between(stored, &new)?.difference {
                    None => losses.same += 1,
                    difference => losses.difference = losses.difference.take().or(difference),
                }
            }
        }
        Ok(losses)
    }

    fn in_words(&self) -> Option<String> {
        let Self { compared, same, .. } = self;
        (*compared > 0)
            .then(|| format!("losses: the same bits in {same} of {compared} trial{}", plural(*compared)))
    }
}

/// The recorded ratio and the replay's.
struct Ratio {
    recorded: Interval,
    new: Interval,
}

impl Ratio {
    fn between(recorded: &Experiment, new: &Experiment) -> Option<Self> {
        Some(Self { recorded: recorded.speed()?.ratio()?, new: new.speed()?.ratio()? })
    }

    /// Returns true if the new estimate lies within the recorded interval.
    fn is_within(&self) -> bool {
        (self.recorded.low..=self.recorded.high).contains(&self.new.estimate)
    }

    fn in_words(&self) -> String {
        let interval = |ratio: &Interval| {
            let [estimate, low, high] = [ratio.estimate, ratio.low, ratio.high].map(|x| decimal(Some(x), 3));
            format!("{estimate} ({low} to {high})")
        };
        let place = if self.is_within() { "within" } else { "outside" };
        let (old, now) = (interval(&self.recorded), interval(&self.new));
        format!("ratio of tokens per second: recorded {old}, now {now}: {place} the recorded interval")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_within_the_recorded_interval_or_not() {
        let ratio = |estimate: f64| Interval { estimate, low: estimate - 0.02, high: estimate + 0.02 };
        let at = |new: f64| Ratio { recorded: ratio(1.24), new: ratio(new) };
        assert!(at(1.221).is_within() && at(1.259).is_within());
        assert!(!at(1.219).is_within() && !at(1.261).is_within() && !at(f64::NAN).is_within());
        assert_eq!(
            at(1.3).in_words(),
            "ratio of tokens per second: recorded 1.240 (1.220 to 1.260), now 1.300 (1.280 to 1.320): \
             outside the recorded interval"
        );
    }
}
