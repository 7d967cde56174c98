//! Resolves the two arms of a comparison, from the user's request to programs that can run trials.

use super::revision;
use crate::error::{Error, IoContext, Result};
use crate::forecast::with_steps_of_budget;
use crate::machine::Machine;
use crate::recipe::{self, Change, IdleKey, NO_CHECKPOINTS, NO_PLOTS, NO_RESUME, Recipe, merged_settings};
use crate::regular;
use crate::results::experiment::{ARM_NAMES, Arm, BINARIES};
use crate::results::folder::RESOLVED;
use crate::results::labels::{Labeled, labels};
use crate::results::provenance::own_binary_hash;
use crate::results::verify::{self, RunFiles};
use crate::results::{atomic, find};
use crate::train::{begun_run_setting, with_begun_run};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The largest binary that is copied into a comparison, in bytes.
const MAX_BINARY: u64 = 4 << 30;

/// What the user asked to compare, on the command line.
#[derive(clap::Args, Clone, Debug, Default, Serialize, Deserialize)]
pub struct ArmsRequest {
    /// The recipe of the baseline: a file, a built-in recipe, or a run whose recipe is used again.
    #[arg(conflicts_with = "runs")]
    pub recipe: Option<PathBuf>,
    /// The candidate: another recipe, or changes as `section.key=value` [default: the recipe's
    /// `compare.change`].
    #[arg(value_name = "RECIPE|KEY=VALUE")]
    pub candidate: Vec<String>,
    /// Set a key in both arms, as `section.key=value`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub common: Vec<String>,
    /// Compare stored runs without running anything: the baseline, then the candidate. Join several runs of
    /// an arm with commas.
    #[arg(
        long, num_args = 2, value_names = ["BEFORE", "AFTER"],
        conflicts_with_all = ["before_bin", "before_rev", "before_cmd", "common", "repeats"]
    )]
    pub runs: Option<Vec<String>>,
    /// Run the baseline with this xrun binary.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["before_rev", "before_cmd"])]
    pub before_bin: Option<PathBuf>,
    /// Run the baseline with this git commit of xrun, built here.
    #[arg(long, value_name = "REV", conflicts_with = "before_cmd")]
    pub before_rev: Option<String>,
    /// Use a command as the baseline; it must print {"step": 1, "tok_s": 81920, "loss": 6.9, "step_ms": 12.5}
    /// for each step.
    #[arg(long, value_name = "COMMAND")]
    pub before_cmd: Option<String>,
}

/// How an arm gets its trials.
#[derive(Clone, Debug, PartialEq)]
pub enum Program {
    /// Runs a binary of xrun with a recipe and settings.
    Xrun {
        /// The binary.
        binary: PathBuf,
        /// The recipe: a file, or the name of a built-in one.
        recipe: PathBuf,
        /// `section.key=value` settings on top of it.
        settings: Vec<String>,
    },
    /// Runs a shell command that prints rows.
    Command(String),
    /// Uses stored runs.
    Stored(Vec<PathBuf>),
}

/// An arm that can run trials.
#[derive(Clone, Debug)]
pub struct PlannedArm {
    /// Its label in tables.
    pub label: String,
    /// The recipe with its changed keys, or the command, for people to read.
    pub command: String,
    /// How it gets its trials.
    pub program: Program,
    /// BLAKE3 of the binary.
    pub binary: Option<String>,
    /// The recipe; `None` for an external command.
    pub recipe: Option<Recipe>,
}

/// Both arms.
#[derive(Clone, Debug)]
pub struct Arms {
    /// The reference.
    pub baseline: PlannedArm,
    /// The changed arm.
    pub candidate: PlannedArm,
    /// Keys that differ between the recipes.
    pub changes: Vec<Change>,
    /// Recipes that are read from a copy. Records name what was copied.
    pub copies: Vec<RecipeCopy>,
}

/// A copy of a recipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecipeCopy {
    /// The recipe, as the user named it.
    pub recipe: PathBuf,
    /// The copy.
    pub copy: PathBuf,
}

