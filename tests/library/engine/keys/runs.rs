//! Whole runs with their folders, for keys whose effect is in what is written.

use super::strs;
use crate::engine::harness::{Setup, TINY, recipe};
use clap::Parser;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use xrun::checkpoint::{Loaded, newest, steps};
use xrun::cli::{Cli, Command};
use xrun::data::Tokenizer;
use xrun::data::tokenizer::Begin;
use xrun::machine::Machine;
use xrun::metrics::DocumentLoss;
use xrun::model::hf_export::{self, Dtype, Export};
use xrun::model::hugging_face::Companions;
use xrun::model::{Programs, WeightsKind};
use xrun::passes::Block;
use xrun::plan::{Adapter, Model, Plan};
use xrun::ranks::Stop;
use xrun::ranks::{Launch, LocalRanks};
use xrun::recipe::{Class, Recipe};
use xrun::results::atomic::read_csv;
use xrun::results::folder::{CHECKPOINT, ENVIRONMENT, METRICS, RESOLVED, SUMMARY, TIMING, read_summary};
use xrun::results::progress::Mode;
use xrun::results::provenance::Environment;
use xrun::results::rows::{self, Row};
use xrun::results::{MetricsRow, Phase, RunFolder, Status, Summary, TimingRow};
use xrun::train::{self, Origin, Rank, Request, RunWeights};
use xrun::{Error, Result};

/// Enough for files: four steps of one block.
const SMALL: [&str; 3] = ["training.steps=4", "model.n_layers=1", "training.local_batch_size=8"];

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(600);

/// Makes a temporary folder, in memory if possible.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary folder")
}

/// Trains settings into a folder of `results`.
pub fn start(settings: &[String], results: &Path) -> Result<(RunFolder, Summary)> {
    let recipe = recipe(&strs(settings))?;
    let launch = Launch::from_recipe(&recipe, std::iter::empty())?;
    let request = Request {
        recipe,
        machine: Machine::here(),
        results: results.to_owned(),
        progress: Mode::Quiet,
        origin: Origin::Fresh,
        until: None,
        algorithms_from: None,
        command: Vec::new(),
    };
    train(launch, request)
}

/// Trains a request on threads of this process.
fn train(launch: Launch, request: Request) -> Result<(RunFolder, Summary)> {
    let Launch::Threads(world) = launch else { panic!("only the binary starts processes") };
    let ranks = LocalRanks::threads(world, PATIENCE)?;
    let ended = ranks.abort_on_error(|guard| {
        let run = train::Run::open(request, &ranks)?;
        let (planned, data) = train::prepare_early(run.recipe(), run.machine())?;
        run.train(planned, data, &ranks, &Stop::default(), guard)
    })?;
    ended.outcome?;
    let folder = ended.folder.expect("rank 0 is in this process");
    let summary = read_summary(folder.path())?;
    Ok((folder, summary))
}

/// A finished run.
pub struct Run {
    path: PathBuf,
    summary: Summary,
    _results: tempfile::TempDir,
}

impl Run {
    fn new(settings: &[String]) -> Result<Self> {
        let results = scratch();
        let (folder, summary) = start(&small(settings), results.path())?;
        Ok(Self { path: folder.path().to_owned(), summary, _results: results })
    }

    /// Returns the resolved recipe.
    pub fn recipe_toml(&self) -> String {
        std::fs::read_to_string(self.path.join(RESOLVED)).expect("every run has one")
    }

    /// Returns what the summary says of the origin and licence of the text and its sources.
    pub fn cards(&self) -> Vec<Option<String>> {
        let of_sources = self.summary.sources.values().map(|source| &source.card);
        std::iter::once(&self.summary.card).chain(of_sources).cloned().collect()
    }

    /// Returns the number of checkpoints that were kept.
    pub fn checkpoints(&self) -> usize {
        steps(&self.path.join(CHECKPOINT)).expect("a folder that can be listed").len()
    }

    /// Returns whether the best checkpoint is named.
    pub fn has_best(&self) -> bool {
        self.path.join(CHECKPOINT).join("best").exists()
    }

