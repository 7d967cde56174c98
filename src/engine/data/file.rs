//! A file of a corpus, which is read at offsets and must not change from the first read to the last.
//!
//! Files are not memory-mapped: if a mapped file shrinks, the process dies of SIGBUS, and if it is rewritten,
//! the data changes under the reader.

use crate::error::{Error, IoContext, Result};
use crate::regular;
use jiff::Timestamp;
use std::fs::{File, FileTimes, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// The most files of a corpus that are held open. If there are more, they are opened for every read, because
/// a process can often have only 1,024 open files.
const MAX_HELD: usize = 128;

/// Number of files that were opened so far.
static OPENED: AtomicU64 = AtomicU64::new(0);

/// A file that must not change while it is in use.
#[derive(Debug)]
pub(super) struct CorpusFile {
    /// Number of the file among all that were opened.
    id: u64,
    path: PathBuf,
    stamp: Stamp,
    /// The open file; `None` if it is opened for every read.
    held: Option<File>,
    /// True if the file may lose its name while it is in use: what is read is the open file.
    may_be_removed: bool,
}

/// Size and time of the last write. Every write to the file changes at least the time, which file
/// systems may store in steps of 10 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    /// Time of the last write: seconds since 1970, and nanoseconds.
    modified: (i64, i64),
}

impl Stamp {
    fn from_metadata(metadata: &Metadata) -> Self {
        Self { bytes: metadata.len(), modified: (metadata.mtime(), metadata.mtime_nsec()) }
    }
}

impl std::fmt::Display for Stamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (seconds, nanoseconds) = self.modified;
        write!(f, "{} bytes, written at ", self.bytes)?;
        match jiff::Timestamp::new(seconds, i32::try_from(nanoseconds).unwrap_or_default()) {
            Ok(time) => write!(f, "{time}"),
            Err(_) => write!(f, "{seconds} s after 1970"),
        }
    }
}

/// A corpus file with its size and time of last write, to store with a run and to find changes later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStamp {
    /// Path of the file.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// Time of the last write, to the second.
    pub modified: Timestamp,
}

impl FileStamp {
    /// Returns the stamp of the file at a path.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(super) fn from_path(path: PathBuf) -> Result<Self> {
        let Stamp { bytes, modified: (seconds, _) } =
            Stamp::from_metadata(&path.metadata().at("read", &path)?);
        Ok(Self { path, bytes, modified: Timestamp::from_second(seconds).unwrap_or_default() })
    }
}

impl CorpusFile {
    /// Opens the files of a corpus, in order.
    ///
    /// # Errors
    /// If a file cannot be read, or is not a regular file.
    pub fn open_all(paths: Vec<PathBuf>) -> Result<Vec<Self>> {
        let hold = paths.len() <= MAX_HELD;
        paths.into_iter().map(|path| Self::open(path, hold)).collect()
    }

    fn open(path: PathBuf, hold: bool) -> Result<Self> {
        let file = regular::open_through_link(&path).map_err(|e| Error::usage(e.message()))?;
        let stamp = Stamp::from_metadata(&file.metadata().at("read", &path)?);
        let id = OPENED.fetch_add(1, Ordering::Relaxed);
        Ok(Self { id, path, stamp, held: hold.then_some(file), may_be_removed: false })
    }

    /// Opens a file of a cache. It stays readable when another process removes it from the cache.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a regular file.
    pub fn open_cached(path: &Path) -> Result<Self> {
        let id = OPENED.fetch_add(1, Ordering::Relaxed);
        let file = regular::open(path)?;
        let stamp = Stamp::from_metadata(&file.metadata().at("read", path)?);
        Ok(Self { id, path: path.to_owned(), stamp, held: Some(file), may_be_removed: true })
    }

    /// Sets the time of the last read to now, as far as the file system allows it.
    pub fn set_read_now(&self) {
        let now = FileTimes::new().set_accessed(SystemTime::now());
        let _ = self.held.as_ref().map(|file| file.set_times(now));
    }

    /// Returns a number that no other opened file has, even one at the same path.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the path from which the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the size in bytes when the file was opened.
    pub fn bytes(&self) -> u64 {
        self.stamp.bytes
    }

