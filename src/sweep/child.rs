//! One attempt at a cell: a process of this binary, which lives on where the sweep is killed.
//!
//! What it prints goes to a file that the sweep locked and handed down as its stdout. The lock ends with the last
//! process that has the file open, so the next sweep sees whether an attempt still lives, and reads on from where it is.

use crate::error::{Error, IoContext, Result};
use crate::ranks::process::this_program;
use crate::ranks::signal_group;
use crate::results::columns::Figures;
use crate::results::folder::{METRICS, TIMING, read_summary};
use crate::results::ledger::{CellStatus, Measured, SWEEPS};
use crate::results::{Status, Summary};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What attempts under way print, in the folder of sweeps.
pub const ATTEMPTS: &str = ".attempts";

/// How long a process that was asked to stop for taking too long may finish its step and save.
const GRACE: Duration = Duration::from_secs(10);

/// How long an attempt may take.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Without a new row.
    pub hang: Option<Duration>,
    /// In all.
    pub timeout: Option<Duration>,
}

/// What an attempt is to run.
#[derive(Debug)]
pub struct Order<'a> {
    /// The results folder.
    pub results: &'a Path,
    /// The recipe.
    pub recipe: &'a Path,
    /// Its arguments.
    pub arguments: &'a [String],
    /// The GPUs that it has to itself.
    pub gpus: &'a [usize],
    /// The hash that its resolved recipe must have.
    pub recipe_hash: &'a str,
}

/// An attempt under way.
#[derive(Debug)]
pub struct Child {
    /// `None` for one that an earlier sweep began.
    process: Option<std::process::Child>,
    files: Files,
    out: File,
    /// What was read of a line that has no end yet.
    partial: Vec<u8>,
    /// The GPUs that it has to itself.
    pub gpus: Vec<usize>,
    recipe_hash: String,
    /// `RECIPE/RUN`, once there is one.
    pub run: Option<String>,
    pid: Option<u32>,
    /// Its last step, of how many, and the loss.
    pub step: Option<(u64, u64, Option<f64>)>,
    began: Instant,
    /// Bytes of rows when they last changed, and when that was.
    rows: (u64, Instant),
    ending: Option<Ending>,
}

/// Why and since when an attempt is being ended.
#[derive(Clone, Copy, Debug)]
struct Ending {
    cause: Cause,
    since: Instant,
    asked: bool,
    killed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Hang(Duration),
    Timeout(Duration),
    Stopped,
}

/// How an attempt ended.
#[derive(Debug)]
pub struct Verdict {
    /// In a word.
    pub status: CellStatus,
    /// Why, where it is not `ok`.
    pub reason: Option<String>,
    /// `RECIPE/RUN`, where one began.
    pub run: Option<String>,
    /// What it measured.
    pub measured: Measured,
}

/// A line of the file: the sweep's own first one, then the run's.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Line {
    Attempt {
        gpus: Vec<usize>,
        recipe_hash: String,
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
    fn of(results: &Path, key: &str, attempt: u64) -> Self {
        let stem = format!("{}-{attempt}", &key[..key.len().min(16)]);
        let folder = results.join(SWEEPS).join(ATTEMPTS);
        Self { out: folder.join(format!("{stem}.jsonl")), err: folder.join(format!("{stem}.err")) }
    }
}

