//! A run as one child process per rank: the parent starts them, watches, passes signals on, and ends what is left.
//!
//! A child's stdin is its line to the parent. Its first frame, [`Birth`], is there before the child is, so nothing has to
//! be found: no file, no port. A child whose parent is gone sees the line end, and ends.

use super::{Group, Hub, Line, Lost, Party, Remote, Stop, Watchdog, exit_guard::GRACE};
use crate::device::communicator::Communicator;
use crate::error::{Error, Kind, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The subcommand of children; nobody else calls it.
pub const WORKER: &str = "worker";

/// Variables that children get; anything else stays with the parent.
const ALLOWED: [&str; 14] = [
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

/// Beginnings of names of variables that children get: what their libraries read, and what says where to find them.
const ALLOWED_BEGINNINGS: [&str; 7] =
    ["CUDA_", "LC_", "NCCL_", "NVIDIA_", "XRUN_CACHE", "XRUN_CUDA_PATH", "XRUN_FAULT"];

/// How often the parent looks after its children.
const INTERVAL: Duration = Duration::from_millis(20);

/// How long a child may live on after it closed its line, and after the run was ended.
const PATIENCE_WITH_THE_LOST: Duration = Duration::from_secs(1);

/// What a child is born with.
#[derive(Debug, Serialize, Deserialize)]
struct Birth<R> {
    rank: usize,
    world: usize,
    request: R,
}

/// What rank 0 leaves its parent; the newest word counts.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LastWord {
    /// Where its run is written: whoever outlives it says there how it ended.
    At { folder: PathBuf },
    /// It came to its own end: well, or with an error.
    Ended { kind: Option<Kind>, message: String },
}

/// Tells a parent, if there is one, where the run is written.
pub fn writes_to(party: &Party, folder: PathBuf) {
    leave(party, &LastWord::At { folder });
}

fn leave(party: &Party, word: &LastWord) {
    party.first().last_words(&serde_json::to_vec(word).unwrap_or_default());
}

/// Runs a request on `world` child processes, and returns as rank 0 did. No child outlives this. `mark_failed` writes down, in
/// the folder of the run, how it ended where rank 0 could not.
///
/// # Errors
/// As the run of rank 0; when a child cannot be started or dies, with its rank and its last step.
pub fn supervise(
    request: &impl Serialize,
    world: usize,
    patience: Duration,
    stop: &Stop,
    mark_failed: impl Fn(&Path, &Error),
) -> Result<()> {
    let group = Group::new(world);
    let mut children = Children::start(request, world)?;
    let closed: Arc<Mutex<Vec<(usize, Instant)>>> = Arc::default();
    let lost: Lost = Arc::new({
        let closed = Arc::clone(&closed);
        move |rank| closed.lock().unwrap_or_else(PoisonError::into_inner).push((rank, Instant::now()))
    });
    let hub = Hub::serve(&group, std::mem::take(&mut children.lines), lost)?;
    let _watchdog =
        Watchdog::over(&group, patience).map_err(|e| Error::failed(format!("cannot watch ranks: {e}")))?;
    let (mut asked, mut ended_at) = (false, None);
    while !children.look(&group)? {
        if stop.asked() && !asked {
            asked = true;
            hub.ask_to_stop();
        }
        for (rank, since) in closed.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            if since.elapsed() > PATIENCE_WITH_THE_LOST && children.lives(*rank) {
                group.abort_by(*rank, &Error::failed("closed its line and lives on"));
            }
        }
        match ended_at {
            // Ended, or done: rank 0 has no more to say, and the others nothing to wait for.
            None if group.ended().is_some() || !children.lives(0) => ended_at = Some(Instant::now()),
            Some(at) if Instant::elapsed(&at) > GRACE + PATIENCE_WITH_THE_LOST => children.kill(),
            _ => {}
        }
        std::thread::sleep(INTERVAL);
    }
    let words = hub.last_words(0).map(|words| serde_json::from_slice(&words));
    let words = words.transpose().map_err(|e| Error::failed(format!("rank 0's last words: {e}")))?;
    let cause = || group.ended().unwrap_or_else(|| Error::failed("rank 0 ended without a word"));
    match words {
        Some(LastWord::Ended { kind: None, .. }) => Ok(()),
        Some(LastWord::Ended { kind: Some(kind), message }) => Err(Error::new(kind, message)),
        Some(LastWord::At { folder }) => {
            mark_failed(&folder, &cause());
            Err(cause())
        }
        None => Err(cause()),
    }
}

/// The processes of all ranks.
struct Children {
    children: Vec<(Child, Option<ExitStatus>)>,
    lines: Vec<(usize, Line)>,
}

