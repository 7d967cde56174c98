//! The run folder: where everything of one run lies, held by one process at a time.

use super::comparison::{BINARIES, COMPARISONS};
use super::ledger::SWEEPS;
use super::provenance::{Environment, host_name};
use super::rows::{Cut, Row, RowWriter};
use super::summary::Summary;
use super::{atomic, find};
use crate::error::{Error, IoContext, Result};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// The recipe as written.
pub const RECIPE: &str = "recipe.toml";
/// The recipe with every value filled in.
pub const RESOLVED: &str = "resolved.toml";
/// The environment of the process that began the run; those that resumed it follow as `env-2.json` and so on.
pub const ENVIRONMENT: &str = "env.json";
/// The deterministic rows.
pub const METRICS: &str = "metrics.csv";
/// The measured rows.
pub const TIMING: &str = "timing.csv";
/// How the run went.
pub const SUMMARY: &str = "summary.json";
/// Plain log lines.
pub const LOG: &str = "log";
/// How a GPU computed products.
pub const ALGORITHMS: &str = "algorithms.json";
/// Checkpoints.
pub const CHECKPOINT: &str = "checkpoint";
/// Pictures.
pub const PLOTS: &str = "plots";
/// Where `xrun keep` stores runs beneath the results folder; no recipe may be called so.
pub const KEPT: &str = "kept";

const LOCK: &str = "lock";

/// Two runs of one recipe that begin in the same second get `-2`, `-3` …; so many at once are a mistake.
const MAX_SAME_SECOND: u32 = 10_000;

/// Who holds a run folder.
#[derive(Debug, Serialize, Deserialize)]
struct Owner {
    pid: u32,
    host: Option<String>,
    since: Timestamp,
}

/// A run folder that this process holds. Dropping it lets go.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    log: File,
    lock: File,
}

impl RunFolder {
    /// Makes `RESULTS/RECIPE/<UTC time>-<hash8>[-n]/` and takes hold of it. An existing folder is never reused.
    ///
    /// `recipe` is the recipe's name; characters other than letters, digits, `.`, `_` and `-` become `-`. `hash8` is
    /// the beginning of the resolved recipe's hash, in hexadecimal.
    pub fn create(results: &Path, recipe: &str, hash8: &str, now: Timestamp) -> Result<Self> {
        let path = create_timed(&results.join(folder_name(recipe)?), hash8, now)?;
        let folder = Self::hold(&path)?;
        // Wherever the results folder lies, what is large or local stays out of version control.
        let ignored = format!("/{CHECKPOINT}/\n/{LOCK}\n");
        std::fs::write(path.join(".gitignore"), ignored).at("write", &path)?;
        Ok(folder)
    }

    /// Takes hold of an existing run folder, to resume the run or to read it undisturbed.
    ///
    /// Errors: not a run folder; in use by another process, which the message names. Nothing is changed then.
    pub fn open(path: &Path) -> Result<Self> {
        let summary = path.join(SUMMARY);
        if !summary.is_file() {
            return Err(Error::usage(format!(
                "{} is no run folder: it has no {SUMMARY}; `xrun` writes run folders to results/RECIPE/RUN",
                path.display()
            )));
        }
        Self::hold(path)
    }

