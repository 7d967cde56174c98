//! Comparisons of quality: runs of both arms in pairs with the same seed, and verdicts from their differences.
//!
//! ```text
//! options + arms ─▶ Question ─▶ seeds ─▶ runs side by side (the scheduler and ledger of sweeps) ─▶ quality.json
//!             history ─┘ └─▶ power plan                     values ─▶ intervals ─▶ verdicts ──────────┘
//! ```

mod comparable;
mod confirm;
mod history;
mod judge;
mod pairs;
mod plan;
mod prediction;
mod request;
mod seeds;
mod stored;
mod text;

pub use request::{QualityOptions, Question};
pub use stored::compare_stored;
pub use text::{describe, report};

use super::arms::hash_of;
use crate::error::{Error, Result};
use crate::forecast::shared_randomness;
use crate::ranks::Stop;
use crate::recipe::Change;
use crate::results::find;
use crate::results::folder::{self, create_timed};
use crate::results::progress::{Mode, eprint_line};
use crate::results::provenance::Build;
use crate::results::quality::{
    COMPARISONS, Design, JudgedMeasure, Pair, PairedRun, Provenance, QUALITY, QualityArm, QualityComparison,
    VerdictBasis,
};
use crate::statistics::QualityVerdict;
use crate::sweep::PlannedCell;
use history::StoredComparison;
use pairs::{PairRuns, RunSetting};
use request::{QualityArmRequest, confidence_of_each, is_joint};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How a question is run.
#[derive(Clone, Copy, Debug)]
pub struct QualitySetting<'a> {
    /// The results folder.
    pub results: &'a Path,
    /// Runs at once on the CPU; a GPU has one at a time.
    pub jobs: usize,
    /// Time limit of a run.
    pub timeout: Option<Duration>,
    /// Number of pilot pairs, from which the deviation is estimated for the plan.
    pub pilot: usize,
    /// The display of progress.
    pub progress: Mode,
}

/// A comparison that has ended.
#[derive(Debug)]
pub struct FinishedQuality {
    /// Its folder.
    pub folder: PathBuf,
    /// The result, as stored in the folder.
    pub comparison: QualityComparison,
}

/// Returns the question that repeats the stored comparison called `name` with fresh seeds.
///
/// # Errors
/// A usage error if there is none, or it cannot be repeated.
pub fn confirm(results: &Path, name: &str, options: &QualityOptions) -> Result<Question> {
    let folder = find::find_comparison(results, name)?.ok_or_else(|| {
        Error::usage(format!("no comparison `{name}` in {}", results.join(COMPARISONS).display()))
    })?;
    if !folder.join(QUALITY).is_file() {
        return Err(Error::usage(format!(
            "{} is a comparison of speed; --confirm repeats one of quality",
            folder.display()
        )));
    }
    let comparison = QualityComparison::read(&folder)?;
    confirm::question(&comparison, options, &history::stored(results)?, results)
}

/// Prints the plan of a question, from stored comparisons or pilot pairs. Nothing else is run, and nothing written but
/// the pilot's runs.
///
/// # Errors
/// As [`run`], before its first run; pairs after a known verdict may be planned.
pub fn plan(question: &Question, setting: QualitySetting<'_>) -> Result<QualityComparison> {
    let stop = Stop::on_signals(None)?;
    let stored = history::stored(setting.results)?;
    let running = Running::prepare(question, setting, &stored, &stop)?;
    Ok(running.comparison)
}

/// Runs a comparison: plans, stores the question and its prediction, runs the pairs, and judges them. A run that fails
/// by the machine's fault, again and again, leaves its pair without a value.
///
/// # Errors
/// A usage error for pairs after a known verdict; if a recipe cannot be planned; after a signal, where the same command
/// goes on; if the ledger or the record cannot be written.
pub fn run(question: &Question, setting: QualitySetting<'_>) -> Result<FinishedQuality> {
    let stop = Stop::on_signals(None)?;
    let stored = history::stored(setting.results)?;
    let change = question.change()?;
    history::check_peeking(question, &history::of_change(&stored, [&change[0], &change[1]]))?;
    let mut running = Running::prepare(question, setting, &stored, &stop)?;
    let _held = running.create_folder(&stored)?;
    running.write()?;
    running.run_pairs(&stop)?;
    running.comparison.finished = true;
    judge::judge(&mut running.comparison);
    running.write()?;
    Ok(FinishedQuality { folder: running.folder, comparison: running.comparison })
}

/// Returns a comparison as its pairs stand after the first `pairs` of them, judged by its own rule. Of a
/// fixed number of pairs this is no verdict before the last one: who looks earlier may see how the interval
/// closes, and no more.
pub fn after_pairs(comparison: &QualityComparison, pairs: usize) -> QualityComparison {
    let mut so_far = comparison.clone();
    so_far.pairs.retain(Pair::has_ended);
    so_far.pairs.truncate(pairs);
    judge::judge(&mut so_far);
    so_far
}