    /// Returns whether the newest checkpoint has the optimizer's state.
    pub fn can_be_resumed(&self) -> bool {
        let loaded = newest(&self.path.join(CHECKPOINT)).expect("a valid checkpoint");
        !loaded.expect("a checkpoint").is_weights_only()
    }

    /// Returns the number of copies of the state that were written in the background.
    pub fn copies(&self) -> usize {
        let rows: Vec<TimingRow> = rows::read(&self.path.join(TIMING)).expect("every run has them");
        rows.iter().filter(|row| row.phase == Phase::Snapshot).count()
    }

    /// Returns the number of rows with a held-out loss.
    pub fn evaluations(&self) -> usize {
        self.metrics().iter().filter(|row| row.val_loss.is_some()).count()
    }

    /// Returns the last held-out loss.
    pub fn val_loss(&self) -> Option<f32> {
        self.metrics().last().and_then(|row| row.val_loss)
    }

    /// Returns the last held-out loss of the moving average of the weights.
    pub fn ema_val_loss(&self) -> Option<f32> {
        self.metrics().last().and_then(|row| row.ema_val_loss)
    }

    /// Returns the held-out sets with a loss in the last row.
    pub fn sets(&self) -> Vec<String> {
        self.metrics()
            .last()
            .map(|row| row.set_losses().into_keys().map(str::to_owned).collect())
            .unwrap_or_default()
    }

    /// Returns the rows with figures of tasks.
    pub fn scores(&self) -> Vec<MetricsRow> {
        self.metrics().into_iter().filter(|row| !row.scores().is_empty()).collect()
    }

    /// Returns what the summary says of the tasks: examples, limit, and number of items.
    pub fn task_items(&self) -> Vec<(usize, Option<usize>, usize)> {
        self.summary.tasks.values().map(|task| (task.shots, task.limit, task.items)).collect()
    }

    /// Returns whether a row has a figure of held-out text in this column.
    pub fn has_figure(&self, column: &str) -> bool {
        self.metrics().iter().any(|row| row.further.contains_key(column))
    }

    /// Returns 1 if `documents.csv` has rows, else 0; random tokens without an end token are one document.
    pub fn documents(&self) -> usize {
        let rows = read_csv::<DocumentLoss>(&self.path.join("documents.csv"));
        rows.map_or(0, |rows| rows.len().min(1))
    }

    /// Returns the generated texts, each with its prompt.
    pub fn texts(&self) -> Vec<String> {
        self.summary.samples.iter().map(|sample| format!("{}{}", sample.prompt, sample.text)).collect()
    }

    /// Returns the number of timed rows of a phase.
    pub fn rows_of(&self, phase: Phase) -> usize {
        self.rows::<TimingRow>(TIMING).iter().filter(|row| row.phase == phase).count()
    }

    /// Returns the number of threads that the run computed with.
    pub fn threads(&self) -> usize {
        let text = std::fs::read(self.path.join(ENVIRONMENT)).expect("every run has one");
        let environment: Environment = serde_json::from_slice(&text).expect("it reads back");
        environment.cpu.threads
    }

    fn metrics(&self) -> Vec<MetricsRow> {
        self.rows(METRICS)
    }

    fn rows<R: Row>(&self, file: &str) -> Vec<R> {
        rows::read(&self.path.join(file)).expect("every run has its rows")
    }
}

/// Adds the settings that make a run small, below the given ones.
fn small(settings: &[String]) -> Vec<String> {
    super::on_top(&SMALL.map(str::to_owned), settings)
}

/// Runs settings to their end.
pub fn run(settings: &[String]) -> std::result::Result<Run, String> {
    Run::new(settings).map_err(|e| format!("{settings:?}: {e}"))
}

/// Runs the other side and compares the files of both. Bookkeeping must leave the training unchanged.
pub fn compare(
    before: &Run,
    after: &[String],
    class: Class,
    differ: fn(&Run, &Run) -> bool,
) -> std::result::Result<(), String> {
    let changed = run(after)?;
    let curve = |run: &Run| -> Vec<_> {
        run.metrics()
            .iter()
            .map(|row| (row.loss.to_bits(), row.lr.to_bits(), row.grad_norm.to_bits()))
            .collect()
    };
    if curve(before) != curve(&changed) {
        return Err(format!("a key of the {class} class changes the curve: {after:?}"));
    }
    match differ(before, &changed) {
        true => Ok(()),
        false => Err(format!("nothing of it is written, with {after:?}")),
    }
}