impl Arms {
    /// Prepares both arms: loads recipes, builds a commit, finds stored runs.
    ///
    /// # Errors
    /// Exits 2 for a wrong recipe, a missing run, or arms that do not differ, and 1 if a build fails.
    pub fn new(request: &ArmsRequest, results: &Path) -> Result<Self> {
        if let Some([baseline, candidate]) = request.runs.as_deref() {
            return Ok(Self::from_planned(stored(results, baseline)?, stored(results, candidate)?));
        }
        let Some(path) = &request.recipe else {
            return Err(Error::usage(
                "name a recipe to compare, or two stored runs with --runs BEFORE AFTER",
            ));
        };
        let own = own_binary()?;
        let base = load(path, &request.common, results)?;
        let (second, changes) = match request.candidate.split_first() {
            Some((first, rest)) if !first.contains('=') => (Some(PathBuf::from(first)), rest.to_vec()),
            _ => (None, request.candidate.clone()),
        };
        let other_program =
            request.before_bin.is_some() || request.before_rev.is_some() || request.before_cmd.is_some();
        let names_nothing = changes.is_empty() && second.is_none() && !other_program;
        let changes: Vec<String> = match names_nothing {
            true => {
                base.values().compare.change.iter().map(|(key, value)| format!("{key}={value}")).collect()
            }
            false => changes,
        };
        if names_nothing && changes.is_empty() {
            return Err(Error::usage(format!(
                "nothing differs: name a second recipe, a change such as engine.fused=false, or another \
                 program with --before-bin, --before-rev or --before-cmd; or write [compare] change = {{ … \
                 }} in {}",
                path.display()
            )));
        }
        let settings = merged_settings(&request.common, &changes);
        let candidate = xrun(results, &own, &own, second.as_deref().unwrap_or(path), &settings, &changes)?;
        let baseline = baseline(request, path, (&own, results))?;
        let mut arms = Self::from_planned(baseline, candidate);
        arms.refuse_idle_changes()?;
        if other_program {
            // A later build must not replace the binaries that a comparison rests on.
            arms.baseline.store_binary(results)?;
            arms.candidate.store_binary(results)?;
        }
        Ok(arms)
    }

    /// Pairs two arms, finds what differs between them, and labels them by it. Arms with equal labels get a
    /// suffix.
    pub fn from_planned(baseline: PlannedArm, candidate: PlannedArm) -> Self {
        let changes = match (&baseline.recipe, &candidate.recipe) {
            (Some(baseline), Some(candidate)) => changes_between(baseline, candidate),
            _ => Vec::new(),
        };
        let mut arms = Self { baseline, candidate, changes, copies: Vec::new() };
        if let Some([baseline, candidate]) = arms.short_labels() {
            (arms.baseline.label, arms.candidate.label) = (baseline, candidate);
        }
        if arms.baseline.label == arms.candidate.label {
            arms.baseline.label += " (before)";
            arms.candidate.label += " (after)";
        }
        arms
    }

    /// Returns labels of the arms made from what differs between their recipes; `None` if the recipes are the
    /// same, or if the arms are programs, which have names of their own.
    fn short_labels(&self) -> Option<[String; 2]> {
        let recipes = [self.baseline.recipe.as_ref()?, self.candidate.recipe.as_ref()?];
        if self.baseline.binary != self.candidate.binary {
            return None;
        }
        let old = self.changes.iter().map(|change| (change.key.to_owned(), Some(change.old.clone())));
        let new = self.changes.iter().map(|change| (change.key.to_owned(), Some(change.new.clone())));
        let settings: [Vec<(String, Option<String>)>; 2] = [old.collect(), new.collect()];
        let name = |recipe: &Recipe| match recipe.values().job.label.as_str() {
            "" => recipe.name().to_owned(),
            label => label.split_whitespace().collect::<Vec<_>>().join(" "),
        };
        let names = recipes.map(name);
        if names[0] == names[1] && self.changes.is_empty() {
            return None;
        }
        let shown: Vec<Labeled<'_>> = (0..2)
            .map(|arm| Labeled { recipe: &names[arm], run: ARM_NAMES[arm], settings: &settings[arm] })
            .collect();
        let mut labels = labels(&shown).into_iter().map(|label| label.text);
        Some([labels.next()?, labels.next()?])
    }

