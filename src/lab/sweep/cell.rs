//! A cell of a sweep: its recipe, its plan, and its key in the ledger.

use super::assignment::Assignment;
use super::axes::{GridPoint, format_settings};
use super::work::Work;
use crate::data::{self, Spec, TaskFacts, TokenCache};
use crate::device::cuda::Gpu;
use crate::device::cuda::monitor::nvml;
use crate::error::{Error, Result};
use crate::forecast::Planned;
use crate::machine::Machine;
use crate::plan::{CorpusFacts, Plan, data_spec, facts_of_tasks};
use crate::ranks::{Launch, environment};
use crate::recipe::{self, NO_PLOTS, Recipe, TaskRuns, Values, merged_settings};
use crate::results::configurations::Settings;
use crate::results::provenance::{Build, Cpu, gpu_class, links, own_binary_hash};
use crate::train::{
    begun_run_setting, check_initial_optimizer, check_initial_weights, check_planned_prompt, with_begun_run,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A cell of a sweep.
#[derive(Debug)]
pub struct Cell {
    /// The recipe that the cell varies: a file, or the name of a built-in recipe.
    pub recipe: PathBuf,
    /// The recipe's name.
    pub name: String,
    /// Values that the cell sets on top of the recipe.
    pub settings: Settings,
    /// Key in the ledger; cells with the same key are the same cell.
    pub key: String,
    /// Hash of the resolved recipe; `None` if it is invalid.
    pub recipe_hash: Option<String>,
    /// Values of the recipe's measuring keys; empty if the recipe is invalid.
    pub measuring: Settings,
    /// Hash of the corpus; `None` if it could not be opened.
    pub corpus_hash: Option<String>,
    /// Hashes of the further held-out sets, by name.
    pub held_out: BTreeMap<String, String>,
    /// The device class; `None` if nothing runs.
    pub device: Option<String>,
    /// True if `sweep.exclude` excludes the cell.
    pub excluded: bool,
    /// Number of checkpoints that the cell keeps unless its settings say otherwise.
    checkpoints: usize,
    /// Steps, in addition to the recipe's, after which the cell saves a state for other cells to start from.
    pub saved_steps: Vec<u64>,
    /// The recipe and plan to run, or the reason why nothing runs.
    pub work: Result<Box<Work>>,
}

/// The recipe of a sweep; every cell is a variant of it.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The file, or the name of a built-in recipe.
    pub path: &'a Path,
    /// The recipe's name.
    pub name: &'a str,
    /// The machine that the cells run on.
    pub machine: &'a Machine,
    /// The results folder, which may have the run whose weights cells begin with.
    pub results: &'a Path,
    /// Number of checkpoints that a cell keeps unless its settings say otherwise.
    pub checkpoints: usize,
}

/// Cache of opened corpora, so that each is read only once.
#[derive(Debug, Default)]
pub struct Corpora {
    opened: Vec<(Spec, Result<OpenedCorpus>)>,
    /// What tasks ask, with the keys that they follow from.
    tasks: Vec<(TaskRuns, String, Vec<TaskFacts>)>,
}

/// What a cell needs to know about the text that it is trained and measured on.
#[derive(Clone, Debug)]
struct OpenedCorpus {
    /// Hash of the tokens that are trained on and held out by `data.validation`, and of the tokenizer.
    hash: String,
    /// Hashes of the further held-out sets, by name.
    held_out: BTreeMap<String, String>,
    facts: CorpusFacts,
}

