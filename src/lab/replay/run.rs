//! Replays a stored run.

use super::binary::{Binaries, RunBinary};
use super::conditions::Conditions;
use super::difference::{Compared, loss_distance};
use super::outcome::{Outcome, Replay};
use super::setting::Setting;
use super::stored_run::StoredRun;
use crate::device::cuda::{self, Algorithms};
use crate::error::{Error, Result};
use crate::executor::{Output, RunSpec, Task, run_to_end};
use crate::machine::{Gpus, Machine};
use crate::results::find;
use crate::results::names::ALGORITHMS;
use crate::results::progress::eprint_line;
use crate::results::provenance::Environment;
use crate::results::stored;
use crate::results::summary::Status;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Replays a stored run and compares the result.
///
/// # Errors
/// The same as for [`super::replay`].
pub(super) fn replay(stored: &StoredRun, setting: &Setting<'_>, binaries: &mut Binaries) -> Result<Replay> {
    let failed = |why: String| Ok(Replay::failed(&stored.id, stored.remarks.clone(), why));
    if let Some(why) = stored.obstacle()?.or_else(|| stored.rows_problem()) {
        return failed(why);
    }
    let binary = match binaries.binary_for(&stored.environment.build) {
        Ok(binary) => binary,
        Err(error) => return failed(error.message().to_owned()),
    };
    say_conditions(&stored.environment, binaries.builds);
    let mut replay = match train(stored, &binary, setting)? {
        Ok(folder) => compare(stored, folder)?,
        Err(why) => return failed(why),
    };
    if replay.outcome == Outcome::DiffersUnderOtherConditions
        && !replay.conditions.build.is_empty()
        && !binaries.builds
    {
        replay.findings.push("use --build to run the recorded commit".to_owned());
    }
    Ok(replay)
}

/// Compares a stored run with the new one in a folder.
///
/// # Errors
/// If a file of the new run, or a checkpoint, cannot be read.
pub(super) fn compare(stored: &StoredRun, folder: PathBuf) -> Result<Replay> {
    let new = StoredRun::read(&folder)?;
    let conditions = Conditions::between(&stored.environment, &new.environment);
    let compared = Compared::between(stored, &new)?;
    let outcome = outcome(&compared, &conditions);
    let mut findings = stored.remarks.clone();
    match outcome {
        Outcome::SameBits => findings.insert(0, compared.in_words()),
        _ => findings.extend(loss_distance(stored, &new)),
    }
    if !stored.is_whole() {
        let (status, steps) = (stored.summary.status.as_str(), stored.summary.steps);
        findings.push(format!(
            "the stored run ended as {status} after {steps} steps; only what it has was compared"
        ));
    }
    Ok(Replay {
        difference: compared.difference,
        folder: Some(folder),
        ..Replay::new(&stored.id, outcome, &conditions, findings)
    })
}

/// Decides the outcome of comparing a run with its replay.
fn outcome(compared: &Compared, conditions: &Conditions) -> Outcome {
    match &compared.difference {
        None => Outcome::SameBits,
        Some(_) if conditions.device.is_some() => Outcome::NotJudged,
        Some(_) if conditions.are_same() => Outcome::Differs,
        Some(_) => Outcome::DiffersUnderOtherConditions,
    }
}

/// Prints, before anything runs, how this build and machine differ from a recording.
pub(super) fn say_conditions(recorded: &Environment, builds: bool) {
    if let Some(device) = missing_device(recorded) {
        eprint_line(&format!("recorded on {device}, which this machine does not have; bits are not judged"));
    }
    // The GPU of a run is known only once the run has begun.
    let here = Environment::detect(recorded.cpu.threads, recorded.started);
    let here = Environment { gpu: recorded.gpu.clone(), ..here };
    let mut conditions = Conditions::between(recorded, &here);
    if builds {
        conditions.build.clear();
    }
    if !conditions.build.is_empty() {
        eprint_line("this build differs from the recorded one and may give other bits:");
    } else if !conditions.are_same() {
        eprint_line("this machine differs from the recorded one and may give other bits:");
    }
    conditions.in_words().iter().for_each(|condition| eprint_line(&format!("  {condition}")));
}

