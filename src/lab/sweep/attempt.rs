//! Watches one attempt at a cell: a run that survives the death of the sweep, and the JSON lines that it
//! prints.

mod status;

pub use status::ENDED_WITH_SWEEP;

use crate::error::{Error, ErrorKind, Result};
use crate::executor::{Executor, Limits, RunEnd, RunId, RunSpec, StopCause, Stopping, kept_output};
use crate::results::Summary;
use crate::results::columns::Figures;
use crate::results::folder::{METRICS, TIMING, read_summary};
use crate::results::ledger::{CellStatus, Measured};
use crate::results::measure::rows_hash;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A running attempt.
#[derive(Debug)]
pub struct RunningAttempt {
    id: RunId,
    /// Bytes of a line that is still incomplete.
    partial: Vec<u8>,
    /// What the sweep that started the attempt wrote about it.
    pub header: Header,
    /// `RECIPE/RUN`, once the run has begun.
    pub run: Option<String>,
    /// The last step, the number of steps in all, and the loss.
    pub step: Option<(u64, u64, Option<f64>)>,
    /// The error that the run printed.
    error: Option<(ErrorKind, String)>,
    began: Instant,
    /// Bytes in the row files when they last grew, and the time at which they did.
    rows: (u64, Instant),
    stopping: Stopping,
    /// How the sweep ended that started it, and in words; `None` if it was this one.
    owner_ended: Option<(CellStatus, String)>,
}

/// What a sweep writes about an attempt before its run begins, so that another sweep can take it over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The GPUs that the attempt has to itself.
    pub gpus: Vec<usize>,
    /// The hash that the resolved recipe must have; `None` if the run is resumed.
    pub recipe_hash: Option<String>,
    /// The step after which the run saves its state and ends.
    #[serde(default)]
    pub until: Option<u64>,
}

/// The result of an attempt.
#[derive(Debug)]
pub struct AttemptResult {
    /// Its status.
    pub status: CellStatus,
    /// Why the status is not `ok`.
    pub reason: Option<String>,
    /// `RECIPE/RUN`, if a run began.
    pub run: Option<String>,
    /// BLAKE3 of its `metrics.csv`, if it has one.
    pub rows: Option<String>,
    /// The measured figures.
    pub measured: Measured,
}

impl AttemptResult {
    /// Makes the result of an attempt that left no run.
    pub fn without_run(status: CellStatus, reason: &str) -> Self {
        Self { status, reason: Some(reason.to_owned()), run: None, rows: None, measured: Measured::default() }
    }
}

/// A line of the output: first the header, then what the run prints.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Line {
    Attempt(Header),
    Begin {
        run: PathBuf,
    },
    Step {
        step: u64,
        total_steps: u64,
        loss: Option<f64>,
    },
    Error {
        kind: ErrorKind,
        message: String,
    },
    #[serde(other)]
    Other,
}

/// Returns the name under which an attempt's output is kept.
pub fn output_name(key: &str, attempt: u64) -> String {
    format!("{}-{attempt}", &key[..key.len().min(16)])
}

/// Returns the file that a running attempt writes JSON lines to, one per step. It is removed with the
/// attempt.
pub fn output_path(results: &Path, key: &str, attempt: u64) -> PathBuf {
    kept_output(results, &output_name(key, attempt))
}

impl Header {
    /// Formats the header as the first line of an attempt's output.
    ///
    /// # Errors
    /// If it cannot be written as JSON.
    pub fn line(&self) -> Result<String> {
        serde_json::to_string(&Line::Attempt(self.clone()))
            .map_err(|e| Error::failed(format!("cannot write JSON: {e}")))
    }
}

impl RunningAttempt {
    /// Starts an attempt.
    ///
    /// # Errors
    /// If the run cannot be started.
    pub fn start(executor: &mut dyn Executor, header: Header, spec: &RunSpec) -> Result<Self> {
        let id = executor.start(spec)?;
        Ok(Self { header, ..Self::new(id, Instant::now()) })
    }

