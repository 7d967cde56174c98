//! What the figures of a stored run rest on, checked whenever the run is used: its rows are those that it
//! wrote, it was measured on the text that is there now, and it is the run that its ledger line and its cell
//! describe.

use super::arms::{changes_between, load_stored};
use super::setting::StoredExperiment;
use crate::error::{Error, Result};
use crate::recipe::{Change, Class};
use crate::results::experiment::{Experiment, ExperimentRun};
use crate::results::find;
use crate::results::held_out::MAIN_SET;
use crate::results::ledger::{Attempt, CellStatus, Ledger};
use crate::results::measure::{Measure, MeasuredMetric, MeasuredRun, rows_hash};
use crate::results::provenance::Environment;
use crate::results::summary::Summary;
use crate::results::verify::{self, RunFiles};
use crate::sweep::PlannedCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Digits of a hash shown in messages.
const SHOWN: usize = 8;

/// A stored run whose files agree with each other and with what was recorded about it.
#[derive(Clone, Debug)]
pub struct VerifiedRun {
    /// `RECIPE/RUN`.
    pub name: String,
    /// The run's summary.
    pub summary: Summary,
    /// The environment of its first process.
    pub environment: Environment,
}

impl VerifiedRun {
    /// Reads and verifies a run: its figures follow from its rows, and its rows are those that the ledger and
    /// stored comparisons recorded.
    ///
    /// # Errors
    /// If a file is missing, contradicts another, or differs from what was recorded.
    pub fn read(folder: &Path, records: &Records<'_>) -> Result<Self> {
        let name = find::folder_id(folder);
        let files = RunFiles::read(folder)?;
        verify::check_losses(&files)?;
        let own = rows_hash(folder).ok();
        if let Some((place, recorded)) = records.rows(&name).find(|(_, rows)| Some(*rows) != own.as_deref()) {
            return Err(Error::failed(format!(
                "{name} cannot be used: its metrics.csv has the hash {}, and {place} recorded {}; restore the file, \
                 or remove the run and make it again",
                short(own.as_deref().unwrap_or("none")),
                short(recorded)
            )));
        }
        Ok(Self { name, summary: files.summary().clone(), environment: files.environment().clone() })
    }

    /// Returns how the text or the program of another run of the same arm differs, in words.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let corpus = [&self.summary.corpus_hash, &other.summary.corpus_hash];
        if let [Some(one), Some(other)] = corpus
            && one != other
        {
            return Some(format!(
                "they were trained on different text (hashes {} and {})",
                short(one),
                short(other)
            ));
        }
        for (name, set) in &self.summary.held_out {
            let second = other.summary.held_out.get(name).and_then(|set| set.hash.as_deref());
            if let (Some(one), Some(second)) = (set.hash.as_deref(), second)
                && one != second
            {
                let (one, second) = (short(one), short(second));
                return Some(format!("{} has other text (hashes {one} and {second})", set_in_words(name)));
            }
        }
        (!self.environment.has_same_program(&other.environment)).then(|| {
            let programs = [&self.environment, &other.environment].map(Environment::program);
            format!("they are of two programs: {}", programs.join(" and "))
        })
    }
}

/// What is recorded about runs, besides in their own folders.
#[derive(Debug)]
pub struct Records<'a> {
    /// The ledger.
    pub ledger: &'a Ledger,
    /// Stored comparisons.
    pub stored: &'a [StoredExperiment],
}

impl Records<'_> {
    /// Returns the recorded hashes of a run's rows, each with the place that recorded it.
    fn rows<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (String, &'a str)> {
        let in_ledger = self.ledger.rows(name).map(|rows| ("the ledger".to_owned(), rows));
        let compared = self.stored.iter().flat_map(move |one| {
            let runs = one.experiment.runs.iter().filter(move |run| run.run.as_deref() == Some(name));
            runs.filter_map(|run| Some((one.experiment.full_name(), run.metrics_hash.as_deref()?)))
        });
        in_ledger.into_iter().chain(compared)
    }
}

