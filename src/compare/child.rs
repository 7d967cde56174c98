//! The process of a trial or a replay: runs it, captures its output, and stops it at the time limit or at a
//! signal.

use crate::error::{Error, ErrorKind, Result};
use crate::ranks::{Stop, signal_group};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(10);

/// Time between two polls of a process.
const INTERVAL: Duration = Duration::from_millis(20);

/// Limits on a process.
#[derive(Clone, Copy, Debug)]
pub struct TrialLimits<'a> {
    /// Time limit.
    pub timeout: Option<Duration>,
    /// Signals to this process, which stop the child.
    pub stop: &'a Stop,
}

/// A process that has ended.
#[derive(Debug)]
pub struct FinishedProcess {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its stdout.
    pub stdout: String,
    /// Its stderr; empty if inherited.
    pub stderr: String,
    /// The reason for stopping it; `None` if it ended by itself.
    pub stopped_because: Option<Error>,
}

/// Destination of a process's stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stderr {
    /// The stderr of this process.
    Inherited,
    /// [`FinishedProcess::stderr`].
    Captured,
}

/// Runs a command to its end. At a limit, its process group gets SIGTERM, and SIGKILL after [`GRACE`].
///
/// # Errors
/// If it cannot be started or waited for.
pub fn run(command: &mut Command, stderr: Stderr, limits: TrialLimits<'_>) -> Result<FinishedProcess> {
    let shown = command.get_program().to_string_lossy().into_owned();
    let failed = |what: &str, e: std::io::Error| Error::failed(format!("cannot {what} {shown}: {e}"));
    // Files, because a pipe stays open while any descendant holds its write end, even after the process has
    // ended.
    let file = || output_file().map_err(|e| failed("create a file for the output of", e));
    let ((out, to_out), (err, to_err)) = (file()?, file()?);
    command.stdin(Stdio::null()).stdout(to_out);
    if stderr == Stderr::Captured {
        command.stderr(to_err);
    }
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt;
        // A process group can be killed with all of its members; signals of the terminal are passed on.
        command.process_group(0);
    }
    let mut process = command.spawn().map_err(|e| failed("start", e))?;
    // A second signal ends this process at once, and the child with it.
    let _tied = limits.stop.kill_together(process.id());
    let began = Instant::now();
    let mut stopped: Option<(Error, Instant)> = None;
    let status = loop {
        if let Some(status) = process.try_wait().map_err(|e| failed("wait for", e))? {
            break status;
        }
        match &stopped {
            None => {
                if let Some(why) = limits.exceeded(began) {
                    signal_group(process.id(), false);
                    stopped = Some((why, Instant::now()));
                }
            }
            Some((_, since)) if since.elapsed() > GRACE => signal_group(process.id(), true),
            Some(_) => {}
        }
        std::thread::sleep(INTERVAL);
    };
    if stopped.is_some() {
        // Its descendants may have ignored SIGTERM.
        signal_group(process.id(), true);
    }
    let text = |file: File| -> Result<String> {
        let mut bytes = Vec::new();
        // Descendants that outlive it may still write: read up to the present length.
        let so_far = file.metadata().map(|file| file.len());
        let read = so_far.and_then(|length| file.take(length).read_to_end(&mut bytes));
        read.map_err(|e| failed("read the output of", e))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let stopped_because = stopped.map(|(why, _)| why);
    Ok(FinishedProcess { status, stdout: text(out)?, stderr: text(err)?, stopped_because })
}

/// Opens a temporary file twice, for reading and for appending. It has no name, and is deleted when both are
/// closed.
fn output_file() -> std::io::Result<(File, File)> {
    let named = NamedTempFile::new()?;
    Ok((named.reopen()?, OpenOptions::new().append(true).open(named.path())?))
}

impl TrialLimits<'_> {
    /// Returns why a process that began then must be stopped; `None` while it may run.
    fn exceeded(&self, began: Instant) -> Option<Error> {
        if self.stop.requested() {
            return Some(Error::new(ErrorKind::Interrupted, "stopped by a signal"));
        }
        let limit = self.timeout.filter(|&limit| began.elapsed() > limit)?;
        Some(Error::failed(format!("it took more than {} s and was stopped", limit.as_secs_f64())))
    }
}
