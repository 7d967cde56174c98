//! Tokens of texts, kept between runs: a text is tokenized once for each tokenizer, and the cells of a sweep
//! and the arms of a comparison begin at once.
//!
//! An entry is found by the hash of all that it follows from, so it never is of another text, and its own
//! hash is verified before it is used. Where anything fails, the text is tokenized.

mod entry;
mod key;

use super::tokenizer::Tokenizer;
use crate::device::cuda::{TOKENS as ENDING, tokens_folder};
use crate::error::{Error, IoContext, Result};
use crate::liveness::report_progress;
pub(super) use entry::{Entry, Header};
use jiff::Timestamp;
pub(super) use key::{Key, Part};
use serde::Serialize;
use std::fs::{DirEntry, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// The variable that limits the size of the cache, in GiB.
pub const LIMIT_VARIABLE: &str = "XRUN_CACHE_GIB";

/// The size that the cache may have without the variable, in GiB.
const DEFAULT_GIB: f64 = 8.0;

/// Time that a process waits for another one that tokenizes the same text; then it does so itself.
const PATIENCE: Duration = Duration::from_secs(600);

/// Time between looks whether it is done.
const PERIOD: Duration = Duration::from_millis(50);

/// Age from which a file under its temporary name is one that a killed process left.
const LEFTOVER: Duration = Duration::from_secs(24 * 3600);

/// The tokens of a text.
#[derive(Debug, Default, PartialEq)]
pub(super) struct TextTokens {
    pub train: Vec<u32>,
    pub held_out: Vec<u32>,
    /// What else is known of it; the counts and the width are filled in where it is stored.
    pub header: Header,
}

/// A folder of cached tokens.
#[derive(Clone, Debug)]
pub struct TokenCache {
    folder: PathBuf,
    limit: u64,
}

/// An entry of the cache, for a person.
#[derive(Clone, Debug, Serialize)]
pub struct CachedText {
    /// Where the text was when it was tokenized; blank where the entry is damaged.
    pub text: Option<String>,
    /// What the tokenizer was called.
    pub tokenizer: Option<String>,
    /// Tokens.
    pub tokens: Option<u64>,
    /// Bytes of the entry.
    pub bytes: u64,
    /// The time of the last use.
    pub used: Timestamp,
    /// The file.
    pub path: PathBuf,
}

impl TokenCache {
    /// Returns the user's cache; `None` where the environment names no folder, or allows no byte.
    ///
    /// # Errors
    /// A usage error for a limit that is not a size.
    pub fn user() -> Result<Option<Self>> {
        let limit = limit(std::env::var(LIMIT_VARIABLE).ok().as_deref())?;
        Ok(tokens_folder().map(|folder| Self::new(folder, limit)).filter(|cache| cache.limit > 0))
    }

    /// Returns the cache in a folder, which may take `limit` bytes.
    pub fn new(folder: PathBuf, limit: u64) -> Self {
        Self { folder, limit }
    }

    /// Returns where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the bytes that it may take.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(&key.name).with_extension(ENDING)
    }

    /// Returns the tokens of a key, and a remark where an entry was damaged: from the cache, or as `make`
    /// makes them, which are stored. `reserve` gets the counts of tokens before they are read, and may refuse
    /// them. While another process makes the same tokens, this one waits.
    ///
    /// # Errors
    /// What `make` or `reserve` return.
    pub(super) fn tokens(
        &self,
        key: &Key,
        tokenizer: &Tokenizer,
        reserve: &dyn Fn(&mut TextTokens) -> Result<()>,
        make: impl FnOnce() -> Result<TextTokens>,
    ) -> Result<(TextTokens, Option<String>)> {
        let path = self.path(key);
        if let Read::Whole(tokens) = read(&path, reserve)? {
            return Ok((tokens, None));
        }
        // Where nothing can be written, nothing is stored.
        let lock = std::fs::create_dir_all(&self.folder).ok().and_then(|()| self.lock(key));
        // Another process may have made them meanwhile.
        let remark = match read(&path, reserve)? {
            Read::Whole(tokens) => return Ok((tokens, None)),
            Read::Missing => None,
            Read::Damaged => {
                Some(format!("the cached tokens {} are damaged: the text is tokenized again", path.display()))
            }
        };
        let mut made = make()?;
        (made.header.train, made.header.held_out) = (made.train.len() as u64, made.held_out.len() as u64);
        let (bytes, width) = entry::size(&made.header, tokenizer.vocab_size());
        made.header.width = width;
        if lock.is_some() && bytes <= self.limit && key.is_current() {
            // What cannot be stored is made again by the next run.
            let stored = entry::write(&path, &made.header, &made.train, &made.held_out);
            let _ = stored.and_then(|()| self.shrink(&path));
        }
        Ok((made, remark))
    }

    /// Waits for the lock of a key; `None` where there is none to get. The system releases the lock of a
    /// process that ends. Keys share a few files, which stay: one that is removed would be locked by some and
    /// made anew by others.
    fn lock(&self, key: &Key) -> Option<File> {
        let path = self.folder.join(format!("lock-{}", key.name.get(..2)?));
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path).ok()?;
        let began = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Some(file),
                Err(TryLockError::WouldBlock) if began.elapsed() < PATIENCE => {
                    report_progress();
                    std::thread::sleep(PERIOD);
                }
                Err(_) => return None,
            }
        }
    }

    /// Removes the entries that were not used for the longest time, until the others fit; `newest` stays.
    fn shrink(&self, newest: &Path) -> Result<()> {
        let mut entries = self.files()?;
        entries.sort_by_key(|(_, _, used)| *used);
        let mut total: u64 = entries.iter().map(|(_, bytes, _)| bytes).sum();
        for (path, bytes, used) in entries {
            let is_leftover = !is_entry(&path) && used.elapsed().is_ok_and(|age| age > LEFTOVER);
            if is_leftover || (total > self.limit && is_entry(&path) && path != newest) {
                remove(&path)?;
                total -= bytes;
            }
        }
        Ok(())
    }

    /// Returns the entries and files under temporary names, with their sizes and the times of their last use.
    fn files(&self) -> Result<Vec<(PathBuf, u64, SystemTime)>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.at("list", &self.folder)?,
        };
        let file = |entry: std::io::Result<DirEntry>| {
            let path = entry.ok()?.path();
            // Others may remove them meanwhile.
            let metadata = path.symlink_metadata().ok().filter(|metadata| metadata.is_file())?;
            let is_ours = is_entry(&path) || path.extension().is_some_and(|ending| ending == "tmp");
            is_ours.then(|| (path, metadata.len(), metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH)))
        };
        Ok(entries.filter_map(file).collect())
    }

    /// Returns the entries, the last used one first.
    ///
    /// # Errors
    /// When the folder cannot be read.
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

    /// Removes all entries, and returns their number and bytes. Runs that have begun have their tokens.
    ///
    /// # Errors
    /// When one cannot be removed.
    pub fn clear(&self) -> Result<(usize, u64)> {
        let files = self.files()?;
        files.iter().try_for_each(|(path, ..)| remove(path))?;
        let entries = files.iter().filter(|(path, ..)| is_entry(path));
        Ok((entries.count(), files.iter().map(|(_, bytes, _)| bytes).sum()))
    }
}

/// What is found under a key.
enum Read {
    Whole(TextTokens),
    Missing,
    Damaged,
}

fn read(path: &Path, reserve: &dyn Fn(&mut TextTokens) -> Result<()>) -> Result<Read> {
    let entry = match Entry::open(path) {
        Ok(entry) => entry,
        Err(e) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&e.kind()) => {
            return Ok(Read::Missing);
        }
        Err(_) => return Ok(Read::Damaged),
    };
    let mut tokens = TextTokens { header: entry.header.clone(), ..TextTokens::default() };
    reserve(&mut tokens)?;
    match entry.read(&mut tokens.train, &mut tokens.held_out) {
        Ok(true) => Ok(Read::Whole(tokens)),
        Ok(false) | Err(_) => Ok(Read::Damaged),
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

/// Returns the limit in bytes that the variable sets in GiB.
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
