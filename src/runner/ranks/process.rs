//! Runs each rank as a child process. The parent starts the children, watches them, forwards signals, and
//! kills the ones that hang.
//!
//! The stdin of a child is its connection to the parent. The parent sends the first frame, [`WorkerInit`],
//! before the child reads, so connecting needs no file or port. A child whose parent is gone sees the
//! connection end, and exits.

use super::exit_guard::GRACE;
use super::{Connection, Group, LocalRanks, OnDisconnect, Peer, RemoteCommunicator, Server, Stop, Watchdog};
use crate::device::communicator::Communicator;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::results::streams::drain_at_end;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Hidden subcommand of child processes.
pub const WORKER: &str = "worker";

/// Environment variables that children inherit. The parent keeps all others to itself.
const INHERITED: [&str; 14] = [
    "COLUMNS",
    "CONDA_PREFIX",
    "HOME",
    "LANG",
    "LD_LIBRARY_PATH",
    "NO_COLOR",
    "PATH",
    "RUST_BACKTRACE",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "VIRTUAL_ENV",
    "XDG_CACHE_HOME",
];

/// Prefixes of further variables that children inherit: library settings and paths.
const INHERITED_PREFIXES: [&str; 7] =
    ["CUDA_", "LC_", "NCCL_", "NVIDIA_", "XRUN_CACHE", "XRUN_CUDA_PATH", "XRUN_FAULT"];

/// Interval at which the parent polls its children.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum time between the end of a child's connection and its exit, whichever comes first. After an abort
/// it is added to [`GRACE`].
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// The first frame that a child receives.
#[derive(Debug, Serialize, Deserialize)]
struct WorkerInit<R> {
    rank: usize,
    world: usize,
    /// Time without progress after which the parent ends the run.
    timeout: Duration,
    /// The request, which this module passes on unread.
    request: R,
}

/// Report of rank 0 to its parent. A newer report replaces an older one.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ExitReport {
    /// Folder of the run, whose summary the parent writes if rank 0 cannot.
    RunFolder { path: PathBuf },
    /// Rank 0 ended by itself; `kind` is the kind of its error, if any.
    Ended { kind: Option<ErrorKind>, message: String },
}

/// Reports the folder of the run to the parent, if there is one.
pub fn report_run_folder(ranks: &LocalRanks, path: PathBuf) {
    send(ranks, &ExitReport::RunFolder { path });
}

fn send(ranks: &LocalRanks, report: &ExitReport) {
    ranks.first().send_exit_report(&serde_json::to_vec(report).unwrap_or_default());
}

