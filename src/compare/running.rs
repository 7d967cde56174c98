//! A comparison in progress: runs the trials and stores them as they end.

use super::arms::{Arms, PlannedArm, Program};
use super::gate::ExpectedCurve;
use super::trials::{FinishedTrial, TrialSetting, trial_order};
use super::{statistics, text};
use crate::error::{Error, ErrorKind, Result};
use crate::ranks::Stop;
use crate::recipe::{Change, Prediction, Recipe};
use crate::results::comparison::{Arm, Average, COMPARISONS, CompareVerdict, Comparison, TrainLoss};
use crate::results::folder::{self, create_timed, folder_name};
use crate::results::progress::eprint_line;
use crate::results::provenance::Build;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The arms of a comparison and the rules by which it is judged.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Both arms.
    pub arms: Arms,
    /// The results folder.
    pub results: &'a Path,
    /// Name of the comparison; unset means the recipe's.
    pub name: Option<String>,
    /// Trials of each arm; unset means the recipe's number.
    pub repeats: Option<usize>,
    /// The smallest relative difference that counts; unset means the recipe's.
    pub min_effect: Option<f64>,
    /// The largest allowed difference in training loss, in nats per token; unset means what the changed keys
    /// promise.
    pub tolerance: Option<f64>,
    /// Reason why the change should matter; unset means the recipe's text.
    pub hypothesis: Option<String>,
    /// The expected result; unset means the recipe's.
    pub predicts: Option<Prediction>,
    /// Time limit of a trial.
    pub timeout: Option<Duration>,
    /// A run whose matrix-product algorithms all trials use; unset means those that the first trial chooses.
    pub algorithms_from: Option<PathBuf>,
}

/// A comparison in progress.
pub(super) struct RunningComparison<'a> {
    pub(super) arms: Arms,
    pub(super) results: &'a Path,
    pub(super) folder: PathBuf,
    pub(super) repeats: usize,
    pub(super) warmup: usize,
    pub(super) expected: ExpectedCurve,
    pub(super) predicts: Option<Prediction>,
    pub(super) timeout: Option<Duration>,
    algorithms_from: Option<PathBuf>,
    pub(super) comparison: Comparison,
    pub(super) trials: Vec<FinishedTrial>,
    /// The lock of the folder, which shows that a process works on it.
    _held: File,
}

impl<'a> RunningComparison<'a> {
    /// Creates the comparison's folder, and stores the request and the expectations before anything runs.
    pub(super) fn start(request: Request<'a>) -> Result<Self> {
        let Request { arms, results, name, repeats, min_effect, tolerance, hypothesis, predicts, .. } =
            request;
        let Request { timeout, algorithms_from, .. } = request;
        let recipe = arms.recipe().ok_or_else(|| Error::usage("neither arm has a recipe"))?;
        let from_recipe = recipe.values().compare.clone();
        let warmup = recipe.values().metrics.warmup;
        let name = folder_name(&name.unwrap_or_else(|| recipe.name().to_owned()))?;
        let hypothesis = hypothesis.or(Some(from_recipe.hypothesis)).filter(|text| !text.is_empty());
        let predicts = predicts.or(from_recipe.predicts);
        if let Some(of_quality) = predicts.as_ref().filter(|predicts| predicts.is_of_quality()) {
            return Err(Error::usage(format!(
                "the prediction `{of_quality}` is of quality; name what is judged, such as --on val_loss"
            )));
        }
        let min_effect = min_effect.unwrap_or(from_recipe.min_effect);
        let expected = ExpectedCurve::new(tolerance, &arms.changes, arms.same_binary(), arms.has_external());
        let (baseline, candidate) = (planned_record(&arms.baseline), planned_record(&arms.candidate));
        let identity = serde_json::to_vec(&(&baseline, &candidate)).unwrap_or_default();
        let hash8 = blake3::hash(&identity).to_hex()[..8].to_owned();
        let folder = create_timed(&results.join(COMPARISONS).join(&name), &hash8, crate::format::now())?;
        let held = folder::lock(&folder)?;
        let repeats = repeats.unwrap_or(from_recipe.repeats).max(1);
        let change = |change: &Change| format!("{}: {} → {}", change.key, change.old, change.new);
        let comparison = Comparison {
            name,
            id: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            hypothesis,
            predicts: predicts.as_ref().map(|p| p.as_str().to_owned()),
            prediction_held: None,
            baseline,
            candidate,
            changes: arms.changes.iter().map(change).collect(),
            finished: false,
            average: Average::Mean,
            train_loss: TrainLoss::Smoothed,
            trials_planned: (!arms.is_of_stored_runs()).then_some(2 * repeats),
            trials: Vec::new(),
            ratio: None,
            min_effect,
            verdict: CompareVerdict::Inconclusive,
            gate: expected.unjudged(),
            contended: Vec::new(),
            incomparable: Vec::new(),
            notes: Vec::new(),
            rule: statistics::rule(min_effect),
        };
        comparison.write(&folder)?;
        let trials = Vec::new();
        Ok(Self {
            arms,
            results,
            folder,
            repeats,
            warmup,
            expected,
            predicts,
            timeout,
            algorithms_from,
            comparison,
            trials,
            _held: held,
        })
    }

