//! The run folder, which holds all files of one run and is locked by one process at a time.

use super::atomic::{self, json, parse_json};
pub use super::names::*;
use super::progress::eprint_line;
use super::provenance::{Environment, host_name};
use super::rows::{self, Row, RowWriter};
use super::summary::{Status, Summary, TrainingLosses, training_losses};
use crate::error::{Error, IoContext, Result};
use crate::format::printable;
use crate::interrupts::Repeated;
use crate::recipe::COPY_HEADER;
use crate::regular::{self, MAX_TEXT};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LOCK: &str = "lock";

/// How often to try a lock, and how long to pause in between. A process that only checks the lock holds it
/// for a moment, which can take milliseconds on a network file system.
const LOCK_TRIES: usize = 4;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// The largest lock file to read, in bytes.
const MAX_LOCK: u64 = 4096;

/// Limit of the suffixes `-2`, `-3` … for runs of one recipe that start in the same second.
const MAX_SAME_SECOND: u32 = 10_000;

/// The process that holds a run folder.
#[derive(Debug, Serialize, Deserialize)]
struct Owner {
    pid: u32,
    host: Option<String>,
    since: Timestamp,
}

/// A run folder that this process holds. Dropping it releases the lock.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    log: File,
    lock: File,
}

impl RunFolder {
    /// Creates `RESULTS/RECIPE/<UTC time>-<hash8>[-n]/` and locks it. An existing folder is never reused.
    ///
    /// `recipe` is the recipe's name; characters other than letters, digits, `.`, `_` and `-` become `-`.
    /// `hash8` is the prefix of the resolved recipe's hash, in hexadecimal.
    pub fn create(results: &Path, recipe: &str, hash8: &str, now: Timestamp) -> Result<Self> {
        let path = create_timed(&results.join(folder_name(recipe)?), hash8, now)?;
        let folder = Self::hold(&path)?;
        // Large and local files stay out of version control, wherever the results folder is.
        let ignored = format!("/{CHECKPOINT}/\n/{LOCK}\n/{TENSORBOARD}/\n");
        std::fs::write(path.join(".gitignore"), ignored).at("write", &path)?;
        Ok(folder)
    }

    /// Locks an existing run folder, to resume the run or to read it while no process writes.
    ///
    /// # Errors
    /// If the folder is not a run folder, or another process uses it, which the message names. The folder is
    /// then unchanged.
    pub fn open(path: &Path) -> Result<Self> {
        if regular::is_missing(&path.join(SUMMARY)) {
            return Err(Error::usage(format!(
                "{} is not a run folder: it has no {SUMMARY}; `xrun` writes run folders to results/RECIPE/RUN",
                path.display()
            )));
        }
        Self::hold(path)
    }

