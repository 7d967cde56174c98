//! Determines the status of an ended attempt from its run's summary, signals and exit status.

use super::RunningAttempt;
use crate::error::ErrorKind;
use crate::executor::{RunEnd, StopCause};
use crate::results::ledger::CellStatus;
use crate::results::{Status, Summary};

/// Why a run ended that left no word, if nothing else is known.
pub const ENDED_WITH_SWEEP: &str = "ended with an earlier sweep";

impl RunningAttempt {
    /// Returns the status of an ended attempt, and the reason unless it is `ok`.
    pub(super) fn status(&self, summary: Option<&Summary>, end: &RunEnd) -> (CellStatus, Option<String>) {
        let changed = |summary: &Summary| {
            self.header.recipe_hash.as_ref().is_some_and(|expected| summary.recipe_hash != *expected)
        };
        if summary.is_some_and(changed) {
            let reason = "the recipe was changed while the sweep ran; run the sweep again";
            return (CellStatus::Failed, Some(reason.to_owned()));
        }
        let reason = summary.and_then(|summary| summary.reason.clone());
        // A run that ended before a signal reached it keeps its result.
        match (summary.map(|summary| summary.status), self.stopping.cause()) {
            (Some(Status::Ok), _) => (CellStatus::Ok, None),
            (Some(Status::Diverged), _) => (CellStatus::Diverged, reason),
            (Some(Status::Oom), _) => (CellStatus::Oom, reason),
            // A signal may have come during the last step; the saved state is the same.
            (Some(Status::Interrupted), _) if self.header.until == summary.map(|summary| summary.steps) => {
                (CellStatus::Halted, None)
            }
            (_, Some(StopCause::Hang(limit))) => {
                (CellStatus::Hang, Some(format!("no row for more than {} s", limit.as_secs_f64())))
            }
            (_, Some(StopCause::Timeout(limit))) => {
                (CellStatus::Timeout, Some(format!("took more than {} s", limit.as_secs_f64())))
            }
            (_, Some(StopCause::Signal)) => {
                (CellStatus::Killed, Some("the sweep was stopped by a signal".to_owned()))
            }
            (_, Some(StopCause::Preempted)) => {
                let reason = "the batch system told the task to end, for another job or because somebody did";
                (CellStatus::Preempted, Some(reason.to_owned()))
            }
            (_, Some(StopCause::TimeLimit)) => {
                (CellStatus::TimeLimit, Some("the time of its task ended".to_owned()))
            }
            (Some(Status::Failed), None) => (CellStatus::Failed, reason),
            (Some(Status::Unsaved), None) => (CellStatus::Unsaved, reason),
            (Some(Status::Interrupted), None) => (CellStatus::Killed, reason),
            (_, None) => self.status_without_summary(end),
        }
    }

    /// Determines the status of an attempt whose run left no final summary: from the error that it printed
    /// or, without one, from its exit status and the last line of stderr.
    fn status_without_summary(&self, end: &RunEnd) -> (CellStatus, Option<String>) {
        if let Some((kind, message)) = &self.error {
            let status = match kind {
                ErrorKind::DoesNotFit => CellStatus::PredictedOom,
                ErrorKind::Unsaved => CellStatus::Unsaved,
                _ => CellStatus::Failed,
            };
            return (status, Some(message.clone()));
        }
        let Some(exit) = end.exit else {
            let ended = self.owner_ended.clone();
            let (status, reason) = ended.unwrap_or((CellStatus::Killed, ENDED_WITH_SWEEP.to_owned()));
            return (status, Some(reason));
        };
        if end.host_memory_ran_out {
            let reason = "killed when the memory of the host, or of its task, ran out";
            return (CellStatus::HostOom, Some(reason.to_owned()));
        }
        let Some(code) = exit.code() else { return (CellStatus::Killed, Some(format!("ended by {exit}"))) };
        let last = end.stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message");
        (CellStatus::Failed, Some(format!("exit code {code}: {last}")))
    }
}
