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
use crate::results::progress::eprint_line;
use crate::statistics::FIRST_LOOK;
use crate::sweep::PlannedCell;
use std::fs::File;
use std::path::PathBuf;

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
    let stored = history::stored(setting.results)?;
    let asking = Asking::new(question, setting.results, &stored)?;
    history::check_peeking(&asking.question, &asking.arms, &asking.family)?;
    let mut running = RunningPairs::prepare(&asking, setting, &stored, stop)?;
    let _held = running.create_folder(&stored)?;
    running.write()?;
    let since = asking.ask(setting.results, &running.experiment)?;
    running.run_pairs(stop)?;
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

/// Pairs in progress.
struct RunningPairs<'a> {
    question: &'a Question,
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
        Ok(Self { question, setting, runs, folder: PathBuf::new(), experiment })
    }

    /// Creates the folder, or reuses the folder of an unfinished comparison that asked the same. Returns the
    /// folder's lock.
    fn create_folder(&mut self, stored: &[StoredExperiment]) -> Result<File> {
        let unfinished = stored
            .iter()
            .rev()
            .find(|one| !one.experiment.finished && record::asks_the_same(&one.experiment, &self.experiment));
        let Some(StoredExperiment { folder, experiment }) = unfinished else {
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

    /// Runs all pairs. A sequential design first runs the pairs of its first look, then one pair at a time
    /// until it is decided.
    fn run_pairs(&mut self, stop: &Stop) -> Result<()> {
        let all = self.question.seeds.len();
        let is_sequential = matches!(self.experiment.design, Design::Sequential { .. });
        let (first, step) = if is_sequential { (FIRST_LOOK.min(all), 1) } else { (all, all) };
        let (mut from, mut to) = (0, first);
        while from < all {
            let (experiment, folder) = (&mut self.experiment, &self.folder);
            self.runs.run(from..to, stop, &mut |at, run| {
                experiment.runs[at] = run;
                experiment.write(folder)
            })?;
            if is_sequential {
                judge::judge(&mut self.experiment);
                self.write()?;
                if judge::is_decided(&self.experiment) {
                    // The remaining pairs were not needed and have not run.
                    self.experiment.runs.truncate(2 * to);
                    break;
                }
            }
            (from, to) = (to, (to + step).min(all));
        }
        Ok(())
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