    fn hold(path: &Path) -> Result<Self> {
        let lock = lock(path)?;
        let folders = [path.to_owned(), path.join(PLOTS)];
        let stay = folders.iter().filter(|folder| regular::is_folder(folder));
        let stay = stay.flat_map(|folder| atomic::clear_leftovers(folder, Duration::ZERO));
        stay.for_each(|leftover| eprint_line(&format!("warning: {leftover}")));
        let log = regular::open_own(File::options().append(true).create(true), &path.join(LOG))?;
        Ok(Self { path: path.to_owned(), log, lock })
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the run's name, which is the last part of the path.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Writes a copy of the recipe.
    pub fn write_recipe(&self, text: &str) -> Result<()> {
        atomic::write(&self.path.join(RECIPE), text.as_bytes())
    }

    /// Writes the resolved recipe.
    pub fn write_resolved(&self, text: &str) -> Result<()> {
        atomic::write(&self.path.join(RESOLVED), text.as_bytes())
    }

    /// Writes this process's environment to `env.json`, or to `env-2.json` … if the run was resumed.
    pub fn write_environment(&self, environment: &Environment) -> Result<()> {
        let mut process = 1;
        while self.path.join(environment_file(process)).exists() {
            process += 1;
        }
        atomic::write(&self.path.join(environment_file(process)), &json(environment)?)
    }

    /// Replaces the summary atomically: a reader sees the old one or the new one.
    pub fn write_summary(&self, summary: &Summary) -> Result<()> {
        atomic::write(&self.path.join(SUMMARY), &json(summary)?)
    }

    /// Appends a line to the log, prefixed with the time.
    pub fn log(&self, text: &str) -> Result<()> {
        let now = crate::format::now().strftime("%Y-%m-%dT%H:%M:%SZ");
        let line = format!("{now} {}\n", printable(text.trim_end()).replace('\n', "\n    "));
        Repeated(&self.log).write_all(line.as_bytes()).at("write", &self.path.join(LOG))
    }

    /// Creates the file for a row type: [`METRICS`] or [`TIMING`].
    pub fn start_rows<R: Row>(&self, file: &str) -> Result<RowWriter<R>> {
        RowWriter::create(&self.path.join(file))
    }

    /// Returns the folder of checkpoints, and creates it if necessary.
    pub fn checkpoints(&self) -> Result<PathBuf> {
        let path = self.path.join(CHECKPOINT);
        regular::create_folder(&path)?;
        Ok(path)
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        // Closing the file releases the lock. The record in it only serves the error messages of other
        // processes.
        let _ = self.lock.set_len(0);
    }
}

/// Returns the recipe in the folder of a run: the copy of what was set, so that a changed key also changes
/// the defaults that depend on it. Copies written by earlier versions cannot be run; the resolved recipe
/// stands in for them.
///
/// # Errors
/// If there is a copy that cannot be read.
pub fn recipe_in_run(run: &Path) -> Result<PathBuf> {
    let copy = run.join(RECIPE);
    let text = if regular::is_missing(&copy) { String::new() } else { regular::read_text(&copy)? };
    Ok(if text.starts_with(COPY_HEADER) { copy } else { run.join(RESOLVED) })
}

/// Reads the summary of a run without locking it. Values that earlier versions did not store are derived from
/// the rows, if these can be read. A run writes its summary only now and then, so how far an unfinished one
/// got is read from its last row.
pub fn read_summary(run: &Path) -> Result<Summary> {
    let path = run.join(SUMMARY);
    let mut summary = parse_summary(&path, &regular::read(&path, MAX_TEXT)?)?;
    let TrainingLosses { smoothed, last, .. } = summary.train_loss;
    if smoothed.is_none() && last.is_some() {
        let metrics = rows::read(&run.join(METRICS)).unwrap_or_default();
        summary.train_loss.smoothed = training_losses(&metrics, &summary.losses_before).smoothed;
        for (source, known) in &mut summary.source_losses {
            let mut derived = known.clone();
            derived.measure(source, &metrics);
            known.losses.smoothed = derived.losses.smoothed;
        }
    }
    if summary.status.is_unfinished()
        && let Some((step, tokens_seen)) = last_step(&run.join(METRICS))
        && step > summary.steps
    {
        (summary.steps, summary.tokens_seen) = (step, tokens_seen);
    }
    Ok(summary)
}

/// Bytes at the end of `metrics.csv` in which its last row is looked for; rows are much shorter.
const LAST_ROW_BYTES: u64 = 64 << 10;

/// Returns the step and the tokens of the last complete row of `metrics.csv`, which are its first columns.
/// `None` if there is no readable row.
fn last_step(metrics: &Path) -> Option<(u64, u64)> {
    let mut file = regular::open(metrics).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LAST_ROW_BYTES))).ok()?;
    let mut end = Vec::new();
    file.take(LAST_ROW_BYTES).read_to_end(&mut end).ok()?;
    let complete = end.iter().rposition(|byte| *byte == b'\n')?;
    let row = |line: &[u8]| {
        let mut columns = std::str::from_utf8(line).ok()?.split(',').map(|column| column.parse().ok());
        Some((columns.next()??, columns.next()??))
    };
    end[..complete].rsplit(|byte| *byte == b'\n').find_map(row)
}

/// Parses the content of the summary at `path`, without deriving anything.
pub(super) fn parse_summary(path: &Path, bytes: &[u8]) -> Result<Summary> {
    parse_json(path, bytes, "a summary")
}

/// Replaces the status `running` in a run's summary in place, for when no new file can be written, as on a
/// full disk. The text keeps its length, so the file does not grow.
///
/// # Errors
/// If the summary has another status, the new status is longer, or nothing can be written.
pub fn overwrite_running(run: &Path, status: Status) -> Result<()> {
    let path = run.join(SUMMARY);
    let before = format!("\"status\": \"{}\"", Status::Running.as_str());
    let after =
        format!("\"status\":{:>1$}", format!("\"{}\"", status.as_str()), before.len() - "\"status\":".len());
    let bytes = regular::read(&path, MAX_TEXT)?;
    let at = bytes.windows(before.len()).position(|window| window == before.as_bytes());
    let Some(at) = at.filter(|_| after.len() == before.len()) else {
        return Err(Error::failed(format!("{} cannot take the status {}", path.display(), status.as_str())));
    };
    let mut file = regular::open_own(File::options().write(true), &path)?;
    file.seek(SeekFrom::Start(at as u64)).at("seek in", &path)?;
    file.write_all(after.as_bytes()).at("write", &path)?;
    file.sync_data().at("sync", &path)
}