impl Corpora {
    /// Opens a recipe's corpus, with its further held-out sets.
    fn open(&mut self, recipe: &Recipe, machine: &Machine) -> Result<OpenedCorpus> {
        let spec = data_spec(recipe, machine);
        let at = self.opened.iter().position(|(known, _)| *known == spec).unwrap_or_else(|| {
            // Token streams do not depend on the window length, so one entry serves all; the window is
            // checked below.
            let opened =
                TokenCache::user().and_then(|cache| data::open(&spec, 0, None, cache.as_ref())).map(|set| {
                    OpenedCorpus {
                        hash: set.hash.clone(),
                        held_out: set.sets.iter().map(|set| (set.name.clone(), set.hash.clone())).collect(),
                        facts: CorpusFacts::from_dataset(&set),
                    }
                });
            self.opened.push((spec.clone(), opened));
            self.opened.len() - 1
        });
        let opened = self.opened[at].1.clone()?;
        let seq_len = recipe.values().training.seq_len;
        data::check_window(&spec, opened.facts.train_tokens, opened.facts.validation_tokens, seq_len)?;
        let facts = CorpusFacts { tasks: self.tasks(recipe)?, ..opened.facts };
        Ok(OpenedCorpus { facts, ..opened })
    }

    /// Reads a recipe's tasks, once for all cells that have the same.
    fn tasks(&mut self, recipe: &Recipe) -> Result<Vec<TaskFacts>> {
        let Values { evaluation, data, training, .. } = recipe.values();
        let wanted = TaskRuns { interval: 0, ..evaluation.clone() };
        let named = format!("{:?} {:?} {}", data.tokenizer, data.begin_token, training.seq_len);
        let found = self.tasks.iter().find(|(known, known_name, _)| (known, known_name) == (&wanted, &named));
        if let Some((.., facts)) = found {
            return Ok(facts.clone());
        }
        let facts = facts_of_tasks(recipe)?;
        self.tasks.push((wanted, named, facts.clone()));
        Ok(facts)
    }
}

impl Cell {
    /// Resolves and plans a point. An excluded point, or one with an invalid recipe, has an error instead of
    /// work.
    pub fn new(recipe: &Source<'_>, point: &GridPoint, build: &str, corpora: &mut Corpora) -> Self {
        let mut cell = Self {
            recipe: recipe.path.to_owned(),
            name: recipe.name.to_owned(),
            settings: point.settings.clone(),
            // Skipped cells have their own keys because another sweep may run the same point.
            key: hash(&["left out", recipe.name, &format_settings(&point.settings), build]),
            recipe_hash: None,
            measuring: Settings::new(),
            corpus_hash: None,
            held_out: BTreeMap::new(),
            device: None,
            excluded: point.excluded.is_some(),
            checkpoints: recipe.checkpoints,
            saved_steps: Vec::new(),
            work: Err(Error::usage("")),
        };
        cell.work = match &point.excluded {
            Some(set) => Err(Error::usage(format!("excluded: {}", format_settings(set)))),
            None => cell.prepare(recipe, build, corpora),
        };
        cell
    }

    fn prepare(&mut self, recipe: &Source<'_>, build: &str, corpora: &mut Corpora) -> Result<Box<Work>> {
        let arguments = self.arguments(&Assignment::default());
        let machine = recipe.machine.clone();
        let results = recipe.results;
        let recipe = recipe::load(recipe.path, &arguments, recipe::environment(), &machine)?;
        let recipe = with_begun_run(recipe, results, &machine)?;
        Launch::from_recipe(&recipe, environment::variables())?;
        self.recipe_hash = Some(recipe.hash());
        self.measuring = recipe.measuring();
        let OpenedCorpus { hash: corpus_hash, held_out, facts } = corpora.open(&recipe, &machine)?;
        self.corpus_hash = Some(corpus_hash.clone());
        self.held_out = held_out;
        let Planned { recipe, plan, programs } = Planned::new(&recipe, &facts, &machine)?;
        self.recipe_hash = Some(recipe.hash());
        let device = device_class(&plan, &machine)?;
        // Hash the number of ranks that `"auto"` resolves to, so that a cell that sets that number has the
        // same key.
        let (recipe_hash, measuring) = (recipe.settled_hash(), measuring(&recipe));
        let mut parts = vec![recipe_hash.as_str(), &corpus_hash, build, &device, &measuring];
        // The recipe names a folder of weights, like a corpus, by its path alone, so hash the contents too.
        check_planned_prompt(&recipe, &plan)?;
        let base = check_initial_weights(&recipe, &plan)?;
        base.iter().try_for_each(|base| check_initial_optimizer(&recipe, base, &programs.state))?;
        let weights = base.map(|base| base.content_hash()).transpose()?;
        parts.extend(weights.as_deref());
        // Neither does it name the contents of further held-out sets, on which figures are measured.
        let sets: Vec<String> =
            self.held_out.iter().map(|(name, hash)| format!("validation.sets.{name} {hash}")).collect();
        parts.extend(sets.iter().map(String::as_str));
        // Nor what is asked, where a run is scored on tasks, and when.
        let tasks = plan.intervals.tasks.map(|interval| format!("evaluation.interval {interval}"));
        parts.extend(tasks.as_deref());
        parts.extend(plan.corpus.tasks.iter().map(|task| task.hash.as_str()));
        self.key = hash(&parts);
        self.device = Some(device);
        Ok(Box::new(Work { recipe, plan, machine }))
    }

