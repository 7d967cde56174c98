//! Child runs, and the trait that executes them.
//!
//! ```text
//! sweep, compare, replay ─▶ RunSpec ─▶ Executor: LocalProcesses, or Simulation in tests of schedulers
//! ```
//!
//! An executor starts runs, returns their output and exit status, and passes on signals. The callers set time
//! limits, interpret the output and use the results, so a new executor needs only one file.

pub mod batch_system;
mod local;
mod settings;
#[cfg(test)]
pub mod simulation;
mod slurm;
mod ssh;
mod stopping;
mod supervise;

use crate::error::Result;
use batch_system::{BatchSystem, SystemRecord};
pub use local::{ATTEMPTS, LocalProcesses, kept_output};
pub use settings::{SlurmSettings, SshSettings, TaskSettings};
pub use slurm::Slurm;
pub use ssh::Ssh;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitStatus;
pub use stopping::{Limits, StopCause, Stopping};
pub use supervise::{FinishedRun, run_to_end};

/// Returns the batch system of a submission, for jobs whose files are in these folders. `ssh_command` is the
/// command of the user's own settings.
pub fn recorded_system(
    record: &SystemRecord,
    folders: Vec<PathBuf>,
    ssh_command: &[String],
) -> Box<dyn BatchSystem> {
    match record {
        SystemRecord::Slurm => Box::new(Slurm::new(SlurmSettings::default())),
        SystemRecord::Ssh(settings) => Box::new(Ssh::recorded(settings.clone(), folders, ssh_command)),
    }
}

/// What a child run executes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Trains a recipe from step 0; the recipe is a file or the name of a built-in one.
    Train(PathBuf),
    /// Continues the stopped run `RECIPE/RUN` from its last checkpoint.
    Resume(String),
    /// Starts a new run from a state saved by another run.
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
    /// What the run executes.
    pub task: Task,
    /// The results folder.
    pub results: PathBuf,
    /// The xrun binary; `None` for the one that is running.
    pub binary: Option<PathBuf>,
    /// Arguments after the task: settings and flags.
    pub arguments: Vec<String>,
    /// The step after which the run saves its state and ends; `None` for the last one.
    pub until: Option<u64>,
    /// Where the output goes, and whether the run may outlive this process.
    pub output: Output,
}

/// Where the output of a run goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// To files with this name. The run survives the process that started it, and a later process finds it by
    /// the name. The first line of the stdout file says what the run is for.
    Kept {
        /// A name that is unique among runs.
        name: String,
        /// The first line, without a line break.
        header: String,
    },
    /// To this process, when the run ends. A second signal to this process also kills the run.
    Captured {
        /// True if stderr is captured as well; otherwise it is shown as it arrives.
        stderr: bool,
    },
}

impl RunSpec {
    /// Returns the arguments that make xrun execute the run; for a shell command, the arguments of `sh`.
    pub fn command_line(&self) -> Vec<OsString> {
        let mut line: Vec<OsString> = vec!["--results".into(), self.results.clone().into()];
        let resume = |run: &str| -> [OsString; 2] { ["resume".into(), self.results.join(run).into()] };
        match &self.task {
            Task::Shell(command) => return vec!["-c".into(), command.into()],
            Task::Train(recipe) => line.extend(["run".into(), recipe.clone().into()]),
            Task::Resume(run) => line.extend(resume(run)),
            Task::Fork { run, step } => {
                line.extend(resume(run));
                line.extend(["--fork".into(), "--at".into(), step.to_string().into()]);
            }
        }
        line.extend(self.arguments.iter().map(OsString::from));
        line.extend(self.until.iter().flat_map(|step| ["--until".into(), step.to_string().into()]));
        line
    }
}

/// The number of a run, unique within its executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub u64);

/// The news about a run since the last poll.
#[derive(Clone, Debug, Default)]
pub struct Polled {
    /// Its new output. Captured output arrives in one piece when the run ends.
    pub stdout: Vec<u8>,
    /// The end of the run, when no more output will come.
    pub end: Option<RunEnd>,
}

/// The end of a run.
#[derive(Clone, Debug, Default)]
pub struct RunEnd {
    /// The exit status; `None` for a run that another process started.
    pub exit: Option<ExitStatus>,
    /// What the run printed to stderr, if it was kept or captured.
    pub stderr: String,
    /// True if it was killed while the memory of the host had run out.
    pub host_memory_ran_out: bool,
}

/// How a run is asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    /// After the current step, with its state saved (SIGTERM).
    Save,
    /// At once (SIGKILL).
    Kill,
}

/// How many runs an executor takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// GPUs, numbered from 0; each takes one run at a time.
    pub gpus: usize,
    /// Runs at once on the CPU.
    pub cpu_runs: usize,
}

/// Executes child runs.
pub trait Executor {
    /// Returns how many runs fit at once.
    fn capacity(&self) -> Capacity;

    /// Starts a run.
    ///
    /// # Errors
    /// If the output files cannot be created, or the run cannot be started.
    fn start(&mut self, run: &RunSpec) -> Result<RunId>;

    /// Finds a run with kept output that another process started, whether it is running or has ended. Returns
    /// `None` if its output is gone.
    ///
    /// # Errors
    /// If the output cannot be read.
    fn reattach(&mut self, name: &str) -> Result<Option<RunId>>;

    /// Returns the output since the last poll and, on every poll after the end, how the run ended.
    ///
    /// # Errors
    /// If the output or the state of the run cannot be read.
    fn poll(&mut self, run: RunId) -> Result<Polled>;

    /// Asks a run to end. Does nothing if it has ended.
    fn stop(&mut self, run: RunId, signal: StopSignal);

    /// Forgets a run that has ended, and removes its kept output. Record the results first: without the
    /// output, a later process could not learn them.
    fn forget(&mut self, run: RunId);

    /// Waits a moment before the next round of polls.
    fn pause(&mut self);
}
