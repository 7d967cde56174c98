//! Comparisons of the quality of stored runs: pairs are made of what was trained before, and nothing is run.

use super::history::StoredComparison;
use super::request::{QualityArmRequest, QualityOptions, Question};
use super::{FinishedQuality, history, judge, new_folder, pairs, record};
use crate::compare::arms::{changes_between, load_stored};
use crate::error::{Error, Result};
use crate::format::plural;
use crate::recipe::{Change, Class, Recipe};
use crate::results::find;
use crate::results::folder::{RESOLVED, read_summary};
use crate::results::measure::{Measure, MeasuredRun};
use crate::results::provenance::Environment;
use crate::results::quality::{Pair, PairedRun, QualityArm};
use crate::results::verify::{self, RunFiles};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The stored runs of an arm.
struct StoredArm {
    /// Their names, as they were given.
    names: String,
    /// The runs by `training.seed`, at least one.
    runs: BTreeMap<u64, StoredRun>,
}

/// A stored run that has ended.
struct StoredRun {
    folder: PathBuf,
    /// `RECIPE/RUN`.
    name: String,
    recipe: Recipe,
    /// The device class; `None` where its file cannot be read.
    device: Option<String>,
    corpus_hash: Option<String>,
    /// In the words of the ledger.
    status: &'static str,
    reason: Option<String>,
}

/// Judges the quality of stored runs; `names` are those of each arm, joined by commas. Runs with the same
/// `training.seed` are a pair.
///
/// # Errors
/// A usage error for runs of different recipes, text or figures in one arm, for a seed that one of the arms
/// lacks, for runs that have not ended, and as [`Question::new`] and [`run`](super::run) before the first
/// run.
pub fn compare_stored(results: &Path, names: [&str; 2], options: &QualityOptions) -> Result<FinishedQuality> {
    let [baseline, candidate] = [StoredArm::find(results, names[0])?, StoredArm::find(results, names[1])?];
    check_seeds(&baseline, &candidate)?;
    let question = question(&baseline, &candidate, options)?;
    let stored = history::stored(results)?;
    let known = [baseline.known(&stored), candidate.known(&stored)];
    let mut change = question.change()?;
    for (hash, known) in change.iter_mut().zip(&known) {
        if let Some(known) = known {
            hash.clone_from(&known.recipe_hash);
        }
    }
    let earlier = history::of_change(&stored, [&change[0], &change[1]]);
    history::check_peeking(&question, &earlier)?;
    let mut comparison = record(&question, change, None);
    for (arm, known) in [&mut comparison.baseline, &mut comparison.candidate].into_iter().zip(known) {
        if let Some(known) = known {
            arm.recipe.clone_from(&known.recipe);
            arm.settings.clone_from(&known.settings);
        }
    }
    comparison.history = earlier.iter().map(|old| history::in_history(old, &question.seeds)).collect();
    let both = [&baseline, &candidate];
    comparison.provenance.corpus_hashes = both.iter().filter_map(|arm| arm.corpus_hash().cloned()).collect();
    let devices: BTreeSet<&str> = both.iter().flat_map(|arm| arm.devices()).collect();
    comparison.provenance.device = (devices.len() == 1).then(|| devices.iter().copied().collect());
    let measures: Vec<Measure> = question.measures.iter().map(|asked| asked.measure.clone()).collect();
    let partners = baseline.runs.iter().zip(candidate.runs.values());
    comparison.pairs = partners
        .map(|((seed, a), b)| Pair {
            baseline: a.paired(*seed, &measures),
            candidate: b.paired(*seed, &measures),
        })
        .collect();
    comparison.finished = true;
    judge::judge(&mut comparison);
    let (folder, _held) = new_folder(results, &mut comparison)?;
    comparison.write(&folder)?;
    Ok(FinishedQuality { folder, comparison })
}

impl StoredArm {
    /// Finds and verifies runs.
    fn find(results: &Path, names: &str) -> Result<Self> {
        let mut runs: BTreeMap<u64, StoredRun> = BTreeMap::new();
        for name in names.split(',') {
            let run = StoredRun::read(find::find(results, name.trim())?)?;
            if let Some(first) = runs.values().next() {
                first.check_same_arm(&run)?;
            }
            let seed = run.recipe.values().training.seed;
            if let Some(other) = runs.get(&seed) {
                return Err(Error::usage(format!(
                    "{} and {} are in one arm and have the same training.seed = {seed}; name one of them",
                    other.name, run.name
                )));
            }
            runs.insert(seed, run);
        }
        Ok(Self { names: names.to_owned(), runs })
    }

