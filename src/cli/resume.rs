//! `xrun resume [RUN]`.

use super::run::{Show, finish};
use crate::error::{Error, Result};
use crate::recipe;
use crate::results::folder::{RESOLVED, read_summary};
use crate::results::{RunFolder, find};
use crate::train::{Origin, Request};
use std::path::Path;

/// Arguments of `xrun resume`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The run: its folder or name, and then keys to change; without a run, the newest unfinished one.
    #[arg(value_name = "RUN | KEY=VALUE")]
    pub words: Vec<String>,
    /// Start a new run from the checkpoint, so that training keys or the corpus may change.
    #[arg(long)]
    pub fork: bool,
    /// Take over the choices of matrix-product algorithms of this run (a GPU's bits depend on them).
    #[arg(long, value_name = "RUN")]
    pub algos_from: Option<String>,
    /// How progress is shown.
    #[command(flatten)]
    pub show: Show,
}

/// Runs the command.
///
/// # Errors
/// When there is nothing to resume, and as [`crate::train::run`].
pub fn run(args: &Args, results: &Path) -> Result<()> {
    let (named, overrides) = match args.words.split_first() {
        Some((first, rest)) if !first.contains('=') => (Some(first), rest),
        _ => (None, args.words.as_slice()),
    };
    let folder = match named {
        Some(name) => RunFolder::open(&find::find(results, name)?)?,
        None => RunFolder::newest_unfinished(results)?
            .ok_or_else(|| Error::usage(format!("no unfinished run in {}", results.display())))?,
    };
    let path = folder.path().to_owned();
    let mut resolved = recipe::load(&path.join(RESOLVED), overrides, std::iter::empty())?;
    resolved.name = read_summary(&path)?.recipe;
    let origin = if args.fork {
        drop(folder);
        Origin::Fork(path)
    } else {
        Origin::Resume(folder)
    };
    let algorithms_from = args.algos_from.as_deref().map(|run| find::find(results, run)).transpose()?;
    finish(Request { resolved, results, progress: args.show.mode(), origin, algorithms_from })
}
