//! Runs pairs with the same seed: plans them, runs them with the scheduler and ledger of sweeps, and judges
//! them.

use super::arms::Arms;
use super::asking::Asking;
use super::history;
use super::pairs::PairRuns;
use super::question::{Question, SeedChoice};
use super::setting::{FinishedComparison, Setting, StoredExperiment};
use super::{judge, pair_times, plan, record, remarks};
use crate::error::{Error, Result};
use crate::forecast::shared_randomness;
use crate::ranks::Stop;
use crate::results::experiment::{Design, Experiment};
use crate::results::folder;
use crate::results::ledger::Place;
use crate::results::progress::eprint_line;
use crate::statistics::FIRST_LOOK;
use crate::sweep::PlannedCell;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

/// Time between two looks whether another process has answered.
const PAUSE: Duration = Duration::from_secs(1);

/// Plans the pairs of a question from stored comparisons or pilot pairs, and prints the plan. Only the pilot
/// is run and written.
///
/// # Errors
/// The same as for [`run`] before its first run, except that pairs after a known verdict may be planned.
pub fn plan(question: &Question, setting: &Setting<'_>) -> Result<Experiment> {
    let stored = history::stored(setting.results)?;
    let asking = Asking::new(question, setting.results, &stored)?;
    Ok(RunningPairs::prepare(&asking, setting, &stored, &Stop::on_signals(None)?)?.experiment)
}

/// Runs the pairs of a question: plans, stores the question and its prediction, runs, and judges. If a run
/// keeps failing because of the machine, its pair has no value.
///
/// # Errors
/// A usage error for pairs after a known verdict. Fails if a recipe cannot be planned, if the ledger or the
/// record cannot be written, if a stored run that would be used again was changed, and after a signal; the
/// same command then continues.
pub fn run(question: &Question, setting: &Setting<'_>, stop: &Stop) -> Result<FinishedComparison> {
    answer(question, setting, &history::stored(setting.results)?, None, stop)
}

/// Runs the pairs of a question and judges them. If it is `continued`, it must continue this comparison.
fn answer(
    question: &Question,
    setting: &Setting<'_>,
    stored: &[StoredExperiment],
    continued: Option<&str>,
    stop: &Stop,
) -> Result<FinishedComparison> {
    let asking = Asking::new(question, setting.results, stored)?;
    history::check_peeking(&asking.question, &asking.arms, &asking.family)?;
    let mut running = RunningPairs::prepare(&asking, setting, stored, stop)?;
    continued.map_or(Ok(()), |name| running.check_continues(stored, name))?;
    let (_held, since) = running.ask(&asking, stored)?;
    running.run_pairs(question.seeds.len(), true, stop)?;
    running.experiment.finished = true;
    record::note_runs(setting.results, &mut running.experiment)?;
    if question.is_timed() {
        pair_times::check(&mut running.experiment, &question.arms, setting.results)?;
    }
    running.experiment.standing = Some(asking.standing(&since, setting.results, &running.experiment)?);
    judge::judge(&mut running.experiment);
    remarks::add(&mut running.experiment);
    running.write()?;
    asking.answer(setting.results, &running.experiment)?;
    Ok(FinishedComparison { folder: running.folder, experiment: running.experiment, failed: None })
}

