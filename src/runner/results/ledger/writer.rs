//! Reads and writes the files of a ledger. Every writing process has its own file.

use super::attempt::{Attempt, with_key};
use super::chain::Chain;
use super::question::QuestionLine;
use crate::error::{Error, IoContext, Result};
use crate::regular;
use crate::results::atomic;
use crate::results::atomic::json_line;
use crate::results::provenance::host_name;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Time between two signs of life from a writer.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// A writer on another machine counts as dead after this long without a sign of life.
pub(super) const LEASE: Duration = Duration::from_secs(90);

/// The variable that tells a process which task of a batch system it is.
pub const TASK_VARIABLE: &str = "XRUN_BATCH_TASK";

/// The first line of a file, which names its writer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Owner {
    /// Name of the file without its extension.
    pub writer: String,
    /// The machine and its boot. Only there do locks tell whether the process lives.
    pub machine: String,
    pub pid: u32,
    pub since: String,
    /// The task of a batch system that the process is; `None` outside of one, and in files of earlier
    /// versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
}

impl Owner {
    fn for_this_process() -> Self {
        let now = crate::format::now();
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let host: String = host_name().unwrap_or_default().chars().map(plain).take(40).collect();
        let pid = std::process::id();
        Self {
            writer: format!("{host}-{pid}-{}", now.as_nanosecond()),
            machine: machine_and_boot(),
            pid,
            since: now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            task: std::env::var(TASK_VARIABLE).ok().filter(|task| !task.is_empty()),
        }
    }
}

/// Returns a name for this machine that changes at every boot.
pub(super) fn machine_and_boot() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    boot.ok().or_else(host_name).unwrap_or_default().trim().to_owned()
}

/// The ledger file of this process. It stays locked as long as the process lives.
#[derive(Debug)]
pub(super) struct Writer {
    pub name: String,
    path: PathBuf,
    file: File,
    chain: Chain,
    renewed: Instant,
}

impl Writer {
    /// Creates this process's file in the ledger's folder.
    pub fn create(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder).at("create", folder)?;
        let owner = Owner::for_this_process();
        let path = folder.join(&owner.writer).with_extension("jsonl");
        let mut file = regular::open_own(File::options().append(true).create_new(true), &path)?;
        // Block, because another process may be checking the lock at this moment.
        file.lock().at("lock", &path).map_err(Error::with_advice)?;
        let mut chain = Chain::default();
        let line = chain.seal(&json_line(&owner)?) + "\n";
        file.write_all(line.as_bytes()).and_then(|()| file.sync_data()).at("write", &path)?;
        atomic::sync_folder(folder)?;
        Ok(Self { name: owner.writer, path, file, chain, renewed: Instant::now() })
    }

    /// Appends a line, which is on disk when this returns.
    pub fn append(&mut self, seq: u64, attempt: &Attempt) -> Result<()> {
        self.write(&format!("{{\"seq\":{seq},{}", &json_line(attempt)?[1..]))
    }

    /// Appends a line about a question, which is on disk when this returns.
    pub fn ask(&mut self, seq: u64, question: &QuestionLine) -> Result<()> {
        self.write(&format!("{{\"seq\":{seq},\"asked\":{}}}", json_line(question)?))
    }

    fn write(&mut self, object: &str) -> Result<()> {
        let line = self.chain.seal(object) + "\n";
        self.renewed = Instant::now();
        self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data()).at("write", &self.path)
    }

    /// Returns true if other machines may have taken this process for dead, because it was stopped.
    pub fn lease_has_ended(&self) -> bool {
        self.renewed.elapsed() >= LEASE
    }

    /// Shows other machines that this process lives, by updating its file's modification time, by the clock of
    /// the file system.
    pub fn renew(&mut self) {
        if self.renewed.elapsed() >= HEARTBEAT {
            self.renewed = Instant::now();
            // A failure is ignored because the next renewal comes long before the lease ends.
            let at = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
            let now = Timestamps { last_access: at(UTIME_OMIT), last_modification: at(UTIME_NOW) };
            let _ = rustix::fs::futimens(&self.file, &now);
        }
    }
}

/// A file of the ledger, read up to `position`.
#[derive(Clone, Debug)]
pub(super) struct Source {
    path: PathBuf,
    pub owner: Option<Owner>,
    position: u64,
    lines: usize,
    chain: Chain,
    /// The hash of every line.
    hashes: HashSet<String>,
    /// The questions of the lines that were read last, with their sequence numbers.
    questions: Vec<(u64, QuestionLine)>,
}

#[derive(Deserialize)]
struct Sequence {
    seq: u64,
    #[serde(default)]
    asked: Option<QuestionLine>,
}

