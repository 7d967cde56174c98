//! Runs child runs as processes of this machine, each in its own process group.
//!
//! A run with kept output survives this process. It holds a lock on its stdout file, and the lock ends with
//! the last process that has the file open. A later process can therefore tell whether the run is still
//! going, and reads on.

use super::{Capacity, Executor, Output, Polled, RunEnd, RunId, RunSpec, StopSignal, Task};
use crate::device::cuda;
use crate::error::{Error, IoContext, Result};
use crate::machine::host_memory::oom_kills;
use crate::ranks::process::own_program;
use crate::ranks::{KilledTogether, Stop, signal_group};
use crate::regular;
use crate::results::names::SWEEPS;
use serde::Deserialize;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use tempfile::NamedTempFile;

/// The folder of kept outputs, inside the sweeps folder.
pub const ATTEMPTS: &str = ".attempts";

/// Time between two rounds of polls.
const TICK: Duration = Duration::from_millis(20);

/// The signal with which the kernel kills a process when memory runs out.
const SIGKILL: i32 = 9;

/// Executes runs as processes of this machine.
#[derive(Debug)]
pub struct LocalProcesses {
    results: PathBuf,
    /// Counted on first use, so that a trial leaves the GPUs alone.
    gpus: OnceCell<usize>,
    cpu_runs: usize,
    stop: Stop,
    runs: BTreeMap<RunId, LocalRun>,
    next: u64,
}

/// A process that this executor started or found.
#[derive(Debug)]
struct LocalRun {
    /// `None` if another process started it.
    process: Option<Child>,
    /// How many processes had been killed for memory when it started.
    oom_kills_before: Option<u64>,
    stdout: File,
    stderr: Stderr,
    /// True after a stop was requested.
    stop_requested: bool,
    _killed_together: Option<KilledTogether>,
}

/// Where the stderr of a process goes.
#[derive(Debug)]
enum Stderr {
    /// To a file beside the kept stdout, whose path this is.
    Kept(PathBuf),
    Captured(File),
    Shown,
}

/// Returns the file of a run's kept stdout, which is removed once the run's result is recorded.
pub fn kept_output(results: &Path, name: &str) -> PathBuf {
    results.join(SWEEPS).join(ATTEMPTS).join(format!("{name}.jsonl"))
}

/// Returns the file of the stderr beside a kept stdout.
fn kept_stderr(stdout: &Path) -> PathBuf {
    stdout.with_extension("err")
}

impl LocalProcesses {
    /// Creates an executor for the runs of a results folder: `cpu_runs` at once on the CPU, and one on each
    /// GPU.
    pub fn new(results: &Path, cpu_runs: usize, stop: &Stop) -> Self {
        let (results, gpus) = (results.to_owned(), OnceCell::new());
        Self { results, gpus, cpu_runs, stop: stop.clone(), runs: BTreeMap::new(), next: 0 }
    }

    fn add(&mut self, run: LocalRun) -> RunId {
        let id = RunId(self.next);
        self.next += 1;
        self.runs.insert(id, run);
        id
    }

    fn run(&mut self, id: RunId) -> Result<&mut LocalRun> {
        self.runs.get_mut(&id).ok_or_else(|| Error::failed(format!("run {} was forgotten", id.0)))
    }
}

/// Creates and locks the files of a kept output. Returns stdout and stderr, open for writing.
fn create_kept(path: &Path, header: &str) -> Result<[File; 2]> {
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder).at("create", folder)?;
    let mut out = regular::open_own(File::options().append(true).create(true), path)?;
    // The ledger may have been deleted while one of its runs still writes.
    match out.try_lock() {
        Ok(()) => {}
        Err(TryLockError::Error(e)) => return Err(e).at("lock", path).map_err(Error::with_advice),
        Err(TryLockError::WouldBlock) => {
            let path = path.display();
            return Err(Error::failed(format!("a run that is not in the ledger still writes to {path}")));
        }
    }
    out.set_len(0).at("write", path)?;
    writeln!(out, "{header}").at("write", path)?;
    let errors = kept_stderr(path);
    Ok([out, regular::open_own(File::options().write(true).create(true).truncate(true), &errors)?])
}

/// Returns an unnamed file, opened for reading and for appending. A pipe would stay open as long as any
/// descendant of the run holds it.
fn captured() -> std::io::Result<[File; 2]> {
    let named = NamedTempFile::new()?;
    Ok([named.reopen()?, File::options().append(true).open(named.path())?])
}

/// Returns the command of a run, and the program's name for error messages.
fn command(spec: &RunSpec) -> Result<(Command, String)> {
    use std::os::unix::process::CommandExt;
    let (mut command, shown) = match (&spec.task, &spec.binary) {
        (Task::Shell(_), _) => (Command::new("sh"), "sh".to_owned()),
        (_, Some(binary)) => (Command::new(binary), binary.display().to_string()),
        (_, None) => {
            let (program, shown) = own_program()?;
            let mut command = Command::new(program);
            command.arg0(&shown);
            (command, shown.display().to_string())
        }
    };
    // A signal to the group reaches all its members. Ctrl-C in the terminal reaches only this process, which
    // passes it on once.
    command.args(spec.command_line()).stdin(Stdio::null()).process_group(0);
    Ok((command, shown))
}

impl Executor for LocalProcesses {
    fn capacity(&self) -> Capacity {
        let gpus = *self.gpus.get_or_init(|| cuda::usable().unwrap_or_default());
        Capacity { gpus, cpu_runs: self.cpu_runs }
    }

