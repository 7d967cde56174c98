//! The command line: one thin file per subcommand.

use crate::error::{Error, Result};
use clap::{Parser, Subcommand};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

pub mod data;
pub mod export;
pub mod init;
pub mod keep;
pub mod ls;
pub mod schema;

/// A declarative experiment runner for training language models.
#[derive(Parser, Debug)]
#[command(name = "xrun", version, about, args_conflicts_with_subcommands = true)]
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
    /// Tokenize a corpus to shards and print its statistics.
    Data(data::Args),
    /// Write a trained run as a HuggingFace folder.
    Export(export::Args),
    /// Start a recipe from one of the built-in ones.
    Init(init::Args),
    /// Copy a run's small files to where reports read them.
    Keep(keep::Args),
    /// List the built-in recipes and the recipes here.
    Ls(ls::Args),
    /// Print the JSON schema of a recipe.
    Schema(schema::Args),
}

/// Runs the parsed command.
pub fn dispatch(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Data(a) => data::run(&a),
        Command::Export(a) => export::run(&a),
        Command::Init(a) => init::run(&a),
        Command::Keep(a) => keep::run(&a, &cli.results),
        Command::Ls(a) => ls::run(&a),
        Command::Schema(a) => schema::run(&a),
    }
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