    /// Returns true if the file is held open, false if every read opens it.
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// If the file was written to since the corpus was opened, or cannot be read. If reads open the file,
    /// also if it was replaced or removed.
    pub fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let opened;
        let file = match &self.held {
            Some(file) => file,
            None => {
                opened = regular::open_through_link(&self.path)?;
                &opened
            }
        };
        let read = file.read_exact_at(out, offset);
        // Compare after the read: a write sets the time before it changes a byte, so if the read got a new
        // byte, the time is new by now.
        self.compare(&file.metadata().at("read", &self.path)?)?;
        read.at("read", &self.path)
    }

    /// Checks that the file at the path still has the size and the time of last write that it had when it was
    /// opened.
    ///
    /// # Errors
    /// If the file was written to, or, unless it is one of a cache, replaced or removed.
    pub fn check(&self) -> Result<()> {
        let metadata = match &self.held {
            Some(file) if self.may_be_removed => file.metadata(),
            _ => self.path.metadata(),
        };
        self.compare(&metadata.at("read", &self.path)?)
    }

    fn compare(&self, metadata: &Metadata) -> Result<()> {
        let now = Stamp::from_metadata(metadata);
        if now == self.stamp {
            return Ok(());
        }
        Err(Error::failed(format!(
            "{} changed while it was in use: it had {}, and now has {now}. A run reads one corpus from its first step to \
             its last: put the file back as it was and resume the run, or begin another",
            self.path.display(),
            self.stamp
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: usize) -> (tempfile::TempDir, Vec<PathBuf>) {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = (0..files).map(|i| dir.path().join(format!("{i:03}.txt"))).collect();
        paths.iter().enumerate().for_each(|(i, path)| std::fs::write(path, format!("file {i:03}")).unwrap());
        (dir, paths)
    }

    fn read(file: &CorpusFile) -> Result<String> {
        let mut out = [0; 3];
        file.read_exact_at(5, &mut out)?;
        Ok(String::from_utf8(out.to_vec()).unwrap())
    }

    /// A read notices a change, and so does a check without a read, whether files are held open or opened for
    /// every read.
    #[test]
    fn a_change_is_an_error_that_names_the_file() {
        for files in [1, MAX_HELD + 1] {
            for change in ["overwritten", "truncated", "grown", "replaced", "removed"] {
                let (dir, paths) = folder(files);
                let opened = CorpusFile::open_all(paths.clone()).unwrap();
                assert_eq!(opened[0].held.is_some(), files == 1);
                assert_eq!(read(&opened[0]).unwrap(), "000");
                opened[0].check().unwrap();
                // File systems may store the time of a write in steps of 10 ms, so wait longer than a step.
                std::thread::sleep(std::time::Duration::from_millis(20));
                match change {
                    "overwritten" => std::fs::write(&paths[0], "file 999").unwrap(),
                    "truncated" => std::fs::write(&paths[0], "file").unwrap(),
                    "grown" => std::fs::write(&paths[0], "file 000 and more").unwrap(),
                    "replaced" => {
                        std::fs::write(dir.path().join("other"), "file 111").unwrap();
                        std::fs::rename(dir.path().join("other"), &paths[0]).unwrap();
                    }
                    _ => std::fs::remove_file(&paths[0]).unwrap(),
                }
                let error = opened[0].check().expect_err(change);
                assert!(error.message().contains("000.txt"), "{change}: {error}");
                // A file that is held open stays readable after its name refers to another file.
                let own = files == 1 && ["replaced", "removed"].contains(&change);
                assert_eq!(read(&opened[0]).is_ok_and(|text| text == "000"), own, "{change} of {files}");
                assert!(own || read(&opened[0]).is_err(), "{change} of {files}");
            }
        }
    }

    #[test]
    fn non_files_are_refused_without_blocking() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        for path in [path, PathBuf::from("/dev/zero"), dir.path().to_owned()] {
            let error = CorpusFile::open_all(vec![path]).unwrap_err();
            assert!(error.message().contains("not a regular file"), "{error}");
        }
        assert!(CorpusFile::open_all(vec![dir.path().join("none")]).is_err());
    }
}
