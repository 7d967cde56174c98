//! The commands and their arguments.

use super::cluster::TaskArgs;
#[cfg(feature = "man")]
use super::man;
#[cfg(feature = "view")]
use super::view;
use super::{
    compare, complete, completions, coordinates, data, doctor, eval, export, import, init, inspect, keep,
    model, ops, plan, profile, replay, report, resume, run, runs, sample, sweep, tasks, tokenizer, watch,
};
use crate::data::chat::COMMAND as RENDER_COMMAND;
use crate::ranks;
use crate::results::provenance::Build;
use clap::{Parser, Subcommand};
use std::sync::LazyLock;

/// What `--version` prints after the name.
static VERSION: LazyLock<String> = LazyLock::new(|| Build::current().in_words());

/// Train language models from recipes, and measure, compare and repeat the runs.
#[derive(Parser, Debug)]
#[command(
    name = "xrun",
    version = VERSION.as_str(),
    override_usage = "xrun RECIPE [KEY=VALUE]...\n       xrun <COMMAND>",
    after_help = "To begin:\n  \
        xrun quickstart           train a small model on generated stories\n  \
        xrun sample latest        generate text from the newest run\n  \
        xrun init mine.toml       create a recipe of your own\n  \
        xrun COMMAND --help       explain a command and its arguments"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Returns true if the command trains and prints JSON lines.
    pub fn trains_with_json(&self) -> bool {
        match &self.command {
            Command::Run(args) => args.show.json,
            Command::Resume(args) => args.show.json,
            _ => false,
        }
    }
}

/// The subcommands, everyday ones first.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Train a recipe. `xrun RECIPE` is short for `xrun run RECIPE`.
    Run(run::Args),
    /// Print what a run will need and whether it fits: parameters, memory, time.
    Plan(plan::Args),
    /// Generate text from a trained run.
    Sample(sample::Args),
    /// List the runs here: recipe, status, losses, speed.
    Runs(runs::Args),
    /// Browse the runs here in a web browser, or write some of them to one file to send.
    #[cfg(feature = "view")]
    View(view::Args),
    /// Watch a run, a sweep or a comparison in the terminal: curves, cells, confidence intervals.
    Watch(watch::Args),
    /// Continue a run that did not finish.
    Resume(resume::Args),
    /// Create a recipe from a built-in one.
    Init(init::Args),
    /// List the built-in recipes and the recipes here.
    Ls,
    /// Run every combination of some values once; finished cells are not run again.
    Sweep(sweep::Args),
    /// Measure a candidate against a baseline: faster, slower or no difference, or better or worse in
    /// quality.
    Compare(Box<compare::Args>),
    /// Train a few steps at several widths, and show which activations and updates grow with the width.
    Coordinates(coordinates::Args),
    /// Copy the small files of a run or a comparison, or the rows of a sweep, to where reports read them.
    Keep(keep::Args),
    /// Fill the marked blocks of pages from kept runs, or check that they are up to date.
    Report(report::Args),
    /// Rerun a stored run or comparison, or all that a page shows, and report the first difference in bits.
    Replay(replay::Args),
    /// Tokenize a corpus into shards and print its statistics.
    Data(data::Args),
    /// Train a tokenizer, or show the tokens of a text.
    Tokenizer(tokenizer::Args),
    /// Score a run or a HuggingFace folder on tasks, such as HellaSwag.
    Eval(eval::Args),
    /// List standard tasks, and show what one asks of a model.
    Tasks(tasks::Args),
    /// Check a text that describes a model, and show what each line costs.
    Model(model::Args),
    /// Write a trained run as a HuggingFace folder, or as a file for llama.cpp.
    Export(export::Args),
    /// Create a run from a HuggingFace folder, to sample, export or train further.
    Import(import::Args),
    /// Measure where the time of a step goes, op by op.
    Profile(profile::Args),
    /// Check whether GPU runs work on this machine, and say how to fix what does not.
    Doctor(doctor::Args),
    /// Print the JSON schema of recipes.
    Schema,
    /// Print a completion script for a shell.
    Completions(completions::Args),
    /// Check, time, tune or compile the ops on this machine.
    Ops(ops::Args),
    /// Write the tensors of a recipe's first step, to compare with another implementation.
    Inspect(inspect::Args),
    /// Print candidates for the last word of a command line; completion scripts call it.
    #[command(hide = true)]
    Complete(complete::Args),
    /// Write the manual pages into a folder; packaging uses it.
    #[cfg(feature = "man")]
    #[command(hide = true)]
    Man(man::Args),
    /// Render a chat template within limits; only xrun starts it.
    #[command(hide = true, name = RENDER_COMMAND)]
    RenderTemplate,
    /// Run a task of a submitted sweep; only its job starts it.
    #[command(hide = true, name = crate::sweep::TASK_COMMAND)]
    SweepTask(TaskArgs),
    /// Run a task of a submitted comparison; only its job starts it.
    #[command(hide = true, name = crate::compare::TASK_COMMAND)]
    CompareTask(TaskArgs),
    /// Run one rank of a training whose launcher is `process`; only xrun starts it.
    #[command(hide = true, name = ranks::process::WORKER)]
    Worker,
}
