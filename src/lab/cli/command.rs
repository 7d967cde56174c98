//! The commands and their arguments.

#[cfg(feature = "man")]
use super::man;
#[cfg(feature = "view")]
use super::view;
use super::{
    compare, complete, completions, coordinates, data, doctor, export, import, init, inspect, keep, ls, ops,
    plan, profile, replay, report, resume, run, runs, sample, schema, sweep, watch,
};
use crate::ranks;
use crate::results::provenance::Build;
use clap::{Parser, Subcommand};
use std::sync::LazyLock;

/// What `--version` prints after the name.
static VERSION: LazyLock<String> = LazyLock::new(|| Build::of_this_binary().in_words());

/// A declarative experiment runner for training language models.
#[derive(Parser, Debug)]
#[command(
    name = "xrun",
    version = VERSION.as_str(),
    about,
    override_usage = "xrun RECIPE [KEY=VALUE]...\n       xrun <COMMAND>",
    after_help = "To begin:\n  \
        xrun quickstart           train a small model on generated stories\n  \
        xrun sample latest        let the newest run write\n  \
        xrun init mine.toml       start a recipe of your own\n  \
        xrun COMMAND --help       what a command does and takes"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Returns true for a command that trains and prints JSON lines.
    pub fn trains_with_json(&self) -> bool {
        match &self.command {
            Command::Run(args) => args.show.json,
            Command::Resume(args) => args.show.json,
            _ => false,
        }
    }
}

/// The subcommands, those of every day first.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Train a recipe. `xrun RECIPE` is short for `xrun run RECIPE`.
    Run(run::Args),
    /// Print what a run will be: parameters, memory, time, whether it fits.
    Plan(plan::Args),
    /// Let a trained run write text.
    Sample(sample::Args),
    /// List the runs here: recipe, status, losses, speed.
    Runs(runs::Args),
    /// Look at the runs here in a browser, or write some to one file to send.
    #[cfg(feature = "view")]
    View(view::Args),
    /// Watch a run, a sweep or a comparison in the terminal: curves, cells, the interval as it closes.
    Watch(watch::Args),
    /// Go on with a run that did not finish.
    Resume(resume::Args),
    /// Start a recipe from one of the built-in ones.
    Init(init::Args),
    /// List the built-in recipes and the recipes here.
    Ls(ls::Args),
    /// Run every combination of some values once; what is done already is not run again.
    Sweep(sweep::Args),
    /// Measure a candidate against a baseline in alternating trials: faster, slower, or no difference; same
    /// curve?
    Compare(Box<compare::Args>),
    /// Train a few steps at several widths: which sizes of activations and updates follow the width.
    Coordinates(coordinates::Args),
    /// Copy a run's small files, a comparison's with its runs, or a sweep's rows to where reports read them.
    Keep(keep::Args),
    /// Fill the marked blocks of pages from kept runs, or check that they are as kept runs make them.
    Report(report::Args),
    /// Run a stored run or comparison again, or all that a page shows: the same bits, or the first
    /// difference.
    Replay(replay::Args),
    /// Tokenize a corpus to shards and print its statistics.
    Data(data::Args),
    /// Write a trained run as a HuggingFace folder.
    Export(export::Args),
    /// Make a run of a HuggingFace folder, to sample, export or train further.
    Import(import::Args),
    /// Measure where a step's time goes, op by op.
    Profile(profile::Args),
    /// Check whether GPU runs work on this machine, and say how to fix what does not.
    Doctor(doctor::Args),
    /// Print the JSON schema of a recipe.
    Schema(schema::Args),
    /// Print a completion script for a shell.
    Completions(completions::Args),
    /// Check, time or compile the operations on this machine.
    Ops(ops::Args),
    /// Write the tensors of a recipe's first step, for comparison with another implementation.
    Inspect(inspect::Args),
    /// Candidates for the last word of a command line; completion scripts call it.
    #[command(hide = true)]
    Complete(complete::Args),
    /// Write the manual pages into a folder; packages are made with them.
    #[cfg(feature = "man")]
    #[command(hide = true)]
    Man(man::Args),
    /// A rank of a run whose launcher is `process`; xrun starts it.
    #[command(hide = true, name = ranks::process::WORKER)]
    Worker,
}