/// Exports the model of a run with another seed.
pub fn export(to: &Path) -> Result<()> {
    let trained = Exported::train(&["training.seed=9".to_owned()])?;
    hf_export::write(to, &trained.export, &trained.loaded, trained.tokenizer.to_json())
}

/// Trains a run with another seed in a results folder, and returns its folder.
pub fn keep(results: &Path) -> Result<PathBuf> {
    let (folder, _) = start(&small(&["training.seed=9".to_owned()]), results)?;
    Ok(folder.path().to_owned())
}

/// Exports the adapters of a run on the model in the folder `base`.
pub fn export_adapter(base: &Path, to: &Path) -> Result<()> {
    let base = format!("model.init_from={}", base.display());
    let Exported { recipe, loaded, export, .. } =
        Exported::train(&["training.seed=9".to_owned(), base, "adapter.kind=lora".to_owned()])?;
    let adapter = Adapter::from_recipe(&recipe).expect("the recipe has adapters");
    let weights = RunWeights::open(&loaded, WeightsKind::Training, &recipe, &export.model)?;
    hf_export::write_adapter(to, &export, &adapter, &weights, None)
}

/// A finished run with what its export needs.
struct Exported {
    recipe: Recipe,
    loaded: Loaded,
    export: Export,
    tokenizer: Tokenizer,
}

impl Exported {
    fn train(settings: &[String]) -> Result<Self> {
        let results = scratch();
        let settings = small(settings);
        let (folder, _) = start(&settings, results.path())?;
        let loaded = newest(&folder.path().join(CHECKPOINT))?.expect("it saves at its end");
        let recipe = recipe(&strs(&settings))?;
        let tokenizer = Tokenizer::open(&recipe.values().data.tokenizer)?;
        let export = Export {
            model: Model::from_recipe(&recipe, tokenizer.vocab_size())?,
            seq_len: recipe.values().training.seq_len,
            end_token_id: tokenizer.end_token(),
            begin: Begin::End,
            dtype: Dtype::F32,
            reference: None,
            companions: Companions::default(),
            data: None,
        };
        Ok(Self { recipe, loaded, export, tokenizer })
    }
}

/// Two runs that begin with the weights of a folder have other losses.
pub fn trains_otherwise(before: &[String], after: &[String]) -> std::result::Result<(), String> {
    let losses = |settings| -> std::result::Result<Vec<f32>, String> {
        Ok(run(settings)?.metrics().iter().map(|row| row.loss).collect())
    };
    match losses(before)? == losses(after)? {
        true => Err("every step has the same loss".to_owned()),
        false => Ok(()),
    }
}

/// A run begins with the weights of a folder, names the folder in its summary, and so has another first loss.
pub fn begins_with_weights(before: &[String], after: &[String]) -> std::result::Result<(), String> {
    let (drawn, read) = (run(before)?, run(after)?);
    let first = |run: &Run| run.metrics()[0].loss;
    let hashes = [&drawn, &read].map(|run| run.summary.begun_with.as_ref().map(|with| with.blake3.len()));
    match first(&drawn) > first(&read) && hashes == [None, Some(64)] {
        true => Ok(()),
        false => Err(format!("first losses {} and {}, weights {hashes:?}", first(&drawn), first(&read))),
    }
}

