//! The command line: one thin file per subcommand.

use crate::error::{Error, Result};
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

pub mod data;
pub mod export;
pub mod init;
pub mod keep;
pub mod ls;
pub mod plan;
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
    /// Print what a run will be: parameters, memory, time, whether it fits.
    Plan(plan::Args),
    /// Print the JSON schema of a recipe.
    Schema(schema::Args),
}

/// The arguments for [`Cli`], with `--section.key=value` written as `section.key=value`: keys have a dot before the `=`
/// and options have none, so overrides may stand anywhere. Nothing after a lone `--` is touched.
pub fn arguments(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut plain = false;
    let mut argument = |arg: OsString| {
        plain |= arg == "--";
        let key = arg.to_str().filter(|_| !plain).and_then(|a| a.strip_prefix("--"));
        match key.filter(|a| a.split_once('=').is_some_and(|(key, _)| key.contains('.'))) {
            Some(key) => key.into(),
            None => arg,
        }
    };
    args.map(&mut argument).collect()
}

/// Runs the parsed command.
pub fn dispatch(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Data(a) => data::run(&a),
        Command::Export(a) => export::run(&a),
        Command::Init(a) => init::run(&a),
        Command::Keep(a) => keep::run(&a, &cli.results),
        Command::Ls(a) => ls::run(&a),
        Command::Plan(a) => plan::run(&a),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_may_stand_anywhere() {
        let args = ["xrun", "plan", "--training.steps=3", "r.toml", "--on=h200", "optimizer.lr=-1", "--json", "--", "--a.b=c"];
        let found = arguments(args.iter().map(OsString::from));
        let expected =
            ["xrun", "plan", "training.steps=3", "r.toml", "--on=h200", "optimizer.lr=-1", "--json", "--", "--a.b=c"];
        assert_eq!(found, expected);
    }
}
