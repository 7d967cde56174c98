//! `xrun tokenizer`: trains tokenizers, and shows what they do to text.

mod corpora;
mod report;
mod show;
mod train;

use crate::error::Result;
use clap::Subcommand;

/// Arguments of `xrun tokenizer`.
#[derive(clap::Args, Debug)]
#[command(disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
enum Command {
    /// Train a byte-level BPE tokenizer on text, and write it as a HuggingFace tokenizer.json.
    Train(train::Args),
    /// Show the tokens of a text, with ids and bytes; without a text, the tokenizer itself.
    Show(show::Args),
    /// Measure bytes per token on texts, beside GPT-2's.
    Report(report::Args),
}

/// Runs the command.
///
/// # Errors
/// If the command fails.
pub fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Train(args) => train::run(args),
        Command::Show(args) => show::run(args),
        Command::Report(args) => report::run(args),
    }
}