    /// The newest run below `results` that could be taken further and that nobody holds. Several may look at once.
    pub fn newest_unfinished(results: &Path) -> Result<Option<PathBuf>> {
        for path in find::runs(results)? {
            if !read_summary(&path)?.status.is_unfinished() {
                continue;
            }
            // It may have been finished between the first look and the second.
            if !is_held(&path)? && read_summary(&path)?.status.is_unfinished() {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    fn hold(path: &Path) -> Result<Self> {
        match try_lock(path)? {
            Ok(lock) => Self::with_lock(path, lock),
            Err(owner) => Err(Error::failed(format!(
                "{} is in use by {owner}; wait for it to end, or stop it, and try again",
                path.display()
            ))),
        }
    }

    fn with_lock(path: &Path, mut lock: File) -> Result<Self> {
        sign(&mut lock, path)?;
        atomic::clear_leftovers(path)?;
        if path.join(PLOTS).is_dir() {
            atomic::clear_leftovers(&path.join(PLOTS))?;
        }
        let log = path.join(LOG);
        let log = OpenOptions::new().append(true).create(true).open(&log).at("open", &log)?;
        Ok(Self { path: path.to_owned(), log, lock })
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The run's name: the last part of the path.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Writes the recipe as the user wrote it.
    pub fn write_recipe(&self, text: &str) -> Result<()> {
        atomic::write(&self.path.join(RECIPE), text.as_bytes())
    }

    /// Writes the resolved recipe.
    pub fn write_resolved(&self, text: &str) -> Result<()> {
        atomic::write(&self.path.join(RESOLVED), text.as_bytes())
    }

    /// Writes the environment of this process: `env.json`, or `env-2.json` … where the run was resumed.
    pub fn write_environment(&self, environment: &Environment) -> Result<()> {
        let mut path = self.path.join(ENVIRONMENT);
        let mut process = 1;
        while path.exists() {
            process += 1;
            path = self.path.join(format!("env-{process}.json"));
        }
        atomic::write(&path, &json(environment)?)
    }

    /// Replaces the summary; a reader sees the old one or the new one.
    pub fn write_summary(&self, summary: &Summary) -> Result<()> {
        atomic::write(&self.path.join(SUMMARY), &json(summary)?)
    }

    /// Reads the summary.
    pub fn summary(&self) -> Result<Summary> {
        read_summary(&self.path)
    }

    /// Appends a line to the log, with the time in front.
    pub fn log(&self, text: &str) -> Result<()> {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
        let line = format!("{now} {}\n", text.trim_end().replace('\n', "\n    "));
        (&self.log).write_all(line.as_bytes()).at("write", &self.path.join(LOG))
    }

    /// Starts the file of a row type: [`METRICS`] or [`TIMING`].
    pub fn start_rows<R: Row>(&self, file: &str) -> Result<RowWriter<R>> {
        RowWriter::create(&self.path.join(file))
    }

    /// Continues the file of a row type after a checkpoint of `step`; see [`RowWriter::resume`].
    pub fn resume_rows<R: Row>(&self, file: &str, step: u64) -> Result<(RowWriter<R>, Cut<R>)> {
        RowWriter::resume(&self.path.join(file), step)
    }

    /// The folder for checkpoints, made on first use.
    pub fn checkpoints(&self) -> Result<PathBuf> {
        let path = self.path.join(CHECKPOINT);
        std::fs::create_dir_all(&path).at("create", &path)?;
        Ok(path)
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        // The lock ends with the file in any case; the record only serves the message of whoever is refused.
        let _ = self.lock.set_len(0);
    }
}

/// Reads the summary of a run, without taking hold of it.
pub fn read_summary(run: &Path) -> Result<Summary> {
    let path = run.join(SUMMARY);
    let text = std::fs::read(&path).at("read", &path)?;
    serde_json::from_slice(&text)
        .map_err(|e| Error::failed(format!("{}:{}: not a summary: {e}", path.display(), e.line())))
}

/// Takes hold of any folder as a run does of its own, until the file is dropped.
///
/// # Errors
/// When another process holds it, which the message names.
pub fn lock(folder: &Path) -> Result<File> {
    match try_lock(folder)? {
        Ok(mut lock) => sign(&mut lock, folder).map(|()| lock),
        Err(owner) => Err(Error::failed(format!("{} is in use by {owner}", folder.display()))),
    }
}

/// Writes into a folder's lock who holds it.
fn sign(lock: &mut File, folder: &Path) -> Result<()> {
    let owner = Owner { pid: std::process::id(), host: host_name(), since: Timestamp::now() };
    let file = folder.join(LOCK);
    lock.set_len(0).at("write", &file)?;
    lock.write_all(&json(&owner)?).at("write", &file)
}

/// Locks a folder, or says in words who holds it.
///
/// The lock is the operating system's, so that it ends with the process however that ends.
fn try_lock(run: &Path) -> Result<Result<File, String>> {
    let path = run.join(LOCK);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .at("open", &path)?;
    match file.try_lock() {
        Ok(()) => Ok(Ok(file)),
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            // The owner may be about to write its record; then it stays unnamed.
            let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
            let owner = read.ok().and_then(|_| serde_json::from_str::<Owner>(&text).ok());
            Ok(Err(owner.map_or("another process".to_owned(), |owner| {
                format!(
                    "process {} on {} since {}",
                    owner.pid,
                    owner.host.as_deref().unwrap_or("this host"),
                    owner.since.strftime("%Y-%m-%dT%H:%M:%SZ")
                )
            })))
        }
        Err(TryLockError::Error(e)) => Err(e).at("lock", &path),
    }
}

/// Whether a process holds a folder. Those that look do not stand in each other's way.
fn is_held(run: &Path) -> Result<bool> {
    let path = run.join(LOCK);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e).at("open", &path),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(e)) => Err(e).at("lock", &path),
    }
}