    /// Returns the command-line arguments that set the cell's values and its devices.
    pub fn arguments(&self, assignment: &Assignment) -> Vec<String> {
        let own: Vec<String> = self.settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let mut arguments = merged_settings(&cell_defaults(self.checkpoints), &own);
        arguments = merged_settings(&arguments, &self.saving());
        arguments = merged_settings(&arguments, &self.beginning());
        arguments.extend(assignment.arguments());
        arguments
    }

    /// Returns the argument that names the checkpoint with which every run of the cell begins, even if its
    /// run is trained further meanwhile; none if the cell was not prepared or names no run.
    fn beginning(&self) -> Vec<String> {
        self.work.iter().filter_map(|work| begun_run_setting(&work.recipe)).collect()
    }

    /// Returns the argument that sets the steps to keep checkpoints of; none if no other cell needs one.
    fn saving(&self) -> Vec<String> {
        if self.saved_steps.is_empty() {
            return Vec::new();
        }
        let own = self.work.as_ref().ok().and_then(|work| work.recipe.values().checkpoint.steps.clone());
        let own = own.into_iter().flatten().map(|step| step as u64);
        let steps: BTreeSet<u64> = self.saved_steps.iter().copied().chain(own).collect();
        vec![format!("{SAVED_STEPS}={:?}", Vec::from_iter(steps))]
    }
}

/// The key for steps whose checkpoints are kept.
const SAVED_STEPS: &str = "checkpoint.steps";

/// The key for the number of checkpoints. Unless a cell sets it, the cell keeps none when it is done.
pub const KEEP: &str = "checkpoint.keep";

/// Returns settings that the command line of a sweep may override: cells need neither checkpoints nor plots.
fn cell_defaults(checkpoints: usize) -> [String; 2] {
    [format!("{KEEP}={checkpoints}"), NO_PLOTS.to_owned()]
}

/// Formats the values of keys that change what is measured but not the training: when losses are measured, on
/// how much text, and which steps count for speeds.
fn measuring(recipe: &Recipe) -> String {
    let Values { validation, metrics, .. } = recipe.values();
    format!("{} {} {}", validation.interval, validation.steps, metrics.warmup)
}

/// Returns the first line of an error, which leaves out the source lines.
pub fn headline(error: &Error) -> &str {
    error.message().lines().next().unwrap_or_default()
}

/// Returns the device class that a plan runs on, as `env.json` of the run will have it.
///
/// # Errors
/// If the driver does not know the GPU, or if the machine is a named one and its links are unknown.
fn device_class(plan: &Plan, machine: &Machine) -> Result<String> {
    let Some(gpu) = plan.execution.gpu else {
        return Ok(Cpu::detect(plan.execution.threads).class());
    };
    let gpus: Vec<usize> = plan.execution.gpus().collect();
    if let Some(hardware) = machine.hardware {
        if gpus.len() > 1 && machine.gpu_links.is_none() {
            return Err(Error::usage(format!(
                "{} runs on {} GPUs, and nobody said how those of the nodes are linked; set gpu_links in xrun.toml \
                 to what `nvidia-smi topo -m` shows there, such as \"NV18\"",
                plan.name,
                gpus.len()
            )));
        }
        let model = hardware.driver_name.unwrap_or(hardware.product);
        return Ok(gpu_class(model, gpus.len(), machine.gpu_links.as_deref()));
    }
    let model = Gpu::properties_of(gpu)?.name;
    let topology = (gpus.len() > 1).then(|| nvml::topology(&gpus)).flatten();
    Ok(gpu_class(&model, gpus.len(), topology.as_deref().and_then(links).as_deref()))
}