/// `xrun run` of a recipe with an unfinished last run either starts a new run or continues that one.
pub fn resumes(before: &[String], after: &[String]) -> std::result::Result<(), String> {
    let runs = |settings: &[String]| -> Result<usize> {
        let results = scratch();
        let (folder, mut summary) = start(&small(settings), results.path())?;
        summary.status = Status::Failed;
        folder.write_summary(&summary)?;
        drop(folder);
        let path = results.path().join("tiny.toml");
        std::fs::write(&path, TINY).map_err(|e| Error::failed(e.to_string()))?;
        let words = ["xrun", "run", "--quiet", "--results"].map(OsString::from);
        let words = words.into_iter().chain([results.path().into(), path.into()]);
        let words = words.chain(small(settings).into_iter().map(OsString::from));
        let Command::Run(args) = Cli::parse_from(words).command else { unreachable!("it is a run") };
        let (launch, request) = xrun::cli::run::request(&args)?;
        train(launch, request)?;
        let runs = xrun::results::find::runs(results.path())?;
        for run in &runs {
            let complete = run.join(SUMMARY).exists() && read_summary(run)?.steps == 4;
            assert!(complete, "{}", run.display());
        }
        Ok(runs.len())
    };
    match (runs(before), runs(after)) {
        (Ok(2), Ok(1)) => Ok(()),
        other => Err(format!("number of runs: {other:?}")),
    }
}

/// A plan that would read a source more often than its `epochs` is refused.
pub fn limits_passes(before: &[String], after: &[String]) -> std::result::Result<(), String> {
    Setup::try_new(&strs(before)).map_err(|e| e.message().to_owned())?;
    match Setup::try_new(&strs(after)) {
        Err(e) if e.message().contains("source NAME would be read") => Ok(()),
        other => Err(format!("more passes than the limit: {:?}", other.err())),
    }
}

/// The binary starts a process per rank, and these write the same bits. (The launching tests provide the
/// environment of an external launcher.)
pub fn launches(before: &[String], after: &[String]) -> std::result::Result<(), String> {
    let run = |settings: &[String]| -> std::result::Result<(bool, Vec<u8>), String> {
        let place = scratch();
        std::fs::write(place.path().join("tiny.toml"), TINY).map_err(|e| e.to_string())?;
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_xrun"));
        command.arg("tiny.toml").args(small(settings)).arg("--quiet").current_dir(place.path()).env_clear();
        let child = command.stderr(std::process::Stdio::piped()).spawn().map_err(|e| e.to_string())?;
        let process = format!("process {},", child.id());
        let done = child.wait_with_output().map_err(|e| e.to_string())?;
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).into_owned());
        }
        let run =
            xrun::results::find::runs(&place.path().join("results")).map_err(|e| e.to_string())?.remove(0);
        let log = std::fs::read_to_string(run.join("logs/rank-1.log")).unwrap_or_default();
        let own = !log.is_empty() && !log.contains(&process);
        Ok((own, std::fs::read(run.join(METRICS)).map_err(|e| e.to_string())?))
    };
    let several = !before.iter().any(|setting| setting == "parallelism.world_size=1");
    let (threads, processes) = (run(before)?, run(after)?);
    if threads.0 || processes.0 != several {
        return Err("rank 1 is not where it should be".to_owned());
    }
    if threads.1 == processes.1 { Ok(()) } else { Err("other bits".to_owned()) }
}

/// Ranks that drift apart are stopped after the step at which they are compared, or at the end.
pub fn compares(before: &[String], after: &[String]) -> std::result::Result<(), String> {
    let ended = |settings: &[String]| {
        let setup = Setup::new(&strs(&small(settings)));
        let mut other = Plan::clone(&setup.plan);
        other.update_groups.iter_mut().for_each(|group| group.lr *= 2.0);
        let other = Arc::new(other);
        let of = |number| Arc::clone(if number == 1 { &other } else { &setup.plan });
        let run = |rank: &mut Rank| train::train(rank, &setup.plan, None, &Stop::default(), None).map(|_| ());
        setup.on_ranks(of, run).err().map(|e| e.message().to_owned())
    };
    let world = Setup::new(&strs(before)).plan.batch.world_size;
    let step = |error: &Option<String>| -> Option<String> {
        let (_, rest) = error.as_ref()?.split_once("differs between rank 0 and rank 1 after step ")?;
        Some(rest.split_once(": replicas have drifted apart")?.0.to_owned())
    };
    match (world, ended(before), ended(after)) {
        (1, None, None) => Ok(()),
        (2, a, b) if step(&a).as_deref() == Some("4") && step(&b).as_deref() == Some("3") => Ok(()),
        other => Err(format!("ranks that drift apart: {other:?}")),
    }
}