impl Child {
    /// Starts an attempt.
    ///
    /// # Errors
    /// When its files cannot be written or the process cannot be started.
    pub fn start(key: &str, attempt: u64, order: &Order<'_>) -> Result<Self> {
        let files = Files::of(order.results, key, attempt);
        let mut out =
            OpenOptions::new().append(true).create(true).open(&files.out).at("create", &files.out)?;
        // Somebody may have removed the ledger and left a run behind.
        out.try_lock().map_err(|e| match e {
            TryLockError::Error(e) => Error::failed(format!("cannot lock {}: {e}", files.out.display())),
            TryLockError::WouldBlock => {
                Error::failed(format!("a run that is in no ledger still writes to {}", files.out.display()))
            }
        })?;
        out.set_len(0).at("write", &files.out)?;
        let line = Line::Attempt { gpus: order.gpus.to_vec(), recipe_hash: order.recipe_hash.to_owned() };
        let text =
            serde_json::to_string(&line).map_err(|e| Error::failed(format!("cannot write JSON: {e}")))?;
        writeln!(out, "{text}").at("write", &files.out)?;
        let err = File::create(&files.err).at("create", &files.err)?;
        let (program, shown) = this_program()?;
        let mut command = Command::new(&program);
        command.arg("--results").arg(order.results).arg("run").arg(order.recipe).args(order.arguments);
        command.arg("--json").stdin(Stdio::null()).stdout(out).stderr(err);
        #[cfg(unix)]
        {
            use std::os::unix::process::CommandExt;
            // A group of its own: an interrupt from the keyboard is for the sweep, which passes it on once.
            command.arg0(&shown).process_group(0);
        }
        let process = command.spawn().at("start", &shown)?;
        // With the command goes this process's hold of the file.
        drop(command);
        let pid = process.id();
        Ok(Self {
            process: Some(process),
            pid: Some(pid),
            gpus: order.gpus.to_vec(),
            recipe_hash: order.recipe_hash.to_owned(),
            ..Self::watch(files, Instant::now())?
        })
    }