    /// Attaches to an attempt that another sweep started `ago`, and reads what it has printed so far, the
    /// header first. `None` if its output is gone. `owner_ended` tells how that sweep ended, in case that the
    /// run ended with it.
    ///
    /// # Errors
    /// If the output cannot be read.
    pub fn reattach(
        executor: &mut dyn Executor,
        name: &str,
        ago: Duration,
        owner_ended: &(CellStatus, String),
    ) -> Result<Option<Self>> {
        let now = Instant::now();
        let Some(id) = executor.reattach(name)? else { return Ok(None) };
        let mut attempt = Self::new(id, now.checked_sub(ago).unwrap_or(now));
        attempt.owner_ended = Some(owner_ended.clone());
        attempt.read(&executor.poll(id)?.stdout);
        Ok(Some(attempt))
    }

    fn new(id: RunId, began: Instant) -> Self {
        Self {
            id,
            partial: Vec::new(),
            header: Header::default(),
            run: None,
            step: None,
            error: None,
            began,
            rows: (0, Instant::now()),
            stopping: Stopping::new(false),
            owner_ended: None,
        }
    }

    /// Returns the time since the attempt started.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Reads the attempt's progress, stops it at a limit, and returns its result once it has ended.
    ///
    /// # Errors
    /// If the output cannot be read.
    pub fn poll(
        &mut self,
        executor: &mut dyn Executor,
        results: &Path,
        limits: Limits,
    ) -> Result<Option<AttemptResult>> {
        let polled = executor.poll(self.id)?;
        self.read(&polled.stdout);
        if let Some(end) = polled.end {
            return Ok(Some(self.result(results, &end)));
        }
        self.watch_rows(results);
        self.stopping.enforce(limits, self.elapsed(), self.rows.1.elapsed());
        self.stopping.send_due(executor, self.id);
        Ok(None)
    }

    /// Asks the run to save its state and end, because this process was told to stop.
    pub fn stop(&mut self, cause: StopCause, executor: &mut dyn Executor) {
        self.stopping.request(cause);
        self.stopping.send_due(executor, self.id);
    }

    /// Removes the attempt's output. Call it after its result is in the ledger.
    pub fn forget(self, executor: &mut dyn Executor) {
        executor.forget(self.id);
    }

    fn read(&mut self, stdout: &[u8]) {
        self.partial.extend(stdout);
        let Some(end) = self.partial.iter().rposition(|&byte| byte == b'\n') else { return };
        let rest = self.partial.split_off(end + 1);
        let lines = std::mem::replace(&mut self.partial, rest);
        for line in lines.split(|&byte| byte == b'\n') {
            match serde_json::from_slice(line) {
                Ok(Line::Attempt(header)) => self.header = header,
                Ok(Line::Begin { run }) => self.run = name_of(&run),
                Ok(Line::Step { step, total_steps, loss }) => self.step = Some((step, total_steps, loss)),
                Ok(Line::Error { kind, message }) => {
                    // A table shows one line.
                    let line = message.lines().next().unwrap_or_default().to_owned();
                    self.error = Some((kind, line));
                }
                // Other lines are in the run's log.
                Ok(Line::Other) | Err(_) => {}
            }
        }
    }

    fn watch_rows(&mut self, results: &Path) {
        let Some(run) = &self.run else { return };
        let bytes = |file: &str| std::fs::metadata(results.join(run).join(file)).map_or(0, |file| file.len());
        let now = bytes(METRICS) + bytes(TIMING);
        if now != self.rows.0 {
            self.rows = (now, Instant::now());
        }
    }

    fn result(&self, results: &Path, end: &RunEnd) -> AttemptResult {
        let summary = self.run.as_ref().and_then(|run| read_summary(&results.join(run)).ok());
        let (status, reason) = self.status(summary.as_ref(), end);
        let measured = summary.as_ref().map(measured).unwrap_or_default();
        let rows = self.run.as_ref().and_then(|run| rows_hash(&results.join(run)).ok());
        AttemptResult { status, reason, run: self.run.clone(), rows, measured }
    }
}

/// Returns `RECIPE/RUN` for a run's folder.
fn name_of(run: &Path) -> Option<String> {
    let recipe = run.parent()?.file_name()?.to_str()?;
    Some(format!("{recipe}/{}", run.file_name()?.to_str()?))
}

/// Returns the figures of a summary that the ledger keeps; figures that were not measured are blank.
pub fn measured(summary: &Summary) -> Measured {
    let mut figures = Figures::as_printed(summary).for_ledger();
    if summary.steps == 0 {
        figures.set("steps", None::<u64>);
    }
    Measured { figures, contended: summary.gpu.as_ref().and_then(|gpu| gpu.contended) }
}
