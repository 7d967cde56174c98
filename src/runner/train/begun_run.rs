//! The run that `model.init_from` names, and any other run that is named for its weights.

use super::initial::base::{is_checkpoint, is_model, open_checkpoint};
use crate::checkpoint;
use crate::error::{Error, IoContext, Result};
use crate::machine::Machine;
use crate::recipe::{self, Recipe};
use crate::results::find;
use crate::results::folder::{CHECKPOINT, RESOLVED, SUMMARY};
use crate::results::progress::eprint_line;
use std::path::{Path, PathBuf};

const INIT_FROM: &str = "model.init_from";

/// Returns a recipe whose `model.init_from` names a run with the checkpoint of it that is newest now, so that
/// every rank, cell and trial begins with one state, and a later resume finds it again. Other recipes stay
/// the same. A path goes before the name of a run in `results`.
///
/// # Errors
/// A usage error if there is neither, or the run has no checkpoint.
pub fn with_begun_run(recipe: Recipe, results: &Path, machine: &Machine) -> Result<Recipe> {
    let values = [recipe.values(), recipe.written()].map(|values| values.model.init_from.as_deref());
    let [Some(path), Some(written)] = values else { return Ok(recipe) };
    let path = Path::new(path);
    let place = match is_model(path) {
        true => path.to_owned(),
        false => match run_with_checkpoint(results, written) {
            Ok(run) => run,
            // The folder says itself what it lacks.
            Err(_) if path.is_dir() => return Ok(recipe),
            Err(e) => {
                return Err(recipe.error(
                    &[INIT_FROM],
                    format!("{}: no such folder, and {}", path.display(), e.message()),
                    "name a folder with config.json and model.safetensors, a run, or a checkpoint of one",
                ));
            }
        },
    };
    let Some(loaded) = open_checkpoint(&place)? else { return Ok(recipe) };
    loaded.warnings().iter().for_each(|warning| eprint_line(&format!("warning: {warning}")));
    let checkpoint = std::path::absolute(loaded.path()).at("find", loaded.path())?;
    recipe.with_overrides(&[setting(&checkpoint)], machine)
}

/// Returns the argument that names the checkpoint with which a recipe begins, as [`with_begun_run`] found it;
/// `None` if it begins with no run.
pub fn begun_run_setting(recipe: &Recipe) -> Option<String> {
    let path = recipe.values().model.init_from.as_deref().map(Path::new)?;
    is_checkpoint(path).then(|| setting(path))
}

fn setting(checkpoint: &Path) -> String {
    format!("{INIT_FROM}={}", toml::Value::from(checkpoint.to_string_lossy().into_owned()))
}

/// Returns the run called `name` that has a checkpoint. If `name` is `latest` or a recipe, this is the newest
/// run that has one, and a newer run without one is reported.
///
/// # Errors
/// If [`find::find`] fails, or if the run has no checkpoint: the message says why, and which run has one.
pub fn run_with_checkpoint(results: &Path, name: &str) -> Result<PathBuf> {
    // A folder that cannot be read has its own error, which whoever reads the checkpoint reports.
    let has_checkpoint =
        |run: &Path| checkpoint::steps(&run.join(CHECKPOINT)).map_or(true, |steps| !steps.is_empty());
    if let Some(damaged) = find::find_without_summary(results, name)?.filter(|run| has_checkpoint(run)) {
        eprint_line(&format!("warning: {} has no {SUMMARY}; its checkpoint is used", damaged.display()));
        return Ok(damaged);
    }
    let run = find::find_where(results, name, has_checkpoint)?;
    let newest = find::find(results, name)?;
    if has_checkpoint(&run) {
        if run != newest {
            eprint_line(&format!(
                "{} has no checkpoint{}; using {} instead",
                newest.display(),
                why_none(&newest),
                run.display()
            ));
        }
        return Ok(run);
    }
    let other = find::runs(results)?.into_iter().find(|run| has_checkpoint(run));
    Err(Error::usage(format!(
        "{} has no checkpoint{}; {}",
        run.display(),
        why_none(&run),
        match other {
            Some(other) => format!("the newest run that has one is {}", other.display()),
            None => format!("no run in {} has one", results.display()),
        }
    )))
}

/// Returns why a run has no checkpoint, if its recipe tells.
fn why_none(run: &Path) -> &'static str {
    let recipe = recipe::load(&run.join(RESOLVED), &[], std::iter::empty(), &Machine::none());
    match recipe.is_ok_and(|recipe| recipe.values().checkpoint.keep == 0) {
        true => " (it ran with checkpoint.keep = 0, as sweeps and comparisons do)",
        false => "",
    }
}