/// Runs a request on `world` child processes, and returns the result of rank 0. No child outlives this call.
/// `mark_failed` writes the error into the run folder if rank 0 could not.
///
/// # Errors
/// If the run of rank 0 fails, or a child cannot start or dies; the error names its rank and last step.
pub fn supervise(
    request: &impl Serialize,
    world: usize,
    timeout: Duration,
    stop: &Stop,
    mark_failed: impl Fn(&Path, &Error),
) -> Result<()> {
    let group = Group::new(world);
    let mut workers = Workers::start(request, world, timeout)?;
    let disconnected: Arc<Mutex<Vec<(usize, Instant)>>> = Arc::default();
    let on_disconnect: OnDisconnect = Arc::new({
        let disconnected = Arc::clone(&disconnected);
        move |rank| lock(&disconnected).push((rank, Instant::now()))
    });
    let server = Server::start(&group, std::mem::take(&mut workers.connections), timeout, on_disconnect)?;
    // No rank works in this process.
    let _watchdog = Watchdog::start(&group, Vec::new(), timeout)?;
    let (mut stop_sent, mut ended_at): (bool, Option<Instant>) = (false, None);
    while !workers.poll(&group, |rank| server.has_read_all(rank))? {
        if stop.requested() && !stop_sent {
            stop_sent = true;
            server.request_stop();
        }
        for (rank, since) in lock(&disconnected).iter() {
            if since.elapsed() > EXIT_TIMEOUT && workers.is_running(*rank) {
                group.abort_for_rank(
                    *rank,
                    &Error::failed("its process closed its connection but did not exit"),
                );
            }
        }
        // After an abort, or once rank 0 is done, no rank has anything left to wait for.
        let is_over = group.abort_reason().is_some() || group.is_finished(0) || !workers.is_running(0);
        ended_at = is_over.then(|| ended_at.unwrap_or_else(Instant::now));
        if ended_at.is_some_and(|at| at.elapsed() > GRACE + EXIT_TIMEOUT) {
            workers.kill();
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let report = server.into_exit_report(0).map(|report| serde_json::from_slice(&report));
    let report = report.transpose().map_err(|e| Error::failed(format!("rank 0's exit report: {e}")))?;
    let cause = || group.abort_reason().unwrap_or_else(|| Error::failed("rank 0 ended without a report"));
    match report {
        Some(ExitReport::Ended { kind: None, .. }) => Ok(()),
        Some(ExitReport::Ended { kind: Some(kind), message }) => Err(Error::new(kind, message)),
        Some(ExitReport::RunFolder { path }) => {
            mark_failed(&path, &cause());
            Err(cause())
        }
        None => Err(cause()),
    }
}

/// The child processes of all ranks. Dropping them kills the ones that still run.
struct Workers {
    children: Vec<Worker>,
    connections: Vec<(usize, Connection)>,
}

struct Worker {
    process: Child,
    /// Exit status and when it was collected.
    exited: Option<(ExitStatus, Instant)>,
    /// Whether the group has learned how the process ended.
    reported: bool,
}

impl Workers {
    fn start(request: &impl Serialize, world: usize, timeout: Duration) -> Result<Self> {
        let failed = |rank: usize, e: std::io::Error| Error::failed(format!("cannot start rank {rank}: {e}"));
        let (program, shown) = own_program()?;
        let mut all = Self { children: Vec::with_capacity(world), connections: Vec::with_capacity(world) };
        for rank in 0..world {
            let (ours, theirs) = UnixStream::pair().map_err(|e| failed(rank, e))?;
            let mut connection = Connection::Unix(ours);
            let child = Command::new(&program)
                .arg0(&shown)
                .arg(WORKER)
                .env_clear()
                .envs(std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_inherited)))
                .stdin(Stdio::from(OwnedFd::from(theirs)))
                // A terminal signal must reach only the parent, which forwards it once.
                .process_group(0)
                .spawn()
                .map_err(|e| failed(rank, e))?;
            all.children.push(Worker { process: child, exited: None, reported: false });
            connection
                .send(&WorkerInit { rank, world, timeout, request }, &[])
                .map_err(|e| failed(rank, e))?;
            all.connections.push((rank, connection));
        }
        Ok(all)
    }

    /// Collects children that ended, and aborts the run if one failed. Returns true if all have ended.
    ///
    /// A child sends its error before it exits, but the thread that reads its connection may receive the
    /// error after this method sees the exit. So an exit counts only once `has_read_all` messages of that
    /// rank, or after [`EXIT_TIMEOUT`], in case another process holds the connection open.
    fn poll(&mut self, group: &Group, has_read_all: impl Fn(usize) -> bool) -> Result<bool> {
        for (rank, child) in self.children.iter_mut().enumerate() {
            if child.exited.is_none() {
                let status = child.process.try_wait();
                let status =
                    status.map_err(|e| Error::failed(format!("cannot wait for rank {rank}: {e}")))?;
                child.exited = status.map(|status| (status, Instant::now()));
            }
            let Some((status, at)) = child.exited else { continue };
            if child.reported || !(has_read_all(rank) || at.elapsed() > EXIT_TIMEOUT) {
                continue;
            }
            child.reported = true;
            // Once a rank reports that it is finished, its exit status does not matter.
            if !status.success() && !group.is_finished(rank) {
                // A rank that failed with an error has already aborted the run, and the group keeps the first
                // reason.
                group.abort_for_rank(rank, &exit_error(status));
            }
        }
        Ok(self.children.iter().all(|child| child.reported))
    }

    fn is_running(&self, rank: usize) -> bool {
        self.children[rank].exited.is_none()
    }

    fn kill(&mut self) {
        for child in self.children.iter_mut().filter(|child| child.exited.is_none()) {
            // An error means that the child has just ended.
            let _ = child.process.kill();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.kill();
        for child in &mut self.children {
            let _ = child.process.wait();
        }
    }
}

/// Returns the path of this binary, and the name to run it under. On Linux the path is the running file
/// itself, even if a newer build replaced it on disk.
///
/// # Errors
/// If the OS does not report the path.
pub fn own_program() -> Result<(PathBuf, PathBuf)> {
    let path =
        std::env::current_exe().map_err(|e| Error::failed(format!("cannot find this program: {e}")))?;
    let running = PathBuf::from("/proc/self/exe");
    Ok((if running.exists() { running } else { path.clone() }, path))
}

fn is_inherited(name: &str) -> bool {
    INHERITED.contains(&name) || INHERITED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the error for a rank whose process ended by itself.
fn exit_error(status: ExitStatus) -> Error {
    let kind = match status.code() {
        Some(code) if code == i32::from(ErrorKind::DoesNotFit.exit_code()) => ErrorKind::DoesNotFit,
        _ => ErrorKind::Failed,
    };
    Error::new(kind, describe(status))
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(9), _) => {
            "its process was killed (signal 9); if nobody did so, the machine may be short of memory: see \
                         `dmesg`"
                .to_owned()
        }
        (Some(signal), _) => format!("its process was ended by signal {signal}"),
        (None, Some(code)) if code == i32::from(ErrorKind::DoesNotFit.exit_code()) => {
            "the OS gave it no more memory; its message is on stderr".to_owned()
        }
        (None, Some(code)) => format!("its process ended with exit code {code} and no message"),
        (None, None) => "its process ended".to_owned(),
    }
}

