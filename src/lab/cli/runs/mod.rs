//! `xrun runs`: the list of runs, and commands for single runs.

mod columns;
mod diff;
mod export;
mod list;
mod note;
mod rm;
mod tag;

use super::what::Results;
use crate::error::{Error, Result};
use clap::Subcommand;

/// Arguments of `xrun runs`.
#[derive(clap::Args, Debug)]
#[command(disable_help_subcommand = true, mut_arg("folder", |argument| argument.global(true)))]
#[command(after_help = "To list a recipe that has the name of a command, write recipe=NAME.")]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    list: list::ListArgs,
    #[command(flatten)]
    results: Results,
}

/// Commands for single runs.
#[derive(Subcommand, Debug)]
enum Command {
    /// Show how two runs differ: keys, environment, curves, figures.
    Diff(diff::Args),
    /// Add tags to a run, or remove them.
    Tag(tag::Args),
    /// Write a note on a run, or show it.
    Note(note::Args),
    /// Write the curves of runs for TensorBoard.
    Export(export::Args),
    /// Remove runs, with their checkpoints.
    Rm(rm::Args),
}

/// Runs the command.
///
/// # Errors
/// If the command fails, or options of the list precede it.
pub fn run(args: &Args) -> Result<()> {
    let results = args.results.folder.as_path();
    let Some(command) = &args.command else { return list::run(&args.list, results) };
    if args.list != list::ListArgs::default() {
        return Err(Error::usage(
            "filters and options of the list cannot precede a command: write `xrun runs COMMAND`, then the command's \
             own arguments",
        ));
    }
    match command {
        Command::Diff(args) => diff::run(args, results),
        Command::Tag(args) => tag::run(args, results),
        Command::Note(args) => note::run(args, results),
        Command::Export(args) => export::run(args, results),
        Command::Rm(args) => rm::run(args, results),
    }
}