    /// Takes over an attempt of an earlier sweep; `None` where nothing of it is left. `ago` is how long ago it began.
    ///
    /// # Errors
    /// When its files cannot be read.
    pub fn adopt(results: &Path, key: &str, attempt: u64, ago: Duration) -> Result<Option<Self>> {
        let files = Files::of(results, key, attempt);
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
            recipe_hash: String::new(),
            run: None,
            pid: None,
            step: None,
            began,
            rows: (0, Instant::now()),
            ending: None,
        })
    }

    /// How long it has been under way.
    pub fn took(&self) -> Duration {
        self.began.elapsed()
    }

    /// Sees how far it is, ends it where it takes too long, and says how it ended once it has.
    ///
    /// # Errors
    /// When its files cannot be read.
    pub fn poll(&mut self, results: &Path, limits: Limits) -> Result<Option<Verdict>> {
        let (over, exit) = self.is_over()?;
        self.read_lines()?;
        if over {
            return Ok(Some(self.judge(results, exit)));
        }
        self.watch_rows(results);
        let waited = self.rows.1.elapsed();
        let cause = match limits {
            Limits { timeout: Some(limit), .. } if self.took() > limit => Some(Cause::Timeout(limit)),
            Limits { hang: Some(limit), .. } if waited > limit => Some(Cause::Hang(limit)),
            _ => None,
        };
        if let Some(cause) = cause {
            self.end(cause);
        }
        self.push_on();
        Ok(None)
    }

    /// Asks it to save and stop.
    pub fn stop(&mut self) {
        self.end(Cause::Stopped);
        self.push_on();
    }

    /// Removes its files. Call it once its end is in the ledger.
    pub fn forget(self) {
        // They only serve a sweep that finds the attempt without an end.
        let _ = std::fs::remove_file(&self.files.out);
        let _ = std::fs::remove_file(&self.files.err);
    }

    fn end(&mut self, cause: Cause) {
        let asked = match self.ending {
            None => false,
            // One that was asked to stop may hang over it.
            Some(Ending { cause: Cause::Stopped, .. }) if cause != Cause::Stopped => true,
            Some(_) => return,
        };
        self.ending = Some(Ending { cause, since: Instant::now(), asked, killed: false });
    }

    /// Sends the signals that are due. One that hangs finishes no step, so it is not asked first.
    fn push_on(&mut self) {
        let (Some(ending), Some(pid)) = (&mut self.ending, self.pid) else { return };
        let patience = match ending.cause {
            Cause::Hang(_) => Duration::ZERO,
            Cause::Timeout(_) => GRACE,
            Cause::Stopped => Duration::MAX,
        };
        if !ending.asked && !patience.is_zero() {
            ending.asked = true;
            signal_group(pid, false);
        }
        if !ending.killed && ending.since.elapsed() >= patience {
            ending.killed = true;
            signal_group(pid, true);
        }
    }

    /// Whether it is over, and how it ended where this process is its parent.
    fn is_over(&mut self) -> Result<(bool, Option<ExitStatus>)> {
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
                Ok(Line::Attempt { gpus, recipe_hash }) => {
                    self.gpus = gpus;
                    self.recipe_hash = recipe_hash;
                }
                Ok(Line::Begin { run, pid }) => {
                    self.run = name_of(&run);
                    self.pid = Some(pid);
                }
                Ok(Line::Step { step, total_steps, loss }) => self.step = Some((step, total_steps, loss)),
                // What else a run says is in its log.
                Ok(Line::Other) | Err(_) => {}
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

    fn judge(&self, results: &Path, exit: Option<ExitStatus>) -> Verdict {
        let summary = self.run.as_ref().and_then(|run| read_summary(&results.join(run)).ok());
        let (status, reason) = self.status(summary.as_ref(), exit);
        let measured = summary.as_ref().map(measured).unwrap_or_default();
        Verdict { status, reason, run: self.run.clone(), measured }
    }

    fn status(&self, summary: Option<&Summary>, exit: Option<ExitStatus>) -> (CellStatus, Option<String>) {
        let changed = summary.is_some_and(|summary| summary.recipe_hash != self.recipe_hash);
        if changed {
            let reason = "the recipe was changed while the sweep ran; run the sweep again";
            return (CellStatus::Failed, Some(reason.to_owned()));
        }
        let ended = summary.map(|summary| (summary.status, summary.reason.clone()));
        // A run that came to its own end before a signal reached it keeps its result.
        match ended {
            Some((Status::Ok, _)) => return (CellStatus::Ok, None),
            Some((Status::Diverged, reason)) => return (CellStatus::Diverged, reason),
            Some((Status::Oom, reason)) => return (CellStatus::Oom, reason),
            _ => {}
        }
        match self.ending.map(|ending| ending.cause) {
            Some(Cause::Hang(limit)) => {
                let reason = format!("no row for more than {} s", limit.as_secs_f64());
                return (CellStatus::Hang, Some(reason));
            }
            Some(Cause::Timeout(limit)) => {
                let reason = format!("took more than {} s", limit.as_secs_f64());
                return (CellStatus::Timeout, Some(reason));
            }
            Some(Cause::Stopped) => {
                return (CellStatus::Killed, Some("the sweep was stopped by a signal".to_owned()));
            }
            None => {}
        }
        match ended {
            Some((Status::Failed, reason)) => (CellStatus::Failed, reason),
            Some((Status::Interrupted, reason)) => (CellStatus::Killed, reason),
            _ => self.without_a_word(exit),
        }
    }

    /// The status of an attempt whose run does not say how it ended.
    fn without_a_word(&self, exit: Option<ExitStatus>) -> (CellStatus, Option<String>) {
        let said = std::fs::read(&self.files.err).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let error = said.lines().find_map(|line| line.strip_prefix("error: ")).map(str::to_owned);
        match exit {
            Some(exit) => match (exit.code(), error) {
                (Some(4), error) => (CellStatus::PredictedOom, error),
                (Some(code), error) => {
                    let last = said.lines().rfind(|line| !line.trim().is_empty());
                    let last = last.unwrap_or("nothing was said");
                    (CellStatus::Failed, Some(error.unwrap_or_else(|| format!("exit code {code}: {last}"))))
                }
                (None, _) => (CellStatus::Killed, Some(format!("ended by {exit}"))),
            },
            None if error.is_some() => (CellStatus::Failed, error),
            None => (CellStatus::Killed, Some("ended with an earlier sweep".to_owned())),
        }
    }
}

/// `RECIPE/RUN` of a run folder.
fn name_of(run: &Path) -> Option<String> {
    let recipe = run.parent()?.file_name()?.to_str()?;
    Some(format!("{recipe}/{}", run.file_name()?.to_str()?))
}

/// What a summary says that belongs in the ledger. What was not measured is blank.
fn measured(summary: &Summary) -> Measured {
    let mut figures = Figures::as_printed(summary).for_ledger();
    if summary.steps == 0 {
        figures.set("steps", None::<u64>);
    }
    Measured { figures, contended: summary.gpu.as_ref().and_then(|gpu| gpu.contended) }
}
