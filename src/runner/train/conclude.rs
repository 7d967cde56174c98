//! The end of a run: its summary, status and exit code.

use super::{Outcome, Recorder};
use crate::checkpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::exec::NonFiniteTensor;
use crate::results::folder::{SUMMARY, overwrite_running, read_summary};
use crate::results::names::CHECKPOINT;
use crate::results::{RunFolder, Status, Summary, atomic};
use crate::threads::spawn_detached;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Result of a run that has ended, with or without an error.
#[derive(Debug)]
pub struct Ended {
    /// The run's folder, still locked; `None` if rank 0 is in another process.
    pub folder: Option<RunFolder>,
    /// True if a resumed run had already trained all its steps, so nothing was changed.
    pub was_finished: bool,
    /// `Ok` if all requested steps are trained and saved. Otherwise the error, which exits with code 75 if
    /// the run was stopped after a save, 74 if its last state could not be saved, or 1 if it failed or
    /// diverged.
    pub outcome: Result<()>,
}

/// Returns how a run ended, for a process whose run is recorded by rank 0 in another one. The exit code tells
/// the script that started this process.
pub(super) fn follower_outcome(outcome: Outcome) -> Result<()> {
    match outcome {
        Outcome::Finished | Outcome::Halted => Ok(()),
        Outcome::Interrupted => {
            Err(Error::new(ErrorKind::Interrupted, "stopped; rank 0 says why, and what is saved"))
        }
        Outcome::Diverged { step, bad } => {
            Err(Error::failed(format!("diverged: {}", divergence_reason(step, &bad))))
        }
    }
}

/// Describes why a run diverged.
fn divergence_reason(step: u64, bad: &NonFiniteTensor) -> String {
    format!("step {step} was skipped: {} ({}) holds {}", bad.tensor, bad.op, bad.value)
}

/// Suggests what to try after a tensor was not finite.
fn divergence_advice(step: u64, bad: &NonFiniteTensor) -> &'static str {
    // Before the first update the values are still small, so a non-finite formula is wrong by itself.
    if step == 1 && bad.op.starts_with("formula") {
        return "the formula of model.activation is not finite for values of this size";
    }
    "a lower optimizer.lr or a longer lr_scheduler.warmup_steps is the usual next try"
}

/// Writes the summary when the training loop ends, and chooses the exit code.
pub(super) fn conclude(recorder: Recorder, ended: Result<Outcome>) -> Result<Ended> {
    match ended {
        Ok(Outcome::Diverged { step, bad }) => {
            let reason = divergence_reason(step, &bad);
            let folder = recorder.finish(Status::Diverged, Some(reason.clone()))?;
            let error = Error::failed(format!(
                "diverged: {reason}; the parameters are from step {}. See {}; {}",
                step - 1,
                folder.path().display(),
                divergence_advice(step, &bad)
            ));
            Ok(Ended { folder: Some(folder), was_finished: false, outcome: Err(error) })
        }
        Ok(outcome) => conclude_trained(recorder, &outcome),
        // The error of the run matters more than an error of writing the summary.
        Err(e) => match recorder.finish(failure(&e), Some(e.message().to_string())) {
            Ok(folder) => Ok(Ended { folder: Some(folder), was_finished: false, outcome: Err(e) }),
            Err(_) => Err(e),
        },
    }
}

