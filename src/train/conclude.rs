//! The end of a run: summary, status and exit code.

use super::{Outcome, Recorder};
use crate::error::{Error, ErrorKind, Result};
use crate::exec::NonFiniteTensor;
use crate::results::folder::{SUMMARY, read_summary};
use crate::results::{RunFolder, Status, atomic};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Result of a run that has ended, with or without an error.
#[derive(Debug)]
pub struct Ended {
    /// Its folder, still locked, where rank 0 is in this process.
    pub folder: Option<RunFolder>,
    /// `Ok` if every step is trained. Otherwise the error: exit code 75 when a signal stopped the run after a
    /// save, 1 when it failed or diverged.
    pub outcome: Result<()>,
}

/// Returns how a run ended that another process records, for the script that started this one.
pub(super) fn follower_outcome(outcome: Outcome) -> Result<()> {
    match outcome {
        Outcome::Finished => Ok(()),
        Outcome::Interrupted => {
            Err(Error::new(ErrorKind::Interrupted, "stopped by a signal; rank 0 says what is saved"))
        }
        Outcome::Diverged { step, bad } => {
            Err(Error::failed(format!("diverged: {}", divergence_reason(step, &bad))))
        }
    }
}

/// Returns why a run diverged.
fn divergence_reason(step: u64, bad: &NonFiniteTensor) -> String {
    format!("step {step} was skipped: {} ({}) holds {}", bad.tensor, bad.op, bad.value)
}

/// Turns the end of the training loop into the summary and an exit code.
pub(super) fn conclude(recorder: Recorder, ended: Result<Outcome>) -> Result<Ended> {
    match ended {
        Ok(Outcome::Finished) => {
            let (folder, _) = recorder.finish(Status::Ok, None)?;
            Ok(Ended { folder: Some(folder), outcome: Ok(()) })
        }
        Ok(Outcome::Interrupted) => {
            let saves = recorder.saves();
            let (folder, summary) =
                recorder.finish(Status::Interrupted, Some("stopped by a signal".into()))?;
            let (steps, path) = (summary.steps, folder.path().display());
            let then = match saves {
                true => format!("saved; continue with `xrun resume {path}`"),
                false => "with nothing saved (checkpoint.keep = 0): a resume starts at step 0".to_owned(),
            };
            let error =
                Error::new(ErrorKind::Interrupted, format!("stopped by a signal after step {steps}, {then}"));
            Ok(Ended { folder: Some(folder), outcome: Err(error) })
        }
        Ok(Outcome::Diverged { step, bad }) => {
            let reason = divergence_reason(step, &bad);
            let (folder, _) = recorder.finish(Status::Diverged, Some(reason.clone()))?;
            let error = Error::failed(format!(
                "diverged: {reason}; the parameters are those of step {}. See {}; a lower optimizer.lr or a longer \
                 lr_scheduler.warmup_steps is the usual next try",
                step - 1,
                folder.path().display()
            ));
            Ok(Ended { folder: Some(folder), outcome: Err(error) })
        }
        // The error of the run matters more than one of writing the summary.
        Err(e) => match recorder.finish(failure(&e), Some(e.message().to_string())) {
            Ok((folder, _)) => Ok(Ended { folder: Some(folder), outcome: Err(e) }),
            Err(_) => Err(e),
        },
    }
}

/// Returns the status of a run that ended with an error.
fn failure(error: &Error) -> Status {
    if error.kind() == ErrorKind::DoesNotFit { Status::Oom } else { Status::Failed }
}

/// Timeout of the last write to the summary: the run may hang because of the disk.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// Writes the end of a run into its summary where rank 0 cannot do so itself. Errors are ignored: the caller
/// prints the reason on stderr.
pub fn mark_failed(folder: &Path, error: &Error) {
    let (folder, error) = (folder.to_owned(), error.clone());
    let (writing, written) = channel::<()>();
    std::thread::spawn(move || {
        let running = read_summary(&folder).ok().filter(|summary| summary.status == Status::Running);
        if let Some(mut summary) = running {
            (summary.status, summary.reason) = (failure(&error), Some(error.message().to_owned()));
            if let Ok(text) = serde_json::to_vec_pretty(&summary) {
                let _ = atomic::write(&folder.join(SUMMARY), &text);
            }
        }
        drop(writing);
    });
    let _ = written.recv_timeout(WRITE_TIMEOUT);
}
