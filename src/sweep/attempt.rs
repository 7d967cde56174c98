//! One attempt at a cell: a process of this binary, which survives if the sweep is killed.
//!
//! Its stdout is a file that the sweep has locked. The lock ends with the last process that has the file
//! open, so the next sweep sees whether an attempt is still running, and continues to read its output.

mod status;

use crate::error::{Error, ErrorKind, IoContext, Result};
use crate::ranks::process::this_program;
use crate::ranks::signal_group;
use crate::results::columns::Figures;
use crate::results::folder::{METRICS, TIMING, read_summary};
use crate::results::ledger::{CellStatus, Measured, SWEEPS};
use crate::results::{Summary, own_file};
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The folder of the outputs of running attempts, in the folder of sweeps.
pub const ATTEMPTS: &str = ".attempts";

/// Time between SIGTERM and SIGKILL at the time limit: enough to finish a step and save.
const GRACE: Duration = Duration::from_secs(10);

/// Time limits of an attempt.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttemptLimits {
    /// The longest time without a new row.
    pub hang: Option<Duration>,
    /// The longest total time.
    pub timeout: Option<Duration>,
}

/// The command of an attempt.
#[derive(Debug)]
pub struct AttemptSpec<'a> {
    /// The results folder.
    pub results: &'a Path,
    /// What it trains.
    pub source: AttemptSource<'a>,
    /// Arguments on top of it.
    pub arguments: &'a [String],
    /// The step after which it saves its state and ends; `None` for the last one.
    pub until: Option<u64>,
    /// The GPUs that it uses exclusively.
    pub gpus: &'a [usize],
}

/// What an attempt trains.
#[derive(Clone, Copy, Debug)]
pub enum AttemptSource<'a> {
    /// A recipe, from step 0 on.
    Recipe {
        /// The file, or the name of a built-in recipe.
        path: &'a Path,
        /// The hash that it must have, resolved with the arguments.
        hash: &'a str,
    },
    /// A run that was stopped, from its checkpoint on.
    Run(&'a str),
    /// A new run that begins with the state of another one.
    Fork {
        /// That run.
        run: &'a str,
        /// The step of the state.
        step: u64,
        /// The hash that its recipe must have, that of the run resolved with the arguments.
        hash: &'a str,
    },
}

/// A running attempt.
#[derive(Debug)]
pub struct RunningAttempt {
    /// `None` for one that an earlier sweep started.
    process: Option<std::process::Child>,
    files: Files,
    out: File,
    /// Bytes of a line that is not complete yet.
    partial: Vec<u8>,
    /// The GPUs that it uses exclusively.
    pub gpus: Vec<usize>,
    /// The hash that its resolved recipe must have; `None` for a run that goes on.
    recipe_hash: Option<String>,
    /// The step after which it saves its state and ends.
    until: Option<u64>,
    /// `RECIPE/RUN`, once there is one.
    pub run: Option<String>,
    pid: Option<u32>,
    /// Its last step, the number of all steps, and the loss.
    pub step: Option<(u64, u64, Option<f64>)>,
    /// The error that it ended with.
    error: Option<(ErrorKind, String)>,
    began: Instant,
    /// Bytes of the row files when they last grew, and the time of that.
    rows: (u64, Instant),
    stopping: Option<Stopping>,
}

/// The reason and the state of stopping an attempt.
#[derive(Clone, Copy, Debug)]
struct Stopping {
    cause: Cause,
    since: Instant,
    sent_term: bool,
    sent_kill: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Hang(Duration),
    Timeout(Duration),
    Stopped,
}

/// The result of an attempt.
#[derive(Debug)]
pub struct AttemptResult {
    /// Its status.
    pub status: CellStatus,
    /// The reason of a status other than `ok`.
    pub reason: Option<String>,
    /// `RECIPE/RUN`, where one began.
    pub run: Option<String>,
    /// Its measured figures.
    pub measured: Measured,
}

