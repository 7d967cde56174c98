//! Maps a parsed command to the code that runs it.

use super::arguments::nearest_command;
#[cfg(feature = "view")]
use super::view;
use super::{
    Cli, Command, compare, complete, completions, coordinates, data, doctor, eval, export, import, init,
    inspect, keep, ls, model, ops, plan, profile, replay, report, resume, run, runs, sample, schema, sweep,
    tasks, tokenizer, watch,
};
use crate::data::chat::render_from_stdin;
use crate::device::cuda::nccl::pin_environment;
use crate::error::{Error, Result};
use crate::ranks::Launch;
use crate::train::Request;
use clap::CommandFactory;
use std::path::Path;

/// The work left after a command is dispatched: training itself starts in `main.rs`.
#[derive(Debug)]
pub enum Next {
    /// Nothing.
    Done,
    /// Train a run, with its ranks launched like this.
    Train(Launch, Box<Request>),
    /// Train as a rank whose parent process is xrun.
    TrainAsWorker,
}

/// Runs the parsed command, up to the training of a run.
///
/// # Errors
/// If the command fails.
pub fn dispatch(cli: Cli) -> Result<Next> {
    // Changing the environment is safe only here, before a second thread starts. Other commands start child
    // processes, which must not inherit the change.
    if matches!(cli.command, Command::Run(_) | Command::Resume(_)) {
        pin_environment();
    }
    if matches!(cli.command, Command::RenderTemplate) {
        // Before threads take address space, which is limited.
        return render_from_stdin().map(|()| Next::Done);
    }
    start_shared_pool()?;
    let train = |(launch, request)| Next::Train(launch, Box::new(request));
    match cli.command {
        Command::Run(a) => {
            return run::request(&a).map(train).map_err(|e| with_command_hint(e, &a.what.recipe));
        }
        Command::Resume(a) => return resume::request(&a).map(train),
        Command::Worker => return Ok(Next::TrainAsWorker),
        Command::Compare(a) => compare::run(&a),
        Command::Complete(a) => complete::run(&a, &built()),
        Command::Completions(a) => completions::run(&a, &built()),
        Command::Coordinates(a) => coordinates::run(&a),
        Command::Data(a) => data::run(&a),
        Command::Doctor(a) => doctor::run(&a),
        Command::Eval(a) => eval::run(&a),
        Command::Export(a) => export::run(&a),
        Command::Import(a) => import::run(&a),
        Command::Init(a) => init::run(&a),
        Command::Inspect(a) => inspect::run(&a),
        Command::Keep(a) => keep::run(&a),
        Command::Ls => ls::run(),
        #[cfg(feature = "man")]
        Command::Man(a) => super::man::run(&a, built()),
        Command::Model(a) => model::run(&a),
        Command::Profile(a) => profile::run(&a),
        Command::Ops(a) => ops::run(&a),
        Command::Plan(a) => plan::run(&a),
        Command::RenderTemplate => render_from_stdin(),
        Command::Replay(a) => replay::run(&a),
        Command::Report(a) => report::run(&a),
        Command::Runs(a) => runs::run(&a),
        Command::Sample(a) => sample::run(&a),
        Command::Schema => schema::run(),
        Command::CompareTask(a) => compare::run_task(&a),
        Command::Sweep(a) => sweep::run(&a),
        Command::SweepTask(a) => sweep::run_task(&a),
        Command::Tasks(a) => tasks::run(&a),
        Command::Tokenizer(a) => tokenizer::run(&a),
        #[cfg(feature = "view")]
        Command::View(a) => view::run(&a),
        Command::Watch(a) => watch::run(&a),
    }
    .map(|()| Next::Done)
}

/// Returns the command tree with everything that clap adds to it.
fn built() -> clap::Command {
    let mut command = Cli::command();
    command.build();
    command
}

/// Most threads that read corpora and hash files, four times as many as the largest machines have.
const MOST_SHARED_THREADS: usize = 2048;

/// Starts the threads that read corpora and hash files. Rayon would start them at first use, and panic if the
/// OS refuses.
fn start_shared_pool() -> Result<()> {
    const THREADS: &str = "RAYON_NUM_THREADS";
    let threads = std::env::var(THREADS).ok().and_then(|threads| threads.trim().parse::<usize>().ok());
    if let Some(threads) = threads.filter(|threads| *threads > MOST_SHARED_THREADS) {
        return Err(Error::usage(format!(
            "{THREADS} = {threads} asks for more threads than the {MOST_SHARED_THREADS} that can be started in reasonable \
             time; unset it, or set it to the number of processors"
        )));
    }
    rayon::ThreadPoolBuilder::new()
        .build_global()
        .map_err(|e| Error::failed(format!("cannot start the threads that read corpora: {e}")))
}

/// Adds the command that the user probably meant to the error: `xrun sampel` is read as `xrun run sampel`.
fn with_command_hint(error: Error, recipe: &Path) -> Error {
    let word = recipe.to_str().filter(|word| !word.contains(['.', '/']) && !recipe.exists());
    match word.and_then(nearest_command) {
        Some(command) => {
            Error::new(error.kind(), format!("{}\nor did you mean `xrun {command}`?", error.message()))
        }
        None => error,
    }
}