/// Locks any folder in the way that run folders are locked, until the returned file is dropped. This is a
/// lock of the operating system, so it ends with the process, even if the process is killed.
///
/// # Errors
/// If another process holds the folder, which the message names.
pub fn lock(folder: &Path) -> Result<File> {
    let path = folder.join(LOCK);
    let mut options = File::options();
    let mut file = regular::open_own(options.read(true).write(true).create(true).truncate(false), &path)?;
    match lock_unless_held(&file) {
        Err(TryLockError::WouldBlock) => Err(Error::failed(format!(
            "{} is in use by {}; wait for it to end, or stop it, and try again",
            folder.display(),
            owner_in_words(folder)
        ))),
        Err(TryLockError::Error(e)) => Err(e).at("lock", &path).map_err(Error::with_advice),
        Ok(()) => {
            let owner = Owner { pid: std::process::id(), host: host_name(), since: crate::format::now() };
            file.set_len(0).at("write", &path)?;
            file.write_all(&json(&owner)?).at("write", &path)?;
            Ok(file)
        }
    }
}

/// Locks a file unless another process holds it for longer than [`is_held`] takes to check it.
fn lock_unless_held(file: &File) -> std::result::Result<(), TryLockError> {
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            locked => return locked,
        }
    }
    file.try_lock()
}

/// The process that a folder's lock file names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedOwner {
    /// A description of the process.
    pub words: String,
    /// The process's host, if it is not this one.
    pub elsewhere: Option<String>,
}

/// Returns the process that a folder's lock file names: the one that holds the folder, or one that was
/// killed. A process that ends normally removes its record.
pub fn named_owner(folder: &Path) -> Option<NamedOwner> {
    let owner: Owner = serde_json::from_slice(&regular::read(&folder.join(LOCK), MAX_LOCK).ok()?).ok()?;
    let words = format!(
        "process {} on {} since {}",
        owner.pid,
        owner.host.as_deref().unwrap_or("this host"),
        owner.since.strftime("%Y-%m-%dT%H:%M:%SZ")
    );
    Some(NamedOwner { words, elsewhere: owner.host.filter(|host| Some(host) != host_name().as_ref()) })
}

/// Describes the process that holds a folder. If it has not written its record yet, it stays unnamed.
fn owner_in_words(folder: &Path) -> String {
    named_owner(folder).map_or_else(|| "another process".to_owned(), |owner| owner.words)
}

/// Returns a description of the process that holds a folder, if one does. Changes nothing.
pub(super) fn holder(run: &Path) -> Result<Option<String>> {
    Ok(is_held(run)?.then(|| owner_in_words(run)))
}

/// Returns true if a process works on a run or another folder that it has locked. Takes a shared lock, so
/// that concurrent checks do not block each other.
///
/// # Errors
/// If the lock cannot be read.
pub fn is_held(run: &Path) -> Result<bool> {
    let path = run.join(LOCK);
    if regular::is_missing(&path) {
        return Ok(false);
    }
    let file = regular::open_own(File::options().read(true), &path)?;
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(e)) => Err(e).at("lock", &path).map_err(Error::with_advice),
    }
}