/// A comparison in progress.
struct Running<'a> {
    question: &'a Question,
    setting: QualitySetting<'a>,
    runs: PairRuns<'a>,
    /// Empty until it is created.
    folder: PathBuf,
    comparison: QualityComparison,
}

impl<'a> Running<'a> {
    /// Checks the question, runs the pilot, and says the plan.
    fn prepare(
        question: &'a Question,
        setting: QualitySetting<'a>,
        stored: &[StoredComparison],
        stop: &Stop,
    ) -> Result<Self> {
        if question.is_timed() && setting.jobs > 1 {
            return Err(Error::usage(
                "--jobs: a measure of the clock is taken of one run at a time, in turns; leave --jobs out",
            ));
        }
        let change = question.change()?;
        let earlier = history::of_change(stored, [&change[0], &change[1]]);
        let run_setting = RunSetting {
            name: question.name.clone(),
            jobs: setting.jobs,
            timeout: setting.timeout,
            progress: setting.progress,
        };
        let runs = PairRuns::new(question, &question.seeds, setting.results, run_setting.clone())?;
        runs.check_fit()?;
        let mut comparison = record(question, change, runs.first_pair());
        comparison.history = earlier.iter().map(|old| history::in_history(old, &question.seeds)).collect();
        if setting.pilot > 0 {
            let seeds = plan::pilot_seeds(question, setting.pilot)?;
            if seeds.iter().any(|pair| question.seeds.contains(pair)) {
                return Err(Error::usage(
                    "--pilot: its seeds are among those of the comparison; name others",
                ));
            }
            let pilot = PairRuns::new(question, &seeds, setting.results, run_setting)?;
            comparison.pilot = pairs::planned(&seeds);
            eprint_line(&format!("{} pilot pairs, with seeds from {} on", setting.pilot, seeds[0][0]));
            let ended = &mut |at, is_candidate, run| {
                put(&mut comparison.pilot, at, is_candidate, run);
                Ok(())
            };
            pilot.run(0..setting.pilot, stop, ended)?;
        }
        let planned = plan::plan(question, &comparison, stored, &runs, setting.results)?;
        for line in plan::in_words(&comparison, &planned, plan::seconds_of_pair(&runs)) {
            eprint_line(&line);
        }
        comparison.plan = Some(planned);
        Ok(Self { question, setting, runs, folder: PathBuf::new(), comparison })
    }

    /// Creates the folder, or goes on in that of a comparison which asked the same and did not finish. Returns its
    /// lock.
    fn create_folder(&mut self, stored: &[StoredComparison]) -> Result<File> {
        let unfinished = stored
            .iter()
            .rev()
            .find(|one| !one.comparison.finished && asks_the_same(&one.comparison, &self.comparison));
        if let Some(StoredComparison { folder, comparison }) = unfinished {
            eprint_line(&format!("goes on with {}", comparison.full_name()));
            self.folder.clone_from(folder);
            self.comparison.id.clone_from(&comparison.id);
            self.comparison.history.retain(|earlier| earlier.comparison != comparison.full_name());
            self.comparison.provenance.began.clone_from(&comparison.provenance.began);
            if comparison.plan.is_some() {
                self.comparison.plan.clone_from(&comparison.plan);
                self.comparison.pilot.clone_from(&comparison.pilot);
            }
        } else {
            let (folder, lock) = new_folder(self.setting.results, &mut self.comparison)?;
            self.folder = folder;
            return Ok(lock);
        }
        folder::lock(&self.folder)
    }

    fn write(&self) -> Result<()> {
        self.comparison.write(&self.folder)
    }

    /// Runs all pairs; of a sequential design those of the first look, and then one after another until it is decided.
    fn run_pairs(&mut self, stop: &Stop) -> Result<()> {
        let all = self.question.seeds.len();
        let (first, step) = match &self.comparison.design {
            Design::Fixed { .. } => (all, all),
            Design::Sequential { .. } => (crate::statistics::FIRST_LOOK.min(all), 1),
        };
        let (mut from, mut to) = (0, first);
        while from < all {
            let (comparison, folder) = (&mut self.comparison, &self.folder);
            self.runs.run(from..to, stop, &mut |at, is_candidate, run| {
                put(&mut comparison.pairs, at, is_candidate, run);
                comparison.write(folder)
            })?;
            if matches!(self.comparison.design, Design::Sequential { .. }) {
                judge::judge(&mut self.comparison);
                self.write()?;
                if judge::is_decided(&self.comparison) {
                    // Pairs that were not needed have not run.
                    self.comparison.pairs.truncate(to);
                    break;
                }
            }
            (from, to) = (to, (to + step).min(all));
        }
        Ok(())
    }
}

/// Creates the folder of a comparison, whose id is its name. Returns it with its lock.
fn new_folder(results: &Path, comparison: &mut QualityComparison) -> Result<(PathBuf, File)> {
    let identity = serde_json::to_vec(comparison).unwrap_or_default();
    let hash8 = blake3::hash(&identity).to_hex()[..8].to_owned();
    let parent = results.join(COMPARISONS).join(&comparison.name);
    let folder = create_timed(&parent, &hash8, crate::format::now())?;
    comparison.id = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let lock = folder::lock(&folder)?;
    Ok((folder, lock))
}

