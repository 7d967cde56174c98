//! `xrun runs`: the list of runs, and what is done with single ones.

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
#[command(after_help = "A recipe that is called as one of the commands is listed with recipe=NAME.")]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    list: list::ListArgs,
    #[command(flatten)]
    results: Results,
}

/// What is done with single runs.
#[derive(Subcommand, Debug)]
enum Command {
    /// Show in what two runs differ: keys, environment, curves, figures.
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
/// Those of the command, and for options of the list before it.
pub fn run(args: &Args) -> Result<()> {
    let results = args.results.folder.as_path();
    let Some(command) = &args.command else { return list::run(&args.list, results) };
    if args.list != list::ListArgs::default() {
        return Err(Error::usage(
            "filters and options of the list stand alone: write `xrun runs COMMAND`, and what belongs to the command \
             behind it",
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