/// Stores a question and its prediction, to be answered later, and calls `asked` with the record and the
/// runs.
///
/// # Errors
/// The same as for [`run`] before its first run.
pub fn ask<T>(
    question: &Question,
    setting: &Setting<'_>,
    stop: &Stop,
    asked: impl FnOnce(&Experiment, &PairRuns<'_>) -> Result<T>,
) -> Result<T> {
    let stored = history::stored(setting.results)?;
    let asking = Asking::new(question, setting.results, &stored)?;
    history::check_peeking(&asking.question, &asking.arms, &asking.family)?;
    let mut running = RunningPairs::prepare(&asking, setting, &stored, stop)?;
    let (held, _) = running.ask(&asking, &stored)?;
    // The process that answers takes the lock, and may begin before this one has ended.
    drop(held);
    asked(&running.experiment, &running.runs)
}

/// Runs some runs of a stored question, by their indices, and judges nothing. In a sequential design it first
/// runs what is left of earlier pairs, and runs nothing more if they decide the question.
///
/// # Errors
/// The same as for [`run`], and if the question is not that of the unfinished comparison `name`.
pub fn run_some(
    question: &Question,
    setting: &Setting<'_>,
    name: &str,
    runs: &[usize],
    stop: &Stop,
) -> Result<()> {
    let stored = history::stored(setting.results)?;
    let named = stored.iter().find(|one| one.experiment.full_name() == name);
    if named.is_some_and(|one| one.experiment.finished) {
        return Ok(());
    }
    let asking = Asking::new(question, setting.results, &stored)?;
    let mut running = RunningPairs::prepare(&asking, setting, &stored, stop)?;
    running.check_continues(&stored, name)?;
    // Runs count as made for the question if the process that makes them has asked it.
    asking.ask(setting.results, &running.experiment)?;
    let is_sequential = matches!(running.experiment.design, Design::Sequential { .. });
    let first = runs.first().map_or(0, |run| run / 2);
    if is_sequential && first >= FIRST_LOOK && running.run_pairs(first, false, stop)? {
        return Ok(());
    }
    running.runs.run_some(runs, stop)
}

/// Like [`run`], but only as a continuation of the stored comparison `name`. If another process answers it,
/// waits for the answer.
///
/// # Errors
/// The same as for [`run`], and if the question is not that of the unfinished comparison `name`.
pub fn finish(
    question: &Question,
    setting: &Setting<'_>,
    name: &str,
    stop: &Stop,
) -> Result<FinishedComparison> {
    loop {
        let stored = history::stored(setting.results)?;
        match stored.iter().find(|one| one.experiment.full_name() == name) {
            Some(StoredExperiment { folder, experiment }) if experiment.finished => {
                let (folder, experiment) = (folder.clone(), experiment.clone());
                return Ok(FinishedComparison { folder, experiment, failed: None });
            }
            Some(one) if !stop.requested() && folder::is_held(&one.folder)? => std::thread::sleep(PAUSE),
            _ => return answer(question, setting, &stored, Some(name), stop),
        }
    }
}

/// Pairs in progress.
struct RunningPairs<'a> {
    setting: &'a Setting<'a>,
    runs: PairRuns<'a>,
    /// Empty until the folder is created.
    folder: PathBuf,
    experiment: Experiment,
}

impl<'a> RunningPairs<'a> {
    /// Checks the question, runs the pilot, and prints the plan.
    fn prepare(
        asking: &'a Asking,
        setting: &'a Setting<'a>,
        stored: &[StoredExperiment],
        stop: &Stop,
    ) -> Result<Self> {
        let question = &asking.question;
        if question.is_timed() && setting.jobs > 1 {
            return Err(Error::usage(
                "--jobs: a measure that depends on the clock needs one run at a time; leave out --jobs",
            ));
        }
        let runs = PairRuns::new(question, &question.seeds, setting)?;
        runs.check_fit()?;
        let mut experiment = record::from_question(question, record::planned_pairs(&question.seeds))?;
        describe_cells(&mut experiment, &question.arms, runs.first_pair());
        asking.describe(&mut experiment);
        if question.choice != SeedChoice::Named
            && let Some([first, _]) =
                question.seeds.first().filter(|[first, _]| *first != question.base_seeds[0])
        {
            eprint_line(&format!("seeds from {first} on{}", asking.why_these_seeds()));
        }
        if setting.pilot > 0 {
            let seeds = plan::pilot_seeds(question, setting.pilot)?;
            if seeds.iter().any(|pair| question.seeds.contains(pair)) {
                return Err(Error::usage(
                    "--pilot: the comparison itself uses these seeds; choose others with --seeds",
                ));
            }
            let pilot = PairRuns::new(question, &seeds, setting)?;
            experiment.pilot = record::planned_pairs(&seeds);
            eprint_line(&format!("{} pilot pairs, with seeds from {} on", setting.pilot, seeds[0][0]));
            pilot.run(0..setting.pilot, stop, &mut |at, run| {
                experiment.pilot[at] = run;
                Ok(())
            })?;
        }
        let planned = plan::plan(question, &experiment, stored, &runs, setting.results)?;
        for line in plan::describe_plan(&experiment, &planned, plan::seconds_per_pair(&runs)) {
            eprint_line(&line);
        }
        experiment.plan = Some(planned);
        Ok(Self { setting, runs, folder: PathBuf::new(), experiment })
    }

    /// Creates the folder and stores the question, or continues an unfinished comparison that asked the same.
    /// Returns the folder's lock, and where the question counts as asked.
    fn ask(&mut self, asking: &Asking, stored: &[StoredExperiment]) -> Result<(File, Place)> {
        let held = self.create_folder(stored)?;
        self.write()?;
        Ok((held, asking.ask(self.setting.results, &self.experiment)?))
    }

