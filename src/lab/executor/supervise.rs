//! Runs whose caller waits for the end, such as trials and replays.

use super::{Executor, Limits, LocalProcesses, RunSpec, StopCause, Stopping};
use crate::error::{Error, ErrorKind, Result};
use crate::ranks::Stop;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// A run that has ended.
#[derive(Debug)]
pub struct FinishedRun {
    /// Exit status of the process.
    pub status: ExitStatus,
    /// All of stdout.
    pub stdout: String,
    /// All of stderr; empty if it was shown.
    pub stderr: String,
    /// Why the run was stopped; `None` if it ended by itself.
    pub stopped_because: Option<Error>,
}

/// Executes a run in a process of this machine until it ends, exceeds the time limit, or a signal arrives.
///
/// # Errors
/// If the run cannot be started or polled.
pub fn run_to_end(spec: &RunSpec, timeout: Option<Duration>, stop: &Stop) -> Result<FinishedRun> {
    let executor = &mut LocalProcesses::new(&spec.results, 1, stop);
    let run = executor.start(spec)?;
    let (began, mut stopping, mut stdout) = (Instant::now(), Stopping::new(true), Vec::new());
    loop {
        let polled = executor.poll(run)?;
        stdout.extend(polled.stdout);
        if let Some(end) = polled.end {
            executor.forget(run);
            let status = end.exit.ok_or_else(|| Error::failed("a run ended without an exit status"))?;
            let stdout = String::from_utf8_lossy(&stdout).into_owned();
            let stopped_because = stopping.cause().map(error);
            return Ok(FinishedRun { status, stdout, stderr: end.stderr, stopped_because });
        }
        if stop.requested() {
            stopping.request(StopCause::Signal);
        }
        stopping.enforce(Limits { hang: None, timeout }, began.elapsed(), Duration::ZERO);
        stopping.send_due(executor, run);
        executor.pause();
    }
}

fn error(cause: StopCause) -> Error {
    match cause {
        StopCause::Signal | StopCause::Preempted | StopCause::TimeLimit => {
            Error::new(ErrorKind::Interrupted, "stopped by a signal")
        }
        StopCause::Timeout(limit) | StopCause::Hang(limit) => {
            Error::failed(format!("it took more than {} s and was stopped", limit.as_secs_f64()))
        }
    }
}
