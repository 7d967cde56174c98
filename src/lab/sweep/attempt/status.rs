//! Determines the status of an ended attempt from its run's summary, signals and exit status.

use super::RunningAttempt;
use crate::error::ErrorKind;
use crate::executor::{RunEnd, StopCause};
use crate::results::ledger::CellStatus;
use crate::results::{Status, Summary};

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
        let ended = summary.map(|summary| (summary.status, summary.reason.clone()));
        // A run that ended before a signal reached it keeps its result.
        match ended {
            Some((Status::Ok, _)) => return (CellStatus::Ok, None),
            Some((Status::Diverged, reason)) => return (CellStatus::Diverged, reason),
            Some((Status::Oom, reason)) => return (CellStatus::Oom, reason),
            // A signal may have come during the last step; the saved state is the same.
            Some((Status::Interrupted, _)) if self.header.until == summary.map(|summary| summary.steps) => {
                return (CellStatus::Halted, None);
            }
            _ => {}
        }
        match self.stopping.cause() {
            Some(StopCause::Hang(limit)) => {
                let reason = format!("no row for more than {} s", limit.as_secs_f64());
                return (CellStatus::Hang, Some(reason));
            }
            Some(StopCause::Timeout(limit)) => {
                let reason = format!("took more than {} s", limit.as_secs_f64());
                return (CellStatus::Timeout, Some(reason));
            }
            Some(StopCause::Signal) => {
                return (CellStatus::Killed, Some("the sweep was stopped by a signal".to_owned()));
            }
            None => {}
        }
        match ended {
            Some((Status::Failed, reason)) => (CellStatus::Failed, reason),
            Some((Status::Unsaved, reason)) => (CellStatus::Unsaved, reason),
            Some((Status::Interrupted, reason)) => (CellStatus::Killed, reason),
            _ => self.status_without_summary(end),
        }
    }

    /// Determines the status of an attempt whose run left no final summary: from the error that it printed
    /// or, without one, from its exit status and the last line of stderr.
    fn status_without_summary(&self, end: &RunEnd) -> (CellStatus, Option<String>) {
        match (&self.error, end.exit) {
            (Some((ErrorKind::DoesNotFit, message)), _) => (CellStatus::PredictedOom, Some(message.clone())),
            (Some((ErrorKind::Unsaved, message)), _) => (CellStatus::Unsaved, Some(message.clone())),
            (Some((_, message)), _) => (CellStatus::Failed, Some(message.clone())),
            (None, Some(exit)) => match exit.code() {
                Some(code) => {
                    let last =
                        end.stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message");
                    (CellStatus::Failed, Some(format!("exit code {code}: {last}")))
                }
                None => (CellStatus::Killed, Some(format!("ended by {exit}"))),
            },
            (None, None) => (CellStatus::Killed, Some("ended with an earlier sweep".to_owned())),
        }
    }
}
