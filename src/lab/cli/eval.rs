//! `xrun eval MODEL --tasks TASKS --data DIR`.

use super::terminal::{eprint_line, print, print_json, print_value};
use super::what::{Results, run_and_keys};
use crate::checkpoint::step_of;
use crate::error::{Error, Result};
use crate::eval::{Contamination, EvalRequest, Out, Progress, evaluate, noise};
use crate::model::WeightsKind;
use crate::results::find;
use crate::results::names::CHECKPOINT;
use crate::tasks::select;
use crate::train::{ModelFolder, ModelSource, TrainedRun, is_model_folder, run_with_checkpoint};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};

/// Arguments of `xrun eval`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The model: a run (its folder or name) [default: latest, the newest with a checkpoint], the folder of a
    /// checkpoint, or a folder in HuggingFace's form. Then keys to change: execution keys
    /// (`engine.threads=1`) or `training.dtype=bf16`.
    #[arg(value_name = "MODEL | KEY=VALUE")]
    pub words: Vec<String>,
    /// Tasks, names of sets (`small`), or paths of definitions ending in .toml.
    #[arg(long, value_name = "TASK,…", value_delimiter = ',', required_unless_present = "noise")]
    pub tasks: Vec<String>,
    /// The folder with the tasks' files, each task in the folder of its data set.
    #[arg(long, value_name = "DIR", required_unless_present = "noise")]
    pub data: Option<PathBuf>,
    /// Score nothing: rank the tasks of stored evaluations by how far recipes lie apart in them, in units of
    /// how much one recipe varies over checkpoints and seeds. Names folders of evaluations, or folders that
    /// contain them.
    #[arg(long, num_args = 1.., value_name = "RUNS")]
    #[arg(conflicts_with_all = ["words", "tasks", "data", "shots", "limit", "max_len", "device", "checkpoint", "weights", "out"])]
    pub noise: Option<Vec<PathBuf>>,
    /// Examples in front of each item [default: as each task says].
    #[arg(long, value_name = "N")]
    pub shots: Option<usize>,
    /// Score only the first N items of each task (of each of its configurations).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// The most tokens that the model reads at once; longer prompts are cut on the left [default: its
    /// context].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_len: Option<u32>,
    /// Short for engine.device=DEVICE.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Use the checkpoint of this step [default: the newest valid one].
    #[arg(long, value_name = "STEP")]
    pub checkpoint: Option<u64>,
    /// Which weights of a checkpoint to use: as trained, or their moving average (`ema.decay`).
    #[arg(long, value_enum, value_name = "WEIGHTS", default_value = "training")]
    pub weights: WeightsKind,
    /// Mark the items that training text has, as `xrun data check --items` wrote them to this file, and show
    /// scores without them.
    #[arg(long, value_name = "FILE")]
    pub contaminated: Option<PathBuf>,
    /// The folder for the evaluation's files [default: in evaluations/ in the results folder].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Where results are.
    #[command(flatten)]
    pub results: Results,
    /// Print JSON: the model and the figures of every task.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
///
/// # Errors
/// If [`evaluate`] fails, or there is no such model or task.
pub fn run(args: &Args) -> Result<()> {
    if let Some(folders) = &args.noise {
        return print_value(&noise(&args.results.folder, folders)?, args.json);
    }
    let Some(data) = &args.data else {
        return Err(Error::usage("name the folder with the tasks' files: --data DIR"));
    };
    let tasks = select(args.tasks.iter().map(String::as_str))?;
    let source = source(args)?;
    let out = match &args.out {
        Some(folder) => Out::Folder(folder.clone()),
        None => Out::Results(args.results.folder.clone()),
    };
    let request = EvalRequest {
        source,
        tasks,
        data: data.clone(),
        shots: args.shots,
        limit: args.limit.map(|n| n as usize),
        max_len: args.max_len.map(|n| n as usize),
        out,
        contamination: args.contaminated.as_deref().map(Contamination::read).transpose()?,
    };
    let bar = progress_bar();
    let evaluation = evaluate(&request, |Progress { task, done, of }| {
        bar.set_message(task.to_owned());
        bar.set_length(of as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let evaluation = evaluation?;
    if !evaluation.reused.is_empty() {
        eprint_line(&format!("taken from {}: {}", evaluation.folder.display(), evaluation.reused.join(", ")));
    }
    match args.json {
        true => print_json(&evaluation.record)?,
        false => print(&evaluation.to_string())?,
    }
    if let Some(usage) = evaluation.usage_in_words() {
        eprint_line(&usage);
    }
    eprint_line(&format!("rows of every item: {}", evaluation.folder.display()));
    Ok(())
}

/// Finds the model.
fn source(args: &Args) -> Result<ModelSource> {
    let (named, keys) = run_and_keys(&args.words);
    let mut overrides: Vec<String> = keys.to_vec();
    overrides.extend(args.device.iter().map(|device| format!("engine.device={device}")));
    let named = named.unwrap_or(find::LATEST);
    let path = Path::new(named);
    if is_model_folder(path) && !path.join(CHECKPOINT).is_dir() {
        if args.checkpoint.is_some() || args.weights != WeightsKind::Training {
            return Err(Error::usage(format!(
                "{named} is a folder in HuggingFace's form, which has one set of weights; leave --checkpoint and --weights \
                 out"
            )));
        }
        let model = ModelFolder { folder: path.to_owned(), ..ModelFolder::default() };
        return Ok(ModelSource::Folder { model, overrides });
    }
    let (folder, step) = match checkpoint_of(path) {
        Some((run, step)) => (run, Some(args.checkpoint.unwrap_or(step))),
        None => (run_with_checkpoint(&args.results.folder, named)?, args.checkpoint),
    };
    Ok(ModelSource::Run(TrainedRun { folder, step, weights: args.weights, overrides }))
}

/// Returns the run and the step of a checkpoint's folder.
fn checkpoint_of(path: &Path) -> Option<(PathBuf, u64)> {
    let step = step_of(path.file_name()?.to_str()?)?;
    let checkpoints = path.parent()?;
    let run =
        checkpoints.parent().filter(|_| checkpoints.file_name().is_some_and(|name| name == CHECKPOINT))?;
    Some((run.to_owned(), step))
}

/// Shows progress on stderr, if stderr is a terminal.
fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) =
        ProgressStyle::with_template("{msg} {bar:30} {human_pos} of {human_len} requests, {eta} left")
    {
        bar.set_style(style);
    }
    bar
}