    /// Refuses two recipes that differ only in keys without effect: both arms would be the same runs.
    fn refuse_idle_changes(&self) -> Result<()> {
        let recipes = self.baseline.recipe.iter().chain(&self.candidate.recipe);
        let idle: Vec<IdleKey> = recipes.flat_map(|recipe| recipe.idle_keys(false)).collect();
        let why = |change: &Change| idle.iter().find(|idle| idle.key == change.key);
        let reasons: Option<Vec<&IdleKey>> = self.changes.iter().map(why).collect();
        match reasons.as_deref() {
            Some([first, ..]) if self.same_binary() => Err(Error::usage(format!(
                "the arms differ only in {}, which has no effect {}; change another key",
                first.key, first.reason
            ))),
            _ => Ok(()),
        }
    }

    /// Returns what a record says of an arm: its recipe, if xrun runs it, and its command.
    pub fn recorded_names(&self, arm: &PlannedArm) -> (Option<String>, String) {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let Some((recipe, _)) = arm.recipe_and_settings() else { return (None, arm.command.clone()) };
        let Some(RecipeCopy { recipe: named, copy }) = self.copies.iter().find(|one| one.copy == recipe)
        else {
            return (Some(text(&recipe)), arm.command.clone());
        };
        (Some(text(named)), arm.command.replacen(&text(copy), &text(named), 1))
    }

    /// Returns both arms, the baseline first.
    pub fn both(&self) -> [&PlannedArm; 2] {
        [&self.baseline, &self.candidate]
    }

    /// Returns true if both arms are runs of one binary.
    pub fn same_binary(&self) -> bool {
        self.baseline.binary.is_some() && self.baseline.binary == self.candidate.binary
    }

    /// Returns true if xrun runs both arms.
    pub fn are_xrun(&self) -> bool {
        self.both().iter().all(|arm| matches!(arm.program, Program::Xrun { .. }))
    }

    /// Returns true if both arms run one recipe with one program.
    pub fn are_equal(&self) -> bool {
        self.are_xrun() && self.same_binary() && self.changes.is_empty()
    }

    /// Returns true if the question itself changes the device, the threads or the ranks.
    pub fn change_devices(&self) -> bool {
        let sections = ["engine.device", "engine.threads", "parallelism."];
        let is_about = |key: &str| sections.iter().any(|section| key.starts_with(section));
        self.changes.iter().any(|change| is_about(change.key))
    }

    /// Returns the stored runs of both arms; `None` if the arms have to run.
    pub fn stored_runs(&self) -> Option<[&[PathBuf]; 2]> {
        match (&self.baseline.program, &self.candidate.program) {
            (Program::Stored(baseline), Program::Stored(candidate)) => Some([baseline, candidate]),
            _ => None,
        }
    }

    /// Returns the recipes of both arms, the baseline's first.
    ///
    /// # Errors
    /// A usage error if an arm is an external command.
    pub fn recipes(&self) -> Result<[&Recipe; 2]> {
        match (&self.baseline.recipe, &self.candidate.recipe) {
            (Some(baseline), Some(candidate)) => Ok([baseline, candidate]),
            _ => Err(Error::usage("an external command has no recipe, so only its speed can be compared")),
        }
    }

    /// Returns true if an arm is an external command.
    pub fn has_external(&self) -> bool {
        self.both().iter().any(|arm| matches!(arm.program, Program::Command(_)))
    }

    /// Returns the recipe whose `[compare]` applies: the baseline's or, without one, the candidate's.
    ///
    /// # Errors
    /// A usage error if both arms are external commands.
    pub fn recipe(&self) -> Result<&Recipe> {
        let recipe = self.baseline.recipe.as_ref().or(self.candidate.recipe.as_ref());
        recipe.ok_or_else(|| Error::usage("neither arm has a recipe"))
    }
}