/// The progress of a run has fewer lines.
pub fn shows_less(before: &[String], after: &[String]) -> std::result::Result<(), String> {
    let lines = |settings: &[String]| {
        let results = scratch();
        let path = results.path().join("tiny.toml");
        std::fs::write(&path, TINY).expect("a temporary folder takes a file");
        let interval = super::on_top(&["metrics.interval=1".to_owned()], settings);
        let mut command = assert_cmd::Command::cargo_bin("xrun").expect("the binary");
        let arguments = ["run".to_owned(), path.display().to_string(), "--json".to_owned()];
        command.args(arguments).args(small(&interval)).arg("--results").arg(results.path());
        let output = command.assert().success().get_output().stdout.clone();
        String::from_utf8_lossy(&output).lines().filter(|line| line.contains("\"event\":\"step\"")).count()
    };
    // Every second step, and always the first.
    match (lines(before), lines(after)) {
        (4, 3) => Ok(()),
        other => Err(format!("lines of progress: {other:?}")),
    }
}

/// Trains the recipe with the binary, and returns true if the run's folder has something at `path`.
fn leaves(settings: &[String], path: &str) -> bool {
    let results = scratch();
    let recipe = results.path().join("tiny.toml");
    std::fs::write(&recipe, TINY).expect("a temporary folder takes a file");
    let mut command = assert_cmd::Command::cargo_bin("xrun").expect("the binary");
    command.args(["run".to_owned(), recipe.display().to_string(), "--quiet".to_owned()]);
    command.args(small(settings)).arg("--results").arg(results.path()).assert().success();
    let run = std::fs::read_dir(results.path().join("tiny")).expect("a run").flatten().next();
    run.expect("a run").path().join(path).exists()
}

/// A run draws its plots, and with the change it does not.
pub fn draws_nothing(before: &[String], after: &[String]) -> std::result::Result<(), String> {
    match [before, after].map(|settings| leaves(settings, "plots/loss-light.svg")) {
        [true, false] => Ok(()),
        other => Err(format!("pictures: {other:?}")),
    }
}

/// A run writes no TensorBoard events, and with the change it does.
pub fn writes_events(before: &[String], after: &[String]) -> std::result::Result<(), String> {
    match [before, after].map(|settings| leaves(settings, "tensorboard")) {
        [false, true] => Ok(()),
        other => Err(format!("events: {other:?}")),
    }
}

/// If a memory plan reuses the place of a living tensor, the loss is wrong or, with poison, NaN.
pub fn poisons(before: &[String], after: &[String]) -> std::result::Result<(), String> {
    let bad = |settings: &[String]| {
        let mut setup = Setup::new(&strs(settings));
        setup.programs = Arc::new(spoiled(&setup.programs));
        setup.train(1).iter().map(|rank| rank.bad.is_some()).collect::<Vec<_>>()
    };
    let world = Setup::new(&strs(before)).plan.batch.world_size;
    match (bad(before), bad(after)) {
        (quiet, poisoned) if quiet == vec![false; world] && poisoned == vec![true; world] => Ok(()),
        other => Err(format!("ranks that found a NaN: {other:?}")),
    }
}

/// Moves a block that is born and dies during the life of another block into that block's place.
fn spoiled(programs: &Programs) -> Programs {
    let mut programs = programs.clone();
    let (_, section) = &mut programs.micro[0];
    let program = &section.program;
    let float = |block: &Block| program.spec(block.tensors[0]).dtype.is_float();
    let blocks = &section.memory.blocks;
    let pairs = (0..blocks.len()).flat_map(|a| (0..blocks.len()).map(move |b| (a, b)));
    let inside = |&(a, b): &(usize, usize)| {
        let (a, b) = (&blocks[a], &blocks[b]);
        float(a) && float(b) && a.birth < b.birth && b.death < a.death && b.bytes <= a.bytes
    };
    let (a, b) = pairs.into_iter().find(inside).expect("a block inside the life of another");
    let offset = blocks[a].offset;
    section.memory.blocks[b].offset = offset;
    programs
}