/// Checks that the stored run of a ledger line may stand for its cell. Returns false if the run is gone, so
/// that the cell has to run again.
///
/// # Errors
/// If the run is not the one that the cell asks for, or its files were changed.
pub fn check_reused(
    results: &Path,
    line: &Attempt,
    cell: &PlannedCell<'_>,
    records: &Records<'_>,
) -> Result<bool> {
    let Some(name) = line.run.as_deref() else { return Ok(false) };
    let folder = results.join(name);
    if !folder.is_dir() {
        return Ok(false);
    }
    let refuse = |why: String| {
        Error::failed(format!(
            "the stored run {name} cannot be used again: {why}; restore its files, or remove it with `xrun runs rm \
             {name}`, and it is made again"
        ))
    };
    let run = VerifiedRun::read(&folder, records).map_err(|e| refuse(e.message().to_owned()))?;
    let matters = |change: &&Change| match change.class {
        Class::Training | Class::Measuring => true,
        Class::Execution => !change.keeps_bits(),
        Class::Bookkeeping => false,
    };
    let recipe = load_stored(&folder)?;
    if let Some(Change { key, old, new, .. }) =
        changes_between(&cell.work.recipe, &recipe).iter().find(matters)
    {
        return Err(refuse(format!("its {key} is {new}, and {old} is asked for")));
    }
    let planned = cell.work.plan.steps as u64;
    if line.status == CellStatus::Ok && run.summary.steps != planned {
        return Err(refuse(format!("it trained {} steps, and {planned} are asked for", run.summary.steps)));
    }
    if run.summary.corpus_hash.as_deref().is_some_and(|hash| hash != cell.corpus_hash) {
        return Err(refuse("it was trained on other text".to_owned()));
    }
    for (set, hash) in cell.held_out {
        let own = run.summary.held_out.get(set).and_then(|set| set.hash.as_ref());
        if own.is_some_and(|own| own != hash) {
            return Err(refuse(format!("{} had other text", set_in_words(set))));
        }
    }
    if !MeasuredRun::open(&folder)?.is_complete() {
        return Err(refuse("its rows end before its last step".to_owned()));
    }
    Ok(true)
}

/// Checks that every run of an experiment was measured on the same text. `summaries` holds the summaries of
/// its runs, by `RECIPE/RUN`.
///
/// # Errors
/// If two runs that are compared were not; the message names both.
pub fn check_text(experiment: &Experiment, summaries: &BTreeMap<String, Summary>) -> Result<()> {
    let changes = |prefix: &str| experiment.changes.iter().any(|change| change.starts_with(prefix));
    for measure in experiment.findings.iter().map(|finding| &finding.measure) {
        // Token ids of two tokenizers have different hashes for one text. Tasks have none.
        let arms_may_differ = measure.task().is_none()
            && (changes("data.tokenizer:") || !measure.metric().is_held_out() && changes("data."));
        let runs = experiment.runs.iter().filter_map(|run| Some((run, text_of(measure, run, summaries)?)));
        let mut first: BTreeMap<usize, (&ExperimentRun, String)> = BTreeMap::new();
        for (run, hash) in runs {
            let arm = if arms_may_differ { run.arm } else { 0 };
            let (other, known) = first.entry(arm).or_insert_with(|| (run, hash.clone()));
            if *known != hash {
                let names = [*other, run].map(|run| run.run.as_deref().unwrap_or("a run"));
                return Err(Error::failed(format!(
                    "{measure} was measured on different text: {} has the hash {} and {} has {}; a file was replaced \
                     between them, so make the runs again",
                    names[0],
                    short(known),
                    names[1],
                    short(&hash)
                )));
            }
        }
    }
    Ok(())
}

/// Returns the hash of the text that a measure of a run rests on, if it was recorded: of a task, its files
/// and its definition.
fn text_of(measure: &Measure, run: &ExperimentRun, summaries: &BTreeMap<String, Summary>) -> Option<String> {
    let summary = summaries.get(run.run.as_ref()?)?;
    match measure.metric() {
        MeasuredMetric::TokS => None,
        MeasuredMetric::TrainLoss => summary.corpus_hash.clone(),
        MeasuredMetric::Score { .. } => {
            let task = summary.tasks.get(measure.task()?)?;
            let asked = format!("{} {}", task.files, task.definition);
            Some(blake3::hash(asked.as_bytes()).to_hex().to_string())
        }
        _ => summary.held_out.get(measure.set().unwrap_or(MAIN_SET))?.hash.clone(),
    }
}

/// Returns the programs of runs in words.
pub fn programs<'a>(environments: impl Iterator<Item = &'a Environment>) -> BTreeSet<String> {
    environments.map(Environment::program).collect()
}

fn set_in_words(name: &str) -> String {
    if name == MAIN_SET { "the held-out text".to_owned() } else { format!("the held-out set {name}") }
}

fn short(hash: &str) -> &str {
    hash.get(..SHOWN).unwrap_or(hash)
}