    /// Returns the arm of a stored comparison that made one of these runs: its recipe, as it was before a
    /// machine was chosen for the run, is the one by which comparisons of the same change are found.
    fn known<'a>(&self, stored: &'a [StoredComparison]) -> Option<&'a QualityArm> {
        let is_own = |run: &PairedRun| {
            run.run.as_ref().is_some_and(|name| self.runs.values().any(|own| own.name == *name))
        };
        stored.iter().map(|one| &one.comparison).find_map(|comparison| {
            let mut pairs = comparison.pairs.iter().chain(&comparison.pilot);
            pairs.find_map(|pair| match () {
                () if is_own(&pair.baseline) => Some(&comparison.baseline),
                () if is_own(&pair.candidate) => Some(&comparison.candidate),
                () => None,
            })
        })
    }

    /// Returns the arm for a question.
    fn request(&self, label_suffix: &str) -> Result<QualityArmRequest> {
        let first = self.first()?;
        Ok(QualityArmRequest {
            label: format!("{}{label_suffix}", first.recipe.name()),
            command: format!("stored {}", self.names),
            path: first.folder.join(RESOLVED),
            settings: Vec::new(),
            recipe: first.recipe.clone(),
        })
    }

    /// Returns the run with the lowest seed.
    fn first(&self) -> Result<&StoredRun> {
        self.runs.values().next().ok_or_else(|| Error::usage("--runs names two arms"))
    }

    fn corpus_hash(&self) -> Option<&String> {
        self.runs.values().find_map(|run| run.corpus_hash.as_ref())
    }

    fn devices(&self) -> impl Iterator<Item = &str> {
        self.runs.values().filter_map(|run| run.device.as_deref())
    }
}

impl StoredRun {
    /// Reads and verifies a run.
    fn read(folder: PathBuf) -> Result<Self> {
        verify::check(&RunFiles::read(&folder)?)?;
        let summary = read_summary(&folder)?;
        let name = find::id_of(&folder);
        if !MeasuredRun::open(&folder)?.is_complete() {
            return Err(Error::usage(format!(
                "{name} is {}, and quality is judged of runs that ended with all of their rows",
                summary.status.as_str()
            )));
        }
        Ok(Self {
            recipe: load_stored(&folder)?,
            device: Environment::read(&folder).map(|environment| environment.device_class()),
            folder,
            name,
            corpus_hash: summary.corpus_hash,
            status: summary.status.as_str(),
            reason: summary.reason,
        })
    }

    /// Checks that another run may be in the same arm: it differs in its seed, and in what changes no bit,
    /// such as the GPU that was free.
    fn check_same_arm(&self, other: &Self) -> Result<()> {
        let matters = |change: &&Change| {
            change.key != "training.seed" && (!change.keeps_bits() || change.class == Class::Measuring)
        };
        let changes = changes_between(&self.recipe, &other.recipe);
        let differ = match changes.iter().find(matters) {
            Some(change) => format!("{} is {} and {}", change.key, change.old, change.new),
            None if self.corpus_hash != other.corpus_hash => "they were trained on different text".to_owned(),
            None => return Ok(()),
        };
        Err(Error::usage(format!("{} and {} are in one arm, but {differ}", self.name, other.name)))
    }

    /// Returns the record of the run in a pair.
    fn paired(&self, seed: u64, measures: &[Measure]) -> PairedRun {
        let run = PairedRun {
            seed,
            run: Some(self.name.clone()),
            status: Some(self.status.to_owned()),
            reason: self.reason.clone(),
            reused: true,
            ..PairedRun::default()
        };
        pairs::with_values(run, &self.folder, measures)
    }
}

/// Checks that both arms have runs with the same seeds, at least two.
fn check_seeds(baseline: &StoredArm, candidate: &StoredArm) -> Result<()> {
    let seeds = |arm: &StoredArm| arm.runs.keys().copied().collect::<Vec<u64>>();
    let in_words = |seeds: &[u64]| seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let [a, b] = [seeds(baseline), seeds(candidate)];
    if a != b {
        return Err(Error::usage(format!(
            "pairs are runs with the same training.seed: the baseline has {} and the candidate {}; name runs \
             of both for the same seeds",
            in_words(&a),
            in_words(&b)
        )));
    }
    if a.len() < 2 {
        return Err(Error::usage(
            "one pair shows no difference from chance: name two runs or more of each arm, joined by commas",
        ));
    }
    Ok(())
}

/// Returns the question that the runs answer.
fn question(baseline: &StoredArm, candidate: &StoredArm, options: &QualityOptions) -> Result<Question> {
    let have_one_name = baseline.first()?.recipe.name() == candidate.first()?.recipe.name();
    let suffixes = if have_one_name { [" (before)", " (after)"] } else { ["", ""] };
    let arms = [baseline.request(suffixes[0])?, candidate.request(suffixes[1])?];
    let seeds = baseline.runs.keys().map(|seed| [*seed; 2]).collect();
    let mut question = Question::of_stored_runs(arms, seeds, options)?;
    let is_of_text = |key: &str| key.starts_with("data.");
    if baseline.corpus_hash() != candidate.corpus_hash()
        && !question.changes.iter().any(|change| is_of_text(change.key))
    {
        return Err(Error::usage(
            "the arms were trained on different text, though their recipes name the same: its files have \
             changed",
        ));
    }
    let pairs = baseline.runs.values().zip(candidate.runs.values());
    let apart = pairs.filter(|(a, b)| a.device != b.device).count();
    if apart > 0 {
        question.notes.push(format!(
            "the runs of {apart} pair{} are of different devices, whose roundings differ",
            plural(apart)
        ));
    }
    question.notes.push("of stored runs: the question was asked after they had been made".to_owned());
    Ok(question)
}
