//! The command line: one thin file per subcommand.

use crate::device::cuda::nccl::pin_environment;
use crate::error::{Error, Result};
use crate::ranks;
use clap::{Parser, Subcommand};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::time::Duration;

mod arguments;
pub mod compare;
mod compile;
pub mod completions;
pub mod data;
pub mod doctor;
pub mod export;
pub mod init;
pub mod inspect;
pub mod keep;
pub mod ls;
pub mod ops;
pub mod plan;
pub mod profile;
pub mod report;
pub mod resume;
pub mod run;
pub mod sample;
pub mod schema;
pub mod sweep;
mod worker;

pub use crate::results::progress::eprint_line;
pub use arguments::normalize_args;

/// A declarative experiment runner for training language models.
#[derive(Parser, Debug)]
#[command(
    name = "xrun",
    version,
    about,
    override_usage = "xrun RECIPE [KEY=VALUE]...\n       xrun <COMMAND>",
    after_help = "To begin:\n  \
        xrun quickstart           train a small model on generated stories\n  \
        xrun sample latest        let the newest run write\n  \
        xrun init mine.toml       start a recipe of your own\n  \
        xrun COMMAND --help       what a command does and takes"
)]
pub struct Cli {
    /// Where run folders go.
    #[arg(long, global = true, value_name = "DIR", default_value = "results")]
    pub results: PathBuf,
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Measure a candidate against a baseline in alternating trials: faster, slower, or no difference; same
    /// curve?
    Compare(compare::Args),
    /// Print a completion script for a shell.
    Completions(completions::Args),
    /// Tokenize a corpus to shards and print its statistics.
    Data(data::Args),
    /// Check whether GPU runs work on this machine, and say how to fix what does not.
    Doctor(doctor::Args),
    /// Write a trained run as a HuggingFace folder.
    Export(export::Args),
    /// Start a recipe from one of the built-in ones.
    Init(init::Args),
    /// Write the tensors of a recipe's first step, for comparison with another implementation.
    Inspect(inspect::Args),
    /// Copy a run's small files, a comparison's with its runs, or a sweep's rows to where reports read them.
    Keep(keep::Args),
    /// List the built-in recipes and the recipes here.
    Ls(ls::Args),
    /// Measure where a step's time goes, op by op.
    Profile(profile::Args),
    /// Check, time or compile the operations on this machine.
    Ops(ops::Args),
    /// Print what a run will be: parameters, memory, time, whether it fits.
    Plan(plan::Args),
    /// Fill the marked blocks of pages from kept runs, or check that they are as kept runs make them.
    Report(report::Args),
    /// Go on with a run that did not finish.
    Resume(resume::Args),
    /// Train a recipe. `xrun RECIPE` is short for `xrun run RECIPE`.
    Run(run::Args),
    /// Let a trained run write text.
    Sample(sample::Args),
    /// Print the JSON schema of a recipe.
    Schema(schema::Args),
    /// Run every combination of some values once; what is done already is not run again.
    Sweep(sweep::Args),
    /// A rank of a run whose launcher is `process`; xrun starts it.
    #[command(hide = true, name = ranks::process::WORKER)]
    Worker,
}

/// Runs the parsed command.
pub fn dispatch(cli: Cli) -> Result<()> {
    // Changing the environment is safe only here, before a second thread starts. Other commands than these
    // start child processes, which must not inherit the change.
    if matches!(cli.command, Command::Run(_) | Command::Resume(_)) {
        pin_environment();
    }
    match cli.command {
        Command::Compare(a) => compare::run(&a, &cli.results),
        Command::Completions(a) => completions::run(&a),
        Command::Data(a) => data::run(&a),
        Command::Doctor(a) => doctor::run(&a),
        Command::Export(a) => export::run(&a, &cli.results),
        Command::Init(a) => init::run(&a),
        Command::Inspect(a) => inspect::run(&a),
        Command::Keep(a) => keep::run(&a, &cli.results),
        Command::Ls(a) => ls::run(&a),
        Command::Profile(a) => profile::run(&a),
        Command::Ops(a) => ops::run(&a),
        Command::Plan(a) => plan::run(&a),
        Command::Report(a) => report::run(&a, &cli.results),
        Command::Resume(a) => resume::run(&a, &cli.results),
        Command::Run(a) => run::run(&a, &cli.results),
        Command::Sample(a) => sample::run(&a, &cli.results),
        Command::Schema(a) => schema::run(&a),
        Command::Sweep(a) => sweep::run(&a, &cli.results),
        Command::Worker => worker::run(),
    }
}

/// Parses a duration on the command line, in seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "give a number of seconds above 0".to_owned())
}

/// Writes data to stdout; a reader that has gone away (`xrun schema | head`) is not an error.
pub(crate) fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Error::failed(format!("cannot write to stdout: {e}")))
        }
        _ => Ok(()),
    }
}