/// A line of the output: the sweep's own first one, then those of the run.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum AttemptMessage {
    Attempt {
        gpus: Vec<usize>,
        recipe_hash: Option<String>,
        #[serde(default)]
        until: Option<u64>,
    },
    Begin {
        run: PathBuf,
        pid: u32,
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

/// The files of an attempt.
#[derive(Debug)]
struct Files {
    out: PathBuf,
    err: PathBuf,
}

impl Files {
    fn new(results: &Path, key: &str, attempt: u64) -> Self {
        let stem = format!("{}-{attempt}", &key[..key.len().min(16)]);
        let folder = results.join(SWEEPS).join(ATTEMPTS);
        Self { out: folder.join(format!("{stem}.jsonl")), err: folder.join(format!("{stem}.err")) }
    }
}

/// Returns the file to which a running attempt at the cell with this key writes a line of JSON per step; it
/// goes with the attempt.
pub fn output_of(results: &Path, key: &str, attempt: u64) -> PathBuf {
    Files::new(results, key, attempt).out
}

impl RunningAttempt {
    /// Starts an attempt.
    ///
    /// # Errors
    /// When its files cannot be written or the process cannot be started.
    pub fn start(key: &str, attempt: u64, order: &AttemptSpec<'_>) -> Result<Self> {
        let files = Files::new(order.results, key, attempt);
        let mut out = own_file::open(File::options().append(true).create(true), &files.out)?;
        // The ledger may have been deleted while a run is still writing.
        out.try_lock().map_err(|e| match e {
            TryLockError::Error(e) => Error::failed(format!("cannot lock {}: {e}", files.out.display())),
            TryLockError::WouldBlock => Error::failed(format!(
                "a run that is not in the ledger still writes to {}",
                files.out.display()
            )),
        })?;
        out.set_len(0).at("write", &files.out)?;
        let recipe_hash = match order.source {
            AttemptSource::Recipe { hash, .. } | AttemptSource::Fork { hash, .. } => Some(hash.to_owned()),
            AttemptSource::Run(_) => None,
        };
        let line = AttemptMessage::Attempt {
            gpus: order.gpus.to_vec(),
            recipe_hash: recipe_hash.clone(),
            until: order.until,
        };
        let text =
            serde_json::to_string(&line).map_err(|e| Error::failed(format!("cannot write JSON: {e}")))?;
        writeln!(out, "{text}").at("write", &files.out)?;
        let mut options = File::options();
        let err = own_file::open(options.write(true).create(true).truncate(true), &files.err)?;
        let (program, shown) = this_program()?;
        let mut command = Command::new(&program);
        command.arg("--results").arg(order.results);
        match order.source {
            AttemptSource::Recipe { path, .. } => command.arg("run").arg(path),
            AttemptSource::Run(run) => command.arg("resume").arg(order.results.join(run)),
            AttemptSource::Fork { run, step, .. } => {
                let run = order.results.join(run);
                command.arg("resume").arg(run).args(["--fork", "--at"]).arg(step.to_string())
            }
        };
        command.args(order.arguments);
        command.args(order.until.iter().flat_map(|step| ["--until".to_owned(), step.to_string()]));
        command.arg("--json").stdin(Stdio::null()).stdout(out).stderr(err);
        #[cfg(unix)]
        {
            use std::os::unix::process::CommandExt;
            // Its own process group: an interrupt from the terminal reaches only the sweep, which forwards it
            // once.
            command.arg0(&shown).process_group(0);
        }
        let process = command.spawn().at("start", &shown)?;
        // Closes this process's handle of the file.
        drop(command);
        let pid = process.id();
        Ok(Self {
            process: Some(process),
            pid: Some(pid),
            gpus: order.gpus.to_vec(),
            recipe_hash,
            until: order.until,
            ..Self::watch(files, Instant::now())?
        })
    }

    /// Attaches to an attempt that an earlier sweep started `ago`; `None` if its files are gone.
    ///
    /// # Errors
    /// If its files cannot be read.
    pub fn reattach(results: &Path, key: &str, attempt: u64, ago: Duration) -> Result<Option<Self>> {
        let files = Files::new(results, key, attempt);
        if !files.out.exists() {
            return Ok(None);
        }
        let now = Instant::now();
        let mut child = Self::watch(files, now.checked_sub(ago).unwrap_or(now))?;
        child.read_lines()?;
        Ok(Some(child))
    }

    fn watch(files: Files, began: Instant) -> Result<Self> {
        let out = File::open(&files.out).at("open", &files.out)?;
        Ok(Self {
            process: None,
            files,
            out,
            partial: Vec::new(),
            gpus: Vec::new(),
            recipe_hash: None,
            until: None,
            run: None,
            pid: None,
            step: None,
            error: None,
            began,
            rows: (0, Instant::now()),
            stopping: None,
        })
    }

    /// Returns the time since it started.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Reads its progress, stops it at a limit, and returns its result once it has ended.
    ///
    /// # Errors
    /// If its files cannot be read.
    pub fn poll(&mut self, results: &Path, limits: AttemptLimits) -> Result<Option<AttemptResult>> {
        let (ended, exit) = self.has_ended()?;
        self.read_lines()?;
        if ended {
            return Ok(Some(self.result(results, exit)));
        }
        self.watch_rows(results);
        let waited = self.rows.1.elapsed();
        let cause = match limits {
            AttemptLimits { timeout: Some(limit), .. } if self.elapsed() > limit => {
                Some(Cause::Timeout(limit))
            }
            AttemptLimits { hang: Some(limit), .. } if waited > limit => Some(Cause::Hang(limit)),
            _ => None,
        };
        if let Some(cause) = cause {
            self.request_stop(cause);
        }
        self.send_due_signals();
        Ok(None)
    }

    /// Makes it save and stop.
    pub fn stop(&mut self) {
        self.request_stop(Cause::Stopped);
        self.send_due_signals();
    }

    /// Removes its files. Call it once its result is in the ledger.
    pub fn remove_files(self) {
        // They only serve a later sweep that finds the attempt without a result.
        let _ = std::fs::remove_file(&self.files.out);
        let _ = std::fs::remove_file(&self.files.err);
    }

    fn request_stop(&mut self, cause: Cause) {
        let sent_term = match self.stopping {
            None => false,
            // An attempt may hang while it stops.
            Some(Stopping { cause: Cause::Stopped, .. }) if cause != Cause::Stopped => true,
            Some(_) => return,
        };
        self.stopping = Some(Stopping { cause, since: Instant::now(), sent_term, sent_kill: false });
    }

    /// Sends the signals that are due. An attempt that hangs cannot finish its step, so it gets SIGKILL at
    /// once.
    fn send_due_signals(&mut self) {
        let (Some(stopping), Some(pid)) = (&mut self.stopping, self.pid) else { return };
        let grace = match stopping.cause {
            Cause::Hang(_) => Duration::ZERO,
            Cause::Timeout(_) => GRACE,
            Cause::Stopped => Duration::MAX,
        };
        if !stopping.sent_term && !grace.is_zero() {
            stopping.sent_term = true;
            signal_group(pid, false);
        }
        if !stopping.sent_kill && stopping.since.elapsed() >= grace {
            stopping.sent_kill = true;
            signal_group(pid, true);
        }
    }

    /// Returns true if it has ended, with its exit status if this process is its parent.
    fn has_ended(&mut self) -> Result<(bool, Option<ExitStatus>)> {
        let Some(process) = &mut self.process else {
            return match self.out.try_lock() {
                Ok(()) => Ok((true, None)),
                Err(TryLockError::WouldBlock) => Ok((false, None)),
                Err(TryLockError::Error(e)) => Err(e).at("lock", &self.files.out),
            };
        };
        let exit = process.try_wait().map_err(|e| Error::failed(format!("cannot wait for a run: {e}")))?;
        Ok((exit.is_some(), exit))
    }

    fn read_lines(&mut self) -> Result<()> {
        self.out.read_to_end(&mut self.partial).at("read", &self.files.out)?;
        let Some(end) = self.partial.iter().rposition(|&byte| byte == b'\n') else { return Ok(()) };
        let rest = self.partial.split_off(end + 1);
        let lines = std::mem::replace(&mut self.partial, rest);
        for line in lines.split(|&byte| byte == b'\n') {
            match serde_json::from_slice(line) {
                Ok(AttemptMessage::Attempt { gpus, recipe_hash, until }) => {
                    self.gpus = gpus;
                    self.recipe_hash = recipe_hash;
                    self.until = until;
                }
                Ok(AttemptMessage::Begin { run, pid }) => {
                    self.run = name_of(&run);
                    self.pid = Some(pid);
                }
                Ok(AttemptMessage::Step { step, total_steps, loss }) => {
                    self.step = Some((step, total_steps, loss))
                }
                Ok(AttemptMessage::Error { kind, message }) => {
                    // A table has one line for it.
                    let line = message.lines().next().unwrap_or_default().to_owned();
                    self.error = Some((kind, line));
                }
                // Other messages are in the run's log.
                Ok(AttemptMessage::Other) | Err(_) => {}
            }
        }
        Ok(())
    }

    fn watch_rows(&mut self, results: &Path) {
        let Some(run) = &self.run else { return };
        let bytes = |file: &str| std::fs::metadata(results.join(run).join(file)).map_or(0, |file| file.len());
        let now = bytes(METRICS) + bytes(TIMING);
        if now != self.rows.0 {
            self.rows = (now, Instant::now());
        }
    }

    fn result(&self, results: &Path, exit: Option<ExitStatus>) -> AttemptResult {
        let summary = self.run.as_ref().and_then(|run| read_summary(&results.join(run)).ok());
        let (status, reason) = self.status(summary.as_ref(), exit);
        let measured = summary.as_ref().map(measured).unwrap_or_default();
        AttemptResult { status, reason, run: self.run.clone(), measured }
    }
}

/// Returns `RECIPE/RUN` of a run folder.
fn name_of(run: &Path) -> Option<String> {
    let recipe = run.parent()?.file_name()?.to_str()?;
    Some(format!("{recipe}/{}", run.file_name()?.to_str()?))
}

/// Returns the figures of a summary that the ledger keeps. What was not measured is blank.
fn measured(summary: &Summary) -> Measured {
    let mut figures = Figures::as_printed(summary).for_ledger();
    if summary.steps == 0 {
        figures.set("steps", None::<u64>);
    }
    Measured { figures, contended: summary.gpu.as_ref().and_then(|gpu| gpu.contended) }
}
