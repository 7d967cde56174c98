//! `xrun run RECIPE`, or `xrun RECIPE`.

use super::what::RecipeArguments;
use crate::error::Result;
use crate::ranks::{Launch, environment};
use crate::results::progress::{Mode, eprint_line};
use crate::results::{find, provenance};
use crate::train::{Origin, Request, with_begun_run, with_timed_length};
use std::path::{Path, PathBuf};

/// Arguments of `xrun run`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The recipe to train.
    #[command(flatten)]
    pub what: RecipeArguments,
    /// Use the matrix-product algorithms that this run chose (the bits of a GPU run depend on them).
    #[arg(long, value_name = "RUN")]
    pub algos_from: Option<String>,
    /// Save the state after this step and stop; `xrun resume` continues as if the run had never stopped.
    #[arg(long, value_name = "STEP", value_parser = clap::value_parser!(u64).range(1..))]
    pub until: Option<u64>,
    /// How progress is shown.
    #[command(flatten)]
    pub show: Show,
}

/// How progress is shown.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Show {
    /// Print JSON lines on stdout instead of a progress line.
    #[arg(long, conflicts_with = "quiet")]
    pub json: bool,
    /// Print only warnings and the result.
    #[arg(long, short)]
    pub quiet: bool,
}

impl Show {
    /// Returns the mode of the progress display.
    pub fn mode(self) -> Mode {
        match (self.json, self.quiet) {
            (true, _) => Mode::Json,
            (_, true) => Mode::Quiet,
            _ => Mode::Auto,
        }
    }
}

/// Loads the recipe and decides how its ranks are launched.
///
/// # Errors
/// If the recipe is invalid, or its launcher does not suit the environment.
pub fn request(args: &Args) -> Result<(Launch, Request)> {
    let machine = environment::machine();
    let (recipe, results) = (args.what.load(&machine)?, args.what.results.folder.clone());
    let launch = Launch::from_recipe(&recipe, environment::variables())?;
    // Only rank 0 reads the weights; other machines may not have the run.
    let recipe = match launch.has_rank_zero() {
        true => with_begun_run(recipe, &results, &machine)?,
        false => recipe,
    };
    let recipe = with_timed_length(recipe, &machine, eprint_line)?;
    let algorithms_from = algorithms_from(&launch, args.algos_from.as_deref(), &results)?;
    let (progress, command) = (args.show.mode(), provenance::this_command());
    let origin = Origin::Fresh;
    let until = args.until;
    Ok((launch, Request { recipe, machine, results, progress, origin, until, algorithms_from, command }))
}

/// Finds the run whose choice of algorithms is used. Only rank 0 reads it, because other machines may not
/// have the run.
///
/// # Errors
/// If there is no such run.
pub fn algorithms_from(launch: &Launch, named: Option<&str>, results: &Path) -> Result<Option<PathBuf>> {
    named.filter(|_| launch.has_rank_zero()).map(|run| find::find(results, run)).transpose()
}
