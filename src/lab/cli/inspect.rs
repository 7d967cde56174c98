//! `xrun inspect`.

use super::terminal::print;
use super::what::RecipeArguments;
use crate::error::Result;
use crate::machine::Machine;
use crate::train::inspect;
use std::path::PathBuf;

/// Arguments of `xrun inspect`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The recipe to inspect.
    #[command(flatten)]
    pub what: RecipeArguments,
    /// The safetensors file to write.
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// If [`inspect`] fails.
pub fn run(args: &Args) -> Result<()> {
    let machine = Machine::here();
    let recipe = args.what.load(&machine)?;
    let loss = inspect(&recipe, &machine, &args.to)?;
    print(&format!("loss {loss}; batch, parameters, gradients and logits in {}\n", args.to.display()))
}
