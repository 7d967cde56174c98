//! `xrun run RECIPE`, or `xrun RECIPE`.

use crate::error::{Error, Result};
use crate::recipe::{self, Resume};
use crate::report::plots;
use crate::results::progress::Mode;
use crate::results::{RunFolder, find};
use crate::train::{self, Origin, Request};
use std::path::{Path, PathBuf};

/// Arguments of `xrun run`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The recipe: a file, or the name of a built-in one.
    pub recipe: PathBuf,
    /// Keys to change, as `section.key=value` (or `--section.key=value`).
    #[arg(value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
    /// How progress is shown.
    #[command(flatten)]
    pub show: Show,
}

/// How progress is shown.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Show {
    /// JSON lines on stdout instead of a progress line.
    #[arg(long, conflicts_with = "quiet")]
    pub json: bool,
    /// Only the result.
    #[arg(long, short)]
    pub quiet: bool,
}

impl Show {
    /// The mode of the progress display.
    pub fn mode(self) -> Mode {
        match (self.json, self.quiet) {
            (true, _) => Mode::Json,
            (_, true) => Mode::Quiet,
            _ => Mode::Auto,
        }
    }
}

/// Runs the command.
///
/// # Errors
/// As [`train::run`].
pub fn run(args: &Args, results: &Path) -> Result<()> {
    let resolved = recipe::load(&args.recipe, &args.overrides, recipe::environment())?;
    let origin = match resolved.recipe.checkpoint.resume {
        Resume::Never => Origin::Fresh,
        Resume::Auto => unfinished(results, &resolved.hash())?.map_or(Origin::Fresh, Origin::Resume),
    };
    finish(Request { resolved, results, progress: args.show.mode(), origin })
}

/// The newest unfinished run of a recipe with this hash that nobody works on.
fn unfinished(results: &Path, recipe_hash: &str) -> Result<Option<RunFolder>> {
    for path in find::runs(results)? {
        let summary = crate::results::folder::read_summary(&path)?;
        if summary.recipe_hash == recipe_hash && summary.status.is_unfinished() {
            return RunFolder::open(&path).map(Some);
        }
    }
    Ok(None)
}

/// Trains, then draws the plots from the run's files.
///
/// # Errors
/// As [`train::run`].
pub fn finish(request: Request<'_>) -> Result<()> {
    let (folder, _) = train::run(request)?;
    plots::render(folder.path())
        .map_err(|e| Error::failed(format!("the run is complete, its plots are not: {e}")))?;
    eprintln!("results in {}", folder.path().display());
    Ok(())
}