    /// Returns the unfinished comparison that asked the same.
    fn unfinished<'s>(&self, stored: &'s [StoredExperiment]) -> Option<&'s StoredExperiment> {
        stored
            .iter()
            .rev()
            .find(|one| !one.experiment.finished && record::asks_the_same(&one.experiment, &self.experiment))
    }

    /// Checks that this continues the comparison `name`, and takes its id.
    fn check_continues(&mut self, stored: &[StoredExperiment], name: &str) -> Result<()> {
        let unfinished = self.unfinished(stored).filter(|one| one.experiment.full_name() == name);
        let Some(StoredExperiment { experiment, .. }) = unfinished else {
            let device = self.experiment.provenance.device.as_deref().unwrap_or("unknown");
            return Err(Error::failed(format!(
                "on this machine the question is not that of {name}, because its device ({device}), its corpus, the \
                 program or the results folder differs; submit from a machine with the same devices, or choose nodes \
                 like it with executor.slurm.constraint"
            )));
        };
        self.experiment.id.clone_from(&experiment.id);
        Ok(())
    }

    /// Creates the folder, or reuses the folder of an unfinished comparison that asked the same. Returns the
    /// folder's lock.
    fn create_folder(&mut self, stored: &[StoredExperiment]) -> Result<File> {
        let Some(StoredExperiment { folder, experiment }) = self.unfinished(stored) else {
            let (folder, lock) = record::create_folder(self.setting.results, &mut self.experiment)?;
            self.folder = folder;
            return Ok(lock);
        };
        eprint_line(&format!("continues {}", experiment.full_name()));
        self.folder.clone_from(folder);
        self.experiment.id.clone_from(&experiment.id);
        self.experiment.history.retain(|earlier| earlier.comparison != experiment.full_name());
        self.experiment.provenance.began.clone_from(&experiment.provenance.began);
        self.experiment.provenance.ledger_heads.clone_from(&experiment.provenance.ledger_heads);
        if experiment.plan.is_some() {
            self.experiment.plan.clone_from(&experiment.plan);
            self.experiment.pilot.clone_from(&experiment.pilot);
        }
        folder::lock(&self.folder)
    }

    fn write(&self) -> Result<()> {
        self.experiment.write(&self.folder)
    }

    /// Runs the first `all` pairs. A sequential design first runs the pairs of its first look, then one pair
    /// at a time until it is decided. Returns whether it is. The record is written if `writes`.
    fn run_pairs(&mut self, all: usize, writes: bool, stop: &Stop) -> Result<bool> {
        let is_sequential = matches!(self.experiment.design, Design::Sequential { .. });
        let (first, step) = if is_sequential { (FIRST_LOOK.min(all), 1) } else { (all, all) };
        let (mut from, mut to) = (0, first);
        while from < all {
            let (experiment, folder) = (&mut self.experiment, &self.folder);
            self.runs.run(from..to, stop, &mut |at, run| {
                experiment.runs[at] = run;
                if writes { experiment.write(folder) } else { Ok(()) }
            })?;
            if is_sequential {
                judge::judge(&mut self.experiment);
                if writes {
                    self.write()?;
                }
                if judge::is_decided(&self.experiment) {
                    // The remaining pairs were not needed and have not run.
                    self.experiment.runs.truncate(2 * to);
                    return Ok(true);
                }
            }
            (from, to) = (to, (to + step).min(all));
        }
        Ok(false)
    }
}

/// Records what the cells of a pair determine: device, corpora, budgets, and shared random numbers.
fn describe_cells(experiment: &mut Experiment, arms: &Arms, cells: Option<[PlannedCell<'_>; 2]>) {
    let Some([baseline, candidate]) = cells else { return };
    experiment.provenance.device = Some(baseline.device.to_owned());
    experiment.provenance.corpus_hashes =
        [baseline, candidate].iter().map(|cell| cell.corpus_hash.to_owned()).collect();
    let [one, other] = [baseline, candidate].map(|cell| (&cell.work.recipe, &cell.work.plan));
    let shared = shared_randomness(one, other);
    experiment.shared_randomness = Some(shared.to_string());
    for ((record, planned), cell) in experiment.arms.iter_mut().zip(arms.both()).zip([baseline, candidate]) {
        record.budget = Some(record::budget(cell.work));
        record.binary.clone_from(&planned.binary);
    }
}
