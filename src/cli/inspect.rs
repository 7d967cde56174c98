//! `xrun inspect`.

use super::terminal::print;
use crate::error::Result;
use crate::machine::Machine;
use crate::recipe;
use crate::train::inspect;
use std::path::PathBuf;

/// Arguments of `xrun inspect`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The recipe: a file, or the name of a built-in one.
    pub recipe: PathBuf,
    /// Keys to change, as `section.key=value`.
    #[arg(value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
    /// The safetensors file to write.
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// As [`inspect`].
pub fn run(args: &Args) -> Result<()> {
    let machine = Machine::here();
    let recipe = recipe::load(&args.recipe, &args.overrides, recipe::environment(), &machine)?;
    let loss = inspect(&recipe, &machine, &args.to)?;
    print(&format!("loss {loss}; batch, parameters, gradients and logits in {}\n", args.to.display()))
}