/// Creates the new folder `PARENT/<UTC time>-<hash8>[-n]/`.
///
/// # Errors
/// If the folder cannot be created.
pub fn create_timed(parent: &Path, hash8: &str, now: Timestamp) -> Result<PathBuf> {
    std::fs::create_dir_all(parent).at("create", parent)?;
    let name = format!("{}-{hash8}", now.strftime("%Y%m%dT%H%M%SZ"));
    for attempt in 1..=MAX_SAME_SECOND {
        let path = match attempt {
            1 => parent.join(&name),
            n => parent.join(format!("{name}-{n}")),
        };
        match std::fs::create_dir(&path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            made => {
                made.at("create", &path)?;
                return Ok(path);
            }
        }
    }
    Err(Error::failed(format!("{} already holds {MAX_SAME_SECOND} folders named {name}", parent.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::all_escaped;
    use crate::results::rows::{MetricsRow, Phase, TimingRow};
    use crate::results::summary::Status;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn create(results: &Path, recipe: &str, time: &str, status: Status) -> RunFolder {
        let folder = RunFolder::create(results, recipe, "0123abcd", at(time)).unwrap();
        let mut summary = Summary::started(recipe, &folder.name(), "0123abcd", 10);
        summary.status = status;
        folder.write_summary(&summary).unwrap();
        folder
    }

    #[test]
    fn runs_of_one_second_get_folders_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..3)
            .map(|_| create(dir.path(), "my recipe", "2026-11-02T03:04:05.9Z", Status::Ok).name())
            .collect();
        assert_eq!(
            names,
            ["20261102T030405Z-0123abcd", "20261102T030405Z-0123abcd-2", "20261102T030405Z-0123abcd-3"]
        );
        assert!(dir.path().join("my-recipe").join(&names[2]).join(SUMMARY).exists());
    }

    #[test]
    fn many_at_once_never_share_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let now = at("2026-11-02T03:04:05Z");
        let folders: Vec<RunFolder> = std::thread::scope(|scope| {
            let create = || RunFolder::create(dir.path(), "r", "0123abcd", now).unwrap();
            let threads: Vec<_> = (0..32).map(|_| scope.spawn(create)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let names: std::collections::HashSet<String> = folders.iter().map(RunFolder::name).collect();
        assert_eq!(names.len(), 32);
    }

    #[test]
    fn a_second_opener_is_refused_with_the_owner_and_touches_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let folder = create(dir.path(), "r", "2026-11-02T03:04:05Z", Status::Running);
        let listing = || {
            let mut files: Vec<_> = std::fs::read_dir(folder.path())
                .unwrap()
                .map(|entry| entry.unwrap())
                .map(|entry| (entry.path(), std::fs::read(entry.path()).unwrap()))
                .collect();
            files.sort();
            files
        };
        let before = listing();
        let refused = RunFolder::open(folder.path()).unwrap_err();
        assert!(refused.message().contains(&format!("process {}", std::process::id())), "{refused}");
        assert_eq!(listing(), before);
        let path = folder.path().to_owned();
        drop(folder);
        RunFolder::open(&path).unwrap();
    }

    #[test]
    fn one_of_many_openers_wins() {
        let dir = tempfile::tempdir().unwrap();
        let path = create(dir.path(), "r", "2026-11-02T03:04:05Z", Status::Running).path().to_owned();
        let barrier = std::sync::Barrier::new(50);
        let opened: Vec<Result<RunFolder>> = std::thread::scope(|scope| {
            let open = || {
                barrier.wait();
                RunFolder::open(&path)
            };
            let threads: Vec<_> = (0..50).map(|_| scope.spawn(open)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(opened.iter().filter(|result| result.is_ok()).count(), 1);
        assert!(opened.iter().flat_map(Result::as_ref).all(|folder| folder.path() == path));
    }

    #[test]
    fn files_are_written_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let folder = create(dir.path(), "r", "2026-11-02T03:04:05Z", Status::Running);
        folder.write_recipe("[training]\nsteps = 1\n").unwrap();
        folder.log("loading\nthe corpus\n").unwrap();
        folder.log("training").unwrap();
        folder.log(&all_escaped()).unwrap();
        let log = std::fs::read_to_string(folder.path().join(LOG)).unwrap();
        let lines: Vec<&str> =
            log.lines().map(|line| line.split_once("Z ").map_or(line, |(_, text)| text)).collect();
        assert_eq!(lines, ["loading", "    the corpus", "training", &printable(&all_escaped())]);
        let environment = Environment::detect(1, at("2026-11-02T03:04:05Z"));
        folder.write_environment(&environment).unwrap();
        folder.write_environment(&environment).unwrap();
        assert!(folder.path().join("env.json").exists() && folder.path().join("env-2.json").exists());
        folder.start_rows::<MetricsRow>(METRICS).unwrap();
        let (_, cut) = RowWriter::<TimingRow>::resume(&folder.path().join(TIMING), 3, None, &[]).unwrap();
        assert!(cut.last.is_none_or(|row| row.phase == Phase::Train));
        assert_eq!(read_summary(folder.path()).unwrap().run, folder.name());
        assert!(folder.checkpoints().unwrap().is_dir());
    }

    #[test]
    fn the_status_is_overwritten_where_no_byte_fits() {
        for status in [Status::Unsaved, Status::Failed, Status::Oom, Status::Diverged] {
            let dir = tempfile::tempdir().unwrap();
            let folder = create(dir.path(), "r", "2026-11-02T03:04:05Z", Status::Running);
            let bytes = || std::fs::metadata(folder.path().join(SUMMARY)).unwrap().len();
            let before = bytes();
            overwrite_running(folder.path(), status).unwrap();
            assert_eq!((read_summary(folder.path()).unwrap().status, bytes()), (status, before));
            // A status that is not `running` stays.
            assert!(overwrite_running(folder.path(), Status::Failed).is_err());
            assert_eq!(read_summary(folder.path()).unwrap().status, status);
        }
    }

    #[test]
    fn impossible_names_and_folders_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["", ".", "..", "kept", "comparisons", "binaries", ".hidden", "///"] {
            assert!(
                RunFolder::create(dir.path(), name, "0123abcd", at("2026-11-02T03:04:05Z")).is_err(),
                "{name}"
            );
        }
        let error = RunFolder::open(dir.path()).unwrap_err();
        assert!(error.message().contains("not a run folder"), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a refusal leaves nothing behind");
    }
}