    fn start(&mut self, spec: &RunSpec) -> Result<RunId> {
        let (mut command, shown) = command(spec)?;
        let failed = |what: &str, e: std::io::Error| Error::failed(format!("cannot {what} {shown}: {e}"));
        let capture = || captured().map_err(|e| failed("create a file for the output of", e));
        let (stdout, stderr) = match &spec.output {
            Output::Kept { name, header } => {
                let path = kept_output(&self.results, name);
                let [out, err] = create_kept(&path, header)?;
                command.stdout(out).stderr(err);
                (regular::open(&path)?, Stderr::Kept(path))
            }
            Output::Captured { stderr } => {
                let [stdout, to_stdout] = capture()?;
                command.stdout(to_stdout);
                let shown_or_captured = if *stderr {
                    let [stderr, to_stderr] = capture()?;
                    command.stderr(to_stderr);
                    Stderr::Captured(stderr)
                } else {
                    Stderr::Shown
                };
                (stdout, shown_or_captured)
            }
        };
        let oom_kills_before = oom_kills();
        let process = command.spawn().map_err(|e| failed("start", e))?;
        let is_captured = matches!(spec.output, Output::Captured { .. });
        let killed_together = is_captured.then(|| self.stop.kill_together(process.id()));
        let process = Some(process);
        Ok(self.add(LocalRun {
            process,
            oom_kills_before,
            stdout,
            stderr,
            stop_requested: false,
            _killed_together: killed_together,
        }))
    }

    fn reattach(&mut self, name: &str) -> Result<Option<RunId>> {
        let path = kept_output(&self.results, name);
        if !path.exists() {
            return Ok(None);
        }
        let (stdout, stderr) = (regular::open(&path)?, Stderr::Kept(path));
        let run = LocalRun {
            process: None,
            oom_kills_before: None,
            stdout,
            stderr,
            stop_requested: false,
            _killed_together: None,
        };
        Ok(Some(self.add(run)))
    }

    fn poll(&mut self, run: RunId) -> Result<Polled> {
        let run = self.run(run)?;
        let (has_ended, exit) = run.has_ended()?;
        let mut polled = Polled::default();
        if has_ended || matches!(run.stderr, Stderr::Kept(_)) {
            read_present(&mut run.stdout, &mut polled.stdout)?;
        }
        if has_ended {
            run.kill_descendants();
            let mut stderr = Vec::new();
            match &mut run.stderr {
                Stderr::Kept(stdout) => {
                    stderr = regular::read(&kept_stderr(stdout), regular::MAX_TEXT).unwrap_or_default()
                }
                Stderr::Captured(file) => read_present(file, &mut stderr)?,
                Stderr::Shown => {}
            }
            let was_killed = exit.is_some_and(|exit| exit.signal() == Some(SIGKILL));
            polled.end = Some(RunEnd {
                exit,
                stderr: String::from_utf8_lossy(&stderr).into_owned(),
                host_memory_ran_out: was_killed && oom_kills() > run.oom_kills_before,
            });
        }
        Ok(polled)
    }

    fn stop(&mut self, run: RunId, signal: StopSignal) {
        let Ok(run) = self.run(run) else { return };
        run.stop_requested = true;
        if let Some(group) = run.group() {
            signal_group(group, signal == StopSignal::Kill);
        }
    }

    fn forget(&mut self, run: RunId) {
        if let Some(LocalRun { stderr: Stderr::Kept(stdout), .. }) = self.runs.remove(&run) {
            // The files only serve a later process that finds the run without a result.
            let _ = std::fs::remove_file(&stdout);
            let _ = std::fs::remove_file(kept_stderr(&stdout));
        }
    }

    fn pause(&mut self) {
        std::thread::sleep(TICK);
    }
}

/// Reads what the file holds now. Descendants that outlive the run may keep writing to it.
fn read_present(file: &mut File, to: &mut Vec<u8>) -> Result<()> {
    let length = file.metadata().map(|file| file.len());
    let read = length.and_then(|length| file.take(length).read_to_end(to));
    read.map(drop).map_err(|e| Error::failed(format!("cannot read the output of a run: {e}")))
}

impl LocalRun {
    /// Returns whether the process has ended, and its exit status if this process is its parent.
    fn has_ended(&mut self) -> Result<(bool, Option<ExitStatus>)> {
        let Some(process) = &mut self.process else {
            // A shared lock, because NFS gives an exclusive one only on a file that is open for writing.
            return match self.stdout.try_lock_shared() {
                Ok(()) => Ok((true, None)),
                Err(TryLockError::WouldBlock) => Ok((false, None)),
                Err(TryLockError::Error(e)) => {
                    Err(Error::failed(format!("cannot lock the output of a run: {e}")))
                }
            };
        };
        let exit = process.try_wait().map_err(|e| Error::failed(format!("cannot wait for a run: {e}")))?;
        Ok((exit.is_some(), exit))
    }

    /// Returns the id of the process group. For a run that was found, it is the pid in its output.
    fn group(&self) -> Option<u32> {
        if let Some(process) = &self.process {
            return Some(process.id());
        }
        #[derive(Deserialize)]
        struct Begin {
            pid: u32,
        }
        let Stderr::Kept(stdout) = &self.stderr else { return None };
        let output = regular::read_text(stdout).ok()?;
        output.lines().find_map(|line| serde_json::from_str::<Begin>(line).ok()).map(|begin| begin.pid)
    }

    /// Kills the descendants of a captured run that was told to end: they may have ignored the signal.
    fn kill_descendants(&self) {
        if let (true, Some(process), false) =
            (self.stop_requested, &self.process, matches!(self.stderr, Stderr::Kept(_)))
        {
            signal_group(process.id(), true);
        }
    }
}
