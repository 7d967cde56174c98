//! A stored run, run again.

use super::binary::{Binaries, RunBinary};
use super::conditions::Conditions;
use super::difference::{Compared, loss_distance};
use super::outcome::{Outcome, Replay};
use super::setting::Setting;
use super::stored_run::StoredRun;
use crate::device::cuda::{self, Algorithms};
use crate::error::{Error, Result};
use crate::executor::{LocalProcesses, Output, RunSpec, Task, run_to_end};
use crate::machine::{Gpus, Machine};
use crate::results::find;
use crate::results::names::ALGORITHMS;
use crate::results::progress::eprint_line;
use crate::results::provenance::Environment;
use crate::results::stored;
use crate::results::summary::Status;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Runs a stored run again and compares the result.
///
/// # Errors
/// As [`super::replay`].
pub(super) fn replay(folder: &Path, setting: &Setting<'_>, binaries: &mut Binaries) -> Result<Replay> {
    let stored = StoredRun::read(folder)?;
    let mut findings = stored.remarks.clone();
    if let Some(why) = stored.obstacle()?.or_else(|| stored.lack_of_rows()) {
        return Ok(Replay::failed(&stored.id, findings, why));
    }
    let binary = match binaries.binary_for(&stored.environment.build) {
        Ok(binary) => binary,
        Err(error) => return Ok(Replay::failed(&stored.id, findings, error.message())),
    };
    say_conditions(&stored.environment, binaries.builds());
    let folder = match train(&stored, &binary, setting)? {
        Trained::Run(folder) => folder,
        Trained::Failed(why) => return Ok(Replay::failed(&stored.id, findings, why)),
    };
    let new = StoredRun::read(&folder)?;
    let conditions = Conditions::between(&stored.environment, &new.environment);
    let compared = Compared::between(&stored, &new)?;
    let outcome = outcome(&compared, &conditions);
    match outcome {
        Outcome::SameBits => findings.insert(0, compared.in_words()),
        _ => findings.extend(loss_distance(&stored, &new)),
    }
    if !stored.is_whole() {
        let (status, steps) = (stored.summary.status.as_str(), stored.summary.steps);
        findings
            .push(format!("the stored run ended as {status} after {steps} steps; what it has was compared"));
    }
    if outcome == Outcome::DiffersUnderOtherConditions && !conditions.build.is_empty() && !binaries.builds() {
        findings.push("--build runs the recorded commit".to_owned());
    }
    Ok(Replay {
        difference: compared.difference,
        folder: Some(folder),
        ..Replay::new(&stored.id, outcome, &conditions, findings)
    })
}

/// Returns what follows from the comparison of a run with the same run again.
pub(super) fn outcome(compared: &Compared, conditions: &Conditions) -> Outcome {
    match &compared.difference {
        None => Outcome::SameBits,
        Some(_) if conditions.device.is_some() => Outcome::NotJudged,
        Some(_) if conditions.are_same() => Outcome::Differs,
        Some(_) => Outcome::DiffersUnderOtherConditions,
    }
}

/// Says, before anything runs, in what this build and machine are not those of a recording.
pub(super) fn say_conditions(recorded: &Environment, builds: bool) {
    if let Some(device) = missing_device(recorded) {
        eprint_line(&format!("recorded on {device}, which is not here: bits are not judged"));
    }
    // The GPU of a run is known once it has begun.
    let here = Environment::detect(recorded.cpu.threads, recorded.started);
    let here = Environment { gpu: recorded.gpu.clone(), ..here };
    let mut conditions = Conditions::between(recorded, &here);
    if builds {
        conditions.build.clear();
    }
    if !conditions.build.is_empty() {
        eprint_line("this is another build than the recorded one, which may give other bits:");
    } else if !conditions.are_same() {
        eprint_line("this is another machine than the recorded one, which may give other bits:");
    }
    conditions.in_words().iter().for_each(|condition| eprint_line(&format!("  {condition}")));
}

/// Returns the model of the GPU of a recording that is not in this machine; `None` for one of a CPU.
pub(super) fn missing_device(recorded: &Environment) -> Option<String> {
    let gpu = recorded.gpu.as_ref()?;
    (!gpus_here().contains(&gpu.name)).then(|| gpu.name.clone())
}

/// Returns the models of the GPUs of this machine.
pub(super) fn gpus_here() -> Vec<String> {
    match Machine::here().gpus {
        Gpus::Found(models) => models.into_iter().map(|model| model.name).collect(),
        _ => Vec::new(),
    }
}

/// Returns the run whose matrix-product algorithms a replay uses, on which its bits depend: the stored one,
/// if it has them and they mean something here.
pub(super) fn algorithms_of(stored: &StoredRun) -> Option<PathBuf> {
    let recorded = stored.environment.gpu.as_ref()?;
    let table = stored::locate(&stored.folder.join(ALGORITHMS)).ok()?;
    let table = Algorithms::read(&table).ok()?;
    let is_for_here = missing_device(&stored.environment).is_none()
        && table.is_for(&recorded.name, cuda::library_version());
    is_for_here.then(|| std::path::absolute(&stored.folder).ok()).flatten()
}

/// Returns the keys that a replay sets on top of a stored recipe: it begins at step 0, and nobody needs
/// pictures, or weights that the stored run does not have. Another version may not know how to leave these
/// out.
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

/// The end of a process that trains a stored recipe.
enum Trained {
    /// The folder of the new run.
    Run(PathBuf),
    /// The reason why there is none to compare.
    Failed(String),
}

/// Trains the recipe of a stored run in a process of its own, whose progress is shown.
fn train(stored: &StoredRun, binary: &RunBinary, setting: &Setting<'_>) -> Result<Trained> {
    let before: BTreeSet<PathBuf> = find::runs(setting.into)?.into_iter().collect();
    let mut arguments = settings(stored, binary.is_own);
    if let Some(run) = algorithms_of(stored) {
        arguments.extend(["--algos-from".to_owned(), run.to_string_lossy().into_owned()]);
    }
    let spec = RunSpec {
        task: Task::Train(stored.recipe()),
        results: setting.into.to_owned(),
        binary: Some(binary.path.clone()),
        arguments,
        until: None,
        gpus: Vec::new(),
        output: Output::Captured { stderr: false },
    };
    let mut executor = LocalProcesses::new(setting.into, 1, setting.stop);
    let process = run_to_end(&mut executor, &spec, setting.timeout, setting.stop)?;
    if setting.stop.requested() {
        return Err(process.stopped_because.unwrap_or_else(|| Error::failed("stopped by a signal")));
    }
    let new = find::runs(setting.into)?.into_iter().find(|run| !before.contains(run));
    let Some(folder) = new else {
        return Ok(Trained::Failed(format!("it left no run: {}", process.status)));
    };
    let summary = crate::results::folder::read_summary(&folder)?;
    let has_diverged = |status| status == Status::Diverged;
    if process.status.success() || (has_diverged(stored.summary.status) && has_diverged(summary.status)) {
        return Ok(Trained::Run(folder));
    }
    let why = process.stopped_because.map(|why| why.message().to_owned()).or(summary.reason);
    let why = why.unwrap_or_else(|| process.status.to_string());
    Ok(Trained::Failed(format!(
        "it ended as {} after {} steps: {why}",
        summary.status.as_str(),
        summary.steps
    )))
}
