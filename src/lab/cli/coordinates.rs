//! `xrun coordinates`: how activations and updates scale with the width of a model.

use super::terminal::{eprint_line, print, print_json};
use super::what::RecipeArguments;
use crate::coordinates::{self, Request};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::report::coordinate_plots;

/// Arguments of `xrun coordinates`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The recipe to train, at its own width and at others.
    #[command(flatten)]
    pub what: RecipeArguments,
    /// What is measured.
    #[command(flatten)]
    pub request: Request,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command. Prints the slopes, and where the rows and plots are.
///
/// # Errors
/// If [`coordinates::run`] fails or the plots cannot be drawn.
pub fn run(args: &Args) -> Result<()> {
    let machine = Machine::here();
    let recipe = args.what.load(&machine)?;
    let results = &args.what.results.folder;
    let ended = coordinates::run(&recipe, &args.request, results, &machine, |at, of, what| {
        eprint_line(&format!("{} of {of}: {what}", at + 1));
    })?;
    let drawn = coordinate_plots::render(&ended.folder);
    if args.json {
        print_json(&ended.found)?;
    } else {
        print(&format!("{}{}\n", coordinates::table(&ended.found), ended.folder.display()))?;
    }
    drawn.map_err(|e| Error::failed(format!("the rows are complete, but their plots cannot be drawn: {e}")))
}
