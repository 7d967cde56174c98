//! Caches the tokens of texts between runs. A text is tokenized once per tokenizer, and the cells of a sweep
//! and the arms of a comparison start without tokenizing it again.
//!
//! An entry is found by the hash of everything it depends on, so it cannot belong to another text, and its
//! own hash is verified before it is used. If anything fails, the text is tokenized.

mod entry;
mod follower;
mod journal;
mod key;

use super::split::TokenSink;
use super::tokenizer::Tokenizer;
use crate::device::cuda::{TOKENS as ENDING, tokens_folder};
use crate::error::{Error, IoContext, Result};
use crate::liveness::report_progress;
use crate::regular;
use entry::Written;
pub(super) use entry::{Entry, Header, TextTokens};
pub(super) use follower::{Arrived, Follower};
use jiff::Timestamp;
pub(super) use journal::Journal;
pub(super) use key::{Key, Part, is_cached};
use serde::Serialize;
use std::fs::{DirEntry, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// The environment variable that limits the size of the cache, in GiB.
pub const LIMIT_VARIABLE: &str = "XRUN_CACHE_GIB";

/// Size limit of the cache if the variable is not set, in GiB.
const DEFAULT_GIB: f64 = 8.0;

/// How long a process waits for another one that tokenizes the same text and makes no progress, before it
/// does so itself.
const LOCK_TIMEOUT: Duration = Duration::from_secs(600);

/// Time between checks of the lock.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Endings of files that an interrupted process left: one of this version, or of an earlier one.
const UNFINISHED: [&str; 3] = [journal::TOKENS_ENDING, journal::JOURNAL_ENDING, "tmp"];

/// Work that was interrupted longer ago than this is removed.
const LEFTOVER_AGE: Duration = Duration::from_secs(24 * 3600);

/// A folder of cached tokens.
#[derive(Clone, Debug)]
pub struct TokenCache {
    /// The folder.
    pub folder: PathBuf,
    /// Size limit in bytes.
    pub limit: u64,
    /// Set when nobody needs the tokens any more that are being made.
    pub(super) cancelled: Option<Arc<AtomicBool>>,
}

/// A cache entry as it is shown to the user.
#[derive(Clone, Debug, Serialize)]
pub struct CachedText {
    /// Path of the text when it was tokenized; `None` if the entry is damaged.
    pub text: Option<String>,
    /// Name of the tokenizer; `None` if the entry is damaged.
    pub tokenizer: Option<String>,
    /// Number of tokens; `None` if the entry is damaged.
    pub tokens: Option<u64>,
    /// Size of the entry in bytes.
    pub bytes: u64,
    /// Time of the last use.
    pub used: Timestamp,
    /// Path of the entry.
    pub path: PathBuf,
}

impl TokenCache {
    /// Returns the user's cache; `None` if the environment names no folder or sets the limit to 0.
    ///
    /// # Errors
    /// A usage error if the limit is not a size.
    pub fn user() -> Result<Option<Self>> {
        let limit = limit(std::env::var(LIMIT_VARIABLE).ok().as_deref())?;
        Ok(tokens_folder().map(|folder| Self::new(folder, limit)).filter(|cache| cache.limit > 0))
    }

    /// Returns the cache in a folder, limited to `limit` bytes.
    pub fn new(folder: PathBuf, limit: u64) -> Self {
        Self { folder, limit, cancelled: None }
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(key.name()).with_extension(ENDING)
    }

    /// Returns true if the tokens of a key were stored.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.path(key).exists()
    }

    /// Returns the tokens of a key: from the cache, or stored now while `make` hands them to its sink, one
    /// split behind the other. `None` if they cannot be stored. The second value is a remark if an entry was
    /// damaged. While another process makes the same tokens, this one waits.
    ///
    /// If the entry is larger than the whole cache may be, or the text has changed meanwhile, the entry is
    /// removed at once, and its tokens stay on the disk as long as they are open.
    ///
    /// # Errors
    /// If `make` fails.
    pub(super) fn tokens(
        &self,
        key: &Key,
        tokenizer: &Tokenizer,
        make: impl FnOnce(&mut TokenSink<'_>, &mut Journal) -> Result<Header>,
    ) -> Result<Option<(TextTokens, Option<String>)>> {
        let path = self.path(key);
        if let Read::Whole(tokens) = read(&path) {
            return Ok(Some((*tokens, None)));
        }
        let folder = std::fs::create_dir_all(&self.folder).ok();
        let Some(_lock) = folder.map(|()| self.lock(key)).transpose()?.flatten() else { return Ok(None) };
        // Another process may have made the tokens while this one waited.
        let remark = match read(&path) {
            Read::Whole(tokens) => return Ok(Some((*tokens, None))),
            Read::Missing => None,
            Read::Damaged => {
                Some(format!("the cached tokens {} are damaged: the text is tokenized again", path.display()))
            }
        };
        let make = |sink: &mut TokenSink<'_>, journal: &mut Journal| {
            let mut unless_cancelled = |split, tokens: &[u32]| {
                self.check_cancelled()?;
                sink(split, tokens)
            };
            make(&mut unless_cancelled, journal)
        };
        let Written::Whole = entry::write(&path, tokenizer.vocab_size(), make)? else { return Ok(None) };
        let Read::Whole(tokens) = read(&path) else { return Ok(None) };
        let is_kept = path.metadata().is_ok_and(|file| file.len() <= self.limit) && key.is_current();
        // If nothing can be removed, the cache is larger than it should be.
        let _ = if is_kept { self.shrink(&path) } else { remove(&path) };
        Ok(Some((*tokens, remark)))
    }

    fn check_cancelled(&self) -> Result<()> {
        match &self.cancelled {
            Some(cancelled) if cancelled.load(Ordering::Relaxed) => {
                Err(Error::failed("nobody needs the rest of the tokens"))
            }
            _ => Ok(()),
        }
    }

    /// Waits for the lock of a key; `None` if it cannot be had. The OS releases the lock of a process that
    /// ends. Many keys share a few lock files, which are never removed: if one were, some processes would
    /// lock the old file and others a new one.
    fn lock(&self, key: &Key) -> Result<Option<File>> {
        let path = self.folder.join(format!("lock-{:.2}", key.name()));
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let Ok(file) = regular::open_own(options, &path) else { return Ok(None) };
        let (mut began, mut length) = (Instant::now(), None);
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(file)),
                Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_TIMEOUT => {
                    self.check_cancelled()?;
                    report_progress();
                    std::thread::sleep(POLL_INTERVAL);
                }
                Err(_) => return Ok(None),
            }
            let now =
                self.path(key).with_extension(journal::TOKENS_ENDING).metadata().ok().map(|file| file.len());
            if now != length {
                (began, length) = (Instant::now(), now);
            }
        }
    }

    /// Removes the least recently used entries until the rest fit. `newest` always stays.
    fn shrink(&self, newest: &Path) -> Result<()> {
        let mut entries = self.files()?;
        entries.sort_by_key(|(_, _, used)| *used);
        let mut total: u64 = entries.iter().map(|(_, bytes, _)| bytes).sum();
        for (path, bytes, used) in entries {
            let is_leftover = !is_entry(&path) && used.elapsed().is_ok_and(|age| age > LEFTOVER_AGE);
            if is_leftover || (total > self.limit && is_entry(&path) && path != newest) {
                remove(&path)?;
                total -= bytes;
            }
        }
        Ok(())
    }

    /// Returns the entries and temporary files, with their sizes and times of last use.
    fn files(&self) -> Result<Vec<(PathBuf, u64, SystemTime)>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.at("list", &self.folder)?,
        };
        let file = |entry: std::io::Result<DirEntry>| {
            let path = entry.ok()?.path();
            // Another process may remove a file meanwhile.
            let metadata = path.symlink_metadata().ok().filter(|metadata| metadata.is_file())?;
            let is_ours = is_entry(&path)
                || path.extension().is_some_and(|ending| UNFINISHED.iter().any(|own| ending == *own));
            // An entry's time of last use is that of the last read; see `Entry::verified`.
            let times = [metadata.accessed(), metadata.modified()].into_iter().flatten();
            is_ours.then(|| (path, metadata.len(), times.max().unwrap_or(SystemTime::UNIX_EPOCH)))
        };
        Ok(entries.filter_map(file).collect())
    }

    /// Returns the entries, most recently used first.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn entries(&self) -> Result<Vec<CachedText>> {
        let mut entries = self.files()?;
        entries.retain(|(path, ..)| is_entry(path));
        entries.sort_by_key(|(_, _, used)| std::cmp::Reverse(*used));
        let shown = |(path, bytes, used): (PathBuf, u64, SystemTime)| {
            let header = Entry::open(&path).ok().map(|entry| entry.header);
            CachedText {
                tokens: header.as_ref().map(|header| header.train + header.held_out),
                tokenizer: header.as_ref().map(|header| header.tokenizer.clone()),
                text: header.map(|header| header.text),
                bytes,
                used: Timestamp::try_from(used).unwrap_or_default(),
                path,
            }
        };
        Ok(entries.into_iter().map(shown).collect())
    }

    /// Removes all entries and returns their number and bytes. Runs that have started are not affected: they
    /// hold their entries open.
    ///
    /// # Errors
    /// If an entry cannot be removed.
    pub fn clear(&self) -> Result<(usize, u64)> {
        let files = self.files()?;
        files.iter().try_for_each(|(path, ..)| remove(path))?;
        let entries = files.iter().filter(|(path, ..)| is_entry(path));
        Ok((entries.count(), files.iter().map(|(_, bytes, _)| bytes).sum()))
    }
}

/// What the cache holds under a key.
enum Read {
    Whole(Box<TextTokens>),
    Missing,
    Damaged,
}

fn read(path: &Path) -> Read {
    if regular::is_missing(path) {
        return Read::Missing;
    }
    match Entry::open(path).and_then(Entry::verified) {
        Ok(Some(tokens)) => Read::Whole(Box::new(tokens)),
        Ok(None) | Err(_) => Read::Damaged,
    }
}

fn is_entry(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == ENDING)
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.at("remove", path),
    }
}

/// Converts the variable's limit from GiB to bytes.
fn limit(variable: Option<&str>) -> Result<u64> {
    let text = variable.map(str::trim).filter(|text| !text.is_empty());
    let gib = text.map_or(Ok(DEFAULT_GIB), str::parse::<f64>);
    match gib {
        Ok(gib) if (0.0..=1e6).contains(&gib) => Ok((gib * f64::from(1 << 30)) as u64),
        _ => Err(Error::usage(format!(
            "{LIMIT_VARIABLE} = {}: give the GiB that cached tokens may take, such as 4 or 0.5; 0 caches none",
            text.unwrap_or_default()
        ))),
    }
}

#[cfg(test)]
mod tests;