impl Children {
    fn start(request: &impl Serialize, world: usize) -> Result<Self> {
        let failed = |rank: usize, e: std::io::Error| Error::failed(format!("cannot start rank {rank}: {e}"));
        let (program, shown) = this_program()?;
        let mut all = Self { children: Vec::with_capacity(world), lines: Vec::with_capacity(world) };
        for rank in 0..world {
            let (ours, theirs) = UnixStream::pair().map_err(|e| failed(rank, e))?;
            let mut line = Line::Unix(ours);
            let child = Command::new(&program)
                .arg0(&shown)
                .arg(WORKER)
                .env_clear()
                .envs(std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_allowed)))
                .stdin(Stdio::from(OwnedFd::from(theirs)))
                // What a terminal sends goes to the parent, which passes it on once.
                .process_group(0)
                .spawn()
                .map_err(|e| failed(rank, e))?;
            all.children.push((child, None));
            let birth = Birth { rank, world, request };
            line.send(&birth, &[]).map_err(|e| failed(rank, e))?;
            all.lines.push((rank, line));
        }
        Ok(all)
    }

    /// Looks who has ended, and ends the run of all where one ended badly; whether all have ended.
    fn look(&mut self, group: &Group) -> Result<bool> {
        for (rank, (child, status)) in self.children.iter_mut().enumerate() {
            if status.is_some() {
                continue;
            }
            *status =
                child.try_wait().map_err(|e| Error::failed(format!("cannot wait for rank {rank}: {e}")))?;
            // How a process ends whose rank is done says nothing of the run.
            if let Some(status) = status.filter(|status| !status.success() && !group.has_left(rank)) {
                // One that ended because of an error has said so, and is not the first to be heard of here.
                group.abort_by(rank, &Error::failed(describe(status)));
            }
        }
        Ok(self.children.iter().all(|(_, status)| status.is_some()))
    }

    fn lives(&self, rank: usize) -> bool {
        self.children[rank].1.is_none()
    }

    fn kill(&mut self) {
        for (child, status) in &mut self.children {
            if status.is_none() {
                // An error means that it has just ended.
                let _ = child.kill();
            }
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.kill();
        for (child, _) in &mut self.children {
            let _ = child.wait();
        }
    }
}

/// This binary, and what to call it. Linux knows the very file that runs, even where a new one was built in its place.
///
/// # Errors
/// When the system does not tell.
pub fn this_program() -> Result<(PathBuf, PathBuf)> {
    let path =
        std::env::current_exe().map_err(|e| Error::failed(format!("cannot find this program: {e}")))?;
    let running = PathBuf::from("/proc/self/exe");
    Ok((if running.exists() { running } else { path.clone() }, path))
}

fn is_allowed(name: &str) -> bool {
    ALLOWED.contains(&name) || ALLOWED_BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(9), _) => {
            "its process was killed (signal 9); if nobody did so, the machine may be short of memory: see \
                         `dmesg`"
                .to_owned()
        }
        (Some(signal), _) => format!("its process was ended by signal {signal}"),
        (None, Some(code)) => format!("its process ended with exit code {code} and said nothing"),
        (None, None) => "its process ended".to_owned(),
    }
}

/// What a child does: runs its rank of what its parent asked for. Never returns.
pub fn work<R: DeserializeOwned>(run: impl FnOnce(R, &Party, &Stop) -> Result<()>) -> ! {
    let result = born::<R>().and_then(|(request, party, stop)| {
        let result = run(request, &party, &stop);
        let (kind, message) = match &result {
            Ok(()) => (None, String::new()),
            Err(e) => (Some(e.kind()), e.message().to_owned()),
        };
        leave(&party, &LastWord::Ended { kind, message });
        result
    });
    // The parent says what there is to say.
    std::process::exit(result.map_or_else(|e| e.kind().exit_code().into(), |()| 0))
}

/// Takes up the line that a child is born with.
fn born<R: DeserializeOwned>() -> Result<(R, Party, Stop)> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned();
    let stdin = stdin.map_err(|e| Error::failed(format!("cannot take up the line to the launcher: {e}")))?;
    let mut line = Line::Unix(UnixStream::from(stdin));
    let (birth, _) = line
        .receive::<Birth<R>>()
        .map_err(|e| Error::usage(format!("`xrun {WORKER}` is started by xrun itself (no birth: {e})")))?;
    #[cfg(target_os = "linux")]
    {
        // A rank that hangs does not see its line end; the system ends it with its parent all the same.
        let killed = rustix::process::Signal::KILL;
        rustix::process::set_parent_process_death_signal(Some(killed))
            .map_err(|e| Error::failed(format!("cannot ask to end with the launcher: {e}")))?;
    }
    let stop = Stop::on_signals()?;
    let asked = stop.clone();
    let remote = Remote::new(birth.rank, birth.world, line, "the launcher", move || asked.ask())?;
    let comm: Arc<dyn Communicator> = Arc::new(remote);
    let party = Party::member(comm, birth.world, birth.rank);
    Ok((birth.request, party, stop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_get_what_libraries_read_and_no_secrets() {
        for name in ["PATH", "CUDA_VISIBLE_DEVICES", "NCCL_ALGO", "XRUN_CACHE", "LC_ALL"] {
            assert!(is_allowed(name), "{name}");
        }
        for name in [
            "XRUN_SECRET",
            "AWS_SECRET_ACCESS_KEY",
            "RANK",
            "SLURM_PROCID",
            "XRUN__TRAINING__STEPS",
            "LD_PRELOAD",
        ] {
            assert!(!is_allowed(name), "{name}");
        }
    }

    #[test]
    fn an_end_is_described_by_its_cause() {
        let of = |status| describe(ExitStatus::from_raw(status));
        assert!(of(9).contains("was killed (signal 9)"));
        assert!(of(11).contains("ended by signal 11"));
        assert!(of(7 << 8).contains("exit code 7"));
    }
}