/// Makes `PARENT/<UTC time>-<hash8>[-n]/`, a folder that was not there before.
///
/// # Errors
/// When it cannot be made.
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
    Err(Error::failed(format!("{} already holds {MAX_SAME_SECOND} named {name}", parent.display())))
}

/// A recipe's name as a folder name.
///
/// # Errors
/// For a name that nothing is left of, or that means something else in a results folder.
pub fn folder_name(recipe: &str) -> Result<String> {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = recipe.chars().map(plain).collect();
    let taken = [KEPT, SWEEPS, COMPARISONS, BINARIES].contains(&name.as_str());
    if taken || name.trim_matches(['.', '-']).is_empty() || name.starts_with('.') {
        return Err(Error::usage(format!(
            "`{recipe}` names no folder in the results: a name has a letter from a to z or a digit, begins without a dot, and \
             is none of {KEPT}, {SWEEPS}, {COMPARISONS} and {BINARIES}; choose another one"
        )));
    }
    Ok(name)
}

/// Pretty JSON with a final newline.
pub(super) fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes =
        serde_json::to_vec_pretty(value).map_err(|e| Error::failed(format!("cannot write JSON: {e}")))?;
    bytes.push(b'\n');
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::rows::{MetricsRow, Phase, TimingRow};
    use crate::results::summary::Status;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn create(results: &Path, recipe: &str, time: &str, status: Status) -> RunFolder {
        let folder = RunFolder::create(results, recipe, "0123abcd", at(time)).unwrap();
        let mut summary = Summary::begin(recipe, &folder.name(), "0123abcd", 10);
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
    fn of_many_openers_one_wins() {
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
    fn the_newest_unfinished_run_is_found_and_running_ones_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        assert!(RunFolder::newest_unfinished(&dir.path().join("none")).unwrap().is_none());
        create(dir.path(), "a", "2026-11-01T00:00:00Z", Status::Interrupted);
        let expected = create(dir.path(), "b", "2026-11-02T00:00:00Z", Status::Running).path().to_owned();
        create(dir.path(), "a", "2026-11-03T00:00:00Z", Status::Ok);
        create(dir.path(), "a", "2026-11-04T00:00:00Z", Status::Diverged);
        let held = create(dir.path(), "a", "2026-11-05T00:00:00Z", Status::Running);
        let found = RunFolder::newest_unfinished(dir.path()).unwrap().unwrap();
        assert_eq!(found, expected);
        let path = held.path().to_owned();
        drop(held);
        assert_eq!(RunFolder::newest_unfinished(dir.path()).unwrap(), Some(path));
    }

    #[test]
    fn files_are_written_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let folder = create(dir.path(), "r", "2026-11-02T03:04:05Z", Status::Running);
        folder.write_recipe("[training]\nsteps = 1\n").unwrap();
        folder.log("loading\nthe corpus\n").unwrap();
        folder.log("training").unwrap();
        let log = std::fs::read_to_string(folder.path().join(LOG)).unwrap();
        let lines: Vec<&str> =
            log.lines().map(|line| line.split_once("Z ").map_or(line, |(_, text)| text)).collect();
        assert_eq!(lines, ["loading", "    the corpus", "training"]);
        let environment = Environment::detect(1, at("2026-11-02T03:04:05Z"));
        folder.write_environment(&environment).unwrap();
        folder.write_environment(&environment).unwrap();
        assert!(folder.path().join("env.json").exists() && folder.path().join("env-2.json").exists());
        folder.start_rows::<MetricsRow>(METRICS).unwrap();
        let (_, cut) = folder.resume_rows::<TimingRow>(TIMING, 3).unwrap();
        assert!(cut.last.is_none_or(|row| row.phase == Phase::Train));
        assert_eq!(folder.summary().unwrap().run, folder.name());
        assert!(folder.checkpoints().unwrap().is_dir());
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
        assert!(error.message().contains("no run folder"), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a refusal leaves nothing behind");
    }
}