/// Runs the rank of a child process with the request from its parent, then exits.
pub fn run_worker<R: DeserializeOwned>(run: impl FnOnce(R, &LocalRanks, &Stop) -> Result<()>) -> ! {
    let result = receive_init::<R>().and_then(|(request, ranks, stop)| {
        let result = run(request, &ranks, &stop);
        let (kind, message) = match &result {
            Ok(()) => (None, String::new()),
            Err(e) => (Some(e.kind()), e.message().to_owned()),
        };
        send(&ranks, &ExitReport::Ended { kind, message });
        ranks.finish();
        result
    });
    drain_at_end(result.as_ref().err().map(Error::kind));
    // The parent prints the error.
    std::process::exit(result.map_or_else(|e| e.kind().exit_code().into(), |()| 0))
}

/// Receives the request over stdin, which is the connection to the parent.
fn receive_init<R: DeserializeOwned>() -> Result<(R, LocalRanks, Stop)> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned();
    let stdin = stdin.map_err(|e| Error::failed(format!("cannot open the connection to the parent: {e}")))?;
    let mut connection = Connection::Unix(UnixStream::from(stdin));
    let (init, _) = connection.receive::<WorkerInit<R>>(|| {}).map_err(|e| {
        Error::usage(format!("`xrun {WORKER}` is started by xrun itself (no request on stdin: {e})"))
    })?;
    #[cfg(target_os = "linux")]
    {
        // A rank that hangs does not notice that its connection ended, so the kernel must kill it when its
        // parent dies.
        let killed = rustix::process::Signal::KILL;
        rustix::process::set_parent_process_death_signal(Some(killed))
            .map_err(|e| Error::failed(format!("cannot request to be killed with the parent: {e}")))?;
    }
    // The parent, not the child, tells the user that a signal arrived.
    let stop = Stop::on_signals(None)?;
    let for_comm = stop.clone();
    let parent = Peer { name: "the launcher", timeout: init.timeout, watched: false };
    let comm = RemoteCommunicator::new(init.rank, init.world, connection, parent, move || {
        for_comm.request();
    })?;
    let comm: Arc<dyn Communicator> = Arc::new(comm);
    let ranks = LocalRanks::remote(comm, init.world, init.rank).with_parent();
    Ok((init.request, ranks, stop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_inherit_what_libraries_read_and_no_secrets() {
        for name in ["PATH", "CUDA_VISIBLE_DEVICES", "NCCL_ALGO", "XRUN_CACHE", "LC_ALL"] {
            assert!(is_inherited(name), "{name}");
        }
        for name in [
            "XRUN_SECRET",
            "AWS_SECRET_ACCESS_KEY",
            "RANK",
            "SLURM_PROCID",
            "XRUN__TRAINING__STEPS",
            "LD_PRELOAD",
        ] {
            assert!(!is_inherited(name), "{name}");
        }
    }

    /// A process that has ended with exit code 1, as the only rank.
    fn ended_worker() -> Workers {
        let mut process = Command::new("sh").args(["-c", "exit 1"]).spawn().unwrap();
        process.wait().unwrap();
        Workers { children: vec![Worker { process, exited: None, reported: false }], connections: Vec::new() }
    }

    #[test]
    fn the_error_that_a_rank_sent_is_kept_if_it_is_read_after_the_exit() {
        let (group, mut workers) = (Group::new(1), ended_worker());
        assert!(!workers.poll(&group, |_| false).unwrap());
        assert_eq!(group.abort_reason(), None);
        group.abort_for_rank(0, &Error::failed("panicked"));
        assert!(workers.poll(&group, |_| true).unwrap());
        assert_eq!(group.abort_reason().unwrap().message(), "rank 0: panicked");
    }

    #[test]
    fn an_exit_without_a_message_aborts_even_if_the_connection_stays_open() {
        let (group, mut workers) = (Group::new(1), ended_worker());
        while !workers.poll(&group, |_| false).unwrap() {
            std::thread::sleep(POLL_INTERVAL);
        }
        let reason = group.abort_reason().unwrap();
        assert!(reason.message().contains("exit code 1 and no message"), "{reason}");
    }

    #[test]
    fn an_exit_status_is_described_by_its_cause() {
        let of = |status| describe(ExitStatus::from_raw(status));
        assert!(of(9).contains("was killed (signal 9)"));
        assert!(of(11).contains("ended by signal 11"));
        assert!(of(7 << 8).contains("exit code 7"));
        let refused = exit_error(ExitStatus::from_raw(4 << 8));
        assert_eq!(refused.kind(), ErrorKind::DoesNotFit);
        assert!(refused.message().contains("gave it no more memory"), "{refused}");
    }
}
