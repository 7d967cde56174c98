//! The process of a turn: what it prints, and an end for one that takes too long.

use crate::error::{Error, Kind, Result};
use crate::ranks::{Stop, signal_group};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;

/// How long a process that was asked to stop may take to do so.
const GRACE: Duration = Duration::from_secs(10);

/// How often a process is looked at.
const INTERVAL: Duration = Duration::from_millis(20);

/// Until when a process may go on.
#[derive(Clone, Copy, Debug)]
pub struct Patience<'a> {
    /// In all.
    pub timeout: Option<Duration>,
    /// Until somebody asks for a stop.
    pub stop: &'a Stop,
}

/// A process that is over.
#[derive(Debug)]
pub struct Over {
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed.
    pub stdout: String,
    /// What it complained of, unless that went to our own stderr.
    pub stderr: String,
    /// Why it was ended before its own end.
    pub cut: Option<Error>,
}

/// What becomes of a process's complaints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stderr {
    /// They are shown as they come.
    Shown,
    /// They are told in [`Over::stderr`].
    Taken,
}

/// Runs a command to its end. It and what it starts are asked to stop when `patience` is over, and ended if they do not.
///
/// # Errors
/// When it cannot be started or watched.
pub fn run(command: &mut Command, stderr: Stderr, patience: Patience<'_>) -> Result<Over> {
    let shown = command.get_program().to_string_lossy().into_owned();
    let failed = |what: &str, e: std::io::Error| Error::failed(format!("cannot {what} {shown}: {e}"));
    // Files, since a pipe stays open for as long as anybody has its end, however long ago the process went.
    let file = || printed_to().map_err(|e| failed("keep what is printed by", e));
    let ((out, to_out), (err, to_err)) = (file()?, file()?);
    command.stdin(Stdio::null()).stdout(to_out);
    if stderr == Stderr::Taken {
        command.stderr(to_err);
    }
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt;
        // A group of its own can be ended with all that is in it; what the keyboard says is passed on.
        command.process_group(0);
    }
    let mut process = command.spawn().map_err(|e| failed("start", e))?;
    // A second signal ends this process at once, and that one with it.
    let _tied = patience.stop.tie(process.id());
    let began = Instant::now();
    let mut cut: Option<(Error, Instant)> = None;
    let status = loop {
        if let Some(status) = process.try_wait().map_err(|e| failed("wait for", e))? {
            break status;
        }
        match &cut {
            None => {
                if let Some(why) = patience.over(began) {
                    signal_group(process.id(), false);
                    cut = Some((why, Instant::now()));
                }
            }
            Some((_, since)) if since.elapsed() > GRACE => signal_group(process.id(), true),
            Some(_) => {}
        }
        std::thread::sleep(INTERVAL);
    };
    if cut.is_some() {
        // What it started may have heard nothing of it.
        signal_group(process.id(), true);
    }
    let text = |file: File| -> Result<String> {
        let mut bytes = Vec::new();
        // Whoever it left behind may go on printing.
        let so_far = file.metadata().map(|file| file.len());
        let read = so_far.and_then(|length| file.take(length).read_to_end(&mut bytes));
        read.map_err(|e| failed("read what was printed by", e))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(Over { status, stdout: text(out)?, stderr: text(err)?, cut: cut.map(|(why, _)| why) })
}

/// A file to read from and to print to, each with a place of its own in it. It has no name, and goes with both.
fn printed_to() -> std::io::Result<(File, File)> {
    let named = NamedTempFile::new()?;
    Ok((named.reopen()?, OpenOptions::new().append(true).open(named.path())?))
}

impl Patience<'_> {
    /// Why a process that began then may not go on.
    fn over(&self, began: Instant) -> Option<Error> {
        if self.stop.asked() {
            return Some(Error::new(Kind::Interrupted, "stopped by a signal; a comparison begins anew"));
        }
        let limit = self.timeout.filter(|&limit| began.elapsed() > limit)?;
        Some(Error::failed(format!("it took more than {} s and was ended", limit.as_secs_f64())))
    }
}
