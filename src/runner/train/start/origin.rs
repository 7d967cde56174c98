//! Finds the run that `checkpoint.resume = "auto"` continues.

use crate::error::Result;
use crate::machine::Machine;
use crate::policy::{Recompute, Resume};
use crate::recipe::{self, Recipe};
use crate::results::folder::RESOLVED;
use crate::results::{RunFolder, find};
use crate::train::request::Origin;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Replaces a fresh start by a resume of the newest unfinished run of this recipe, if
/// `checkpoint.resume = "auto"`.
///
/// # Errors
/// If another process uses that run, or the results cannot be read.
pub(in crate::train) fn resolve_origin(origin: Origin, recipe: &Recipe, results: &Path) -> Result<Origin> {
    if origin != Origin::Fresh || recipe.values().checkpoint.resume != Resume::Auto {
        return Ok(origin);
    }
    Ok(unfinished(results, recipe)?.map_or(Origin::Fresh, Origin::Resume))
}

/// Returns the newest unfinished run of a recipe, found by its hash and measuring keys. Fails if another
/// process works on it, because `checkpoint.resume = "auto"` must not start a second run beside it.
///
/// # Errors
/// Fails like [`RunFolder::open`].
fn unfinished(results: &Path, recipe: &Recipe) -> Result<Option<PathBuf>> {
    // A recompute mode that the plan chooses may have been any mode.
    let hashes = Recompute::ALL.iter().map(|mode| recipe.clone().with_recompute(*mode).hash());
    let hashes: HashSet<String> = hashes.collect();
    for path in find::runs(results)? {
        let Some(summary) = find::summary_or_warn(&path) else { continue };
        if hashes.contains(&summary.recipe_hash)
            && summary.status.is_unfinished()
            && measures_alike(&path, recipe)
        {
            return RunFolder::open(&path).map(|_| Some(path));
        }
    }
    Ok(None)
}

/// Returns false only if a run is known to measure on different text than a recipe.
fn measures_alike(run: &Path, recipe: &Recipe) -> bool {
    let before = recipe::load(&run.join(RESOLVED), &[], std::iter::empty(), &Machine::none());
    before.map_or(true, |before| before.measuring() == recipe.measuring())
}