impl PlannedArm {
    /// Plans a recorded arm again with a program, whose binary and recipe are not known yet.
    pub fn recorded(arm: &Arm, program: Program) -> Self {
        let (label, command) = (arm.label.clone(), arm.command.clone());
        Self { label, command, program, binary: None, recipe: None }
    }

    /// Makes an arm of stored runs with one recipe, which `names` names, separated by commas.
    pub fn stored(names: &str, label: &str, runs: Vec<PathBuf>, recipe: Recipe) -> Self {
        Self {
            label: label.to_owned(),
            command: format!("stored {names}"),
            program: Program::Stored(runs),
            binary: None,
            recipe: Some(recipe),
        }
    }

    /// Returns the arm's recipe and its settings without the seed; `None` for an external command.
    pub fn recipe_and_settings(&self) -> Option<(PathBuf, Vec<String>)> {
        let sets_seed = |setting: &str| {
            setting
                .split('=')
                .next()
                .is_some_and(|key| key.trim().trim_start_matches("--") == "training.seed")
        };
        match &self.program {
            Program::Xrun { recipe, settings, .. } => {
                let settings = settings.iter().filter(|setting| !sets_seed(setting)).cloned().collect();
                Some((recipe.clone(), settings))
            }
            Program::Stored(runs) => Some((runs.first()?.join(RESOLVED), Vec::new())),
            Program::Command(_) => None,
        }
    }

    /// Returns the recipe of the arm's trials, resolved for a machine; `None` unless xrun runs the trials.
    pub fn recipe_for_trials(&self, machine: &Machine) -> Option<Recipe> {
        let Program::Xrun { recipe, settings, .. } = &self.program else { return None };
        recipe::load(recipe, settings, recipe::environment(), machine).ok()
    }