    /// Returns true if the arms are stored runs, and nothing is run.
    pub(super) fn is_of_stored_runs(&self) -> bool {
        self.arms.is_of_stored_runs()
    }

    pub(super) fn read_stored_runs(&mut self) -> Result<()> {
        self.comparison.notes.push(
            "of stored runs: trials were not interleaved, so what changed on the machine between them \
             counts as a difference of the arms"
                .to_owned(),
        );
        for is_candidate in [false, true] {
            let Program::Stored(runs) = self.arms.get(is_candidate).program.clone() else { continue };
            for run in runs {
                let trial = FinishedTrial::from_stored_run(&run, is_candidate)?;
                self.add(trial)?;
            }
        }
        Ok(())
    }

    /// Runs the trials of both arms. Each is stored when it ends.
    pub(super) fn run_trials(&mut self, stop: &Stop) -> Result<()> {
        let order = trial_order(self.repeats);
        let count = order.len();
        for (index, is_candidate) in order.into_iter().enumerate() {
            let arm = self.arms.get(is_candidate);
            eprint_line(&format!(
                "trial {} of {count}, {}: {}",
                index + 1,
                arm_name(is_candidate),
                arm.label
            ));
            let chosen = self.trials.iter().find_map(|trial| trial.algorithms.clone());
            let algorithms = self.algorithms_from.clone().or(chosen);
            let setting = TrialSetting {
                results: self.results,
                folder: &self.folder,
                warmup: self.warmup,
                algorithms_from: algorithms.as_deref(),
                timeout: self.timeout,
                stop,
            };
            let trial =
                FinishedTrial::run(&arm.program, arm.binary.as_deref(), index + 1, is_candidate, setting)?;
            if trial.failed.is_none() {
                eprint_line(&format!("  {}", text::trial(&trial.columns)));
            }
            self.add(trial)?;
            if stop.requested() && index + 1 < count {
                let trial = index + 1;
                let why = format!(
                    "stopped by a signal after trial {trial} of {count}; a comparison cannot be resumed"
                );
                return Err(Error::new(ErrorKind::Interrupted, why));
            }
        }
        Ok(())
    }

    /// Stores a trial.
    ///
    /// # Errors
    /// That of a trial that failed: it ends the comparison.
    fn add(&mut self, trial: FinishedTrial) -> Result<()> {
        let (failed, is_candidate) = (trial.failed.clone(), trial.record.is_candidate);
        self.comparison.trials.push(trial.record.clone());
        let number = self.comparison.trials.len();
        let arm = if is_candidate { &mut self.comparison.candidate } else { &mut self.comparison.baseline };
        if let Some(environment) = &trial.environment {
            arm.device = environment.device_class();
            arm.commit.clone_from(&environment.build.commit);
        }
        let of_trial = |reason: &String| format!("trial {number} ({}): {reason}", arm_name(is_candidate));
        self.comparison.contended.extend(trial.contended.iter().map(of_trial));
        self.trials.push(trial);
        self.comparison.write(&self.folder)?;
        match failed {
            Some(error) => Err(error.context(format!("trial {number}, {}", arm_name(is_candidate)))),
            None => Ok(()),
        }
    }
}

/// Returns the record of an arm before it runs.
fn planned_record(planned: &PlannedArm) -> Arm {
    let is_xrun = matches!(&planned.program, Program::Xrun { .. });
    Arm {
        label: planned.label.clone(),
        command: planned.command.clone(),
        recipe_hash: planned.recipe.as_ref().map(Recipe::hash),
        commit: is_xrun.then(|| Build::of_this_binary().commit).flatten(),
        binary: planned.binary.clone(),
        device: String::new(),
        measured: BTreeMap::new(),
    }
}

/// Returns the name of an arm in messages.
pub(super) fn arm_name(is_candidate: bool) -> &'static str {
    if is_candidate { "candidate" } else { "baseline" }
}
