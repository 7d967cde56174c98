//! `xrun import`.

use super::terminal::{eprint_line, print};
use super::what::Results;
use crate::error::Result;
use crate::results::provenance::this_command;
use crate::train::{ImportRequest, ModelFolder, import};
use std::path::PathBuf;

/// Arguments of `xrun import`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The folder with `config.json`, weights in safetensors and `tokenizer.json`, as `save_pretrained` and
    /// `xrun export` write them.
    #[arg(value_name = "FOLDER")]
    pub model: PathBuf,
    /// Where results are.
    #[command(flatten)]
    pub results: Results,
    /// Name of the run's recipe [default: the folder's].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Context length in tokens [default: the model's own, at most 4096 unless positions are trained].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub seq_len: Option<u32>,
    /// Leave out a key of config.json that xrun does not know, because it does not change what the model
    /// computes; TABLE.KEY for a key of a table. Can be repeated.
    #[arg(long, value_name = "KEY")]
    pub ignore: Vec<String>,
    /// The tokenizer: a file or a built-in one [default: the folder's].
    #[arg(long, value_name = "TOKENIZER")]
    pub tokenizer: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// If [`import`] fails.
pub fn run(args: &Args) -> Result<()> {
    let model = ModelFolder {
        folder: args.model.clone(),
        name: args.name.clone(),
        seq_len: args.seq_len.map(|n| n as usize),
        ignore: args.ignore.clone(),
        tokenizer: args.tokenizer.clone(),
    };
    let request = ImportRequest { model, results: args.results.folder.clone(), command: this_command() };
    let imported = import(&request)?;
    imported.notes.iter().for_each(|note| eprint_line(note));
    print(&format!("{}\n", imported.run.display()))
}