/// Returns the model of a recording's GPU if this machine lacks it; `None` for a recording on a CPU.
pub(super) fn missing_device(recorded: &Environment) -> Option<String> {
    let gpu = recorded.gpu.as_ref()?;
    (!gpus_here().contains(&gpu.name)).then(|| gpu.name.clone())
}

/// Returns the models of this machine's GPUs.
pub(super) fn gpus_here() -> Vec<String> {
    match Machine::here().gpus {
        Gpus::Found(models) => models.into_iter().map(|model| model.name).collect(),
        _ => Vec::new(),
    }
}

/// Returns the run whose matrix-product algorithms a replay must use, since its bits depend on them. That is
/// the stored run, if it has algorithms and they apply on this machine.
pub(super) fn algorithms_for(stored: &StoredRun) -> Option<PathBuf> {
    let recorded = stored.environment.gpu.as_ref()?;
    let bytes = stored::read(&stored.folder.join(ALGORITHMS)).ok()?;
    let table = Algorithms::from_json(std::str::from_utf8(&bytes).ok()?).ok()?;
    let is_for_here = missing_device(&stored.environment).is_none()
        && table.is_for(&recorded.name, cuda::library_version());
    is_for_here.then(|| std::path::absolute(&stored.folder).ok()).flatten()
}

/// Returns the settings that a replay adds to a stored recipe. It starts at step 0, and leaves out plots, and
/// checkpoints unless the stored run has one. A binary of another version may not know the keys for this.
pub(super) fn settings(stored: &StoredRun, is_own: bool) -> Vec<String> {
    let mut settings = vec!["checkpoint.resume=never".to_owned()];
    if is_own {
        settings.push("metrics.plots=false".to_owned());
    }
    if is_own && !stored.has_checkpoint() {
        settings.push("checkpoint.keep=0".to_owned());
    }
    settings
}

/// Trains the recipe of a stored run in its own process and shows its progress. Returns the folder of the new
/// run, or why there is no run to compare.
fn train(stored: &StoredRun, binary: &RunBinary, setting: &Setting<'_>) -> Result<Result<PathBuf, String>> {
    let before: BTreeSet<PathBuf> = find::runs(setting.into)?.into_iter().collect();
    let mut arguments = settings(stored, binary.is_own);
    if let Some(run) = algorithms_for(stored) {
        arguments.extend(["--algos-from".to_owned(), run.to_string_lossy().into_owned()]);
    }
    let spec = RunSpec {
        task: Task::Train(stored.recipe()),
        results: setting.into.to_owned(),
        binary: Some(binary.path.clone()),
        arguments,
        until: None,
        output: Output::Captured { stderr: false },
    };
    let process = run_to_end(&spec, setting.timeout, setting.stop)?;
    if setting.stop.requested() {
        return Err(process.stopped_because.unwrap_or_else(|| Error::failed("stopped by a signal")));
    }
    let new = find::runs(setting.into)?.into_iter().find(|run| !before.contains(run));
    let Some(folder) = new else {
        return Ok(Err(format!("it left no run: {}", process.status)));
    };
    let summary = crate::results::folder::read_summary(&folder)?;
    let has_diverged = |status| status == Status::Diverged;
    if process.status.success() || (has_diverged(stored.summary.status) && has_diverged(summary.status)) {
        return Ok(Ok(folder));
    }
    let why = process.stopped_because.map(|why| why.message().to_owned()).or(summary.reason);
    let why = why.unwrap_or_else(|| process.status.to_string());
    Ok(Err(format!("it ended as {} after {} steps: {why}", summary.status.as_str(), summary.steps)))
}