/// Puts a run that has ended into its pair.
fn put(pairs: &mut [Pair], at: usize, is_candidate: bool, run: PairedRun) {
    if let Some(pair) = pairs.get_mut(at) {
        *(if is_candidate { &mut pair.candidate } else { &mut pair.baseline }) = run;
    }
}

/// Returns true if two records ask the same of the same program: an unfinished one may be gone on with.
fn asks_the_same(a: &QualityComparison, b: &QualityComparison) -> bool {
    let asked = |comparison: &QualityComparison| {
        let measures: Vec<_> = comparison
            .measures
            .iter()
            .map(|judged| (judged.measure.to_string(), judged.min_effect.map(f64::to_bits)))
            .collect();
        let design = match comparison.design {
            Design::Fixed { pairs } => (false, pairs),
            Design::Sequential { max_pairs, .. } => (true, max_pairs),
        };
        let seeds: Vec<[u64; 2]> =
            comparison.pairs.iter().map(|pair| pair.runs().map(|run| run.seed)).collect();
        (measures, design, seeds, comparison.confidence.to_bits())
    };
    let Provenance { binary, device, corpus_hashes, .. } = &a.provenance;
    let same_program = (binary, device, corpus_hashes)
        == (&b.provenance.binary, &b.provenance.device, &b.provenance.corpus_hashes);
    same_program
        && a.name == b.name
        && a.change() == b.change()
        && asked(a) == asked(b)
        && (&a.predicts, &a.hypothesis, &a.confirms) == (&b.predicts, &b.hypothesis, &b.confirms)
}

/// Returns the record of a question, before anything has run; `cells` are the first pair, unless runs are
/// stored.
fn record(
    question: &Question,
    change: [String; 2],
    cells: Option<[PlannedCell<'_>; 2]>,
) -> QualityComparison {
    let [baseline_hash, candidate_hash] = change;
    let each = confidence_of_each(question.confidence, question.measures.iter().map(|asked| &asked.measure));
    let measures: Vec<JudgedMeasure> = question
        .measures
        .iter()
        .map(|asked| JudgedMeasure {
            measure: asked.measure.clone(),
            unit: asked.measure.unit().to_owned(),
            direction: asked.measure.direction(),
            scale: asked.measure.scale(),
            min_effect: asked.min_effect,
            confidence: each,
            pairs: 0,
            baseline: None,
            candidate: None,
            interval: None,
            deviation: None,
            p: None,
            basis: VerdictBasis::Nothing,
            verdict: QualityVerdict::Inconclusive,
            because: None,
        })
        .collect();
    let refs: Vec<_> = question.measures.iter().map(|asked| &asked.measure).collect();
    let build = Build::of_this_binary();
    let provenance = Provenance {
        version: build.version,
        commit: build.commit,
        dirty: build.dirty,
        binary: std::env::current_exe().ok().and_then(|own| hash_of(&own).ok()),
        device: cells.as_ref().map(|[baseline, _]| baseline.device().to_owned()),
        corpus_hashes: cells
            .iter()
            .flat_map(|cells| cells.iter().map(|cell| cell.corpus_hash().to_owned()))
            .collect(),
        began: crate::format::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    };
    let in_words = |change: &Change| format!("{}: {} → {}", change.key, change.old, change.new);
    QualityComparison {
        name: question.name.clone(),
        id: String::new(),
        hypothesis: question.hypothesis.clone(),
        predicts: question.predicts.as_ref().map(|prediction| prediction.as_str().to_owned()),
        prediction_held: None,
        baseline: arm_record(&question.baseline, baseline_hash),
        candidate: arm_record(&question.candidate, candidate_hash),
        changes: question.changes.iter().map(in_words).collect(),
        shared_randomness: cells.as_ref().map(in_common),
        design: question.design.clone(),
        confidence: question.confidence,
        confirms: question.confirms.clone(),
        history: Vec::new(),
        provenance,
        plan: None,
        pilot: Vec::new(),
        pairs: pairs::planned(&question.seeds),
        measures,
        joint: None,
        diverged: None,
        finished: false,
        notes: question.notes.clone(),
        rule: judge::rule(&question.design, is_joint(&refs)),
    }
}

/// Returns what the runs of a pair share of their random numbers, in words.
fn in_common([baseline, candidate]: &[PlannedCell<'_>; 2]) -> String {
    shared_randomness((baseline.recipe, baseline.plan), (candidate.recipe, candidate.plan)).to_string()
}

fn arm_record(arm: &QualityArmRequest, recipe_hash: String) -> QualityArm {
    QualityArm {
        label: arm.label.clone(),
        command: arm.command.clone(),
        recipe: arm.path.to_string_lossy().into_owned(),
        settings: arm.settings.clone(),
        recipe_hash,
    }
}

#[cfg(test)]
mod tests;