/// Ends a run that trained all its steps or was stopped. Its status depends on whether its last state was
/// saved.
fn conclude_trained(mut recorder: Recorder, ending: &Outcome) -> Result<Ended> {
    let stopped_by = match (ending, &recorder.write_error) {
        (Outcome::Finished, _) => None,
        (_, Some(e)) => Some(e.message().to_owned()),
        (Outcome::Halted, None) => Some(format!("--until {}", recorder.step)),
        (_, None) => Some("stopped by a signal".to_owned()),
    };
    let halted_as_requested = *ending == Outcome::Halted && recorder.write_error.is_none();
    let path = recorder.folder.path().to_owned();
    let saves = recorder.saves();
    if halted_as_requested && recorder.saves.unsaved.is_none() {
        let (step, path) = (recorder.step, path.display());
        recorder.note(&format!("saved after step {step}; `xrun resume {path}` continues from there"))?;
    }
    let (status, reason, outcome) = match (&recorder.saves.unsaved, stopped_by) {
        (Some(lost), stopped_by) => {
            let from = begins_again(&path, recorder.saves.saved_step, &recorder.summary);
            let cause = stopped_by.unwrap_or_else(|| "all steps are trained".to_owned());
            let reason = format!("{cause}, but {lost}");
            let error = format!("{reason}. {}, then `xrun resume {}`: {from}", lost.advice(), path.display());
            (Status::Unsaved, Some(reason), Err(Error::new(ErrorKind::Unsaved, error)))
        }
        (None, Some(by)) if halted_as_requested => (Status::Interrupted, Some(by), Ok(())),
        (None, Some(by)) => {
            let then = match saves {
                true if recorder.saves_weights_only() => {
                    "with only its weights saved, so it cannot resume from them (checkpoint.weights_only = \"all\")"
                        .to_owned()
                }
                true => format!("saved; continue with `xrun resume {}`", path.display()),
                false => format!(
                    "with nothing saved (checkpoint.keep = 0): a resume {}",
                    restart(&recorder.summary)
                ),
            };
            let error = format!("{by} after step {}, {then}", recorder.step);
            (Status::Interrupted, Some(by), Err(Error::new(ErrorKind::Interrupted, error)))
        }
        (None, None) => (Status::Ok, None, Ok(())),
    };
    match (recorder.finish(status, reason), outcome) {
        (Ok(folder), outcome) => Ok(Ended { folder: Some(folder), was_finished: false, outcome }),
        // The reason why the run ended matters more than a failure to record it.
        (Err(_), Err(e)) if e.kind() == ErrorKind::Unsaved => Err(e),
        (Err(e), _) => Err(e),
    }
}

/// Describes where the next resume begins, if the last checkpoint that was saved is of `saved_step`.
fn begins_again(run: &Path, saved_step: u64, summary: &Summary) -> String {
    match saved_step {
        0 => format!("there is no earlier checkpoint, so it {}", restart(summary)),
        step if run.join(CHECKPOINT).join(checkpoint::folder_name(step)).is_dir() => {
            format!("it starts from the checkpoint of step {step}")
        }
        step => format!("it needs the checkpoint of step {step}, which is not there now"),
    }
}

/// Describes where a run without a checkpoint of its own begins again.
fn restart(summary: &Summary) -> String {
    match &summary.forked_from {
        None => "starts at step 0".to_owned(),
        Some(fork) => format!("begins again with the state of {} at step {}", fork.run, fork.step),
    }
}

/// Returns the status for a run that ended with an error.
fn failure(error: &Error) -> Status {
    match error.kind() {
        ErrorKind::DoesNotFit => Status::Oom,
        ErrorKind::Unsaved => Status::Unsaved,
        _ => Status::Failed,
    }
}

/// Maximum time for the last write to the summary. The disk may be the reason why the run hangs.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// Writes the end of a run into its summary if rank 0 cannot. Ignores errors, because the caller prints the
/// reason to stderr.
pub fn mark_failed(folder: &Path, error: &Error) {
    let (folder, error) = (folder.to_owned(), error.clone());
    let (writing, written) = channel::<()>();
    let write = move || {
        let running = read_summary(&folder).ok().filter(|summary| summary.status == Status::Running);
        if let Some(mut summary) = running {
            (summary.status, summary.reason) = (failure(&error), Some(error.message().to_owned()));
            let text = serde_json::to_vec_pretty(&summary).unwrap_or_default();
            if text.is_empty() || atomic::write(&folder.join(SUMMARY), &text).is_err() {
                let _ = overwrite_running(&folder, summary.status);
            }
        }
        drop(writing);
    };
    if spawn_detached("xrun-summary", write).is_err() {
        return;
    }
    let _ = written.recv_timeout(WRITE_TIMEOUT);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Someone may have removed or moved the folder of a run that trains.
    #[test]
    fn a_resume_is_promised_only_from_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let summary = Summary::started("tiny", "run", "hash", 60);
        let said = |run: &Path, step| begins_again(run, step, &summary);
        std::fs::create_dir_all(dir.path().join("checkpoint/step-000007")).unwrap();
        assert_eq!(said(dir.path(), 0), "there is no earlier checkpoint, so it starts at step 0");
        assert_eq!(said(dir.path(), 7), "it starts from the checkpoint of step 7");
        for (run, step) in [(dir.path(), 14), (&*dir.path().join("moved"), 7)] {
            assert!(said(run, step).ends_with("which is not there now"));
        }
    }
}