    /// Copies the binary to `RESULTS/binaries/<hash>` and runs it from there.
    fn store_binary(&mut self, results: &Path) -> Result<()> {
        let (Program::Xrun { binary, .. }, Some(hash)) = (&mut self.program, &self.binary) else {
            return Ok(());
        };
        let folder = results.join(BINARIES);
        std::fs::create_dir_all(&folder).at("create", &folder)?;
        let stored = folder.join(hash);
        if !stored.is_file() {
            let bytes = regular::read_through_link(binary, MAX_BINARY)?;
            atomic::write(&stored, &bytes)?;
        }
        #[cfg(unix)]
        std::fs::set_permissions(&stored, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .at("make executable", &stored)?;
        *binary = std::path::absolute(&stored).at("find", &stored)?;
        Ok(())
    }
}

/// Returns the keys that differ between two recipes, except keys that only describe the recipe.
pub(super) fn changes_between(baseline: &Recipe, candidate: &Recipe) -> Vec<Change> {
    let differ = recipe::diff(baseline.values(), candidate.values()).into_iter();
    let describes = |key: &str| key.starts_with("compare.") || key.starts_with("job.");
    differ.filter(|change| !describes(change.key)).collect()
}

/// Prepares the baseline. `own` is the path of this binary.
fn baseline(request: &ArmsRequest, recipe: &Path, (own, results): (&Path, &Path)) -> Result<PlannedArm> {
    if let Some(command) = &request.before_cmd {
        return Ok(PlannedArm {
            label: command.split_whitespace().next().unwrap_or("command").to_owned(),
            command: command.clone(),
            program: Program::Command(command.clone()),
            binary: None,
            recipe: None,
        });
    }
    let (program, name) = match (&request.before_bin, &request.before_rev) {
        (Some(binary), _) if !binary.is_file() => {
            return Err(Error::usage(format!("no such binary: {}", binary.display())));
        }
        (Some(binary), _) => {
            // A path means nothing to readers of the results; the hash identifies the binary.
            let file = binary.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (binary.clone(), Some(format!("{file} ({})", &hash_file(binary)?[..8])))
        }
        (None, Some(rev)) => {
            let built = revision::build(rev)?;
            (built.binary, Some(format!("{rev} ({})", &built.commit[..built.commit.len().min(8)])))
        }
        (None, None) => (own.to_owned(), None),
    };
    let mut baseline = xrun(results, own, &program, recipe, &request.common, &[])?;
    if let Some(name) = name {
        baseline.command = format!("{} with {name}", baseline.command);
        baseline.label = name;
    }
    Ok(baseline)
}

/// Returns the path of this binary.
///
/// # Errors
/// If the OS does not report it.
pub fn own_binary() -> Result<PathBuf> {
    std::env::current_exe().map_err(|e| Error::failed(format!("cannot find xrun itself: {e}")))
}

/// Hashes a file with BLAKE3, in hexadecimal.
///
/// # Errors
/// If the file cannot be read.
pub fn hash_file(path: &Path) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_mmap_rayon(path).at("read", path)?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// Loads the recipe of an arm. The run whose weights it begins with is found in `results`.
fn load(path: &Path, settings: &[String], results: &Path) -> Result<Recipe> {
    let machine = Machine::none();
    let recipe = recipe::load(path, settings, recipe::environment(), &machine)?;
    with_steps_of_budget(with_begun_run(recipe, results, &machine)?, &machine)
}

/// Plans an arm that runs `binary` (`own` is this binary) with a recipe and settings. `changes`, if any,
/// label the arm.
fn xrun(
    results: &Path,
    own: &Path,
    binary: &Path,
    path: &Path,
    settings: &[String],
    changes: &[String],
) -> Result<PlannedArm> {
    let recipe = load(path, settings, results)?;
    let hash = match own_binary_hash().filter(|_| binary == own) {
        Some(hash) => hash.to_owned(),
        None => hash_file(binary)?,
    };
    // The command line may ask for checkpoints and plots, which trials do not need. A binary of another
    // version may not know the key for plots.
    let defaults = [Some(NO_CHECKPOINTS), (binary == own).then_some(NO_PLOTS)];
    let defaults: Vec<String> = defaults.into_iter().flatten().map(str::to_owned).collect();
    let trial_settings = merged_settings(&defaults, settings);
    // A trial is always a run from the start.
    let trial_settings = merged_settings(&trial_settings, &[NO_RESUME.to_owned()]);
    // All trials begin with one checkpoint, even if its run is trained further meanwhile.
    let trial_settings =
        merged_settings(&trial_settings, &begun_run_setting(&recipe).into_iter().collect::<Vec<_>>());
    let command = std::iter::once(path.to_string_lossy().into_owned()).chain(settings.iter().cloned());
    let label = if changes.is_empty() { recipe.name().to_owned() } else { changes.join(" ") };
    Ok(PlannedArm {
        label,
        command: command.collect::<Vec<_>>().join(" "),
        program: Program::Xrun {
            binary: binary.to_owned(),
            recipe: path.to_owned(),
            settings: trial_settings,
        },
        binary: Some(hash),
        recipe: Some(recipe),
    })
}

/// Makes an arm from stored runs, whose names are separated by commas.
fn stored(results: &Path, names: &str) -> Result<PlannedArm> {
    let runs: Vec<PathBuf> =
        names.split(',').map(|name| find::find(results, name.trim())).collect::<Result<_>>()?;
    if let Some(twice) = runs.iter().enumerate().find_map(|(at, run)| runs[..at].contains(run).then_some(run))
    {
        return Err(Error::usage(format!("{} is named twice in one arm", twice.display())));
    }
    runs.iter().try_for_each(|run| verify::check(&RunFiles::read(run)?))?;
    let first = runs.first().ok_or_else(|| Error::usage("--runs names two arms"))?;
    let recipe = load_stored(first)?;
    for other in &runs[1..] {
        let second = load_stored(other)?;
        let measuring = recipe::measuring_changes(recipe.values(), second.values());
        let differ = match measuring.first() {
            _ if second.hash() != recipe.hash() => "have different recipes".to_owned(),
            Some(Change { key, old, new, .. }) => format!("measured with {key} = {old} and {new}"),
            None => continue,
        };
        return Err(Error::usage(format!(
            "{} and {} are in one arm but {differ}",
            first.display(),
            other.display()
        )));
    }
    Ok(PlannedArm::stored(names, names, runs, recipe))
}

/// Loads the recipe of a stored run and names it after the folder that holds the run.
///
/// # Errors
/// If the recipe cannot be read or is wrong, see [`recipe::load`].
pub fn load_stored(run: &Path) -> Result<Recipe> {
    let path = run.join(RESOLVED);
    let recipe = recipe::load(&path, &[], std::iter::empty(), &Machine::none())?;
    Ok(match run.parent().and_then(Path::file_name) {
        Some(name) => recipe.with_name(name.to_string_lossy()),
        None => recipe,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(ToString::to_string).collect()
    }

    fn request(recipe: &str, candidate: &[&str], common: &[&str]) -> ArmsRequest {
        ArmsRequest {
            recipe: Some(recipe.into()),
            candidate: texts(candidate),
            common: texts(common),
            ..ArmsRequest::default()
        }
    }

    #[test]
    fn changes_apply_to_the_candidate_and_settings_to_both() {
        let arms = Arms::new(
            &request("quickstart", &["engine.fused=false"], &["training.steps=80", "checkpoint.resume=auto"]),
            Path::new("none"),
        )
        .unwrap();
        let Program::Xrun { recipe, settings, .. } = &arms.candidate.program else { panic!() };
        assert_eq!(*recipe, Path::new("quickstart"));
        assert_eq!(
            *settings,
            [
                "checkpoint.keep=0",
                "metrics.plots=false",
                "training.steps=80",
                "engine.fused=false",
                "checkpoint.resume=never"
            ]
        );
        assert_eq!(arms.changes.len(), 1);
        assert_eq!((arms.changes[0].key, arms.changes[0].old.as_str()), ("engine.fused", "true"));
        assert_eq!(
            (arms.baseline.label.as_str(), arms.candidate.label.as_str()),
            ("fused true", "fused false")
        );
        assert!(arms.same_binary() && !arms.has_external());
    }

    #[test]
    fn trials_leave_nothing_behind_unless_the_command_line_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("xrun");
        std::fs::write(&other, "another version").unwrap();
        let request = ArmsRequest {
            before_bin: Some(other),
            ..request("quickstart", &[], &["training.steps=80", "checkpoint.keep=1"])
        };
        let arms = Arms::new(&request, dir.path()).unwrap();
        let settings = |arm: &PlannedArm| match &arm.program {
            Program::Xrun { settings, .. } => settings.clone(),
            other => panic!("{other:?}"),
        };
        // The other version may not know `metrics.plots`.
        let common = ["training.steps=80", "checkpoint.keep=1", "checkpoint.resume=never"];
        assert_eq!(settings(&arms.baseline), common);
        assert_eq!(settings(&arms.candidate), [&["metrics.plots=false"], &common[..]].concat());
    }

    #[test]
    fn a_change_may_be_in_the_recipe_and_no_change_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        std::fs::write(&path, "[compare]\nchange = { \"engine.attention\" = \"unfused\" }\n").unwrap();
        let arms = Arms::new(&request(path.to_str().unwrap(), &[], &[]), folder.path()).unwrap();
        assert_eq!(
            (arms.baseline.label.as_str(), arms.candidate.label.as_str()),
            ("attention flash", "attention unfused")
        );
        let error = Arms::new(&request("quickstart", &[], &[]), folder.path()).unwrap_err();
        assert!(error.message().contains("nothing differs"), "{error}");
        let error = Arms::new(&ArmsRequest::default(), folder.path()).unwrap_err();
        assert!(error.message().contains("--runs"), "{error}");
    }

    #[test]
    fn a_recipe_against_itself_has_two_names() {
        let arms = Arms::new(&request("quickstart", &["quickstart"], &[]), Path::new("none")).unwrap();
        assert_eq!(
            (arms.baseline.label.as_str(), arms.candidate.label.as_str()),
            ("quickstart (before)", "quickstart (after)")
        );
        assert!(arms.changes.is_empty());
    }
}
