//! Runs trials of both arms in turns, or reads stored runs instead, and judges their times and curves.

use super::asking::Asking;
use super::basis::{Records, VerifiedRun};
use super::judge::{self, contention, curves::ExpectedCurve};
use super::measured::{self, VAL_LOSS};
use super::question::Question;
use super::setting::{FinishedComparison, Setting};
use super::trials::{FinishedTrial, TrialSetting, turns};
use super::{record, text};
use crate::error::{Error, ErrorKind, Result};
use crate::ranks::Stop;
use crate::recipe::{Change, Class};
use crate::results::experiment::{ARM_NAMES, Experiment, ExperimentRun, Standing};
use crate::results::ledger::{Ledger, Place};
use crate::results::measure::Measure;
use crate::results::progress::eprint_line;
use crate::statistics::Verdict;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Runs the trials of a question, or reads its stored runs, and judges them.
///
/// # Errors
/// If a process cannot be started or a file cannot be written. A failed trial ends the comparison with its
/// error in [`FinishedComparison::failed`].
pub fn run(question: &Question, setting: Setting<'_>, stop: &Stop) -> Result<FinishedComparison> {
    if let Some(runs) = question.arms.stored_runs() {
        check_stored_arms(runs, setting.results)?;
    }
    let mut running = RunningTrials::start(question, setting.clone())?;
    let failed = match question.arms.stored_runs() {
        Some(runs) => running.read_stored_runs(runs),
        None => running.run_trials(stop),
    };
    let failed = failed.err();
    running.conclude(failed.is_none())?;
    running.experiment.write(&running.folder)?;
    if failed.is_none() {
        running.asking.answer(setting.results, &running.experiment)?;
    }
    Ok(FinishedComparison { folder: running.folder, experiment: running.experiment, failed })
}

/// Checks that the stored runs of an arm were made by one program and on one text.
///
/// # Errors
/// If a run was changed, or a usage error if two runs of an arm differ.
fn check_stored_arms(arms: [&[PathBuf]; 2], results: &Path) -> Result<()> {
    let ledger = Ledger::read(results)?;
    let records = Records { ledger: &ledger, stored: &[] };
    for runs in arms {
        let verified: Vec<VerifiedRun> =
            runs.iter().map(|run| VerifiedRun::read(run, &records)).collect::<Result<_>>()?;
        let Some((first, others)) = verified.split_first() else { continue };
        for other in others {
            if let Some(why) = first.difference(other) {
                let (first, other) = (&first.name, &other.name);
                return Err(Error::usage(format!("{first} and {other} are in one arm, but {why}")));
            }
        }
    }
    Ok(())
}

/// Trials in progress.
struct RunningTrials<'a> {
    question: &'a Question,
    setting: Setting<'a>,
    asking: Asking,
    /// Where the question counts as asked.
    since: Place,
    folder: PathBuf,
    experiment: Experiment,
    trials: Vec<FinishedTrial>,
    /// The lock on the folder, which shows that a process is working on it.
    _held: File,
}

impl<'a> RunningTrials<'a> {
    /// Creates the folder and stores the question and its prediction before anything runs.
    fn start(question: &'a Question, setting: Setting<'a>) -> Result<Self> {
        let order: Vec<usize> = match question.arms.stored_runs() {
            Some(runs) => {
                runs.iter().enumerate().flat_map(|(arm, runs)| runs.iter().map(move |_| arm)).collect()
            }
            None => (0..question.design.max_pairs()).flat_map(turns).collect(),
        };
        let planned = order.into_iter().map(|arm| ExperimentRun { arm, ..ExperimentRun::default() });
        let mut experiment = record::from_question(question, planned.collect())?;
        // Trials have no seeds by which earlier comparisons of pairs could know their outcome.
        let asking = match question.arms.stored_runs() {
            Some(_) => Asking::about_stored(question, question.asked_arms()?, setting.results, &[])?,
            None => Asking::new(question, setting.results, &[])?,
        };
        asking.describe(&mut experiment);
        let (folder, held) = record::create_folder(setting.results, &mut experiment)?;
        experiment.write(&folder)?;
        let since = asking.ask(setting.results, &experiment)?;
        Ok(Self { question, setting, asking, since, folder, experiment, trials: Vec::new(), _held: held })
    }

    fn read_stored_runs(&mut self, runs: [&[PathBuf]; 2]) -> Result<()> {
        self.experiment.notes.push(
            "from stored runs: the trials were not interleaved, so a change of the machine between them \
             counts as a difference between the arms"
                .to_owned(),
        );
        for (arm, runs) in runs.into_iter().enumerate() {
            for run in runs {
                self.add(FinishedTrial::from_stored_run(run, arm)?)?;
            }
        }
        Ok(())
    }