impl Source {
    /// Returns the hash of the last line read.
    pub fn head(&self) -> Option<&str> {
        self.chain.head()
    }

    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            owner: None,
            position: 0,
            lines: 0,
            chain: Chain::default(),
            hashes: HashSet::new(),
            questions: Vec::new(),
        }
    }

    /// Returns true if a line with this hash was read.
    pub fn has_line(&self, hash: &str) -> bool {
        self.hashes.contains(hash)
    }

    /// Returns the questions of the lines that were read since the last call.
    pub fn take_questions(&mut self) -> Vec<(u64, QuestionLine)> {
        std::mem::take(&mut self.questions)
    }

    /// Returns the new lines with their sequence numbers.
    ///
    /// # Errors
    /// If a line does not follow the one before it; the message names the file and the line. A last line
    /// without a newline, which a crash may leave, is ignored.
    pub fn read(&mut self) -> Result<Vec<(u64, Attempt)>> {
        let mut file = regular::open(&self.path)?;
        file.seek(SeekFrom::Start(self.position)).at("read", &self.path)?;
        let bytes = regular::read_rows_of(&file, &self.path)?;
        let before = self.clone();
        let lines = self.take(&bytes);
        if lines.is_err() {
            // The next read then finds the same error.
            *self = before;
        }
        lines
    }

    /// Parses the bytes that follow in the file.
    pub fn take(&mut self, bytes: &[u8]) -> Result<Vec<(u64, Attempt)>> {
        let mut attempts = Vec::new();
        for line in bytes.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            self.position += line.len() as u64;
            self.lines += 1;
            let line = &line[..line.len() - 1];
            let parsed = self.parse(line).map_err(|why| {
                Error::failed(format!(
                    "{}:{}: {why}; restore the file, or move it away to continue without its rows",
                    self.path.display(),
                    self.lines
                ))
            })?;
            attempts.extend(parsed);
        }
        Ok(attempts)
    }

    fn parse(&mut self, line: &[u8]) -> Result<Option<(u64, Attempt)>, String> {
        let text = std::str::from_utf8(line).map_err(|e| e.to_string())?;
        if !self.chain.follow(text) {
            return Err("this line was changed, or the line before it was removed or moved".to_owned());
        }
        self.hashes.extend(self.chain.head().map(str::to_owned));
        if self.owner.is_none() {
            let owner = serde_json::from_str(text).map_err(|e| format!("not the head of a ledger: {e}"))?;
            self.owner = Some(owner);
            return Ok(None);
        }
        let wrong = |e: serde_json::Error| format!("not a line of a ledger: {e}");
        let Sequence { seq, asked } = serde_json::from_str(text).map_err(wrong)?;
        if let Some(question) = asked {
            self.questions.push((seq, question));
            return Ok(None);
        }
        let attempt = serde_json::from_str(text).map_err(wrong)?;
        Ok(Some((seq, with_key(attempt)?)))
    }
}

/// Returns the files of a ledger with their writers' names, and none if the folder is missing.
pub(super) fn files(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let entries = match std::fs::read_dir(folder) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.at("read", folder)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.at("read", folder)?.path();
        let name = path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned);
        if let Some(name) = name.filter(|_| path.extension().is_some_and(|ending| ending == "jsonl")) {
            found.push((name, path));
        }
    }
    found.sort();
    Ok(found)
}

/// A sign of life from a writer on another machine: the size and modification time of its file.
pub(super) type SignOfLife = (u64, Option<SystemTime>);

/// What a writer's file says about its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Liveness {
    Alive,
    Dead,
    /// The process runs on another machine; it lives as long as this value keeps changing.
    Elsewhere(SignOfLife),
}

/// Checks whether the process that writes a file lives.
pub(super) fn life(path: &Path) -> Liveness {
    let Ok(mut file) = regular::open(path) else {
        // A file that cannot be opened now says nothing about its process, which then lives until the lease ends.
        return if regular::is_missing(path) { Liveness::Dead } else { Liveness::Elsewhere((0, None)) };
    };
    // If a file has no head, its owner may be about to write one, and only the lock tells whether it lives.
    let Ok(head) = head(&mut file) else { return Liveness::Elsewhere((0, None)) };
    if head.is_some_and(|owner| owner.machine != machine_and_boot()) {
        let metadata = file.metadata().ok();
        let beat = metadata.map_or((0, None), |metadata| (metadata.len(), metadata.modified().ok()));
        return Liveness::Elsewhere(beat);
    }
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Liveness::Alive,
        Err(TryLockError::Error(_)) => Liveness::Elsewhere((0, None)),
        Ok(()) => Liveness::Dead,
    }
}

/// Reads the first line; `None` if it is not there yet.
fn head(file: &mut File) -> std::io::Result<Option<Owner>> {
    let mut bytes = Vec::new();
    file.take(4 << 10).read_to_end(&mut bytes)?;
    Ok(bytes.split(|&byte| byte == b'\n').next().and_then(|line| serde_json::from_slice(line).ok()))
}