/// Names the program that runs the cells by version, commit, profile and the hash of its file: features and
/// flags make several programs of one commit.
pub fn build_name() -> String {
    let build = Build::current();
    let commit = build.commit.as_deref().map_or("unknown", |commit| &commit[..commit.len().min(12)]);
    let profile = build.profile.as_deref().and_then(|p| p.split(',').next()).unwrap_or("unknown");
    let binary = own_binary_hash().and_then(|hash| hash.get(..12)).unwrap_or("unknown");
    format!("{} {commit} {profile} binary {binary}", build.version)
}

/// Hashes several strings into one.
pub fn hash(parts: &[&str]) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part.as_bytes()).update(b"\0");
    }
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: &str = "[model]\ndim = 32\nn_heads = 2\nn_layers = 1\nffn_dim = 64\n[training]\nseq_len = 32\n\
                        [data]\ntrain_tokens = 20_000\nvalidation_tokens = 600\n[engine]\ndevice = \"cpu\"\n";

    fn cell(folder: &Path, settings: &[(&str, &str)], build: &str) -> Cell {
        let recipe = folder.join("tiny.toml");
        std::fs::write(&recipe, TINY).unwrap();
        let settings = settings.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let machine = Machine::here();
        let source =
            Source { path: &recipe, name: "tiny", machine: &machine, results: folder, checkpoints: 0 };
        Cell::new(&source, &GridPoint { settings, excluded: None }, build, &mut Corpora::default())
    }

    #[test]
    fn a_key_changes_with_training_execution_corpus_and_build_alone() {
        let dir = tempfile::tempdir().unwrap();
        let key = |settings: &[(&str, &str)]| {
            let cell = cell(dir.path(), settings, "build");
            assert!(cell.work.is_ok(), "{:?}", cell.work);
            cell.key
        };
        let base = key(&[]);
        assert_eq!(base, key(&[]));
        // Bookkeeping, and a default that is set explicitly.
        assert_eq!(base, key(&[("checkpoint.keep", "7"), ("metrics.interval", "3")]));
        assert_eq!(base, key(&[("model.n_layers", "1")]));
        for other in [
            ("optimizer.lr", "0.5"),
            ("training.seed", "9"),
            ("engine.fused", "false"),
            ("engine.memory_limit_gib", "4.0"),
            ("data.seed", "5"),
        ] {
            assert_ne!(base, key(&[other]), "{other:?}");
        }
        assert_ne!(base, cell(dir.path(), &[], "another build").key);
    }

    /// Ledger rows of earlier versions are found by these keys.
    #[test]
    fn a_key_is_hashed_from_recipe_corpus_build_device_and_measuring() {
        let dir = tempfile::tempdir().unwrap();
        let cell = cell(dir.path(), &[], "build");
        let device = Cpu::detect(1).class();
        let [recipe, corpus] = [&cell.recipe_hash, &cell.corpus_hash].map(|hash| hash.clone().unwrap());
        let Values { validation, metrics, .. } = cell.work.as_ref().unwrap().recipe.values();
        let measuring = format!("{} {} {}", validation.interval, validation.steps, metrics.warmup);
        assert_eq!(cell.key, hash(&[&recipe, &corpus, "build", &device, &measuring]));
        assert_eq!(cell.device, Some(device));
    }

    #[test]
    fn an_assignment_is_in_the_recipe_of_the_run_and_not_in_the_key() {
        let dir = tempfile::tempdir().unwrap();
        let cell = cell(dir.path(), &[], "build");
        let work = cell.work.as_ref().unwrap();
        let hash_at = |assignment: &Assignment| assignment.recipe_hash(work).unwrap();
        assert_eq!(Some(hash_at(&Assignment::default())), cell.recipe_hash);
        let assignment = Assignment { threads: Some(3), ..Assignment::default() };
        let arguments = cell.arguments(&assignment);
        assert_eq!(arguments, [&cell_defaults(0)[..], &["engine.threads=3".to_owned()]].concat());
        let path = dir.path().join("tiny.toml");
        let run = recipe::load(&path, &arguments, std::iter::empty(), &Machine::here()).unwrap();
        let run = run.with_recompute(work.plan.execution.recompute);
        assert_eq!(hash_at(&assignment), run.hash());
        assert_ne!(Some(run.hash()), cell.recipe_hash);
        let assignment = Assignment { gpus: vec![2], sets_devices: true, threads: None };
        assert_eq!(
            cell.arguments(&assignment),
            [&cell_defaults(0)[..], &["engine.devices=[2]".to_owned()]].concat()
        );
        assert_ne!(Some(hash_at(&assignment)), cell.recipe_hash);
    }

    #[test]
    fn a_changed_text_is_another_corpus() {
        let dir = tempfile::tempdir().unwrap();
        let corpus = dir.path().join("corpus.txt");
        let path = format!("{:?}", corpus.to_str().unwrap());
        let key = |text: &str| {
            std::fs::write(&corpus, text.repeat(300)).unwrap();
            let cell = cell(dir.path(), &[("data.corpus", &path), ("data.tokenizer", "\"byte\"")], "build");
            assert!(cell.work.is_ok(), "{:?}", cell.work);
            cell.key
        };
        assert_ne!(key("one text "), key("two texts "));
    }

    /// Replaces the content of every file that a recipe can measure or train on.
    #[test]
    fn a_key_changes_with_the_content_of_every_named_text() {
        let dir = tempfile::tempdir().unwrap();
        let text = |name: &str| format!("{:?}", dir.path().join(name).to_str().unwrap());
        let write =
            |name: &str, words: &str| std::fs::write(dir.path().join(name), words.repeat(300)).unwrap();
        let names = ["corpus.txt", "held.txt", "a.txt", "b.txt"];
        names.iter().for_each(|name| write(name, "the same text "));
        let settings = [
            ("data.corpus", text("corpus.txt")),
            ("data.validation", text("held.txt")),
            ("data.tokenizer", "\"byte\"".to_owned()),
            ("validation.sets", format!("{{ a = {}, b = {} }}", text("a.txt"), text("b.txt"))),
        ];
        let settings: Vec<(&str, &str)> =
            settings.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let key = || {
            let cell = cell(dir.path(), &settings, "build");
            assert!(cell.work.is_ok(), "{:?}", cell.work);
            (cell.key, cell.held_out)
        };
        let (base, sets) = key();
        assert_eq!((key(), sets.len()), ((base.clone(), sets.clone()), 2));
        let mut seen = std::collections::BTreeSet::from([base]);
        for name in names {
            write(name, "another one!! ");
            assert!(seen.insert(key().0), "{name}");
        }
    }

    #[test]
    fn skipped_cells_have_a_reason_and_a_key_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let wrong = cell(dir.path(), &[("model.n_heads", "5")], "build");
        let error = wrong.work.unwrap_err();
        let reason = headline(&error);
        assert!(reason.contains("heads") && !reason.contains('\n'), "{reason}");
        let long = cell(dir.path(), &[("training.seq_len", "1024")], "build").work.unwrap_err();
        assert!(long.message().contains("held-out split"), "{long}");
        let good = cell(dir.path(), &[], "build");
        let set = Settings::from([("model.dim".to_owned(), "32".to_owned())]);
        let point = GridPoint { settings: Settings::new(), excluded: Some(set) };
        let recipe = dir.path().join("tiny.toml");
        let machine = Machine::none();
        let source =
            Source { path: &recipe, name: "tiny", machine: &machine, results: dir.path(), checkpoints: 0 };
        let excluded = Cell::new(&source, &point, "build", &mut Corpora::default());
        assert_eq!(excluded.work.as_ref().unwrap_err().message(), "excluded: model.dim=32");
        assert_ne!(excluded.key, good.key);
    }
}