    /// Runs the trials of both arms and stores each when it ends.
    fn run_trials(&mut self, stop: &Stop) -> Result<()> {
        let order: Vec<usize> = self.experiment.runs.iter().map(|run| run.arm).collect();
        let count = order.len();
        let warmup = self.question.arms.recipe()?.values().metrics.warmup;
        for (index, arm) in order.into_iter().enumerate() {
            let number = index + 1;
            let planned = self.question.arms.both()[arm];
            eprint_line(&format!("trial {number} of {count}, {}: {}", ARM_NAMES[arm], planned.label));
            let chosen = self.trials.iter().find_map(|trial| trial.algorithms.clone());
            let algorithms = self.setting.algorithms_from.clone().or(chosen);
            let setting = TrialSetting {
                comparison: &self.setting,
                folder: &self.folder,
                warmup,
                algorithms_from: algorithms.as_deref(),
                stop,
            };
            let trial = FinishedTrial::run(planned, number, arm, setting)?;
            if trial.failed.is_none() {
                eprint_line(&format!("  {}", text::trial(&trial.columns)));
            }
            self.add(trial)?;
            if stop.requested() && number < count {
                let why =
                    format!("stopped by a signal after trial {number} of {count}; trials cannot be resumed");
                return Err(Error::new(ErrorKind::Interrupted, why));
            }
        }
        Ok(())
    }

    /// Stores a trial that has ended.
    ///
    /// # Errors
    /// The trial's own error if it failed, which ends the comparison.
    fn add(&mut self, trial: FinishedTrial) -> Result<()> {
        let (failed, arm) = (trial.failed.clone(), trial.record.arm);
        let number = self.trials.len() + 1;
        if let Some(run) = self.experiment.runs.get_mut(number - 1) {
            *run = trial.record.clone();
        }
        if let (Some(environment), Some(arm)) = (&trial.environment, self.experiment.arms.get_mut(arm)) {
            arm.device = Some(environment.device_class()).filter(|device| !device.is_empty());
            arm.commit.clone_from(&environment.build.commit);
        }
        let in_trial = |reason: &String| format!("trial {number} ({}): {reason}", ARM_NAMES[arm]);
        self.experiment.contended.extend(trial.contended.iter().map(in_trial));
        self.trials.push(trial);
        self.experiment.write(&self.folder)?;
        match failed {
            Some(error) => Err(error.context(format!("trial {number}, {}", ARM_NAMES[arm]))),
            None => Ok(()),
        }
    }

    /// Judges the trials. `finished` is false if a trial failed.
    ///
    /// # Errors
    /// If the runs were not measured on the same text, or the ledger cannot be read.
    fn conclude(&mut self, finished: bool) -> Result<()> {
        self.experiment.finished = finished;
        for (arm, record) in self.experiment.arms.iter_mut().enumerate() {
            let trials = self.trials.iter().filter(|trial| trial.record.arm == arm);
            record.measured = measured::means(trials.map(|trial| &trial.columns));
        }
        // An external command is taken to run on the other arm's device.
        let devices = [0, 1].map(|arm: usize| self.experiment.arms[arm].device.clone());
        for (arm, other) in [(0, 1), (1, 0)] {
            let device = &mut self.experiment.arms[arm].device;
            *device = device.take().or(devices[other].clone());
        }
        let reasons =
            contention::reasons(&self.experiment, &self.trials, self.question.arms.change_devices());
        self.experiment.contended.extend(reasons);
        self.experiment.notes.extend(contention::notes(&self.trials));
        record::note_runs(self.setting.results, &mut self.experiment)?;
        self.judge_validation();
        self.judge_curves(finished);
        let standing = match self.question.arms.stored_runs() {
            Some(_) => self.asking.standing(&self.since, self.setting.results, &self.experiment)?,
            // Every trial is a run of this comparison.
            None => Standing::from_reasons(self.asking.reasons.clone()),
        };
        self.experiment.standing = Some(standing);
        judge::judge(&mut self.experiment);
        Ok(())
    }

    /// Checks whether all trials measured the validation loss on the same text.
    fn judge_validation(&mut self) {
        let measured = |trial: &&FinishedTrial| trial.columns.contains_key(VAL_LOSS);
        let parts: Vec<_> = self.trials.iter().filter(measured).map(|trial| trial.val_part).collect();
        let Some(first) = parts.first() else { return };
        let changed = self.question.arms.changes.iter().find(|change| change.class == Class::Measuring);
        let why = match changed {
            Some(Change { key, old, new, .. }) => format!("the arms differ in {key} ({old} → {new})"),
            None if parts.iter().any(|part| part != first) => {
                "the trials used different parts of the held-out text".to_owned()
            }
            None => {
                self.experiment.notes.extend(first.map(|part| format!("{VAL_LOSS} is {part}")));
                return;
            }
        };
        self.experiment.notes.push(format!("{VAL_LOSS} is not compared: {why}"));
        self.experiment.incomparable.push(VAL_LOSS.to_owned());
    }

    /// Compares the loss curves of both arms.
    fn judge_curves(&mut self, finished: bool) {
        let in_arm = |arm: usize| self.trials.iter().filter(move |trial| trial.record.arm == arm);
        let curves = |arm| in_arm(arm).map(|trial| trial.curve.clone()).collect::<Vec<_>>();
        let has_diverged = |arm| in_arm(arm).any(|trial| trial.record.has_diverged() == Some(true));
        let expected = self.question.curves.unwrap_or(ExpectedCurve::Unknown);
        let finding = if has_diverged(1) && !has_diverged(0) {
            expected.finding(Verdict::Different, "the candidate diverged")
        } else if finished {
            expected.judge(&curves(0), &curves(1))
        } else {
            expected.finding(Verdict::Inconclusive, "a trial failed")
        };
        let mut findings = self.experiment.findings.iter_mut();
        if let Some(known) = findings.find(|known| known.measure == Measure::LossCurves) {
            *known = finding;
        }
    }
}
