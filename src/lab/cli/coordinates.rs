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
    /// Widths of the residual stream; the feed-forward layer and the number of heads grow with it, head size
    /// stays.
    #[arg(long, value_name = "WIDTHS", value_delimiter = ',', default_value = "128,256,512,1024")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub widths: Vec<u32>,
    /// Steps at each width.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub steps: u16,
    /// Seeds at each width: the recipe's and the ones that follow it.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub seeds: u16,
    /// Also measure the parametrization that the recipe does not use: standard or mup.
    #[arg(long)]
    pub compare: bool,
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
    let widths: Vec<usize> = args.widths.iter().map(|&width| width as usize).collect();
    let request = Request {
        recipe: &recipe,
        widths: &widths,
        steps: args.steps.into(),
        seeds: args.seeds.into(),
        compare: args.compare,
        results: &args.what.results.folder,
    };
    let ended = coordinates::run(&request, &machine, |at, of, what| {
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
