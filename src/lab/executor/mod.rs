//! Child runs: what one is, and the trait of whatever executes them.
//!
//! ```text
//! sweep, compare, replay ─▶ RunSpec ─▶ Executor: LocalProcesses, or Simulation in tests of schedulers
//! ```
//!
//! An executor starts runs, hands on what they print and how they end, and passes signals. Limits of time, what the
//! output means and what becomes of a result are the callers', so a new executor is one file.

mod local;
#[cfg(test)]
pub mod simulation;
mod stopping;
mod supervise;

use crate::error::Result;
pub use local::{ATTEMPTS, LocalProcesses, kept_output};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitStatus;
pub use stopping::{Limits, StopCause, Stopping};
pub use supervise::{FinishedRun, run_to_end};

/// What a child run executes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Trains a recipe from step 0 on: a file, or the name of a built-in one.
    Train(PathBuf),
    /// Continues the stopped run `RECIPE/RUN` from its last checkpoint.
    Resume(String),
    /// Starts a new run from the state that another run saved.
    Fork {
        /// The other run, `RECIPE/RUN`.
        run: String,
        /// The step of the state.
        step: u64,
    },
    /// Runs a command in a shell.
    Shell(String),
}

/// A child run.
#[derive(Clone, Debug)]
pub struct RunSpec {
    /// What it executes.
    pub task: Task,
    /// The results folder.
    pub results: PathBuf,
    /// The binary of xrun; `None` for the running one.
    pub binary: Option<PathBuf>,
    /// Arguments behind the task: settings and flags.
    pub arguments: Vec<String>,
    /// The step after which it saves its state and ends; `None` for the last one.
    pub until: Option<u64>,
    /// The GPUs that are its own.
    pub gpus: Vec<usize>,
    /// Where its output goes, and whether it may outlive this process.
    pub output: Output,
}

/// Where the output of a run goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// To files under this name, in which a later process finds the run: it survives the one that started it. The
    /// file of stdout begins with a line that says what the run is for.
    Kept {
        /// A name that no other run has.
        name: String,
        /// The first line, without its end.
        header: String,
    },
    /// To this process, at the end of the run. A second signal to this process kills the run with it.
    Captured {
        /// True if stderr is captured too, and not shown as it comes.
        stderr: bool,
    },
}

impl RunSpec {
    /// Returns the arguments of xrun that execute it, or of `sh` for a shell command.
    pub fn command_line(&self) -> Vec<OsString> {
        let mut line: Vec<OsString> = Vec::new();
        let run_folder = |run: &str| self.results.join(run).into_os_string();
        if let Task::Shell(command) = &self.task {
            return vec!["-c".into(), command.into()];
        }
        line.extend(["--results".into(), self.results.clone().into_os_string()]);
        match &self.task {
            Task::Train(recipe) => line.extend(["run".into(), recipe.clone().into_os_string()]),
            Task::Resume(run) => line.extend(["resume".into(), run_folder(run)]),
            Task::Fork { run, step } => line.extend([
                "resume".into(),
                run_folder(run),
                "--fork".into(),
                "--at".into(),
                step.to_string().into(),
            ]),
            Task::Shell(_) => {}
        }
        line.extend(self.arguments.iter().map(OsString::from));
        line.extend(self.until.iter().flat_map(|step| ["--until".into(), step.to_string().into()]));
        line
    }
}

/// The number of a run, unique within its executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub u64);

/// What is new about a run.
#[derive(Clone, Debug, Default)]
pub struct Polled {
    /// What it printed since the last poll; captured output comes whole, with the end.
    pub stdout: Vec<u8>,
    /// Its end, once there is no more to come.
    pub end: Option<RunEnd>,
}

/// The end of a run.
#[derive(Clone, Debug, Default)]
pub struct RunEnd {
    /// Its exit status; `None` for a run that another process started.
    pub exit: Option<ExitStatus>,
    /// What it printed on stderr, if that was kept or captured.
    pub stderr: String,
}

/// How a run is asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    /// After its step, with its state saved (SIGTERM).
    Save,
    /// At once (SIGKILL).
    Kill,
}

/// What an executor has for runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// GPUs, numbered from 0; each takes one run at a time.
    pub gpus: usize,
    /// Runs at once on the CPU.
    pub cpu_runs: usize,
}

/// Executes child runs.
pub trait Executor {
    /// Returns what it has for runs.
    fn capacity(&self) -> Capacity;

    /// Starts a run.
    ///
    /// # Errors
    /// If its output has no place, or it cannot be started.
    fn start(&mut self, run: &RunSpec) -> Result<RunId>;

    /// Finds a run with kept output that another process started, running or ended; `None` if its output is gone.
    ///
    /// # Errors
    /// If its output cannot be read.
    fn reattach(&mut self, name: &str) -> Result<Option<RunId>>;

    /// Returns what is new about a run, and once it has ended its end, however often it is asked.
    ///
    /// # Errors
    /// If its output or its state cannot be read.
    fn poll(&mut self, run: RunId) -> Result<Polled>;

    /// Asks a run to end. One that has ended is left alone.
    fn stop(&mut self, run: RunId, signal: StopSignal);

    /// Forgets a run that has ended, and removes its kept output. A caller that records results does so first:
    /// the output is what a later process would learn them from.
    fn forget(&mut self, run: RunId);

    /// Waits a moment between two rounds of polls.
    fn pause(&mut self);
}
