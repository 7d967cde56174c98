//! Opens the folder of a run: a new one, or the folder of a run to resume.

use super::description::held_out_part;
use crate::error::Result;
use crate::ranks::LocalRanks;
use crate::results::folder::{PLOTS, read_summary};
use crate::results::progress::Progress;
use crate::results::{RunFolder, Summary, atomic};
use crate::train::conclude::Ended;
use crate::train::gauges::environment;
use crate::train::initial::weights::TOKENIZER;
use crate::train::job::Job;
use crate::train::run_ranks::announce_finished;
use crate::train::start::Start;
use std::path::Path;

/// Returns the folder of a run with its summary: either `resumed`, or a new one with a copy of the recipe.
/// The summary of a resumed run decides whether the recipe is still the original one.
///
/// # Errors
/// If the folder cannot be read or created.
pub(super) fn open(
    resumed: Option<RunFolder>,
    results: &Path,
    job: &mut Job,
    start: &mut Start,
) -> Result<(RunFolder, Summary)> {
    let Some(folder) = resumed else { return create(results, job) };
    let summary = read_summary(folder.path())?;
    if !summary.is_finished() {
        adopt_summary(job, start, &summary);
    }
    Ok((folder, summary))
}

/// Leaves a run unchanged whose steps are all trained, and tells the user and the other ranks.
///
/// # Errors
/// If a rank is lost, or its recipe differs.
pub(super) fn leave_finished(
    folder: RunFolder,
    ranks: &LocalRanks,
    job: &Job,
    start: &Start,
    mut progress: Progress,
) -> Result<Ended> {
    let draws = job.recipe.values().metrics.plots;
    note_finished(&mut progress, folder.path(), job.steps(), start.loaded.is_some(), draws);
    announce_finished(ranks, job, folder.path())?;
    Ok(Ended { folder: Some(folder), was_finished: true, outcome: Ok(()) })
}

/// Adopts from a resumed run's summary the recipe hash and the differences that the checkpoint does not show.
fn adopt_summary(job: &mut Job, start: &mut Start, summary: &Summary) {
    // `resolved.toml` stores `"auto"` ranks as a number. If nothing was changed, the hash must stay the hash
    // of the recipe as written.
    if start.changes.is_empty() {
        // Prefers the checkpoint's hash, because it is verified.
        let saved = start.loaded.as_ref().map(|loaded| &loaded.meta().recipe_hash);
        job.recipe_hash.clone_from(saved.unwrap_or(&summary.recipe_hash));
    }
    if start.step() > 0 && summary.val_part.is_none() && held_out_part(&job.plan).is_some() {
        start.changes.push(SPREAD_NOTE.to_owned());
    }
}

/// Creates the folder of a new run, with a copy of the recipe.
fn create(results: &Path, job: &Job) -> Result<(RunFolder, Summary)> {
    let (plan, hash) = (&job.plan, &job.recipe_hash);
    let folder = RunFolder::create(results, &plan.name, &hash[..8], crate::format::now())?;
    folder.write_recipe(job.recipe.copy())?;
    let name = folder.name();
    Ok((folder, Summary::started(&plan.name, &name, hash, plan.steps as u64)))
}

/// Writes everything that the run depends on: the resolved recipe, the environment, the tokenizer.
///
/// # Errors
/// If the folder cannot be written, or the driver cannot describe a GPU.
pub(super) fn write_provenance(folder: &RunFolder, job: &Job, command: &[String]) -> Result<()> {
    folder.write_resolved(&job.recipe.to_toml())?;
    folder.write_environment(&environment(&job.plan, command.to_vec())?)?;
    atomic::write(&folder.path().join(TOKENIZER), job.dataset.tokenizer.to_json().as_bytes())
}

/// Tells the user that nothing is left to train, and what the run can still be used for. A run with a
/// checkpoint can be forked. Missing plots are drawn again if the recipe draws any.
fn note_finished(progress: &mut Progress, folder: &Path, steps: u64, has_checkpoint: bool, draws: bool) {
    let mut text = format!("{} is finished: all {steps} steps are trained. ", folder.display());
    text += match has_checkpoint {
        true => "`xrun resume RUN --fork training.steps=N` trains further, in a new run",
        false => "It has no checkpoint to continue from; `xrun RUN` trains its recipe again, in a new run",
    };
    if !folder.join(PLOTS).is_dir() {
        text += match draws {
            true => ". Its plots are drawn again",
            false => ". `xrun resume RUN metrics.plots=true` draws its plots",
        };
    }
    progress.note(&text);
}

/// Note in the summary of a resumed run whose evaluations were limited under an earlier version.
const SPREAD_NOTE: &str = "evaluations over batches spread over the held-out text (earlier: its first batches): earlier losses do not compare";
