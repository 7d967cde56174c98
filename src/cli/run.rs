//! `xrun run RECIPE`, or `xrun RECIPE`.

use super::arguments::nearest_command;
use super::eprint_line;
use crate::error::{Error, ErrorKind, Result};
use crate::ranks::environment::{self, SECRET};
use crate::ranks::rendezvous::Secret;
use crate::ranks::{Launch, LocalRanks, Stop, process};
use crate::recipe;
use crate::report::plots;
use crate::results::progress::Mode;
use crate::results::{find, provenance};
use crate::train::{self, Ended, Origin, Outcome, Request, WorkerRequest, divergence_reason};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of `xrun run`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The recipe: a file, or the name of a built-in one.
    pub recipe: PathBuf,
    /// Keys to change, as `section.key=value` (or `--section.key=value`).
    #[arg(value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
    /// Use the matrix-product algorithms that this run chose (the bits of a GPU run depend on them).
    #[arg(long, value_name = "RUN")]
    pub algos_from: Option<String>,
    /// How progress is shown.
    #[command(flatten)]
    pub show: Show,
}

/// How progress is shown.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Show {
    /// JSON lines on stdout instead of a progress line.
    #[arg(long, conflicts_with = "quiet")]
    pub json: bool,
    /// Print only warnings and the result.
    #[arg(long, short)]
    pub quiet: bool,
}

impl Show {
    /// The mode of the progress display.
    pub fn mode(self) -> Mode {
        match (self.json, self.quiet) {
            (true, _) => Mode::Json,
            (_, true) => Mode::Quiet,
            _ => Mode::Auto,
        }
    }
}

/// Runs the command.
///
/// # Errors
/// As [`train::run`].
pub fn run(args: &Args, results: &Path) -> Result<()> {
    let machine = environment::machine();
    let loaded = recipe::load(&args.recipe, &args.overrides, recipe::environment(), &machine);
    let recipe = loaded.map_err(|e| or_a_command(e, &args.recipe))?;
    let launch = Launch::from_recipe(&recipe, environment::variables())?;
    let algorithms_from = algorithms_from(&launch, args.algos_from.as_deref(), results)?;
    let (results, progress, command) = (results.to_owned(), args.show.mode(), provenance::this_command());
    let origin = Origin::Fresh;
    start(launch, Request { recipe, machine, results, progress, origin, algorithms_from, command })
}

/// Finds the run whose choices of algorithms are used. Rank 0 alone reads it: other machines may not have it.
///
/// # Errors
/// When there is no such run.
pub fn algorithms_from(launch: &Launch, named: Option<&str>, results: &Path) -> Result<Option<PathBuf>> {
    named.filter(|_| launch.has_rank_zero()).map(|run| find::find(results, run)).transpose()
}

/// Trains with the ranks that `launch` says.
///
/// # Errors
/// As [`train::run`], and when ranks do not find each other.
pub fn start(launch: Launch, request: Request) -> Result<()> {
    let stop = Stop::on_signals()?;
    let timeout = Duration::from_secs_f64(request.recipe.values().parallelism.timeout_s);
    let ranks = match launch {
        Launch::Threads(world) => LocalRanks::threads(world, timeout)?,
        Launch::Processes(world) => {
            let request = WorkerRequest::from_request(&request);
            return process::supervise(&request, world, timeout, &stop, train::mark_failed);
        }
        Launch::Member(assignment) => {
            let secret = Secret::from_text(std::env::var(SECRET).ok().as_deref(), &assignment.address)?;
            LocalRanks::join_launcher(&assignment, &secret, timeout, &stop)?
        }
    };
    if ranks.has_rank_zero() {
        finish(request, &ranks, &stop)
    } else {
        ended(train::follow(request.recipe, &request.machine, &ranks, &stop)?)
    }
}

/// Returns the result of a rank whose run is recorded by another process, for the script that started it.
fn ended(outcome: Outcome) -> Result<()> {
    match outcome {
        Outcome::Finished => Ok(()),
        Outcome::Interrupted => {
            Err(Error::new(ErrorKind::Interrupted, "stopped by a signal; rank 0 says what is saved"))
        }
        Outcome::Diverged { step, bad } => {
            Err(Error::failed(format!("diverged: {}", divergence_reason(step, &bad))))
        }
    }
}

/// Adds the command that the user probably meant: `xrun sampel` is read as `xrun run sampel`.
fn or_a_command(error: Error, recipe: &Path) -> Error {
    let word = recipe.to_str().filter(|word| !word.contains(['.', '/']) && !recipe.exists());
    match word.and_then(nearest_command) {
        Some(command) => {
            Error::new(error.kind(), format!("{}\nor did you mean `xrun {command}`?", error.message()))
        }
        None => error,
    }
}

/// Trains, then draws the plots from the run's files, however it ended.
///
/// # Errors
/// As [`train::run`], and the outcome of the run.
pub fn finish(request: Request, ranks: &LocalRanks, stop: &Stop) -> Result<()> {
    let Ended { folder, outcome, .. } = train::run(request, ranks, stop)?;
    let drawn = plots::render(folder.path());
    outcome?;
    drawn.map_err(|e| Error::failed(format!("the run is complete, its plots are not: {e}")))?;
    eprint_line(&format!("results in {}", folder.path().display()));
    Ok(())
}
