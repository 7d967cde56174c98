//! `xrun resume [RUN]`.

use super::relocated::relocated;
use super::run::{Show, algorithms_from};
use super::what::{Results, run_and_keys};
use crate::error::{Error, Result};
use crate::ranks::{Launch, environment};
use crate::recipe;
use crate::results::folder::{RESOLVED, read_summary};
use crate::results::{find, provenance};
use crate::train::{Origin, Request};

/// Arguments of `xrun resume`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The run (its folder or name), then keys to change [default: the newest unfinished run].
    #[arg(value_name = "RUN | KEY=VALUE")]
    pub words: Vec<String>,
    /// Start a new run from the checkpoint, so that training keys or the corpus may change.
    #[arg(long)]
    pub fork: bool,
    /// With --fork, start from the checkpoint of this step [default: the newest].
    #[arg(long, value_name = "STEP", requires = "fork")]
    pub at: Option<u64>,
    /// Use the matrix-product algorithms that this run chose (the bits of a GPU run depend on them).
    #[arg(long, value_name = "RUN")]
    pub algos_from: Option<String>,
    /// Save the state after this step and stop; resuming again continues as if the run had never stopped.
    #[arg(long, value_name = "STEP", value_parser = clap::value_parser!(u64).range(1..))]
    pub until: Option<u64>,
    /// Where results are.
    #[command(flatten)]
    pub results: Results,
    /// How progress is shown.
    #[command(flatten)]
    pub show: Show,
}

/// Finds the run and loads its recipe.
///
/// # Errors
/// If there is nothing to resume, or the run's recipe is invalid with the changes.
pub fn request(args: &Args) -> Result<(Launch, Request)> {
    let results = args.results.folder.as_path();
    let (named, overrides) = run_and_keys(&args.words);
    let path = match named {
        Some(name) => find::find(results, name)?,
        None => find::newest_unfinished(results)?.ok_or_else(|| {
            Error::usage(format!(
                "no unfinished run in {}; runs that are still running are not resumed",
                results.display()
            ))
        })?,
    };
    if !path.join(RESOLVED).exists() {
        return Err(Error::usage(find::describe_loss(&path, RESOLVED)));
    }
    let machine = environment::machine();
    let recipe = recipe::load(&path.join(RESOLVED), overrides, std::iter::empty(), &machine)?
        .with_name(read_summary(&path)?.recipe);
    let recipe = relocated(recipe, &path, &machine)?;
    let launch = Launch::from_recipe(&recipe, environment::variables())?;
    if let (None, Launch::Member(place)) = (named, &launch)
        && place.world_size > 1
    {
        return Err(Error::usage(format!(
            "each of {} ranks would look for the newest unfinished run by itself and could find a different one; the \
             newest now is {}: name it, or another run, to all of them",
            place.world_size,
            path.display()
        )));
    }
    let origin = if args.fork { Origin::Fork { run: path, step: args.at } } else { Origin::Resume(path) };
    let algorithms_from = algorithms_from(&launch, args.algos_from.as_deref(), results)?;
    let (results, progress, command) = (results.to_owned(), args.show.mode(), provenance::this_command());
    let until = args.until;
    Ok((launch, Request { recipe, machine, results, progress, origin, until, algorithms_from, command }))
}
